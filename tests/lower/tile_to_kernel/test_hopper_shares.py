"""Sums that a cluster shares: simulated kernels against float64, a planted fault for each message, rows, what the compiler makes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emmy.egraph.schedule import candidates, schedules
from emmy.errors import EmmyError
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import ClusterArrive, ClusterWait, ExpectBytes, For, If, InitBarrier, StoreClusterVector, WaitBarrier
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Stmt
from emmy.ir.node import IRError
from emmy.lower import loop_to_tile
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, runs, tensors, total
from tests.lower.tile_to_kernel.products import batch, windows
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_windows import Conv
from tests.lower.tile_to_kernel.test_tensor_core import HALF, gated, lowered, wide

TWO = "WORK=g1x1/ws/c2,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
FOUR = "WORK=g1x1/ws/c4,TILE=wgmma_m64n32k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
GROUPS = "WORK=g2x1/ws/c2,TILE=wgmma_m64n48k16_bf16_f32/f1x2/k64,STAGE=d3/smem-tma,RASTER=gm1"
LARGE = "WORK=g2x1/ws/c2,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"


@pytest.mark.parametrize("row", [TWO, FOUR, GROUPS])
@pytest.mark.parametrize("left, right", [(False, True), (True, False)])
def test_blocks_of_a_cluster_share_stages(row: str, left: bool, right: bool) -> None:
    """Seven stages, of which no two or four blocks have as many; tiles that do not divide the result."""
    k = matmul(72, 72, 400, left, right, dt.bf16)
    if left and row != TWO:
        return      # columns that are contiguous lie in lines of 64
    x, form = wide(k), lowered(k, row)
    close(run(k, form, random(k)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), HALF)
    assert form.cluster == int(row.partition("/c")[2][0]) and form.grid[0] % form.cluster == 0
    assert kernel_parser.parse(kernel_text.show(form)) is form


def test_a_stage_for_each() -> None:
    k = matmul(8, 64, 128, right=True, element=dt.bf16)
    x = wide(k)
    close(run(k, lowered(k, TWO), random(k)), x["a"] @ x["b"].T, HALF)
    with pytest.raises(IRError, match="4 blocks share 2 stages"):
        lowered(k, FOUR)


def test_several_sums_each_have_an_inbox() -> None:
    form = gated(40, 136, TWO, 1e-5)
    assert len({s.buffer for s in kernel_ir.walk(form.body) if isinstance(s, StoreClusterVector)}) == 2


def test_a_batch_has_clusters_of_its_own() -> None:
    made = batch(16, 72, 136)
    assert made.lower(made.kernel, TWO).grid[0] == 3 * 2 * 2


def test_four_share_windows() -> None:
    """Stages are places of the window and channels: nine of one, or of three."""
    for of in (Conv((2, 5, 6, 64), (24, 3, 3), pad=(1, 1)), Conv((1, 6, 6, 136), (16, 3, 3), pad=(1, 1))):
        windows(of).assert_right(FOUR)


def test_the_order_is_that_of_ranks() -> None:
    """Of sums whose order matters the simulator, which runs blocks in turn, has what one computes by hand, from each owner's rank on."""
    t = tensors(dt.bf16, a=(8, 256), b=(32, 256))
    made = kernel(total(2, op("mul", load(t, "a", 0, 2), load(t, "b", 1, 2))), (0, 1), {0: 8, 1: 32, 2: 256}, t)
    x, form = wide(made), lowered(made, FOUR)
    parts = [(x["a"][:, s:s + 64] @ x["b"][:, s:s + 64].T).astype(np.float32) for s in range(0, 256, 64)]
    got = run(made, form, random(made))
    for strip in range(4):
        at = slice(8 * strip, 8 * strip + 8)
        wanted = parts[strip][:, at]
        for behind in range(1, 4):
            wanted = wanted + parts[(strip + behind) % 4][:, at]
        close(got[:, at], wanted.astype(np.float64), 1e-6)


def changed(k: kernel_ir.Kernel, change: Callable[[Stmt], tuple[Stmt, ...]]) -> kernel_ir.Kernel:
    """The kernel with each statement replaced by what `change` makes of it."""
    def inside(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, If):
                s = s.replace(body=inside(s.body), orelse=inside(s.orelse))
            elif isinstance(s, For):
                s = s.replace(body=inside(s.body))
            out += change(s)
        return tuple(out)
    return k.replace(body=inside(k.body))


def met(s: Stmt) -> bool:
    return getattr(s, "barrier", "").startswith("met")


def every(cls: type[Stmt], change: Callable[[Stmt], tuple[Stmt, ...]], of_cluster: bool = False) -> Callable[[Stmt], tuple[Stmt, ...]]:
    return lambda s: change(s) if isinstance(s, cls) and (not of_cluster or met(s)) else (s,)


