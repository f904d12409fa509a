"""Keys that values of rows tell: what is found of a mask, and that tiles outside of all rows' keys are not met."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, IxDiv
from emmy.ir.loop_ir import IxOf, Value
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import key_tiles, lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, run, schedule, total
from tests.lower.tile_to_kernel.test_hopper_twist import row
from tests.lower.tile_to_kernel.test_tensor_twist import SMALL, TALL, close
from tests.lower.tile_to_kernel.test_twist_tile import B, D, J, M, N, softmax

HEAD = 5
WARPS = f"{SMALL},RASTER=live", f"{TALL},RASTER=live"
GROUPS = row(live=True), row(2, True, 32, 3, 2, 2, 2, True), row(3, False, 128, 2, 1, 3, 132, True)
LOW = number(float("-inf"))


def whole(n: int) -> Value:
    return loop.Const(dt.i64, dt.bits(dt.i64, n))


def offset(name: str, *point: int) -> Value:
    """A number of i32 in memory, as i64."""
    return loop.Cast(dt.i64, loop.Load(name, dt.i32, tuple(map(Ax, point))))


ROW, KEY = loop.IndexOf(Ax(M)), loop.IndexOf(Ax(J))
START, END = offset("start", M), offset("end", M)
MASKS: dict[str, Value] = {
    "offsets": op("and", op("le", START, KEY), op("lt", KEY, END)),
    "causal": op("and", op("le", START, KEY), op("le", KEY, ROW)),
    "written": op("not", op("or", op("lt", KEY, START), op("le", END, KEY))),
    "beyond": op("and", op("lt", START, KEY), op("le", KEY, END)),
    "from the row": op("and", op("le", op("sub", KEY, ROW), END), op("le", START, op("add", KEY, whole(3)))),
    "lengths": op("lt", KEY, offset("length", B)),
    "one table in another": op("lt", KEY, loop.Cast(dt.i64, loop.Load("end", dt.i32, (IxOf(loop.Load("seat", dt.i64, (Ax(M),))),)))),
    "blocks": op("le", KEY, loop.IndexOf(IxDiv(Ax(M), 4))),
}


def attention(mask: Value, b: int, m: int, j: int, d: int, heads: int = 1, group: int = 1, name: str = "form") -> tile.Kernel:
    """Attention to the keys that a mask lets through; `group` heads share those of one."""
    kept = b, heads // group, j, d
    t = {n: tile.Tensor(n, s, dt.bf16) for n, s in (("q", (b, heads, m, d)), ("k", kept), ("v", kept))}
    t |= {n: tile.Tensor(n, s, e) for n, s, e in
          (("start", (m,), dt.i32), ("end", (m,), dt.i32), ("length", (b,), dt.i32), ("seat", (m,), dt.i64))}
    shared = IxDiv(Ax(HEAD), group)
    score = op("mul", total(D, op("mul", load(t, "q", B, HEAD, M, D), load(t, "k", B, shared, J, D))), number(d**-0.5))
    body = loop.Round(dt.bf16, softmax(op("select", mask, score, LOW), load(t, "v", B, shared, J, N)))
    used = {v.tensor for v in loop.walk((body,)) if isinstance(v, loop.Load)} | {"q", "k", "v"}
    used |= {"seat"} if "seat" in str(mask) else set()
    extents = {B: b, HEAD: heads, M: m, N: d, J: j, D: d}
    return kernel(body, (B, HEAD, M, N), extents, {n: x for n, x in t.items() if n in used}, dt.bf16, name)


def inputs(k: tile.Kernel, start: np.ndarray, end: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal queries, keys and values; offsets as given."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: t.shape for t in k.tensors}
    made = {"start": start.astype(np.int32), "end": end.astype(np.int32), "seat": rng.permutation(len(start)).astype(np.int64),
            "length": rng.integers(1, max(end.max(), 2), shapes.get("length", 1)).astype(np.int32)}
    made |= {n: rng.standard_normal(shapes[n]).astype(dt.bf16.numpy) for n in "qkv"}
    return {n: made[n] for n in shapes}


def seen(name: str, x: dict[str, np.ndarray]) -> np.ndarray:
    """Whether a row sees a key: [batch, row, key]."""
    b, m, j = x["q"].shape[0], x["q"].shape[2], x["k"].shape[2]
    i, key = np.arange(m)[:, None], np.arange(j)[None]
    start, end = (x.get(n, np.zeros(m, np.int32)).astype(np.int64)[:, None] for n in ("start", "end"))
    masks = {"offsets": (start <= key) & (key < end), "causal": (start <= key) & (key <= i), "written": (start <= key) & (key < end),
             "beyond": (start < key) & (key <= end), "from the row": (key - i <= end) & (start <= key + 3), "blocks": key <= i // 4}
    if name == "lengths":
        return np.broadcast_to(key < x["length"][:, None, None], (b, m, j))
    if name == "one table in another":
        return np.broadcast_to(key < end[x["seat"]], (b, m, j))
    return np.broadcast_to(masks[name], (b, m, j))


def wanted(x: dict[str, np.ndarray], there: np.ndarray) -> np.ndarray:
    """Attention in float64; NaN where a row sees no key."""
    q, k, v = (x[n].astype(np.float64) for n in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = np.nan_to_num(np.repeat(k, group, 1)), np.nan_to_num(np.repeat(v, group, 1))
    s = np.where(there[:, None], q @ k.swapaxes(2, 3) * q.shape[3]**-0.5, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(3, keepdims=True))
        return p / p.sum(3, keepdims=True) @ v


def lowered(k: tile.Kernel, spelled: str) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("twist", spelled, (M,), (N,), (B, HEAD))))


def packed(lengths: list[int], m: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the document of each of m tokens begins and ends; tokens after the last document have none."""
    ends = np.cumsum(lengths)
    document = np.searchsorted(ends, np.arange(m), side="right")
    edges = np.concatenate([[0], ends, ends[-1:]])
    return edges[document], edges[np.minimum(document + 1, len(ends))]


