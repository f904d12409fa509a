"""Sums of contractions as one: the simulated kernel against float64, what is one and what is not; and operands that are read once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.instructions import CopyTile, For, MultiplyWarpgroup
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.loop_ir import Value
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.lower.tile_to_kernel.joined import addends
from emmy.pipeline import compile_snippet
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_tensor_core import wide

SMALL = "WORK=g1x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
PAIR = "WORK=g2x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f2x2/k128,STAGE=d2/smem-tma,RASTER=gm2/p3"
HALF = 2.0**-8


def sums(m: int, n: int, lengths: tuple[int, ...], across: bool = False, bias: bool = False) -> tile.Kernel:
    """x0 w0 + x1 w1 + ..., each over an axis of its own; weights lie [n, k], or [k, n] if `across`."""
    named = dict(zip("abc", lengths, strict=False))
    shapes = {f"x{c}": (m, k) for c, k in named.items()} | {f"w{c}": (k, n) if across else (n, k) for c, k in named.items()}
    t, body = tensors(dt.bf16, **shapes, bias=(n,)), list[Value]()
    for i in range(len(lengths)):
        w = load(t, f"w{'abc'[i]}", *((2 + i, 1) if across else (1, 2 + i)))
        body.append(total(2 + i, op("mul", load(t, f"x{'abc'[i]}", 0, 2 + i), w)))
    whole = op("add", body[0], load(t, "bias", 1)) if bias else body[0]
    for term in body[1:]:
        whole = op("add", whole, term)
    used = t if bias else {name: x for name, x in t.items() if name != "bias"}
    return kernel(loop.Round(dt.bf16, whole), (0, 1), {0: m, 1: n} | {2 + i: k for i, k in enumerate(lengths)}, used, dt.bf16)


def reference(k: tile.Kernel, across: bool) -> np.ndarray:
    x = wide(k)
    found: np.ndarray = sum(x[f"x{c}"] @ (x[f"w{c}"] if across else x[f"w{c}"].T) for c in "abc"[:len(k.folds)])
    return found + x.get("bias", 0)


def joined(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("join", row, (0,), (1,))))


@pytest.mark.parametrize("row", [SMALL, PAIR])
@pytest.mark.parametrize(("across", "bias"), [*itertools.product((False, True), repeat=2)])
def test_sums_add_up(row: str, across: bool, bias: bool) -> None:
    for m, n, lengths in ((136, 152, (200, 16)), (40, 72, (8, 136)), (72, 64, (64, 128, 24))):
        k = sums(m, n, lengths, across, bias)
        close(run(k, joined(k, row), random(k)), reference(k, across), HALF)


def test_short_sums_take_few_products_and_come_last() -> None:
    made = joined(sums(64, 64, (16, 256)), SMALL)
    first, last = (s for s in kernel_ir.walk(made.body) if isinstance(s, MultiplyWarpgroup))
    assert str(first.accumulate) != str(last.accumulate)
    turns = [s.trips for s in kernel_ir.walk(made.body) if isinstance(s, For) and s.var.name.startswith("q_") and
             any(isinstance(x, MultiplyWarpgroup) for x in kernel_ir.walk(s.body))]
    assert turns == [4, 1]
    assert len([b for b in made.shared if b.element is dt.bf16]) == 3       # a ring a side, and boxes of the result
    assert parse(show(made)) is made


def test_what_is_one_sum() -> None:
    assert addends(sums(8, 8, (8, 16))) and addends(sums(8, 8, (8, 16), bias=True)) and addends(sums(8, 8, (8, 16, 24)))
    assert not addends(sums(8, 8, (8,)))
    k = sums(8, 8, (8, 16))
    (rounded,) = k.results
    first = k.folds[0].result()
    for other in (op("mul", first, first), op("add", rounded.operands[0], first), op("mul", k.folds[0].result(), k.folds[1].result())):
        assert not addends(k.replace(results=(other,)))
    assert addends(k.replace(results=(op("exp", rounded.operands[0]),)))


def test_rows_are_proposed_where_sums_are_one() -> None:
    rows = {s.row for s in schedules(sums(128, 256, (512, 16)), "sm_90a") if s.form == "join"}
    assert any(r.stage.endswith("smem-tma") for r in rows)
    assert not any(s.form == "join" for s in schedules(matmul(128, 256, 64, right=True, element=dt.bf16), "sm_90a"))
    assert not any(s.form == "join" for s in schedules(sums(128, 256, (512, 16)), "sm_80"))


def test_low_rank_update_is_one_kernel_beside_its_small_one() -> None:
    d = "dtype=torch.bfloat16"
    program = compile_snippet(f"x = torch.randn(2048, 2048, {d}); w, a, b = nn.Linear(2048, 2048, bias=False, {d}), "
                              f"nn.Linear(2048, 16, bias=False, {d}), nn.Linear(16, 2048, bias=False, {d}); w(x) + b(a(x))")
    assert [k.schedule.form for k in program.tile.kernels if k.schedule] == ["contraction", "join"]


def test_operands_that_are_read_once() -> None:
    k, row = matmul(16, 136, 200, right=True, element=dt.bf16), SMALL.replace("smem-tma", "smem-tma-once")
    made = lower(k.replace(schedule=schedule("contraction", row, (0,), (1,))))
    x = wide(k)
    close(run(k, made, random(k)), x["a"] @ x["b"].T, HALF)
    of = {m.name: m.buffer for m in made.maps}
    assert {of[s.map]: s.once for s in kernel_ir.walk(made.body) if isinstance(s, CopyTile)} == {"a": False, "b": True}
    assert parse(show(made)) is made
    source = emit_module((made, joined(sums(64, 64, (64, 16)), SMALL).replace(name="sums")))
    assert source.count("emmy_copy_tile_2_once(") > 1 and "L2::evict_first" in source
    assert all(r.spill_bytes == 0 for r in build(source, "sm_90a").functions.values())
    stages = {s.row.stage.split("/")[1] for s in schedules(k, "sm_90a") if s.row.tile.startswith("wgmma")}
    assert stages == {"smem-tma", "smem-tma-once"}
    many = {s.row.stage.split("/")[1] for s in schedules(matmul(1024, 136, 200, right=True, element=dt.bf16), "sm_90a")
            if s.row.tile.startswith("wgmma")}
    assert many == {"smem-tma"}
