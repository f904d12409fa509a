"""What a compiled program says of arguments that it was not compiled for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import emmy
from emmy.errors import EmmyError

X = torch.zeros(2, 3)


@pytest.mark.parametrize("arguments, said", [((), "takes 1 tensors \\(x0\\), not 0"),
                                             ((X, X), "not 2"),
                                             ((3,), "argument x0 is int, not a tensor"),
                                             (([1.0],), "argument x0 is list, not a tensor"),
                                             ((X.T,), r"float32\[3, 2\]; .* float32\[2, 3\]"),
                                             ((X.double(),), r"float64\[2, 3\]; .* float32\[2, 3\]")])
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(EmmyError, match=said):
        emmy.compile_snippet("torch.randn(2, 3) + 1")(*arguments)


def test_tensors_that_lie_in_another_order_are_read_and_written_where_they_lie() -> None:
    """channels_last: weights, inputs and results; the program sees them row-major, and nothing is copied for that."""
    model = torch.nn.Conv2d(16, 8, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 6, 5).to(memory_format=torch.channels_last)
    program = emmy.compile(model, x)
    assert program.plan.buffer("input").shape == (2, 6, 5, 16) and program.plan.buffer("weight").shape == (8, 3, 3, 16)
    assert [program.plan.buffer(n).shape for n in program.plan.outputs] == [(2, 6, 5, 8)]
    wanted = model(x)
    for given in (x, x.contiguous()):
        made = program(given)
        assert made.stride() == wanted.stride()
        torch.testing.assert_close(made, wanted)
    with pytest.raises(EmmyError, match=r"argument input is float32\[2, 6, 4, 16\]"):
        program(x[..., :4])


def test_some_of_several_results_lie_in_another_order() -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t() + 1, y * 2, (x.t() + y).t()

    x, y = torch.randn(3, 5), torch.randn(5, 3)
    program = emmy.compile(several, x, y)
    for made, wanted in zip(program(x, y), several(x, y), strict=True):
        assert made.stride() == wanted.stride()
        torch.testing.assert_close(made, wanted)
