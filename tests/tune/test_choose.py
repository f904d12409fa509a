"""The choice of kernels and rows: names, identities, the order of arguments, prices."""

from __future__ import annotations

import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.pipeline import Program, compile

X, Y = torch.empty(64, 32), torch.empty(32, 64)


def kernels(program: Program) -> tuple[tile.Kernel, ...]:
    return program.tile.kernels


def test_kernels_of_one_identity_take_their_arguments_in_one_order() -> None:
    left = compile(lambda a, b: a / b.t(), X, Y)
    right = compile(lambda b, a: a / b.t(), Y, X)
    assert list(left.choice.scheduled) == list(right.choice.scheduled)
    assert [[t.shape for t in k.tensors] for k in kernels(left)] == [[t.shape for t in k.tensors] for k in kernels(right)]


def test_equal_kernels_of_one_program_are_one_function() -> None:
    program = compile(lambda x: x.cumsum(1).cumsum(1), X)
    assert len(program.tile.kernels) == len(program.plan.launches) == 2 and len(program.kernels) == 1 == program.cuda.count("__global__")
    first, second = program.plan.launches
    assert first.identity == second.identity and first.kernel == second.kernel and first.arguments != second.arguments
    x = torch.randn(X.shape)
    assert torch.allclose(program(x), x.cumsum(1).cumsum(1), rtol=1e-4, atol=1e-4)


def test_every_kernel_is_scheduled_within_the_prediction() -> None:
    program = compile(lambda x, y: (x @ y).softmax(-1), X, Y)
    for kernel in kernels(program):
        assert kernel.schedule is not None and program.choice.scheduled[kernel.name].seconds > 0
        tile.verify(kernel)


def test_a_pin_holds_where_a_kernel_has_it_and_somewhere_it_must() -> None:
    program = compile(lambda x: (x.exp(), x.sum(1)), X, pins="REDUCE=coop")
    assert {k.schedule.row.reduce for k in kernels(program) if k.schedule} == {"", "coop"}
    with pytest.raises(EmmyError, match="no legal row"):
        _ = compile(lambda x: x.exp(), X, pins="REDUCE=coop").tile
