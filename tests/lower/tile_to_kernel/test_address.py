"""Where loads lie: offsets of reshapes and rotations in normal form, strides, and runs that are one access."""

from __future__ import annotations

import numpy as np
import pytest

import emmy
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxConst
from emmy.lower.tile_to_kernel.address import (
    by_runs,
    lies_as_output,
    lies_in_rows,
    normal,
    offset,
    raised,
    stride,
    usual_step,
    vectorises,
)
from emmy.runtime import execute
from tests.lower.tile_to_kernel.forms import kernel, load, tensors

ROW, J = Ax(0), Ax(1)


def one(shape: tuple[int, ...], *point: Ix, extents: tuple[int, int] = (6, 64)) -> tuple[tile.Kernel, loop.Load]:
    t = tensors(dt.f32, x=shape)
    v = load(t, "x", *point)
    return kernel(v, (0, 1), dict(enumerate(extents)), t), v


def test_a_reshape_lies_contiguous() -> None:
    k, v = one((6, 8, 8), ROW, ix.div(J, 8), ix.mod(J, 8))
    assert offset(k, "x", v.point) is ix.add(ix.mul(ROW, 64), J) and stride(k, v, 1) == 1
    assert lies_as_output(k, v) and lies_in_rows(k, v, (0,), 1) and vectorises(k, v, 1, 8) and not vectorises(k, v, 0, 2)


@pytest.mark.parametrize("width, fits", [(4, True), (16, True), (32, True), (64, False)])
def test_a_rotation_is_vectors_up_to_where_it_begins_anew(width: int, fits: bool) -> None:
    k, v = one((6, 64), ROW, ix.add(ix.mod(J, 32), IxConst(32)))
    assert vectorises(k, v, 1, width) == fits and stride(k, v, 1) is None and usual_step(k, v, 1) == 1


def test_a_row_of_odd_length_is_no_vector() -> None:
    k, v = one((6, 37), ROW, J, extents=(6, 37))
    assert not vectorises(k, v, 1, 2) and lies_in_rows(k, v, (0,), 1)
    k, v = one((6, 64), ROW, ix.add(ix.mul(J, -1), IxConst(63)))
    assert not vectorises(k, v, 1, 2) and stride(k, v, 1) == -1


def test_what_may_be_negative_is_not_divided() -> None:
    flipped = ix.div(ix.add(ix.mul(J, -1), IxConst(63)), 3)
    assert normal(flipped, {1: 64}) is flipped


def test_values_that_vary_by_runs_alone() -> None:
    k, v = one((6, 8), ROW, ix.div(J, 8))
    assert by_runs(k, (v,), 1, 8) and not by_runs(k, (v,), 1, 16)


@pytest.mark.parametrize("source", ["F.pad(torch.randn(2, 7), (1, 0)).flip(-1)", "torch.randn(4, 5).roll(1, 0).flip(0)",
                                    "torch.cat([torch.randn(3), torch.randn(4)]).flip(0)",
                                    "torch.randn(12).repeat_interleave(2).flip(0)[3:]",
                                    "F.pad(torch.randn(1, 2, 5), (2, 0), mode='circular').flip(-1)",
                                    "F.conv_transpose2d(torch.randn(1, 2, 3, 3), torch.randn(2, 2, 3, 2))"])
def test_what_is_divided_is_nowhere_negative(source: str) -> None:
    """An index that counts backwards through a remainder or quotient, which machines would round to zero, stays inside its tensor."""
    program = emmy.compile_snippet(source)
    arrays = execute.arguments(program)
    for made, wanted in zip(execute.on_simulator(program, arrays).values(), execute.on_numpy(program, arrays).values(), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_how_often_a_divisor_is_added() -> None:
    x = ix.add(ix.mul(Ax(0), -1), ix.IxConst(2))
    assert raised(x, 3, {0: 9}) == 2 and raised(x, 3, {0: 3}) == 0 and raised(x, 3, {}) == 0 and raised(ix.mul(x, -1), 4, {0: 3}) == 1