DOCUMENTS = [37, 1, 0, 90, 1, 1, 60, 0, 11]        # 201 tokens


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("spelled", [WARPS[1], GROUPS[1]])
def test_masks(name: str, spelled: str) -> None:
    """Documents of one token and of none, and rows that belong to none."""
    m = 210
    k = attention(MASKS[name], 1, m, m, 16)
    x = inputs(k, *packed(DOCUMENTS, m))
    close(run(k, lowered(k, spelled), x), wanted(x, seen(name, x)))


@pytest.mark.parametrize("spelled", [*WARPS, *GROUPS])
def test_bounds_in_any_order(spelled: str) -> None:
    """Rows whose keys lie anywhere, beyond those that there are, or nowhere."""
    rng = np.random.default_rng(1)
    start, length = rng.integers(-500, 300, 150), rng.integers(-3, 90, 150)
    start[::7], length[::7] = -2**31, 2**31 - 1
    k = attention(MASKS["offsets"], 1, 150, 200, 16, 2, 2)
    x = inputs(k, start, start + length)
    close(run(k, lowered(k, spelled), x), wanted(x, seen("offsets", x)))


@pytest.mark.parametrize("name, spelled", [("offsets", WARPS[0]), ("causal", WARPS[1]), ("written", GROUPS[0]), ("offsets", GROUPS[2]),
                                           ("one table in another", GROUPS[0]), ("causal", GROUPS[1])])
def test_tiles_that_no_row_sees_are_not_met(name: str, spelled: str) -> None:
    """A weight of zero times a value that is no number is none: what is left out has not been there."""
    m = 384
    k = attention(MASKS[name], 1, m, m, 16)
    start, end = np.full(m, 129), np.minimum(np.arange(m) % 7 + 250, 256)
    x = inputs(k, start, end)
    there = seen(name, x)
    tiles = np.arange(m) // 192 * 192       # as high as the highest tile of rows
    for r in np.unique(tiles):
        poisoned = {n: v.copy() for n, v in x.items()}
        keys = np.flatnonzero(there[0, tiles == r].any(0))
        for n in "kv":
            poisoned[n][:, :, :keys.min() // 128 * 128] = np.nan
            poisoned[n][:, :, -(-(keys.max() + 1) // 128) * 128:] = np.nan
        got = run(k, lowered(k, spelled), poisoned)
        close(got[:, :, tiles == r], wanted(x, there)[:, :, tiles == r])
        dense = spelled.replace(",RASTER=live", "").replace("/live", "")
        assert np.isnan(run(k, lowered(k, dense), poisoned)[:, :, tiles == r]).any()


LARGE = "WORK=w4,TILE=mma_m16n8k16_bf16_f32/f1x8,STAGE=d2/smem-async,RASTER=live"


@pytest.mark.parametrize("mask", ["offsets", "causal"])
def test_the_compiler_keeps_the_state_in_registers(mask: str) -> None:
    """And the warp that copies does with the few that it is left."""
    rows = {64: (row(2, True, 128, 2, 2, 16, 132, True), row(1, False, 128, 3, 2, 1, 132, True)),
            128: (row(2, True, 128, 2, 2, 1, 132, True), row(2, True, 64, 2, 1, 16, 132, True), LARGE)}
    made = [lowered(attention(MASKS[mask], 1, 4096, 4096, d, 16, 4, f"of_{d}_{n}"), spelled)
            for d in rows for n, spelled in enumerate(rows[d])]
    for name, report in build(emit_module(made), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)


def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the least taken for the largest, keys would be left out that some row sees."""
    k = attention(MASKS["offsets"], 1, 100, 100, 32)
    x = inputs(k, *packed([30, 50, 20], 100))
    right = key_tiles.ReadBounds.of_tile
    def swapped(self: key_tiles.ReadBounds, scope: key_tiles.Emitter, row: key_tiles.Expr, whole: bool) -> key_tiles.Keys:
        found = right(self, scope, row, True)
        return key_tiles.Keys(found.whole_first, found.whole_end, found.first, found.end)
    monkeypatch.setattr(key_tiles.ReadBounds, "of_tile", swapped)
    for spelled in (WARPS[1], GROUPS[1]):
        with pytest.raises(AssertionError):
            close(run(k, lowered(k, spelled), x), wanted(x, seen("offsets", x)))


def test_rows_are_proposed_where_values_of_rows_tell() -> None:
    """By rule; and a row that skips is thought no slower than one that does not."""
    names = {"offsets": True, "causal": True, "lengths": True, "blocks": True}
    for name, live in names.items():
        rows = [str(s.row) for s in schedules(attention(MASKS[name], 1, 256, 256, 64, 4, 4), "sm_90a")]
        assert any(r.endswith("live") and "mma_m16" in r for r in rows) == any("/live" in r for r in rows) == live, name
        assert any("WORK=g3" in r for r in rows) == (name == "lengths"), name       # three groups have no registers for bounds of rows
    same = op("eq", loop.Load("seat", dt.i64, (Ax(M),)), loop.Load("seat", dt.i64, (Ax(J),)))
    rows = [str(s.row) for s in schedules(attention(same, 1, 256, 256, 64), "sm_90a")]
    assert rows and not any("live" in r for r in rows)      # equal numbers of documents may lie anywhere
