"""Form "cross": the simulated kernel against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.instructions.cp_async import CopyAsync
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, IxConst
from emmy.ir.loop_ir import Load, Value
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import cross
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

C, R, S, T, B, K = range(6)         # axes: lanes, folded, columns, folded again, batch, nested
ROWS = ["WORK=t8x32,REDUCE=cross", "WORK=t1x64,TILE=v2,REDUCE=cross", "WORK=t4x8,TILE=v4,REDUCE=cross", "WORK=t3x32,REDUCE=cross"]


def lowered(k: tile.Kernel, row: str, columns: tuple[int, ...] = (), batch: tuple[int, ...] = (), lanes: int = C) -> kernel_ir.Kernel:
    return cross.lower(k, schedule("cross", row, (lanes,), columns, batch))


def width(row: str) -> int:
    return int(tile.parse_row(row).tile.removeprefix("v") or 1)


def check(body: Value, axes: tuple[int, ...], extents: dict[int, int], t: dict[str, tile.Tensor], row: str, wanted: np.ndarray,
          columns: tuple[int, ...] = (), batch: tuple[int, ...] = (), lanes: int = C) -> None:
    k = kernel(body, axes, extents, t)
    np.testing.assert_allclose(run(k, lowered(k, row, columns, batch, lanes), random(k)), wanted, rtol=1e-5, atol=1e-5)


def values(t: dict[str, tile.Tensor]) -> dict[str, np.ndarray]:
    """What `random` gives the tensors, as float64."""
    k = kernel(number(0), (C,), {C: 1}, t)
    return {n: x.astype(np.float64) for n, x in random(k.replace(tensors=tuple(t.values()))).items()}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("r, c", [(1, 1), (3, 37), (37, 3), (129, 40), (256, 128), (1000, 4)])
def test_one_fold(row: str, r: int, c: int) -> None:
    c = -(-c // width(row)) * width(row)
    t = tensors(x=(r, c))
    x, extents = values(t)["x"], {C: c, R: r}
    check(total(R, load(t, "x", R, C)), (C,), extents, t, row, x.sum(0))
    check(loop.Reduce("max", R, op("exp", load(t, "x", R, C))), (C,), extents, t, row, np.exp(x).max(0))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("r, c", [(3, 36), (37, 4), (129, 40)])
def test_softmax_and_norm_over_the_first_axis(row: str, r: int, c: int) -> None:
    t = tensors(x=(r, c), g=(c,), h=(r,))
    x, extents = values(t), {C: c, R: r, S: r, T: r}
    folded, here, again = (load(t, "x", a, C) for a in (R, S, T))
    weight = op("exp", op("sub", here, loop.Pivot("softmax", R, folded)))
    e = np.exp(x["x"] - x["x"].max(0))
    only = {"x": t["x"]}
    check(op("div", weight, loop.Channel("softmax", R, folded, number(1))), (S, C), extents, only, row, e / e.sum(0), (S,))
    mean = op("mul", total(R, folded), number(1 / r))
    variance = op("mul", total(T, op("mul", op("sub", again, mean), op("sub", again, mean))), number(1 / r))
    norm = op("mul", op("sub", here, mean), op("rsqrt", op("add", variance, number(1e-5))))
    norm = op("add", op("mul", norm, load(t, "g", C)), load(t, "h", S))
    wanted = (x["x"] - x["x"].mean(0)) / np.sqrt(x["x"].var(0) + 1e-5) * x["g"] + x["h"][:, None]
    check(norm, (S, C), extents, t, row, wanted, (S,))
    check(norm, (C, S), extents, t, row, wanted.T, (S,))       # lanes along an axis that is not the output's last


@pytest.mark.parametrize("row", ROWS)
def test_batches_and_two_columns(row: str) -> None:
    """Tiles that cross from one batch to the next, and a norm of [b, channels, height, width] over its channels."""
    t = tensors(x=(5, 19, 12))
    x = values(t)["x"]
    check(op("mul", total(R, load(t, "x", B, R, C)), number(1 / 19)), (B, C), {B: 5, C: 12, R: 19}, t, row, x.mean(1), (), (B,))
    t = tensors(x=(3, 4, 6, 8))
    x = values(t)["x"]
    body = op("sub", load(t, "x", B, S, T, C), loop.Reduce("max", R, load(t, "x", B, R, T, C)))
    check(body, (B, S, T, C), {B: 3, S: 4, R: 4, T: 6, C: 8}, t, row, x - x.max(1, keepdims=True), (S,), (B, T))


@pytest.mark.parametrize("row", ROWS)
def test_the_place_of_the_maximum(row: str) -> None:
    """Two levels: the maximum, then the first index that has it."""
    t = {"x": tile.Tensor("x", (37, 8), dt.f32)}
    x = load(t, "x", R, C)
    again = load(t, "x", T, C)
    place = loop.Apply("select", (op("eq", again, loop.Reduce("max", R, x)), loop.IndexOf(Ax(T)), loop.Const(dt.i64, 37)))
    k = kernel(loop.Reduce("min", T, place), (C,), {C: 8, R: 37, T: 37}, t, dt.i64)
    inputs = {"x": np.random.default_rng(1).integers(0, 9, (37, 8)).astype(np.float32)}
    np.testing.assert_array_equal(run(k, lowered(k, row), inputs), inputs["x"].argmax(0))


@pytest.mark.parametrize("row", ROWS)
def test_nested_and_shared_folds(row: str) -> None:
    """A fold inside a fold, one that the lanes have in common, and two of a level over one axis."""
    t = tensors(x=(9, 5, 8), y=(21,))
    x, extents = values(t), {C: 8, R: 9, S: 9, K: 5, T: 21}
    inner = total(K, load(t, "x", R, K, C))
    shared = total(T, op("mul", load(t, "y", T), load(t, "y", T)))
    body = op("add", op("mul", loop.Reduce("max", R, inner), shared), loop.Reduce("min", S, load(t, "x", S, IxConst(2), C)))
    wanted = x["x"].sum(1).max(0) * (x["y"]**2).sum() + x["x"][:, 2].min(0)
    check(body, (C,), extents, t, row, wanted)
    weighed = op("div", loop.Channel("softmax", R, load(t, "x", R, IxConst(0), C), load(t, "x", R, IxConst(1), C)),
                 loop.Channel("softmax", R, load(t, "x", R, IxConst(0), C), number(1)))
    e = np.exp(x["x"][:, 0])
    check(weighed, (C,), extents, {"x": t["x"]}, row, (e * x["x"][:, 1]).sum(0) / e.sum(0))


def test_rows_of_negative_infinity_are_not_a_number() -> None:
    t = tensors(x=(40, 8))
    x = load(t, "x", R, C)
    k = kernel(op("div", op("exp", op("sub", load(t, "x", S, C), loop.Pivot("softmax", R, x))), loop.Channel("softmax", R, x, number(1))),
               (S, C), {S: 40, C: 8, R: 40}, t)
    inputs = random(k)
    inputs["x"][:, 2] = -np.inf
    inputs["x"][:39, 3] = -np.inf
    out = run(k, lowered(k, ROWS[0], (S,)), inputs)
    assert np.isnan(out[:, 2]).all() and not np.isnan(out[:, [0, 1, 3, 4]]).any()
    np.testing.assert_array_equal(out[:, 3], [0] * 39 + [1])


def test_three_neighbours() -> None:
    """A width that is no width of a vector access: runs are read one by one."""
    t = tensors(x=(70, 36), y=(70, 36))
    body = op("add", load(t, "y", S, C), loop.Reduce("max", R, load(t, "x", R, C)))
    x = values(t)
    check(body, (S, C), {C: 36, R: 70, S: 70}, t, "WORK=t8x32,TILE=v3,REDUCE=cross", x["y"] + x["x"].max(0), (S,))


def test_half_types_are_folded_in_fp32() -> None:
    t = tensors(dt.bf16, x=(70, 48))
    k = kernel(loop.Round(dt.bf16, total(R, load(t, "x", R, C))), (C,), {C: 48, R: 70}, t, dt.bf16)
    for v in (1, 8):
        made = lowered(k, f"WORK=t4x8,TILE=v{v},REDUCE=cross")
        wanted = random(k)["x"].astype(np.float64).sum(0)
        np.testing.assert_allclose(run(k, made, random(k)), wanted, rtol=2.0**-8)
        assert made.shared_bytes == 0     # a warp holds all four of a lane


def test_what_is_not_folded_across_lanes() -> None:
    t = tensors(x=(8, 9))
    k = kernel(total(R, load(t, "x", R, C)), (C,), {C: 9, R: 8}, t)
    for row, reason in (("WORK=t256,REDUCE=cross", "spelled"), ("WORK=t8x32", "spelled"), ("WORK=t3x8,REDUCE=cross", "whole warps"),
                        ("WORK=t8x32,TILE=v2,REDUCE=cross", "width divides")):
        with pytest.raises(IRError, match=reason):
            lowered(k, row)
    scan = kernel(loop.Scan("add", R, Ax(S), load(t, "x", R, C)), (S, C), {S: 8, C: 9, R: 8}, t)
    with pytest.raises(IRError, match="scan"):
        lowered(scan, ROWS[0], (), (S,))


def test_the_compiler_keeps_states_in_registers() -> None:
    def summed(name: str, element: DType = dt.f32) -> tile.Kernel:
        t = tensors(element, x=(4096, 4096))
        return kernel(total(R, Load("x", element, (Ax(R), Ax(C)))), (C,), {C: 4096, R: 4096}, t, dt.f32, name)

    t = tensors(x=(4096, 4096))
    folded = load(t, "x", R, C)
    weight = op("exp", op("sub", load(t, "x", S, C), loop.Pivot("softmax", R, folded)))
    softmax = op("div", weight, loop.Channel("softmax", R, folded, number(1)))
    k = kernel(softmax, (S, C), {S: 4096, C: 4096, R: 4096}, t, name="softmax")
    forms = [lowered(summed("single"), "WORK=t32x32,REDUCE=cross"), lowered(summed("halves", dt.bf16), "WORK=t16x32,TILE=v8,REDUCE=cross"),
             lowered(k, "WORK=t16x32,TILE=v2,REDUCE=cross", (S,)), lowered(summed("wide"), "WORK=t8x32,TILE=v4,REDUCE=cross")]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)


@pytest.mark.parametrize("row", ["WORK=t64x1,TILE=v4,REDUCE=cross,STAGE=smem", "WORK=t16x4,TILE=v4,REDUCE=cross,STAGE=smem",
                                 "WORK=t4x32,TILE=v4,REDUCE=cross,STAGE=smem", "WORK=t16x4/c2,TILE=v4,REDUCE=cross,STAGE=smem",
                                 "WORK=t32x1/c4,TILE=v4,REDUCE=cross,STAGE=smem", "WORK=t4x32/c3,TILE=v4,REDUCE=cross,STAGE=smem"])
@pytest.mark.parametrize("r, c", [(3, 36), (37, 8), (129, 40)])
def test_a_strip_in_shared_memory(row: str, r: int, c: int) -> None:
    """Softmax and layer norm over the first axis, each element read from global memory once."""
    t = tensors(x=(r, c), h=(r,))
    x, extents = values(t), {C: c, R: r, S: r, T: r}
    folded, here, again = (load(t, "x", a, C) for a in (R, S, T))
    body = op("div", op("exp", op("sub", here, loop.Pivot("softmax", R, folded))), loop.Channel("softmax", R, folded, number(1)))
    e = np.exp(x["x"] - x["x"].max(0))
    check(body, (S, C), extents, t, row, e / e.sum(0), (S,))
    k = kernel(body, (S, C), extents, t)
    copies = [s for s in kernel_ir.walk(lowered(k, row, (S,)).body) if isinstance(s, CopyAsync | LoadGlobal | LoadGlobalVector)]
    assert len(copies) == 1 and isinstance(copies[0], CopyAsync)
    mean = op("mul", total(R, folded), number(1 / r))
    variance = op("mul", total(T, op("mul", op("sub", again, mean), op("sub", again, mean))), number(1 / r))
    norm = op("mul", op("sub", here, mean), op("rsqrt", op("add", variance, number(1e-5))))
    wanted = (x["x"] - x["x"].mean(0)) / np.sqrt(x["x"].var(0) + 1e-5) * x["h"][:, None]
    check(op("mul", norm, load(t, "h", S)), (S, C), extents, t, row, wanted, (S,))
