"""Blocks that share out the stages of the last tiles: simulated kernels against float64, planted faults, rows, what the compiler makes."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from emmy.egraph.schedule import candidates, schedules
from emmy.errors import EmmyError
from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import AwaitSignal, For, GiveSignal, If, NamedBarrier, StoreGlobalVector
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Stmt
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel.early import following
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, tensors, total
from tests.lower.tile_to_kernel.products import added, windows
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_shares import changed, every
from tests.lower.tile_to_kernel.test_hopper_windows import Conv
from tests.lower.tile_to_kernel.test_tensor_core import HALF, gated, lowered, wide

ROW = "WORK=g1x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p3/sk"
GROUPS = "WORK=g2x1/ws,TILE=wgmma_m64n48k16_bf16_f32/f1x2/k64,STAGE=d3/smem-tma,RASTER=gm1/p2/sk"
LARGE = "WORK=g2x1/ws,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132/sk"


def of(blocks: int) -> str:
    return ROW.replace("p3", f"p{blocks}")


@pytest.mark.parametrize("sizes, row, whole", [
    ((72, 72, 400), of(3), 0),          # four tiles of seven stages: a wave and a tile
    ((130, 130, 264), of(4), 1),        # nine tiles: a wave is taken whole, and five are shared
    ((72, 136, 200), of(2), 2),         # six tiles of two blocks: two are taken whole by each, the shares are whole tiles
    ((64, 72, 400), of(3), 0),          # two tiles of three blocks, each in two parts
    ((64, 64, 400), of(3), 0),          # one tile, in three parts
    ((64, 64, 400), of(7), 0),          # a stage for each
    ((130, 200, 328), GROUPS, 1),
])
def test_blocks_share_the_last_tiles(sizes: tuple[int, int, int], row: str, whole: int) -> None:
    k = matmul(*sizes, right=True, element=dt.bf16)
    x, form = wide(k), lowered(k, row)
    close(run(k, form, random(k)), x["a"] @ x["b"].T, HALF)
    assert form.grid == (int(row.partition("/p")[2][0]), 1, 1) and kernel_parser.parse(kernel_text.show(form)) is form
    assert bool(re.search(r"select\(turn_\d+ < (\d+)", kernel_text.show(form))) == (whole > 0)


def test_several_sums_are_handed_on_together() -> None:
    form = gated(72, 136, ROW, 1e-5)
    partial, given = (p for p in form.parameters if p.own)
    assert (partial.length, given.length) == (2 * 2 * 64 * 64, 2)      # sums of 64 by 64 elements, of all blocks but one
    assert len({s.array for s in kernel_ir.walk(form.body) if isinstance(s, StoreGlobalVector) and s.buffer == partial.name}) == 2


def test_a_share_begins_and_ends_in_either_of_sums_that_are_one() -> None:
    added(72, 72, 200, 80).assert_right(of(2))


def test_windows_of_one_tile_and_of_whole_ones() -> None:
    for case in (Conv((2, 5, 6, 64), (24, 3, 3), pad=(1, 1)), Conv((1, 9, 9, 136), (16, 3, 3), pad=(1, 1))):
        windows(case).assert_right(of(2))


def test_the_order_is_that_of_stages() -> None:
    """Whoever runs first: three parts of a tile are added up from its beginning on."""
    def product(k: int) -> tile.Kernel:
        t = tensors(dt.bf16, a=(8, k), b=(32, k))
        return kernel(total(2, op("mul", load(t, "a", 0, 2), load(t, "b", 1, 2))), (0, 1), {0: 8, 1: 32, 2: k}, t)

    made, one = product(384), product(128)
    form, alone = lowered(made, ROW), lowered(one, ROW.replace("/p3/sk", ""))
    first, second, third = (run(one, alone, {n: v[:, at:at + 128] for n, v in random(made).items()}).astype(np.float32)
                            for at in (0, 128, 256))
    wanted = first + second + third
    assert (wanted != first + (second + third)).any()
    close(wanted.astype(np.float64), wide(made)["a"] @ wide(made)["b"].T, 1e-6)
    for seed in range(4):
        buffers = {n: v.reshape(-1) for n, v in random(made).items()} | {"out": np.zeros(256, np.float32)}
        simulate(form, buffers, seed=seed)
        np.testing.assert_array_equal(buffers["out"].reshape(8, 32), wanted)


def without(s: Stmt) -> Stmt:
    """A branch or a loop whose own body has no barrier."""
    found: Stmt = s.replace(body=tuple(x for x in s.bodies[0] if not isinstance(x, NamedBarrier)))
    return found


FAULTS: dict[str, tuple[Callable[[Stmt], tuple[Stmt, ...]], str, str]] = {
    "no signal": (every(GiveSignal, lambda s: ()), "deadlock", "signal"),
    "a signal of another block": (every(GiveSignal, lambda s: (s.replace(index=1 - s.index),)), "race", "is read and written by"),
    "nobody waits": (every(AwaitSignal, lambda s: ()), "race", "is read and written by"),
    "who gives has not met its group": (every(If, lambda s: (without(s),)), "race", "is read and written by"),
    "who awaits does not meet its group": (every(For, lambda s: (without(s) if s.var.name.startswith("slot") else s,)), "race",
                                           "is read and written by"),
    "sums of others": (every(StoreGlobalVector, lambda s: (s.replace(offset=(s.offset + 4) % 32),)), "", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    change, kind, said = FAULTS[name]
    k = matmul(8, 64, 256, right=True, element=dt.bf16)
    x, form = wide(k), lowered(k, ROW)
    broken = changed(form, change)
    assert broken is not form
    if not kind:
        assert np.abs(run(k, broken, random(k)) - x["a"] @ x["b"].T).max() > 0.1
        return
    found = {}
    for seed in range(6):
        buffers = {n: v.reshape(-1) for n, v in random(k).items()} | {o.name: np.zeros(512, o.element.numpy) for o in k.outputs}
        with pytest.raises(SimulationError) as error:
            simulate(broken, buffers, seed=seed)
        found[error.value.kind] = str(error.value)
    assert said in found[kind] and found.keys() <= {kind, *(["uninitialised"] if kind == "race" else [])}, found


def test_a_launch_that_begins_early_waits_before_it_hands_on() -> None:
    k = matmul(72, 72, 264, right=True, element=dt.bf16)
    x, form = wide(k), following(lowered(k, ROW), ())
    assert all(p.late for p in form.parameters if p.own)
    close(run(k, form, random(k)), x["a"] @ x["b"].T, HALF)


def rows(k: tile.Kernel, pins: str = "", target: str = "sm_90a") -> dict[str, tile.Schedule]:
    return {str(s.row): s for s in schedules(k, target, "fast", pins) if s.row.raster.endswith("/sk")}


def tiles(k: tile.Kernel, row: str) -> int:
    return lowered(k, row.replace("/p132/sk", "")).grid[0]


def test_rows_are_proposed_where_the_last_wave_is_incomplete() -> None:
    k = matmul(2048, 3584, 3584, right=True, element=dt.bf16)
    found = rows(k)
    assert LARGE in found and all(tile.parse_row(text) is s.row for text, s in found.items())
    whole = {str(s.row) for s in schedules(k, "sm_90a") if s.row.raster == "gm8/p132" and s.row.work.endswith("/ws")}
    assert {row.removesuffix("/sk") for row in found} <= whole
    for row in whole:
        count = tiles(k, row + "/sk")
        waves = -(-count // 132)
        assert (row + "/sk" in found) == (16 * (waves * 132 - count) >= waves * 132 and "-once" not in row), (row, count)
    assert LARGE not in rows(matmul(1408, 3072, 4096, right=True, element=dt.bf16))                 # 132 tiles
    assert not rows(matmul(2048, 3584, 192, right=True, element=dt.bf16))                           # fewer than four stages of 64
    assert not rows(matmul(2048, 3584, 3584, right=True))                                           # fp32
    assert not rows(matmul(2048, 3584, 3584, right=True, element=dt.bf16), target="sm_120")
    assert all(tiles(m, row) > 66 for m in [matmul(512, 1024, 4096, right=True, element=dt.bf16)] for row in rows(m))


def test_pins() -> None:
    k = matmul(256, 256, 2048, right=True, element=dt.bf16)
    own = "WORK=g1x1/ws,TILE=wgmma_m64n96k16_bf16_f32/f2x1/k128,STAGE=d3/smem-tma,RASTER=gm3/p7/sk"
    assert [*rows(k, own)] == [own]
    for old, new, reason in (("p7", "p133", "Divides"), ("p7", "p1", "Divides"), ("d3", "d9", "FitsShared"),
                             ("f2x1", "f4x1", "FitsRegisters"), ("/p7/sk", "/sk", "no rule proposes it"),
                             ("ws,", "ws/c2,", "no rule proposes it")):
        with pytest.raises(EmmyError) as caught:
            rows(k, own.replace(old, new))
        assert reason in caught.value.remedy, (new, caught.value.remedy)
    few = matmul(64, 64, 256, right=True, element=dt.bf16)
    with pytest.raises(EmmyError) as caught:
        rows(few, of(5))
    assert "Divides" in caught.value.remedy
    with pytest.raises(IRError, match="5 blocks share 4 stages"):
        lowered(few, of(5))
    for alone in (of(1), GROUPS.replace("/ws", "/ws-turns")):
        with pytest.raises(IRError, match="two blocks or more share tiles, in no clusters, and their groups take no turns"):
            lowered(k, alone)
    with pytest.raises(IRError, match="a cluster has one tile"):
        lowered(k, of(3).replace("/ws", "/ws/c2"))
    assert not [s for s, why in candidates(matmul(2048, 3584, 3584, right=True, element=dt.bf16), "sm_90a").items()
                if s.row.raster.endswith("/sk") and "FitsShared" in why]


def test_the_compiler_keeps_sums_in_registers() -> None:
    """No spills, and ptxas serialises no product."""
    t = tensors(dt.bf16, x=(2048, 2048), w=(3584, 2048), v=(3584, 2048), bias=(3584,), residual=(2048, 3584))
    products = [total(2, op("mul", load(t, "x", 0, 2), load(t, w, 1, 2))) for w in "wv"]
    y = op("add", op("tanh", op("add", products[0], load(t, "bias", 1))), load(t, "residual", 0, 1))
    extents = {0: 2048, 1: 3584, 2: 2048}
    after = kernel(loop.Round(dt.bf16, y), (0, 1), extents, t, dt.bf16, "after")
    two = kernel(loop.Round(dt.bf16, op("mul", op("tanh", products[0]), products[1])), (0, 1), extents, t, dt.bf16, "two")

    def made(name: str, row: str, element: DType = dt.bf16) -> kernel_ir.Kernel:
        return lowered(matmul(2048, 3584, 2048, right=True, element=element, name=name), row)

    forms = [made("large", LARGE), made("single", LARGE.replace("g2", "g1")),
             made("three", LARGE.replace("g2", "g3").replace("n256", "n160").replace("d4", "d3")),
             made("tall", LARGE.replace("n256", "n128").replace("f1x1", "f2x1")),
             made("bytes", LARGE.replace("n256k16_bf16", "n192k32_e4m3").replace("k64", "k128"), dt.e4m3), lowered(after, LARGE),
             lowered(two, LARGE.replace("n256", "n128"))]
    source = emit_module(forms)
    assert "emmy_give_signal(" in source and "emmy_await_signal(" in source
    for name, report in build(source, "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= (255 if name == "single" else 168), (name, report)
    assert all(any(isinstance(s, For) for s in f.body[-1].bodies[1]) for f in forms)
