"""What is predicted of contractions by warpgroups, against what their kernels do, and which tiles that prefers."""

from __future__ import annotations

from math import ceil

import pytest

from emmy.egraph.schedule import schedules
from emmy.instructions import ExpectBytes, For
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.lower.tile_to_kernel import hopper_tiling, lower
from emmy.tune.census import Census
from emmy.tune.features import features
from emmy.tune.wgmma_features import MEETING_US, SENT_US
from extract import cost, hardware
from tests.lower.tile_to_kernel.forms import kernel, load, op, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import matmul

ROWS = ["WORK=g1x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8",
        "WORK=g2x1/ws,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k128,STAGE=d3/smem-tma,RASTER=gm2/p3",
        "WORK=g3x1/ws,TILE=wgmma_m64n96k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p2"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("sizes", [(40, 200, 264), (300, 300, 128), (640, 24, 80)])
def test_bytes_and_products_are_those_of_the_kernel(row: str, sizes: tuple[int, int, int]) -> None:
    k = matmul(*sizes, right=True, element=dt.bf16)
    s = schedule("contraction", row, (0,), (1,))
    found, t = features(Census(k), s), hopper_tiling.tiling(s.row)
    made = lower(k.replace(schedule=s))
    expected = sum(x.bytes for x in kernel_ir.walk(made.body) if isinstance(x, ExpectBytes))
    tiles, rounds = ceil(sizes[0] / t.height) * ceil(sizes[1] / t.width), ceil(sizes[2] / t.depth)
    assert found.bulk_bytes == pytest.approx(tiles * rounds * expected, rel=0.1)       # a side may be copied in eights
    assert found.tensor_flops == 2 * tiles * rounds * t.depth * t.height * t.width
    assert found.blocks == tiles and found.threads == made.block
    assert made.grid[0] == min(t.blocks or tiles, tiles) and any(isinstance(x, For) for x in kernel_ir.walk(made.body))


def pick(m: int, n: int, k: int) -> tile.Row:
    kernel = matmul(m, n, k, right=True, element=dt.bf16)
    census, gpu = Census(kernel), hardware.for_target("sm_90a")
    return min(schedules(kernel, "sm_90a"), key=lambda s: cost.seconds(features(census, s), gpu)).row


def test_tiles_are_large_where_they_fill_the_machine_and_fit_its_waves() -> None:
    def waves(m: int, n: int, k: int) -> tuple[float, int]:
        t = hopper_tiling.tiling(pick(m, n, k))
        tiles = ceil(m / t.height) * ceil(n / t.width)
        return tiles * t.height * t.width / (m * n) * ceil(tiles / 132) * 132 / tiles, t.height * t.width

    for sizes in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (6304, 4096, 1024), (3072, 768, 3072), (2048, 4608, 3584)):
        wasted, area = waves(*sizes)
        assert wasted < 1.1 and area >= 128 * 128, (sizes, wasted, area)


def test_few_rows_read_the_weights_with_every_multiprocessor() -> None:
    t = hopper_tiling.tiling(pick(64, 4096, 4096))
    assert t.height == 64 and 66 <= 4096 // t.width <= 264


def test_a_cluster_does_what_its_blocks_do_and_exchanges() -> None:
    k = matmul(200, 200, 640, right=True, element=dt.bf16)
    alone, shared = (schedule("contraction", ROWS[0].replace("/ws", work), (0,), (1,)) for work in ("/ws", "/ws/c4"))
    one, four = (features(Census(k), s) for s in (alone, shared))
    made = lower(k.replace(schedule=shared))
    assert four.blocks == made.grid[0] == 4 * one.blocks and four.threads == made.block
    assert four.tensor_flops == one.tensor_flops * 12 / 10 and four.bulk_bytes == one.bulk_bytes * 12 / 10      # ten stages: three a block
    sent = 3 * 64 * 16 * 4
    assert four.shared_bytes == one.shared_bytes + sent
    assert four.start_us == pytest.approx(one.start_us + MEETING_US + SENT_US[4] * sent)
    assert {s.barrier: s.bytes for s in kernel_ir.walk(made.body) if isinstance(s, ExpectBytes) and s.bytes == sent}


def test_sums_are_shared_where_tiles_are_few_and_sums_long() -> None:
    assert {pick(*sizes).cluster for sizes in ((64, 512, 8192), (256, 256, 8192), (512, 512, 16384), (512, 1024, 8192))} == {2, 4}
    for sizes in ((1024, 1024, 1024), (64, 4096, 4096), (4096, 4096, 4096), (512, 3584, 3584), (1568, 512, 2048), (6272, 256, 1024)):
        assert pick(*sizes).cluster == 1, sizes