FAULTS: dict[str, tuple[Callable[[Stmt], tuple[Stmt, ...]], str, str]] = {
    "no meeting before messages": (every(ClusterWait, lambda s: ()), "race", "is used as a barrier and made by"),
    "nobody arrives": (every(ClusterArrive, lambda s: ()), "barrier", "has not arrived"),
    "no barrier for messages": (every(InitBarrier, lambda s: (), True), "uninitialised", "nobody made it one"),
    "fewer bytes expected": (every(ExpectBytes, lambda s: (s.replace(bytes=4096),), True), "bytes", "which it does not expect"),
    "more bytes expected": (every(ExpectBytes, lambda s: (s.replace(bytes=9216),), True), "deadlock", "1024 bytes"),
    "totals before messages": (every(WaitBarrier, lambda s: (), True), "uninitialised", "inbox"),
    "a message to oneself": (every(StoreClusterVector, lambda s: (s.replace(rank=1 - s.rank),)), "", ""),
    "a message of another strip": (every(StoreClusterVector, lambda s: (s.replace(offset=(s.offset + 16) % 32),)), "", ""),
    "a message twice": (every(StoreClusterVector, lambda s: (s, s)), "race", "whose copy is under way"),
    "no message": (every(StoreClusterVector, lambda s: ()), "deadlock", "8192 bytes"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    change, kind, said = FAULTS[name]
    k = matmul(8, 64, 128, right=True, element=dt.bf16)
    x, form = wide(k), lowered(k, TWO)
    broken = changed(form, change)
    assert broken is not form
    if not kind:
        assert np.abs(run(k, broken, random(k)) - x["a"] @ x["b"].T).max() > 0.1
        return
    with pytest.raises(SimulationError) as error:
        run(k, broken, random(k))
    assert error.value.kind == kind and said in str(error.value), error.value


def rows(k: tile.Kernel, pins: str = "", target: str = "sm_90a") -> dict[str, tile.Schedule]:
    return {str(s.row): s for s in schedules(k, target, "fast", pins) if s.row.tile.startswith("wgmma") and s.row.cluster > s.row.stack}


def test_rows_are_proposed_where_tiles_are_few_and_sums_long() -> None:
    found = rows(matmul(256, 256, 2048, right=True, element=dt.bf16))
    assert {s.row.cluster for s in found.values()} == {2, 4} and all(tile.parse_row(text) is s.row for text, s in found.items())
    assert not rows(matmul(4096, 4096, 2048, right=True, element=dt.bf16))          # enough tiles
    assert not rows(matmul(256, 256, 256, right=True, element=dt.bf16))             # four stages for a block are more than there are
    assert not rows(matmul(256, 256, 2048, right=True))                             # fp32
    assert not rows(matmul(256, 256, 2048, right=True, element=dt.bf16), target="sm_120")
    tiles = {s.row.cluster * -(-1568 // 128) * 4 for t, s in rows(matmul(1568, 512, 2048, right=True, element=dt.bf16)).items()
             if "n128" in t and "f1x1" in t and "g2" in t}
    assert tiles == {104}                                                           # clusters of four would not all run at once


def test_pins() -> None:
    k = matmul(256, 256, 2048, right=True, element=dt.bf16)
    own = "WORK=g1x1/ws/c4,TILE=wgmma_m64n96k16_bf16_f32/f2x1/k128,STAGE=d3/smem-tma,RASTER=gm3"
    assert [*rows(k, own)] == [own]
    for old, new, reason in (("n96", "n80", "Divides"), ("d3", "d1", "Divides"), ("d3", "d9", "FitsShared"), ("c4", "c3", "Divides"),
                             ("gm3", "gm3/p132", "no rule proposes it"), ("f2x1", "f4x1", "FitsRegisters")):
        with pytest.raises(EmmyError) as caught:
            rows(k, own.replace(old, new))
        assert reason in caught.value.remedy, (new, caught.value.remedy)
    with pytest.raises(IRError, match="each of its blocks 8 columns"):
        lowered(k, own.replace("n96", "n80"))
    with pytest.raises(IRError, match="a cluster has one tile"):
        lowered(k, own + "/p132")


def test_shared_bytes_are_at_most_what_the_rules_say() -> None:
    k = matmul(256, 256, 2048, right=True, element=dt.bf16)
    for s in rows(k).values():
        assert lower(k.replace(schedule=s)).shared_bytes <= 232448
    assert not [s for s, why in candidates(k, "sm_90a").items() if s.row.cluster > s.row.stack and "FitsShared" in why]


def test_several_results_leave_in_strips() -> None:
    t = tensors(dt.bf16, x=(20, 136), w=(72, 136))
    y = total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2)))
    outputs = tuple(tile.Tensor(name, (20, 72), dt.bf16) for name in "yz")
    bodies = tuple(loop.Round(dt.bf16, v) for v in (y, op("tanh", y)))
    made = loop_to_tile.kernel("form", bodies, outputs, (0, 1), {0: 20, 1: 72, 2: 136}, t)
    x, form = wide(made), lowered(made, TWO)
    z = x["x"] @ x["w"].T
    for got, wanted in zip(runs(made, form, random(made)), (z, np.tanh(z)), strict=True):
        close(got, wanted, HALF)


def test_the_compiler_keeps_sums_in_registers() -> None:
    """No spills, and ptxas serialises no product."""
    t = tensors(dt.bf16, x=(256, 2048), w=(512, 2048), bias=(512,), residual=(256, 512))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    body = loop.Round(dt.bf16, op("add", op("tanh", y), load(t, "residual", 0, 1)))
    after = kernel(body, (0, 1), {0: 256, 1: 512, 2: 2048}, t, dt.bf16, "after")

    def of(name: str, row: str, element: DType = dt.bf16) -> kernel_ir.Kernel:
        return lowered(matmul(256, 512, 2048, right=True, element=element, name=name), row)

    forms = [of("two", LARGE), of("four", LARGE.replace("c2", "c4")), of("single", LARGE.replace("g2", "g1")),
             of("three", LARGE.replace("g2", "g3").replace("n256", "n128")),
             of("tall", LARGE.replace("n256", "n128").replace("f1x1", "f2x1")),
             of("bytes", LARGE.replace("n256k16_bf16", "n192k32_e4m3").replace("k64", "k128"), dt.e4m3), lowered(after, LARGE)]
    source = emit_module(forms)
    assert "emmy_store_cluster_vector(" in source and "__cluster_dims__(4, 1, 1)" in source
    for name, report in build(source, "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= (255 if name == "single" else 168), (name, report)
