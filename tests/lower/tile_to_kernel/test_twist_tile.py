"""Form "twist": the simulated kernel against NumPy in float64, and what the compiler makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import twist_tile
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

SMALL = "WORK=t4x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem"
WIDE = "WORK=t4x8,TILE=fma_f32/f4x4/k16,STAGE=d1/smem"
LARGE = "WORK=t16x16,TILE=fma_f32/f4x4/k16,STAGE=d1/smem"
B, M, N, J, D = range(5)        # axes: batch, row, column, key, and what a score folds


def softmax(score: Value, value: Value) -> Value:
    channel = (loop.Channel("softmax", J, score, x) for x in (value, number(1)))
    return op("div", *channel)


def attention(b: int, m: int, n: int, j: int, d: int, mask: str = "", element: DType = dt.f32, name: str = "form") -> tile.Kernel:
    """softmax(q k^T / sqrt(d) + mask) v."""
    t = tensors(element, q=(b, m, d), k=(b, j, d), v=(b, j, n)) | (tensors(bias=(m, j)) if mask == "bias" else {})
    score = op("mul", total(D, op("mul", load(t, "q", B, M, D), load(t, "k", B, J, D))), number(d**-0.5))
    if mask == "causal":
        score = op("select", op("le", loop.IndexOf(Ax(J)), loop.IndexOf(Ax(M))), score, number(float("-inf")))
    if mask == "bias":
        score = op("add", score, load(t, "bias", M, J))
    body = softmax(score, load(t, "v", B, J, N))
    body = body if element is dt.f32 else loop.Round(element, body)
    return kernel(body, (B, M, N), {B: b, M: m, N: n, J: j, D: d}, t, element, name)


def lowered(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return twist_tile.lower(k, schedule("twist", row, (M,), (N,), (B,)))


def reference(x: dict[str, np.ndarray], scale: float, mask: str = "") -> np.ndarray:
    """Attention written out, in float64: a row of -inf scores is NaN."""
    x = {n: v.astype(np.float64) for n, v in x.items()}
    s = x["q"] @ x["k"].swapaxes(1, 2) * scale
    if mask == "causal":
        s = np.where(np.arange(s.shape[2]) <= np.arange(s.shape[1])[:, None], s, -np.inf)
    if mask == "bias":
        s = s + x["bias"]
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(2, keepdims=True))
    return p / p.sum(2, keepdims=True) @ x["v"]


@pytest.mark.parametrize("row", [SMALL, WIDE, SMALL.replace("fma", "mul"), "WORK=t1x32,TILE=fma_f32/f3x1/k5,STAGE=d1/smem"])
@pytest.mark.parametrize("mask", ["", "causal", "bias"])
def test_attention(row: str, mask: str) -> None:
    for n, d, m, j in ((16, 8, 9, 19), (37, 33, 5, 37), (64, 16, 16, 32)):
        k = attention(2, m, n, j, d, mask)
        np.testing.assert_allclose(run(k, lowered(k, row), random(k)), reference(random(k), d**-0.5, mask), rtol=1e-5, atol=1e-5)


def test_rows_that_are_masked_in_part_and_in_full() -> None:
    k = attention(1, 9, 16, 37, 8, "bias")
    x = random(k)
    x["bias"][0] = -np.inf
    x["bias"][1, :32] = -np.inf       # whole tiles of keys before the first that counts
    x["bias"][2, 1:] = -np.inf
    out = run(k, lowered(k, SMALL), x)
    assert np.isnan(out[0, 0]).all()
    np.testing.assert_allclose(out, reference(x, 8**-0.5, "bias"), rtol=1e-5, atol=1e-5)


def test_the_row_of_a_large_attention() -> None:
    k = attention(1, 70, 64, 67, 64, "causal")
    np.testing.assert_allclose(run(k, lowered(k, LARGE), random(k)), reference(random(k), 1 / 8, "causal"), rtol=1e-5, atol=1e-5)


def test_half_types_are_summed_in_fp32() -> None:
    k = attention(1, 10, 32, 33, 16, element=dt.bf16)
    np.testing.assert_allclose(run(k, lowered(k, SMALL), random(k)), reference(random(k), 1 / 4), rtol=2.0**-8, atol=2.0**-8)


def test_a_score_without_a_contraction() -> None:
    """A softmax of a stored score, weighing a value that is itself computed, and its logarithm of the sum of exponentials."""
    t = tensors(s=(9, 21), v=(21, 6))
    score = op("mul", load(t, "s", M, J), number(3))
    weighed = softmax(score, op("exp", load(t, "v", J, N)))
    entropy = op("add", loop.Pivot("softmax", J, score), op("log", loop.Channel("softmax", J, score, number(1))))
    k = kernel(op("add", weighed, entropy), (M, N), {M: 9, N: 6, J: 21}, t)
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    e = np.exp(x["s"] * 3)
    made = twist_tile.lower(k, schedule("twist", SMALL, (M,), (N,)))
    sums = e.sum(1, keepdims=True)
    np.testing.assert_allclose(run(k, made, random(k)), e @ np.exp(x["v"]) / sums + np.log(sums), rtol=1e-5)


def test_no_columns() -> None:
    """Values that depend on the row and the key only are summed in the row's lanes."""
    t = tensors(q=(9, 8), k=(21, 8), v=(9, 21), g=(9,), h=(21,))
    score = op("mul", op("add", total(D, op("mul", load(t, "q", M, D), load(t, "k", J, D))), load(t, "h", J)), op("tanh", load(t, "g", M)))
    k = kernel(softmax(score, load(t, "v", M, J)), (M,), {M: 9, J: 21, D: 8}, t)
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    e = np.exp((x["q"] @ x["k"].T + x["h"]) * np.tanh(x["g"])[:, None])
    made = twist_tile.lower(k, schedule("twist", SMALL, (M,), ()))
    np.testing.assert_allclose(run(k, made, random(k)), (e * x["v"]).sum(1) / e.sum(1), rtol=1e-4, atol=1e-5)


