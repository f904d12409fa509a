"""Form "contraction": the simulated kernel against NumPy in float64, and what the compiler makes of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import erf

from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import contraction
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

SMALL = "WORK=t4x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem"
PREFETCH = "WORK=t4x8,TILE=fma_f32/f4x4/k8,STAGE=d2/smem"
LARGE = "WORK=t16x16,TILE=fma_f32/f8x8/k8,STAGE=d2/smem"
RING = "WORK=t4x8,TILE=fma_f32/f4x4/k8,STAGE=d3/smem-async"


def matmul(m: int, n: int, k: int, left: bool = False, right: bool = False, element: DType = dt.f32, name: str = "form") -> tile.Kernel:
    """a[m, k] @ b[k, n]; `left` and `right` say which operand is stored transposed."""
    t = tensors(element, a=(k, m) if left else (m, k), b=(n, k) if right else (k, n))
    a, b = load(t, "a", *((2, 0) if left else (0, 2))), load(t, "b", *((1, 2) if right else (2, 1)))
    body = total(2, op("mul", a, b))
    return kernel(body if element is dt.f32 else loop.Round(element, body), (0, 1), {0: m, 1: n, 2: k}, t, element, name)


def lowered(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return contraction.lower(k, schedule("contraction", row, (0,), (1,)))


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(wanted).max())))


@pytest.mark.parametrize("row", [SMALL, PREFETCH, SMALL.replace("fma", "mul"), RING, RING.replace("d3", "d2"),
                                 RING.replace("k8", "k3"), "WORK=t2x16,TILE=fma_f32/f1x3/k3,STAGE=d2/smem"])
@pytest.mark.parametrize("left, right", [*itertools.product((False, True), repeat=2)])
def test_layouts(row: str, left: bool, right: bool) -> None:
    for sizes in ((37, 29, 19), (32, 64, 16)):
        k = matmul(*sizes, left, right)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        close(run(k, lowered(k, row), random(k)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 37), (1, 37, 3), (37, 3, 129), (129, 37, 8), (16, 129, 1), (8, 16, 4), (3, 37, 16)])
def test_tails(sizes: tuple[int, int, int]) -> None:
    for row, right in ((SMALL, False), (PREFETCH, True), (RING, False), (RING, True)):
        k = matmul(*sizes, right=right)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        close(run(k, lowered(k, row), random(k)), x["a"] @ (x["b"].T if right else x["b"]))


def test_the_row_of_a_large_matmul() -> None:
    for right in (False, True):
        k = matmul(130, 136, 40, right=right)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        for row in (LARGE, LARGE.replace("d2/smem", "d4/smem-async"), "WORK=t8x16,TILE=fma_f32/f16x8/k8,STAGE=d3/smem-async"):
            close(run(k, lowered(k, row), random(k)), x["a"] @ (x["b"].T if right else x["b"]))


def test_half_types_are_summed_in_fp32() -> None:
    for sizes, row in (((37, 29, 19), SMALL), ((64, 64, 16), "WORK=t4x8,TILE=fma_f32/f8x8/k8,STAGE=d2/smem")):
        k = matmul(*sizes, right=True, element=dt.bf16)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        close(run(k, lowered(k, row), random(k)), x["a"] @ x["b"].T, 2.0**-8)


def test_linear_with_bias_and_gelu() -> None:
    m, n, k = 13, 24, 20
    t = tensors(x=(m, k), w=(n, k), bias=(n,), residual=(m, n))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    gelu = op("mul", op("mul", y, number(0.5)), op("add", number(1), op("erf", op("mul", y, number(2**-0.5)))))
    made = kernel(op("add", gelu, load(t, "residual", 0, 1)), (0, 1), {0: m, 1: n, 2: k}, t)
    x = {name: v.astype(np.float64) for name, v in random(made).items()}
    z = x["x"] @ x["w"].T + x["bias"]
    for row in (SMALL, PREFETCH, RING):
        close(run(made, lowered(made, row), random(made)), z * 0.5 * (1 + erf(z / 2**0.5)) + x["residual"])


def test_batches_are_layers_of_the_grid() -> None:
    t = tensors(a=(3, 9, 12), b=(3, 12, 20))
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 0, 3, 2))), (0, 1, 2), {0: 3, 1: 9, 2: 20, 3: 12}, t)
    x = {n: v.astype(np.float64) for n, v in random(made).items()}
    close(run(made, contraction.lower(made, schedule("contraction", SMALL, (1,), (2,), (0,))), random(made)), x["a"] @ x["b"])


@pytest.mark.parametrize("row", [SMALL, PREFETCH])
def test_several_axes_are_one_side(row: str) -> None:
    """[B, T, K] @ [O, P, K]^T stored [B, O, T, P]: rows (b, t), columns (o, p)."""
    t = tensors(x=(2, 5, 12), w=(3, 8, 12))
    made = kernel(total(4, op("mul", load(t, "x", 0, 1, 4), load(t, "w", 2, 3, 4))), (0, 2, 1, 3), {0: 2, 1: 5, 2: 3, 3: 8, 4: 12}, t)
    x = {n: v.astype(np.float64) for n, v in random(made).items()}
    close(run(made, contraction.lower(made, schedule("contraction", row, (0, 1), (2, 3))), random(made)),
          np.einsum("btk,opk->botp", x["x"], x["w"]))


@pytest.mark.parametrize("row", [SMALL, PREFETCH])
def test_norm_and_linear_are_one_kernel(row: str) -> None:
    """sum x*x for each row beside sum x*g*w for each cell, and a sum of w for each column."""
    m, n, k = 11, 12, 24
    t = tensors(x=(m, k), g=(k,), w=(n, k))
    xs, w = load(t, "x", 0, 2), load(t, "w", 1, 2)
    square = total(2, op("mul", xs, xs))
    scale = op("rsqrt", op("add", op("mul", square, number(1 / k)), number(1e-5)))
    y = op("mul", scale, total(2, op("mul", op("mul", xs, load(t, "g", 2)), w)))
    made = kernel(op("add", y, total(2, w)), (0, 1), {0: m, 1: n, 2: k}, t)
    form = lowered(made, row)
    x = {name: v.astype(np.float64) for name, v in random(made).items()}
    wanted = (x["x"] * x["g"] / np.sqrt((x["x"] ** 2).mean(1, keepdims=True) + 1e-5)) @ x["w"].T + x["w"].sum(1)
    close(run(made, form, random(made)), wanted)
    assert len(form.shared) == 3        # x*x and x*g on the left; w once, for both folds that read it


def test_shared_bytes_are_what_the_module_says() -> None:
    for row, stages, depth, left, right in ((SMALL, 1, 4, 8, 16), (LARGE, 2, 8, 128, 128)):
        assert lowered(matmul(64, 64, 64), row).shared_bytes == 4 * stages * depth * (left + 4 + right + 4)


def test_what_a_contraction_is_not() -> None:
    t = tensors(a=(8, 8), b=(8, 8))
    both = kernel(total(2, op("add", load(t, "a", 0, 2), load(t, "b", 1, 2))), (0, 1), {0: 8, 1: 8, 2: 8}, t)
    with pytest.raises(IRError, match="rows and columns alike"):
        lowered(both, SMALL)
    maximum = kernel(loop.Reduce("max", 2, load(t, "a", 0, 2)), (0, 1), {0: 8, 1: 8, 2: 8}, t)
    with pytest.raises(IRError, match="sums fp32"):
        lowered(maximum, SMALL)
    with pytest.raises(IRError, match="needs a fold"):
        lowered(kernel(load(t, "a", 0, 1), (0, 1), {0: 8, 1: 8}, t), SMALL)
    for row in ("WORK=t16,TILE=fma_f32/f8x8/k8,STAGE=d2/smem", "WORK=t5x5,TILE=fma_f32/f8x8/k8,STAGE=d2/smem", "WORK=t16x16"):
        with pytest.raises(IRError, match="row WORK"):
            lowered(matmul(8, 8, 8), row)


def test_the_compiler_keeps_a_tile_in_registers() -> None:
    made = (matmul(2048, 2048, 2048, name="round_matmul"), matmul(2047, 2049, 2045, right=True, name="ragged_matmul"),
            matmul(2048, 2048, 2048, right=True, element=dt.bf16, name="half_matmul"))
    forms = [lowered(k, LARGE) for k in made]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= 128, (name, report)
