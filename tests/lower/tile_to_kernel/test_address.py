"""Where loads lie: offsets of reshapes and rotations in normal form, strides, and runs that are one access."""

from __future__ import annotations

import pytest

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxConst
from emmy.lower.tile_to_kernel.address import by_runs, lies_as_output, lies_in_rows, normal, offset, stride, usual_step, vectorises
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
