"""Twists by warpgroups: the simulated kernel against NumPy in float64, the rows proposed, and what the compiler makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, IxConst, IxDiv
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_tensor_twist import close, masked
from tests.lower.tile_to_kernel.test_twist_tile import B, D, J, M, N, attention, reference, softmax


def row(groups: int = 1, turns: bool = False, keys: int = 64, stages: int = 2, queries: int = 1, layers: int = 1, blocks: int = 3,
        live: bool = False, element: str = "bf16") -> str:
    return (f"WORK=g{groups}/ws{'-turns' * turns},TILE=wgmma_m64n{keys}k16_{element}_f32/f1x1,STAGE=d{stages}q{queries}/smem-tma,"
            f"RASTER=gb{layers}/p{blocks}{'/live' * live}")


SMALL, PAIR, THREE = row(), row(2, True, 32, 3, 2, 2, 2), row(3, True, 128, 2, 1, 3, 132)


def lowered(k: tile.Kernel, spelled: str, rows: tuple[int, ...] = (M,), batch: tuple[int, ...] = (B,)) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("twist", spelled, rows, (N,), batch)))


@pytest.mark.parametrize("spelled", [SMALL, PAIR, THREE])
@pytest.mark.parametrize("mask", ["", "causal", "bias"])
def test_attention(spelled: str, mask: str) -> None:
    k = attention(3, 100, 64, 130, 96, mask, dt.bf16)
    close(run(k, lowered(k, spelled), random(k)), reference(random(k), 96**-0.5, mask))


@pytest.mark.parametrize("spelled", [row(live=True), row(2, True, 128, 2, 2, 2, 2, True), row(3, False, 48, 2, 1, 8, 5, True)])
@pytest.mark.parametrize("sizes", [(100, 64, 130, 64), (200, 128, 200, 40), (333, 24, 100, 16), (70, 80, 333, 128)])
def test_keys_that_do_not_count_are_left_out(spelled: str, sizes: tuple[int, int, int, int]) -> None:
    k = attention(2, *sizes[:1], *sizes[1:], "causal", dt.bf16)
    form = lowered(k, spelled)
    close(run(k, form, random(k)), reference(random(k), sizes[3]**-0.5, "causal"))


def window(b: int, m: int, j: int, d: int, before: int, after: int) -> tile.Kernel:
    """Attention to the keys from `before` before the row to `after` after it."""
    t = tensors(dt.bf16, q=(b, m, d), k=(b, j, d), v=(b, j, d))
    at = op("sub", loop.IndexOf(Ax(J)), loop.IndexOf(Ax(M)))
    inside = op("and", op("le", integer(-before), at), op("le", at, integer(after)))
    score = total(D, op("mul", load(t, "q", B, M, D), load(t, "k", B, J, D)))
    mask = op("select", inside, number(0), number(float("-inf")))
    body = softmax(op("add", op("mul", number(0.125), score), mask), load(t, "v", B, J, N))
    return kernel(loop.Round(dt.bf16, body), (B, M, N), {B: b, M: m, N: d, J: j, D: d}, t, dt.bf16)


def integer(n: int) -> Value:
    return loop.Const(dt.i64, dt.bits(dt.i64, n))


@pytest.mark.parametrize("before, after", [(0, 0), (70, 3), (3, 200), (-40, 50)])
def test_sliding_window(before: int, after: int) -> None:
    k = window(1, 290, 300, 64, before, after)
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    s = x["q"] @ x["k"].swapaxes(1, 2) * 0.125
    at = np.arange(300) - np.arange(290)[:, None]
    s = np.where((-before <= at) & (at <= after), s, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(2, keepdims=True))
        wanted = p / p.sum(2, keepdims=True) @ x["v"]
    for spelled in (row(live=True), row(2, True, 32, 2, 1, 1, 2, True)):
        close(run(k, lowered(k, spelled), random(k)), wanted)


def shared_heads(b: int, heads: int, group: int, m: int, j: int, d: int, packed: bool) -> tile.Kernel:
    """Causal attention where `group` heads of queries share one of keys: the head of keys a quotient, or the heads of a group rows."""
    h, g = 5, 6
    t = tensors(dt.bf16, q=(b, heads, m, d), k=(b, heads // group, j, d), v=(b, heads // group, j, d))
    head, shared = (Ax(h), IxDiv(Ax(h), group))
    if packed:
        t = tensors(dt.bf16, q=(b, heads // group, group, m, d), k=(b, heads // group, j, d), v=(b, heads // group, j, d))
        score = total(D, op("mul", load(t, "q", B, h, g, M, D), load(t, "k", B, h, J, D)))
        value, axes = load(t, "v", B, h, J, N), (B, h, g, M, N)
    else:
        score = total(D, op("mul", load(t, "q", B, head, M, D), load(t, "k", B, shared, J, D)))
        value, axes = load(t, "v", B, shared, J, N), (B, h, M, N)
    score = op("select", op("lt", loop.IndexOf(Ax(M)), loop.IndexOf(Ax(J))), number(float("-inf")), op("mul", score, number(0.25)))
    extents = {B: b, h: heads // group if packed else heads, g: group, M: m, N: d, J: j, D: d}
    return kernel(loop.Round(dt.bf16, softmax(score, value)), axes, {a: extents[a] for a in (*axes, J, D)}, t, dt.bf16)


@pytest.mark.parametrize("m", [100, 64, 128])
def test_heads_of_queries_share_keys(m: int) -> None:
    for packed in (False, True):
        k = shared_heads(2, 6, 3, m, m, 32, packed)
        x = {n: v.astype(np.float64).reshape(2, -1, m, 32) for n, v in random(k).items()}
        keys, values = (np.repeat(x[n], 3, 1) for n in "kv")
        s = np.where(np.tri(m, dtype=bool), x["q"] @ keys.swapaxes(2, 3) * 0.25, -np.inf)
        p = np.exp(s - s.max(3, keepdims=True))
        wanted = p / p.sum(3, keepdims=True) @ values
        placed = ((6, M), (B, 5)) if packed else ((M,), (B, 5))
        for spelled in (row(2, live=True), row(1, True, 32, 2, 2, 4, 2)):
            if packed and m % 64:
                continue        # a box of rows would cross from one head to the next
            close(run(k, lowered(k, spelled, *placed), random(k)).reshape(wanted.shape), wanted)


def test_scores_of_any_form() -> None:
    """A soft cap, a bias of keys times indices and a mask in memory."""
    b, m, j, d = 2, 70, 90, 48
    t = tensors(dt.f16, q=(b, m, d), k=(b, j, d), v=(b, j, d)) | tensors(slope=(b,), there=(m, j))
    score = op("mul", number(5), op("tanh", op("mul", total(D, op("mul", load(t, "q", B, M, D), load(t, "k", B, J, D))), number(0.1))))
    away = loop.Cast(dt.f32, op("sub", loop.IndexOf(Ax(J)), loop.IndexOf(Ax(M))))
    score = op("add", score, op("mul", load(t, "slope", B), away))
    score = op("select", op("lt", number(-1), load(t, "there", M, J)), score, number(float("-inf")))
    k = kernel(loop.Round(dt.f16, softmax(score, load(t, "v", B, J, N))), (B, M, N), {B: b, M: m, N: d, J: j, D: d}, t, dt.f16)
    x = random(k)
    x["slope"] *= 0.1
    f = {n: v.astype(np.float64) for n, v in x.items()}
    s = 5 * np.tanh(f["q"] @ f["k"].swapaxes(1, 2) * 0.1) + f["slope"][:, None, None] * (np.arange(j) - np.arange(m)[:, None])
    s = np.where(f["there"] > -1, s, -np.inf)
    p = np.exp(s - s.max(2, keepdims=True))
    for spelled in (row(element="f16"), row(2, True, 32, 2, 1, 1, 2, element="f16")):
        close(run(k, lowered(k, spelled), x), p / p.sum(2, keepdims=True) @ f["v"])


def test_rows_that_are_masked_in_part_and_in_full() -> None:
    k = attention(1, 70, 16, 90, 32, "bias", dt.bf16)
    masked(k, lowered(k, SMALL), 32**-0.5, 64)


def test_keys_and_values_stored_transposed() -> None:
    t = tensors(dt.bf16, q=(2, 72, 32), k=(2, 32, 136), v=(2, 40, 136))
    score = total(D, op("mul", load(t, "q", B, M, D), load(t, "k", B, D, J)))
    k = kernel(loop.Round(dt.bf16, softmax(score, load(t, "v", B, N, J))), (B, M, N), {B: 2, M: 72, N: 40, J: 136, D: 32}, t, dt.bf16)
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    s = x["q"] @ x["k"]
    p = np.exp(s - s.max(2, keepdims=True))
    close(run(k, lowered(k, SMALL), random(k)), p / p.sum(2, keepdims=True) @ x["v"].swapaxes(1, 2))


def test_rows_of_the_menu() -> None:
    def rows(k: tile.Kernel, pins: str = "") -> set[str]:
        return {str(s.row) for s in schedules(k, "sm_90a", pins=pins) if s.row.tile.startswith("wgmma")}

    menu = rows(attention(2, 256, 64, 256, 64, "causal", dt.bf16))
    assert row(2, True, 128, 2, 1, 2, 132) in menu and row(2, True, 128, 2, 1, 1, 132, True) in menu
    assert not any("/live" in r for r in rows(attention(2, 256, 64, 256, 64, "bias", dt.bf16)))
    assert not rows(attention(2, 256, 64, 256, 64, "causal", dt.f32)) and not rows(attention(2, 256, 60, 256, 64, "", dt.bf16))
    assert rows(attention(2, 256, 64, 256, 64, "", dt.f16), row(1, keys=96, element="f16"))
    for n, spelled in ((64, row(3, True, 128, 3, 2, 1, 132)), (128, row(2, True, 128, 2, 2, 1, 132)),
                       (256, row(2, True, 64, 2, 1, 1, 132))):
        k = attention(2, 256, n, 256, n, "", dt.bf16)
        assert spelled in rows(k) and lowered(k, spelled).shared_bytes <= 232448
    wide = attention(2, 256, 256, 256, 256, "", dt.bf16)
    assert any("n64k16" in r for r in rows(wide)) and not any(r.startswith("WORK=g3") for r in rows(wide))
    with pytest.raises(EmmyError) as error:
        schedules(wide, "sm_90a", pins=row(3, keys=64, blocks=132))
    assert "FitsRegisters" in str(error.value.remedy)
    with pytest.raises(IRError):
        lowered(attention(2, 256, 64, 256, 64, "", dt.f32), SMALL)
    with pytest.raises(IRError):
        lowered(attention(2, 256, 64, 256, 64, "", dt.bf16), SMALL.replace("n64", "n24"))


def test_the_compiler_keeps_scores_and_sums_in_registers() -> None:
    made = [lowered(attention(4, 512, d, 512, d, mask, dt.bf16, f"form{n}"), spelled) for n, (d, mask, spelled) in enumerate((
        (64, "", row(3, True, 128, 3, 1, 1, 132)), (128, "causal", row(2, True, 128, 2, 1, 8, 132, True)),
        (64, "causal", row(2, True, 128, 2, 2, 8, 132, True)), (96, "bias", row(2, False, 128, 2, 1, 1, 132)),
        (256, "", row(2, True, 64, 2, 1, 1, 132))))]
    for name, report in build(emit_module(made), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)


def decoding(b: int, heads: int, group: int, j: int, d: int, element: DType = dt.bf16) -> tile.Kernel:
    """Attention of one row of queries of each head, `group` heads to a head of keys."""
    h, one = 5, 6
    t = tensors(element, q=(b, heads, 1, d), k=(b, heads // group, j, d), v=(b, heads // group, j, d))
    head, zero = IxDiv(Ax(h), group), IxConst(0)
    score = op("mul", number(d**-0.5), total(D, op("mul", load(t, "q", B, h, zero, D), load(t, "k", B, head, J, D))))
    body = softmax(score, load(t, "v", B, head, J, N))
    body = body if element is dt.f32 else loop.Round(element, body)
    return kernel(body, (B, h, one, N), {B: b, h: heads, one: 1, N: d, J: j, D: d}, t, element)


@pytest.mark.parametrize("spelled", [row(), row(1, False, 128, 2, 2), "WORK=w1,TILE=mma_m16n8k16_bf16_f32/f1x4,STAGE=d3/smem-async",
                                     "WORK=t4x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem"])
def test_decoding(spelled: str) -> None:
    element = dt.f32 if "fma" in spelled else dt.bf16
    for j, d in ((150, 64), (40, 96)):
        k = decoding(2, 6, 3, j, d, element)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        keys, values = (np.repeat(x[n], 3, 1) for n in "kv")
        s = x["q"] @ keys.swapaxes(2, 3) * d**-0.5
        p = np.exp(s - s.max(3, keepdims=True))
        form = lowered(k, spelled, (), (B, 5, 6))
        close(run(k, form, random(k)), p / p.sum(3, keepdims=True) @ values)
        assert not any(b.name.startswith("columns") for b in form.shared)       # no result is one of columns alone
    if element is dt.bf16:
        alone = decoding(2, 6, 1, 40, 96)       # heads that share no keys: no axis has rows
        assert not any(s.rows for s in schedules(alone, "sm_90a", pins=spelled.replace("/p3", "/p132")))


def test_results_that_read_columns() -> None:
    """A bias of columns after the division, kept in shared memory; another type of output."""
    t = tensors(dt.bf16, q=(1, 72, 32), k=(1, 90, 32), v=(1, 90, 48)) | tensors(bias=(48,))
    score = op("mul", number(0.25), total(D, op("mul", load(t, "q", B, M, D), load(t, "k", B, J, D))))
    body = op("add", softmax(score, load(t, "v", B, J, N)), load(t, "bias", N))
    for element, stored in ((dt.bf16, loop.Round(dt.bf16, body)), (dt.f32, body)):
        k = kernel(stored, (B, M, N), {B: 1, M: 72, N: 48, J: 90, D: 32}, t, element)
        x = {n: v.astype(np.float64) for n, v in random(k).items()}
        s = x["q"] @ x["k"].swapaxes(1, 2) * 0.25
        p = np.exp(s - s.max(2, keepdims=True))
        close(run(k, lowered(k, row(blocks=1)), random(k)), p / p.sum(2, keepdims=True) @ x["v"] + x["bias"])
