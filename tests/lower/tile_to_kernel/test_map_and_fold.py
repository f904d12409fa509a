"""Forms "map" and "fold": the simulated kernel against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.instructions.global_memory import LoadGlobalVector
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import walk
from emmy.ir.loop_ir import Value
from emmy.lower.kernel_to_cuda import emit
from emmy.lower.tile_to_kernel import elementwise, fold
from emmy.lower.tile_to_kernel.held import kept
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

ROWS = 9
FOLDS = [(f"WORK={work},TILE=v{width},REDUCE={reduce}", n) for work, reduce in (("t64", "coop"), ("w2", "warp"))
         for width, n in ((1, 37), (4, 64))]


def over_rows(body: Value, axes: tuple[int, ...], n: int) -> tile.Kernel:
    return kernel(body, axes, {0: ROWS, 1: n, 2: n, 3: n}, tensors(x=(ROWS, n)))


def check(k: tile.Kernel, form: str, row: str, columns: tuple[int, ...], wanted: np.ndarray) -> None:
    made = (elementwise if form == "map" else fold).lower(k, schedule(form, row, (0,), columns))
    np.testing.assert_allclose(run(k, made, random(k)), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width, n", [(1, 37), (4, 64)])
def test_map(width: int, n: int) -> None:
    t = tensors(x=(ROWS, n))
    k = over_rows(op("exp", load(t, "x", 0, 1)), (0, 1), n)
    x = random(k)["x"].astype(np.float64)
    check(k, "map", f"WORK=t64,TILE=v{width}", (), np.exp(x))
    check(over_rows(op("exp", load(t, "x", 0, 1)), (1, 0), n), "map", "WORK=t64,TILE=v1", (), np.exp(x).T)
    check(over_rows(total(1, load(t, "x", 0, 1)), (0,), n), "map", "WORK=t64,TILE=v1", (), x.sum(1))
    check(over_rows(loop.Scan("add", 1, Ax(2), load(t, "x", 0, 1)), (0, 2), n), "map", "WORK=t64,TILE=v1", (), x.cumsum(1))


@pytest.mark.parametrize("element, width", [(dt.f32, 4), (dt.bf16, 8)])
def test_a_map_whose_runs_go_on_across_lines(element: DType, width: int) -> None:
    """37 columns: runs of x and y are vectors, b is read element by element."""
    t = tensors(element, x=(8, 37), b=(37,), y=(8, 37))
    k = kernel(op("add", op("mul", load(t, "x", 0, 1), load(t, "b", 1)), load(t, "y", 0, 1)), (0, 1), {0: 8, 1: 37}, t)
    made = elementwise.lower(k, schedule("map", f"WORK=t64,TILE=v{width}", (), ()))
    assert sum(isinstance(s, LoadGlobalVector) for s in walk(made.body)) == 2
    x, b, y = (random(k)[n].astype(np.float64) for n in "xby")
    np.testing.assert_allclose(run(k, made, random(k)), x * b + y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row, n", FOLDS)
def test_one_fold(row: str, n: int) -> None:
    t = tensors(x=(ROWS, n))
    folded, here = load(t, "x", 0, 1), load(t, "x", 0, 2)
    k = over_rows(total(1, folded), (0,), n)
    x = random(k)["x"].astype(np.float64)
    check(k, "fold", row, (), x.sum(1))
    check(over_rows(op("sub", here, loop.Reduce("max", 1, folded)), (0, 2), n), "fold", row, (2,), x - x.max(1, keepdims=True))
    scale = op("rsqrt", op("add", op("mul", total(1, op("mul", folded, folded)), number(1 / n)), number(1e-5)))
    check(over_rows(op("mul", here, scale), (0, 2), n), "fold", row, (2,), x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5))


@pytest.mark.parametrize("row, n", FOLDS)
def test_folds_that_read_folds(row: str, n: int) -> None:
    """A layer norm in two passes, and a softmax whose maximum and denominator are one twisted fold."""
    t = tensors(x=(ROWS, n))
    folded, here, again = (load(t, "x", 0, a) for a in (1, 2, 3))
    mean = op("mul", total(1, folded), number(1 / n))
    variance = op("mul", total(3, op("mul", op("sub", again, mean), op("sub", again, mean))), number(1 / n))
    k = over_rows(op("mul", op("sub", here, mean), op("rsqrt", op("add", variance, number(1e-5)))), (0, 2), n)
    x = random(k)["x"].astype(np.float64)
    check(k, "fold", row, (2,), (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5))
    weight = op("exp", op("sub", here, loop.Pivot("softmax", 1, folded)))
    softmax = op("div", weight, loop.Channel("softmax", 1, folded, number(1)))
    e = np.exp(x)
    check(over_rows(softmax, (0, 2), n), "fold", row, (2,), e / e.sum(1, keepdims=True))


@pytest.mark.parametrize("work", ["WORK=t64,TILE=v4,REDUCE=coop", "WORK=w2,TILE=v4,REDUCE=warp"])
@pytest.mark.parametrize("axes, columns", [((0, 3), (3,)), ((3, 0), (3,))])
def test_what_is_held_is_written_along_any_axis(work: str, axes: tuple[int, ...], columns: tuple[int, ...]) -> None:
    """x / sum x, the row kept in registers between, as it lies and transposed."""
    t, n = tensors(x=(ROWS, 64)), 64
    k = over_rows(op("div", load(t, "x", 0, 3), total(1, load(t, "x", 0, 1))), axes, n)
    x = random(k)["x"].astype(np.float64)
    wanted = x / x.sum(1, keepdims=True)
    check(k, "fold", f"{work},STAGE=reg", columns, wanted if axes == (0, 3) else wanted.T)


@pytest.mark.parametrize("row", ["WORK=t64,TILE=v2,REDUCE=coop/apart,STAGE=reg", "WORK=w2,TILE=v4,REDUCE=warp/apart,STAGE=reg",
                                 "WORK=t32,REDUCE=coop/apart,STAGE=reg"])
def test_a_softmax_taken_apart(row: str) -> None:
    """Each element is read once, and its exponential computed once."""
    n = 96
    t = tensors(x=(ROWS, n))
    folded, here = load(t, "x", 0, 1), load(t, "x", 0, 2)
    body = op("div", op("exp", op("sub", here, loop.Pivot("softmax", 1, folded))), loop.Channel("softmax", 1, folded, number(1)))
    k = over_rows(body, (0, 2), n)
    made = fold.lower(k, schedule("fold", row, (0,), (2,)))
    x = random(k)["x"].astype(np.float64)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run(k, made, random(k)), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    width, team = fold_width(row), 64 if "t64" in row else 32
    passes = -(-n // (team * width))
    assert emit(made).count("expf(") == passes * width
    assert sum(isinstance(s, LoadGlobalVector) for s in walk(made.body)) == passes


def fold_width(row: str) -> int:
    return int(tile.parse_row(row).tile.removeprefix("v") or 1)


def test_what_stages_keep() -> None:
    """A layer norm in two passes keeps the row, then its deviations; never both."""
    t = tensors(x=(ROWS, 64))
    folded, here, again = (load(t, "x", 0, a) for a in (1, 2, 3))
    mean = op("mul", total(1, folded), number(1 / 64))
    variance = op("mul", total(3, op("mul", op("sub", again, mean), op("sub", again, mean))), number(1 / 64))
    k = over_rows(op("mul", op("sub", here, mean), op("rsqrt", op("add", variance, number(1e-5)))), (0, 2), 64)
    found = kept(k, (2,))
    assert sorted(found.stages.values()) == [(0, 1), (1, 2)] and found.most == 1