@pytest.mark.parametrize("sizes, blocks", [((320, 320, 640), 12), ((72, 136, 640), 9)])
def test_blocks_that_share_the_last_tiles_do_as_much_and_hand_it_on(sizes: tuple[int, int, int], blocks: int) -> None:
    k = matmul(*sizes, right=True, element=dt.bf16)
    alone, shared = (schedule("contraction", f"{ROWS[0]}/p{blocks}{last}", (0,), (1,)) for last in ("", "/sk"))
    one, all_ = (features(Census(k), s) for s in (alone, shared))
    assert all_.blocks == lower(k.replace(schedule=shared)).grid[0] == blocks
    assert (all_.tensor_flops, all_.bulk_bytes, all_.shared_bytes) == (one.tensor_flops, one.bulk_bytes, one.shared_bytes)
    assert all_.steps == pytest.approx(one.steps * one.blocks / blocks) and all_.tensor_share < one.tensor_share / 1.05
    parts = ceil(blocks / one.blocks)       # of a tile that others hand on
    assert all_.start_us == pytest.approx(one.start_us + 2.1 + 0.048 * parts * 64 * 64 * 4 / 1000)


def test_last_tiles_are_not_shared_where_that_was_slower() -> None:
    for sizes in ((2048, 3584, 18944), (2048, 3584, 3584), (6304, 1024, 4096), (2048, 4096, 14336), (512, 3584, 3584), (4096, 4096, 4096)):
        assert pick(*sizes).raster == "gm8/p132", sizes


def test_tiles_one_above_the_other_are_the_next_choice() -> None:
    """Never the first; what they do is what their twins do, with one tile more where the last stack has one below the result."""
    gpu = hardware.for_target("sm_90a")
    for sizes in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 28672, 8192), (512, 14336, 4096), (1536, 6144, 4096), (1000, 1000, 1000),
                  (320, 4096, 4096)):
        k = matmul(*sizes, right=True, element=dt.bf16)
        times = {str(s.row): cost.seconds(features(Census(k), s), gpu) for s in schedules(k, "sm_90a")}
        twins = {row: row.replace("/m2", "") for row in times if "/m2" in row}
        assert twins and all(times[plain] < times[row] for row, plain in twins.items())
        assert sizes[0] % 768 != 0 or all(times[row] < 1.04 * times[plain] for row, plain in twins.items())
        assert pick(*sizes).stack == 1 and any("/m2" in row for row in sorted(times, key=lambda row: times[row])[:12])
    k = matmul(320, 4096, 4096, right=True, element=dt.bf16)
    one, two = (features(Census(k), schedule("contraction", ROWS[1].replace("/ws", work).replace("/p3", ""), (0,), (1,)))
                for work in ("/ws", "/ws/m2"))
    assert (one.blocks, two.blocks) == (3 * 32, 4 * 32)


def gated(k: int, rows: bool) -> tile.Kernel:
    """silu(g) * u times w, of 300 rows or columns by 200."""
    t = tensors(dt.bf16, g=(300, k), u=(300, k), w=(200, k))
    side, other = (0, 1) if rows else (1, 0)
    g, u, w = load(t, "g", side, 2), load(t, "u", side, 2), load(t, "w", other, 2)
    body = op("mul", loop.Round(dt.bf16, op("mul", op("tanh", g), u)), w)
    return kernel(loop.Round(dt.bf16, total(2, body)), (0, 1), {side: 300, other: 200, 2: k}, t, dt.bf16)


@pytest.mark.parametrize("rows", [True, False])
def test_what_is_computed_takes_slots_beside_products_and_brings_its_tensors(rows: bool) -> None:
    k, sides = gated(128, rows), ((0,), (1,)) if rows else ((1,), (0,))
    s = schedule("contraction", ROWS[0], *sides)
    found, of = features(Census(k), s), Census(matmul(300, 200, 128, right=True, element=dt.bf16))
    plain = features(of, schedule("contraction", ROWS[0], (0,), (1,)))
    made = lower(k.replace(schedule=s))
    expected = sum(x.bytes for x in kernel_ir.walk(made.body) if isinstance(x, ExpectBytes))
    assert found.bulk_bytes == pytest.approx(5 * 4 * 2 * expected, rel=0.1)
    assert found.slots > plain.slots + 5 * 300 * 128 * 4 and found.tensor_share < plain.tensor_share
    assert found.tensor_flops == plain.tensor_flops and (found.l2_bytes > found.dram_bytes) == (not rows)
