"""Form "twist" on tensor cores: the simulated kernel against NumPy in float64, the rows proposed, and what the compiler makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import TARGETS, build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_twist_tile import B, D, J, M, N, attention, reference, softmax

SMALL = "WORK=w1,TILE=mma_m16n8k16_bf16_f32/f1x2,STAGE=d2/smem-async"
TALL = "WORK=w2,TILE=mma_m16n8k16_bf16_f32/f2x4,STAGE=d3/smem-async"
LARGE = "WORK=w4,TILE=mma_m16n8k16_bf16_f32/f1x8,STAGE=d2/smem-async"


def lowered(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("twist", row, (M,), (N,), (B,))))


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Weights are rounded to halves: an error of 2^-9 of the values' size, and of the result as it is stored."""
    np.testing.assert_allclose(got, wanted, rtol=2.0**-7, atol=2.0**-8)


@pytest.mark.parametrize("row", [SMALL, TALL])
@pytest.mark.parametrize("mask", ["", "causal", "bias"])
def test_attention(row: str, mask: str) -> None:
    for n, d, m, j in ((16, 8, 9, 19), (37, 33, 5, 37), (64, 32, 40, 72)):
        k = attention(2, m, n, j, d, mask, dt.bf16)
        close(run(k, lowered(k, row), random(k)), reference(random(k), d**-0.5, mask))


def test_f16() -> None:
    k = attention(1, 20, 24, 40, 16, "", dt.f16)
    close(run(k, lowered(k, SMALL.replace("bf16", "f16")), random(k)), reference(random(k), 0.25))


def masked(k: tile.Kernel, form: kernel_ir.Kernel, scale: float, first: int) -> None:
    """Attention whose first row sees no key, the next only those from `first` on, and the next the first key alone."""
    x = random(k)
    x["bias"][0] = -np.inf
    x["bias"][1, :first] = -np.inf
    x["bias"][2, 1:] = -np.inf
    out = run(k, form, x)
    assert np.isnan(out[0, 0]).all()
    close(out[:, 1:], reference(x, scale, "bias")[:, 1:])


def test_rows_that_are_masked_in_part_and_in_full() -> None:
    k = attention(1, 9, 16, 37, 8, "bias", dt.bf16)
    masked(k, lowered(k, SMALL), 8**-0.5, 32)


def test_scaled_queries_and_keys_stored_transposed() -> None:
    t = tensors(dt.bf16, q=(2, 24, 16), k=(2, 16, 40), v=(2, 40, 16))
    query = op("mul", load(t, "q", B, M, D), number(0.25))
    body = softmax(total(D, op("mul", query, load(t, "k", B, D, J))), load(t, "v", B, J, N))
    made = kernel(body, (B, M, N), {B: 2, M: 24, N: 16, J: 40, D: 16}, t)
    x = random(made)
    close(run(made, lowered(made, SMALL), x), reference(x | {"k": x["k"].swapaxes(1, 2)}, 0.25))


def test_what_a_twist_on_tensor_cores_is_not() -> None:
    t = tensors(dt.bf16, s=(8, 8), v=(8, 8))
    with pytest.raises(IRError, match="one sum of products"):
        bare = kernel(softmax(load(t, "s", M, J), load(t, "v", J, N)), (M, N), {M: 8, N: 8, J: 8}, t)
        lower(bare.replace(schedule=schedule("twist", SMALL, (M,), (N,))))
    for old, new in (("f1x2", "f1x3"), ("d2", "d1"), ("w1", "w1x2"), ("f1x2", "f1x2/k16")):
        with pytest.raises(IRError, match="row WORK"):
            lowered(attention(1, 8, 8, 8, 8, "", dt.bf16), SMALL.replace(old, new))


@pytest.mark.parametrize("element", [dt.bf16, dt.f16, dt.f32])
def test_rows(element: DType) -> None:
    k = attention(2, 256, 64, 256, 64, "", element)
    found = {str(s.row): s for s in schedules(k, "sm_90a", "fast") if s.row.tile.startswith("mma")}
    assert (LARGE.replace("bf16", str(element)) in found) is (element is not dt.f32)
    assert not any(s.row.tile.startswith("mma") for s in schedules(k, "sm_90a", "exact"))
    own = f"WORK=w3,TILE=mma_m16n8k16_{element}_f32/f1x6,STAGE=d4/smem-async"
    if element is not dt.f32:
        (pinned,) = schedules(k, "sm_90a", "fast", own)
        assert str(pinned.row) == own and lower(k.replace(schedule=pinned)).block == 96


@pytest.mark.parametrize("n, d", [(64, 64), (40, 24)])
def test_shared_bytes_are_what_the_rules_say(n: int, d: int) -> None:
    k = attention(1, 256, n, 256, d, "", dt.bf16)
    deep, wide = -(-d // 16) * 16, -(-n // 16) * 16
    assert lowered(k, LARGE).shared_bytes == 2 * (64 * deep + 2 * 64 * (deep + wide))


@pytest.mark.parametrize("target", TARGETS)
def test_the_compiler_keeps_the_state_in_registers(target: str) -> None:
    made = [attention(8, 1024, n, 1024, n, mask, dt.bf16, f"attention_{n}{mask}") for n in (64, 128) for mask in ("", "causal")]
    for name, report in build(emit_module([lowered(k, LARGE) for k in made]), target).functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)


@pytest.mark.parametrize("row", [SMALL, TALL])
def test_keys_that_do_not_count_are_left_out(row: str) -> None:
    for n, d, m, j in ((16, 8, 90, 100), (64, 32, 100, 72), (24, 16, 130, 200)):
        k = attention(2, m, n, j, d, "causal", dt.bf16)
        form = lowered(k, f"{row},RASTER=live")
        close(run(k, form, random(k)), reference(random(k), d**-0.5, "causal"))
        assert (form.body != lowered(k, row).body) == (m > 64)


def test_rows_that_leave_keys_out_are_proposed_where_indices_tell() -> None:
    for mask in ("", "causal", "bias"):
        rows = {str(s.row) for s in schedules(attention(2, 256, 64, 256, 64, mask, dt.bf16), "sm_80")}
        assert any(r.endswith("RASTER=live") for r in rows) == (mask == "causal")
