"""Recipe "first": the place of a maximum, with torch's NaN and ties, simulated and on NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.lower.tile_to_kernel import elementwise, fold
from tests.lower.tile_to_kernel.forms import kernel, load, run, schedule, tensors

N = 70
NAN, INF = float("nan"), float("inf")


def places() -> tile.Kernel:
    t = tensors(x=(6, N))
    return kernel(loop.Channel("first", 1, load(t, "x", 0, 1), loop.IndexOf(Ax(1))), (0,), {0: 6, 1: N}, t, dt.i64)


def rows() -> np.ndarray:
    """Ties, NaNs before and after the maximum, rows of one value."""
    x = np.random.default_rng(0).standard_normal((6, N)).astype(np.float32)
    x[0, [20, 50]] = 9
    x[1, [30, 40]], x[1, 10] = NAN, INF
    x[2] = -INF
    x[3] = NAN
    x[4, 69] = 9
    return x


@pytest.mark.parametrize("row", ["WORK=t64", "WORK=t64,REDUCE=coop", "WORK=t128,TILE=v2,REDUCE=coop", "WORK=w2,TILE=v2,REDUCE=warp"])
def test_the_first_place_of_a_maximum(row: str) -> None:
    k, x = places(), rows()
    made = (fold if "REDUCE" in row else elementwise).lower(k, schedule("fold" if "REDUCE" in row else "map", row, (0,), ()))
    wanted = torch.from_numpy(x).argmax(-1).numpy()
    np.testing.assert_array_equal(run(k, made, {"x": x}), wanted)
    np.testing.assert_array_equal(evaluate_kernel(k, {"x": x})[0], wanted)
