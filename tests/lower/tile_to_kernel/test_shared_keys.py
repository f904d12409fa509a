"""Heads that share keys as the rows of one tile: the kernel with an axis as two, the rows proposed, and the simulated kernel in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from emmy.egraph.schedule import schedules
from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, IxConst, IxDiv
from emmy.lower import loop_to_tile
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.lower.tile_to_kernel.shared_keys import packed, seen_by
from emmy.pipeline import compile
from emmy.runtime import execute
from emmy.runtime.build import TARGETS, build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, runs, tensors, total
from tests.lower.tile_to_kernel.test_hopper_twist import row
from tests.lower.tile_to_kernel.test_tensor_twist import close
from tests.lower.tile_to_kernel.test_twist_tile import B, D, J, M, N, softmax

H, P, Q = 5, 7, 8
WARP = "WORK=w1,TILE=mma_m16n8k16_bf16_f32/f1x4,STAGE=d3/smem-async"
FLOATS = "WORK=t4x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem"


def grouped(b: int, heads: int, group: int, m: int, j: int, d: int, element: DType = dt.bf16, causal: bool = False) -> tile.Kernel:
    """Attention of m rows of queries of each head, `group` heads to a head of keys; rows are the last of the keys if `causal`."""
    t = tensors(element, q=(b, heads, m, d), k=(b, heads // group, j, d), v=(b, heads // group, j, d))
    head, at = IxDiv(Ax(H), group), Ax(M) if m > 1 else IxConst(0)
    score = op("mul", number(d**-0.5), total(D, op("mul", load(t, "q", B, H, at, D), load(t, "k", B, head, J, D))))
    if causal:
        last = op("add", loop.IndexOf(at), loop.Const(dt.i64, j - m))
        score = op("select", op("le", loop.IndexOf(Ax(J)), last), score, number(float("-inf")))
    body = softmax(score, load(t, "v", B, head, J, N))
    body = body if element is dt.f32 else loop.Round(element, body)
    return kernel(body, (B, H, M, N), {B: b, H: heads, M: m, N: d, J: j, D: d}, t, element)


def wanted(k: tile.Kernel, group: int, causal: bool = False) -> np.ndarray:
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    keys, values = (np.repeat(x[n], group, 1) for n in "kv")
    s = x["q"] @ keys.swapaxes(2, 3) * keys.shape[3]**-0.5
    m, j = s.shape[2:]
    s = np.where(np.arange(j) <= np.arange(m)[:, None] + j - m, s, -np.inf) if causal else s
    p = np.exp(s - s.max(3, keepdims=True))
    return p / p.sum(3, keepdims=True) @ values     # type: ignore[no-any-return]


def test_the_axis_of_heads_is_two() -> None:
    k = grouped(2, 6, 3, 1, 20, 8)
    two = packed(k)
    assert [n for _, n in two.axes] == [2, 2, 3, 1, 8] and two.outputs[0].shape == (2, 2, 3, 1, 8)
    tile.verify(two)
    (one,), (other,) = evaluate_kernel(k, random(k)), evaluate_kernel(two, random(k))
    np.testing.assert_array_equal(one.reshape(-1), other.reshape(-1))
    for alone in (grouped(2, 6, 3, 16, 20, 8), grouped(2, 6, 1, 1, 20, 8), grouped(2, 3, 3, 1, 20, 8)):
        assert packed(alone) is alone


@pytest.mark.parametrize("spelled", [row(blocks=132), row(1, False, 128, 2, 2, blocks=132, live=True), WARP, f"{WARP},RASTER=live", FLOATS])
@pytest.mark.parametrize("m", [1, 5])
def test_a_block_reads_keys_once_for_all_heads(spelled: str, m: int) -> None:
    element = dt.f32 if spelled == FLOATS else dt.bf16
    for group, j, d in ((3, 150, 64), (8, 40, 32)):
        k = grouped(2, 2 * group, group, m, j, d, element, "live" in spelled)
        if "live" in spelled and m == 1:
            continue        # the last row sees every key
        (found,) = schedules(k, "sm_90a", pins=spelled)
        assert len(found.rows) == (2 if m > 1 else 1) and seen_by(k, found) is packed(k)
        form = lower(k.replace(schedule=found))
        close(run(k, form, random(k)), wanted(k, group, "live" in spelled))
        if not spelled.startswith("WORK=g"):
            assert np.prod(form.grid) == 4 * -(-m * group // (8 if spelled == FLOATS else 16))


def test_the_state_of_pieces() -> None:
    """What a piece of the keys leaves, and what joins the pieces: every legal row of the kernel that does."""
    t = tensors(dt.bf16, q=(2, 6, 1, 32), k=(2, 2, 64, 32), v=(2, 2, 64, 32))
    key, head = ix.add(ix.mul(Ax(P), 32), Ax(Q)), IxDiv(Ax(H), 3)
    score = total(D, op("mul", load(t, "q", B, H, IxConst(0), D), load(t, "k", B, head, key, D)))
    sums = loop.Channel("softmax", Q, score, load(t, "v", B, head, key, N))
    values = loop.Pivot("softmax", Q, score), loop.Channel("softmax", Q, score, number(1)), sums
    extents = {B: 2, H: 6, P: 2, N: 32, Q: 32, D: 32}
    outs = tuple(tile.Tensor(n, (2, 6, 2, 32), dt.f32) for n in "mlc")
    k = loop_to_tile.kernel("state", values, outs, (B, H, P, N), extents, t)
    x = {n: v.astype(np.float64) for n, v in random(k).items()}
    keys, held = (np.repeat(x[n].reshape(2, 2, 2, 32, 32), 3, 1) for n in "kv")
    s = np.einsum("bhd,bhpqd->bhpq", x["q"][:, :, 0], keys)
    w = np.exp(s - s.max(3, keepdims=True))
    for spelled in (row(blocks=132), WARP):
        (found,) = schedules(k, "sm_90a", pins=spelled)
        m, total_, c = runs(k, lower(k.replace(schedule=found)), random(k))
        np.testing.assert_allclose(m, np.broadcast_to(s.max(3)[..., None], m.shape), rtol=1e-5)
        np.testing.assert_allclose(total_, np.broadcast_to(w.sum(3)[..., None], m.shape), rtol=1e-2)
        np.testing.assert_allclose(c, np.einsum("bhpq,bhpqn->bhpn", w, held), rtol=2e-2, atol=5e-2)


def test_states_join() -> None:
    t = tensors(m=(3, 4), l=(3, 4), c=(3, 4, 8))
    score = load(t, "m", H, P)
    body = op("div", loop.Channel("softmax", P, score, load(t, "c", H, P, N)), loop.Channel("softmax", P, score, load(t, "l", H, P)))
    k = kernel(body, (H, N), {H: 3, N: 8, P: 4}, t)
    x = random(k)
    x["m"][0, 1:3] = -np.inf        # pieces without a key that counts
    f = {n: v.astype(np.float64) for n, v in x.items()}
    w = np.exp(f["m"] - f["m"].max(1, keepdims=True))
    joined = (w[:, :, None] * f["c"]).sum(1) / (w * f["l"]).sum(1)[:, None]
    met = set()
    for s in schedules(k, "sm_90a"):
        np.testing.assert_allclose(run(k, lower(k.replace(schedule=s)), x), joined, rtol=1e-4, atol=1e-5)
        met.add(s.form)
    assert met == {"map", "fold", "cross"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_compiler_keeps_the_state_in_registers(target: str) -> None:
    k = grouped(16, 32, 8, 1, 8192, 128)
    (found,) = schedules(k, target, pins=WARP)
    for name, report in build(emit_module([lower(k.replace(schedule=found))]), target).functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)


def test_pages_of_keys_that_a_table_names() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        keys, values = (x[table].flatten(1, 2).transpose(1, 2) for x in (k, v))
        return functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    torch.manual_seed(0)
    half, pages = torch.bfloat16, torch.randperm(8).reshape(2, 4)
    given = torch.randn(2, 6, 1, 32, dtype=half), torch.randn(8, 16, 2, 32, dtype=half), torch.randn(8, 16, 2, 32, dtype=half), pages
    program = compile(fn, *given, pins=WARP)
    (made,) = program.tile.kernels
    assert made.schedule is not None and len(made.schedule.rows) == 1 and str(made.schedule.row) == WARP
    found = execute.on_simulator(program, execute.arguments(program))[program.plan.outputs[0]].astype(np.float64)
    close(found, fn(*(x.double() for x in given[:3]), pages).numpy())
