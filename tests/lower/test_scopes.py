"""Loops inside loops bind axes of their own: the simulated kernel against NumPy, where the body names them alike."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.ir import loop_ir as loop
from emmy.ir.loop_ir import Value
from emmy.lower.scopes import distinct
from emmy.lower.tile_to_kernel import elementwise, fold
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total

N = 8
T = tensors(x=(N, N))
EXTENTS = {0: N, 1: N, 2: N, 3: N}


def x(row: int, column: int) -> Value:
    return load(T, "x", row, column)


def weighted() -> Value:
    """At row 2, sums of columns weighted by what sums of rows give: axis 1 is folded inside of axis 0, and that inside of axis 1."""
    rows = total(1, op("exp", x(0, 1)))
    columns = total(0, op("mul", x(0, 1), rows))
    return total(1, op("mul", x(2, 1), columns))


def test_a_loop_inside_a_loop_over_its_axis_has_its_own() -> None:
    (made,), extents = distinct((weighted(),), (2,), EXTENTS)
    assert isinstance(made, loop.Reduce) and made.axis == 1
    bound = [v.binds for v in loop.walk((made,)) if v.binds is not None]
    assert sorted(bound) == [0, 1, 4] and extents[4] == N
    assert total(4, op("exp", x(0, 4))) in loop.walk((made,))


def test_loops_one_after_the_other_share_their_axis() -> None:
    maximum = loop.Reduce("max", 1, x(2, 1))
    body = total(1, op("exp", op("sub", x(2, 1), maximum)))
    assert distinct((body,), (2,), EXTENTS) == ((body,), EXTENTS)
    inside = total(0, op("mul", x(0, 3), total(1, op("sub", x(0, 1), maximum))))    # the maximum is outside of both loops
    assert distinct((inside,), (2, 3), EXTENTS)[0] == (inside,)


def test_results_of_a_twist_lie_together() -> None:
    """A pivot that is alike at all points of the loop around its channels is renamed with them."""
    score = x(2, 1)
    both = op("mul", loop.Pivot("softmax", 1, score), loop.Channel("softmax", 1, score, x(0, 1)))
    (made,), _ = distinct((total(1, op("mul", x(2, 1), total(0, op("mul", x(0, 1), both)))),), (2,), EXTENTS)
    assert {v.binds for v in loop.walk((made,)) if isinstance(v, loop.Pivot | loop.Channel)} == {4}


ROWS = [("map", "WORK=t64,TILE=v1"), ("fold", "WORK=w2,TILE=v1,REDUCE=warp"), ("fold", "WORK=t64,REDUCE=coop")]


@pytest.mark.parametrize("form, row", ROWS)
def test_the_kernel_is_right(form: str, row: str) -> None:
    k = kernel(weighted(), (2,), EXTENTS, T)
    made = (elementwise if form == "map" else fold).lower(k, schedule(form, row, (2,), ()))
    of = random(k)["x"].astype(np.float64)
    np.testing.assert_allclose(run(k, made, random(k)), of @ (of.T @ np.exp(of).sum(1)), rtol=1e-5, atol=1e-5)
