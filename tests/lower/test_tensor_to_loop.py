"""Tensor IR to Loop IR: what gets a definition, which axes are shared, and that nothing is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.pipeline import compile


def lowered(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> loop.Program:
    return compile(fn, *map(torch.empty, shapes)).loop


def reductions(program: loop.Program) -> list[tuple[str, int]]:
    """(monoid, axis) of every reduction, each once."""
    found = loop.walk(tuple(d.body for d in program.definitions))
    return [(v.monoid, v.axis) for v in found if isinstance(v, loop.Reduce)]


def test_views_and_single_uses_dissolve() -> None:
    program = lowered(lambda x: (x.t().reshape(6, 2)[1:] * 2 + 1).flip(0), (4, 3))
    assert [d.shape for d in program.definitions] == [(5, 2)] and program.axes == ()


def test_what_is_used_twice_is_defined_once() -> None:
    program = lowered(lambda x: x.exp().sum(1) * x.exp()[:, 0], (4, 3))
    assert [d.shape for d in program.definitions] == [(4, 3), (4,)]


def test_reductions_of_one_row_share_their_axis() -> None:
    program = lowered(lambda x: x.softmax(-1), (4, 3))
    assert [monoid for monoid, _ in reductions(program)] == ["max", "add"]
    assert len({axis for _, axis in reductions(program)}) == 1


def test_a_reduction_inside_another_over_one_axis_takes_a_copy() -> None:
    program = lowered(lambda x: x @ x.t() @ x, (5, 5))
    assert len({axis for _, axis in reductions(program)}) == 2
    assert set(program.extents.values()) == {5}


def test_a_reduction_of_nothing_is_its_unit() -> None:
    program = lowered(lambda x: (x.sum(1), x.prod(1)), (3, 0))
    assert [d.body for d in program.definitions] == [loop.Const(dt.f32, dt.bits(dt.f32, unit)) for unit in (0, 1)]
    assert reductions(program) == []


def test_a_tensor_of_halves_is_kept_as_halves_however_it_is_read() -> None:
    half = torch.empty(4, 4, dtype=torch.bfloat16)
    program = compile(lambda x, w: ((x @ w).relu() @ w).float().sum(1), half, half).loop
    products = [d for d in program.definitions if len(d.shape) == 2]
    assert products and all(d.element is dt.bf16 for d in products)
    assert program.tensors[program.outputs[0][1]].element is dt.f32