def test_grouped_heads_are_rows_of_one_key_head() -> None:
    """Rows (group, position) share the keys of head b; the output is [b, group, position, column]."""
    g = 5
    t = tensors(q=(2, 3, 4, 8), k=(2, 11, 8), v=(2, 11, 16))
    score = total(D, op("mul", load(t, "q", B, g, M, D), load(t, "k", B, J, D)))
    k = kernel(softmax(score, load(t, "v", B, J, N)), (B, g, M, N), {B: 2, g: 3, M: 4, N: 16, J: 11, D: 8}, t)
    x = random(k)
    made = twist_tile.lower(k, schedule("twist", SMALL, (g, M), (N,), (B,)))
    flat = {"q": x["q"].reshape(2, 12, 8), "k": x["k"], "v": x["v"]}
    np.testing.assert_allclose(run(k, made, x), reference(flat, 1).reshape(2, 3, 4, 16), rtol=1e-5, atol=1e-5)


def test_shared_bytes_are_what_the_module_says() -> None:
    assert lowered(attention(1, 64, 37, 64, 33), LARGE).shared_bytes == 4 * (48 * 68 + 16 * 68 + 64 * 68 + 64 * (16 * 4 + 4))
    assert lowered(attention(1, 8, 16, 8, 8), SMALL).shared_bytes == 4 * (8 * 12 + 4 * 20 + 8 * 20 + 16 * (8 * 2 + 4))


def test_what_a_twist_is_not() -> None:
    t = tensors(a=(8, 8), b=(8, 8))
    plain = kernel(total(J, load(t, "a", M, J)), (M, N), {M: 8, N: 8, J: 8}, t)
    with pytest.raises(IRError, match="one fold of kind twist"):
        twist_tile.lower(plain, schedule("twist", SMALL, (M,), (N,)))
    crossed = kernel(softmax(op("add", load(t, "a", M, J), load(t, "b", J, N)), number(2)), (M, N), {M: 8, N: 8, J: 8}, t)
    with pytest.raises(IRError, match="depends on columns"):
        twist_tile.lower(crossed, schedule("twist", SMALL, (M,), (N,)))
    for row in (SMALL.replace("d1", "d2"), SMALL.replace("t4x8", "t4x24"), SMALL.replace("t4x8", "t4x64")):
        with pytest.raises(IRError, match="a power of two"):
            lowered(attention(1, 8, 8, 8, 8), row)


def test_the_compiler_keeps_a_tile_in_registers() -> None:
    forms = [lowered(attention(64, 1024, 64, 1024, 64, name="full_attention"), LARGE),
             lowered(attention(64, 1000, 128, 1001, 128, "causal", dt.bf16, name="causal_attention"), LARGE)]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)
