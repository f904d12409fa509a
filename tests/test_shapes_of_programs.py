"""Programs of unusual shape: results that are arguments, constants or repeated; unused arguments; long, wide and fanned-out ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from emmy.pipeline import compile
from tests.stopwatch import seconds
from tests.test_programs import assert_accurate

X, Y = torch.linspace(-2, 2, 165).reshape(5, 33), torch.linspace(1, 3, 165).reshape(5, 33).flip(1)
K = torch.arange(-14, 14).reshape(4, 7)


def repeated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y, y, y * 2, x + 1


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for k in range(20):
        x = torch.tanh(x + y) * x + y * k
    return x


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Rows and columns in turn (Sinkhorn and Knopp, 1967), by their logarithms."""
    for _ in range(10):
        x = x - x.logsumexp(1, keepdim=True)
        x = x.log_softmax(0)
    return x.exp()


def wide(x: torch.Tensor) -> torch.Tensor:
    return sum((x * k).sin() for k in range(32))     # type: ignore[return-value]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "argument": (lambda x: (x, x + 1), (X,)),
    "repeated": (repeated, (X,)),
    "unused": (lambda x, y: x.exp(), (X, Y)),
    "constants": (lambda x: (torch.arange(7), x * 2, torch.tensor(3.0)), (X,)),
    "scalar": (lambda x: (x.abs().sum(), x.abs().mean() * x), (X,)),     # of numbers that do not cancel, whatever the order
    "fan_out": (lambda x: tuple(x.exp() * k for k in range(16)), (X,)),
    "chain": (chain, (X, Y)),
    "wide": (wide, (X,)),
    "normalised": (normalised, (X,)),
    "long": (lambda x: [x := x + k for k in range(320)][-1], (X,)),
    "integers": (lambda i: (i * 3 - 1, i // 2, i % 3, i.sum(), i.amax(0), i > 2, (i > 0) & (i < 5), i @ i.t()), (K,)),
    "double": (lambda x, y: (x @ y.t()).softmax(-1) @ y, (X.double(), Y.double())),
    "gathered": (lambda x, i: x[i % 5].sum(1).softmax(-1), (X, K)),
    "scans": (lambda x: (x.cumsum(1).softmax(-1), x.flip(1).cumsum(1).flip(1) * x), (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    fn, tensors = PROGRAMS[name]
    assert seconds(lambda: None, lambda _: compile(fn, *tensors).kernels, 10) < 10
    program = compile(fn, *tensors)
    assert_accurate(program, program.captured.tensors)
    found, wanted = program(*tensors), fn(*tensors)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    assert all(a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride() for a, b in pairs)


def test_a_torch_function_needs_no_signature() -> None:
    torch.testing.assert_close(compile(torch.relu, X)(X), X.relu())


def test_an_expanded_result_has_eagers_strides() -> None:
    found = compile(lambda x: (x * 2).expand(3, 5), torch.ones(5))(torch.ones(5))
    assert found.stride() == (0, 1) and found.shape == (3, 5) and bool((found == 2).all())
