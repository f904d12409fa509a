"""Rows in shared memory: the simulated kernel against NumPy in float64, and what nvcc says of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda
from emmy.lower.tile_to_kernel import lower, staged_rows
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

ROWS = 32
# rows of a block, lanes of a row, length of a row
BLOCKS = [(8, 4, 37), (16, 2, 5), (32, 1, 9), (8, 32, 129), (16, 64, 130), (16, 2, 64), (32, 4, 48)]


def softmax(element: DType, n: int) -> tile.Kernel:
    t = tensors(element, x=(ROWS, n))
    folded, here = load(t, "x", 0, 1), load(t, "x", 0, 2)
    pivot = loop.Pivot("softmax", 1, folded)
    body = op("div", op("exp", op("sub", here, pivot)), loop.Channel("softmax", 1, folded, number(1)))
    return kernel(body, (0, 2), {0: ROWS, 1: n, 2: n}, t, element)


def layer_norm(element: DType, n: int) -> tile.Kernel:
    """In two passes, with a weight that lies in no row."""
    t = tensors(element, x=(ROWS, n), w=(n,))
    folded, again, here = (load(t, "x", 0, a) for a in (1, 3, 2))
    mean = op("mul", total(1, folded), number(1 / n))
    variance = op("mul", total(3, op("mul", op("sub", again, mean), op("sub", again, mean))), number(1 / n))
    scale = op("rsqrt", op("add", variance, number(1e-5)))
    body: Value = op("mul", op("mul", op("sub", here, mean), scale), load(t, "w", 2))
    return kernel(body, (0, 2), {0: ROWS, 1: n, 2: n, 3: n}, t, element)


def row(rows: int, lanes: int, element: DType) -> str:
    return f"WORK=t{rows}x{lanes},TILE=v{16 // element.bytes},REDUCE=coop,STAGE=smem"


@pytest.mark.parametrize("element", [dt.f32, dt.bf16])
@pytest.mark.parametrize("rows, lanes, n", BLOCKS)
def test_rows_of_any_length(rows: int, lanes: int, n: int, element: DType) -> None:
    tolerance = 1e-5 if element is dt.f32 else 2e-2
    for k, right in ((softmax(element, n), softmax_of), (layer_norm(element, n), layer_norm_of)):
        inputs = random(k)
        made = staged_rows.lower(k, schedule("fold", row(rows, lanes, element), (0,), (2,)))
        wanted = right(*(x.astype(np.float64) for x in inputs.values()))
        np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=tolerance, atol=tolerance)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layer_norm_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w


@pytest.mark.parametrize("rows, lanes, n", BLOCKS)
def test_sums_of_rows(rows: int, lanes: int, n: int) -> None:
    t = tensors(dt.bf16, x=(ROWS, n))
    k = kernel(total(1, load(t, "x", 0, 1)), (0,), {0: ROWS, 1: n}, t)
    made = staged_rows.lower(k, schedule("fold", row(rows, lanes, dt.bf16), (0,), ()))
    np.testing.assert_allclose(run(k, made, random(k)), random(k)["x"].astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)


def test_rows_over_two_axes_in_the_order_of_the_output() -> None:
    """Whatever the axes are numbered."""
    t = tensors(dt.bf16, x=(4, 8, 37))
    folded, here = load(t, "x", 7, 3, 1), load(t, "x", 7, 3, 2)
    body = op("sub", here, op("mul", total(1, folded), load(t, "x", 7, 3, 2)))
    k = kernel(body, (7, 3, 2), {7: 4, 3: 8, 1: 37, 2: 37}, t)
    x = random(k)["x"].astype(np.float64)
    made = staged_rows.lower(k, schedule("fold", row(8, 4, dt.bf16), (3, 7), (2,)))
    np.testing.assert_allclose(run(k, made, random(k)), x - x.sum(2, keepdims=True) * x, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("wrong", ["WORK=t12x4,TILE=v8,REDUCE=coop,STAGE=smem", "WORK=t8x3,TILE=v8,REDUCE=coop,STAGE=smem", "WORK=t64"])
def test_a_row_that_does_not_fit(wrong: str) -> None:
    with pytest.raises(IRError, match="form"):
        staged_rows.lower(softmax(dt.bf16, 37), schedule("fold", wrong, (0,), (2,)))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_it_without_spills() -> None:
    made = [staged_rows.lower(k.replace(name=name), schedule("fold", row(8, 32, dt.bf16), (0,), (2,)))
            for name, k in (("softmax", softmax(dt.bf16, 129)), ("layer_norm", layer_norm(dt.bf16, 129)))]
    reports = build(kernel_to_cuda.emit_module(made), "sm_90a").functions
    assert len(reports) == 2 and not any(r.spill_bytes for r in reports.values())


def test_a_piece_without_weight_counts_for_nothing() -> None:
    t = tensors(x=(8, 64))
    k = kernel(loop.Channel("softmax", 1, load(t, "x", 0, 1), number(1)), (0,), {0: 8, 1: 64}, t)
    x = random(k)
    x["x"][1], x["x"][2, :40] = -np.inf, -np.inf
    wanted = np.exp(x["x"] - np.maximum(x["x"].max(1, keepdims=True), -100)).sum(1)
    assert wanted[1] == 0
    for row in ("WORK=t4x8,TILE=v4,REDUCE=coop,STAGE=smem", "WORK=t32,REDUCE=coop"):
        np.testing.assert_allclose(run(k, lower(k.replace(schedule=schedule("fold", row, (0,), ()))), x), wanted, 1e-6)
