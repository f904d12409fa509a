"""Schedules of transposing maps and of folds across lanes: which kernels have them, what makes a row illegal, pins."""

from __future__ import annotations

import pytest

from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.lower.tile_to_kernel import lower
from emmy.tune.census import Census
from emmy.tune.features import features
from extract import cost, hardware
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, tensors, total

H200 = hardware.for_target("sm_90a")
STAGED = "WORK=t256,TILE=32x32,STAGE=smem"


def transposed(m: int, n: int) -> tile.Kernel:
    t = tensors(x=(n, m), y=(m, n))
    return kernel(op("add", load(t, "x", 1, 0), load(t, "y", 0, 1)), (0, 1), {0: m, 1: n}, t)


def summed(r: int, c: int) -> tile.Kernel:
    t = tensors(x=(r, c))
    return kernel(total(0, load(t, "x", 0, 1)), (1,), {0: r, 1: c}, t)


def softmax(r: int, c: int) -> tile.Kernel:
    t = tensors(x=(r, c))
    x = load(t, "x", 0, 1)
    body = op("div", op("exp", op("sub", load(t, "x", 2, 1), loop.Pivot("softmax", 0, x))), loop.Channel("softmax", 0, x, number(1)))
    return kernel(body, (2, 1), {0: r, 1: c, 2: r}, t)


def of_form(k: tile.Kernel, form: str, pins: str = "") -> list[tile.Schedule]:
    return [s for s in schedules(k, "sm_90a", pins=pins) if s.form == form]


def seconds(k: tile.Kernel, s: tile.Schedule) -> float:
    return cost.seconds(features(Census(k), s), H200)


def test_axes_of_the_forms() -> None:
    t = tensors(x=(4, 20, 36), y=(4, 36, 20))
    k = kernel(op("add", load(t, "x", 0, 2, 1), load(t, "y", 0, 1, 2)), (0, 1, 2), {0: 4, 1: 36, 2: 20}, t)
    assert {(s.rows, s.columns, s.batch) for s in of_form(k, "transpose")} == {((1,), (2,), (0,))}
    assert {(s.rows, s.columns, s.batch) for s in of_form(softmax(64, 40), "cross")} == {((1,), (2,), ())}
    mean = kernel(total(0, load(t, "x", 1, 0, 2)), (1, 2), {1: 4, 0: 20, 2: 36}, t)
    assert {(s.rows, s.columns, s.batch) for s in of_form(mean, "cross")} == {((2,), (), (1,))}


def test_kernels_without_them() -> None:
    t = tensors(x=(40, 36))
    along = kernel(total(1, load(t, "x", 0, 1)), (0,), {0: 40, 1: 36}, t)
    scan = kernel(loop.Scan("add", 1, Ax(2), load(t, "x", 1, 0)), (2, 0), {0: 36, 1: 40, 2: 40}, t)
    plain = kernel(op("exp", load(t, "x", 0, 1)), (0, 1), {0: 40, 1: 36}, t)
    assert {s.form for k in (along, scan, plain) for s in schedules(k, "sm_90a")} == {"map", "fold", "scan"}


@pytest.mark.parametrize("make, form", [(transposed, "transpose"), (summed, "cross"), (softmax, "cross")])
def test_every_row_lowers_to_what_the_rules_counted(make: type, form: str) -> None:
    k: tile.Kernel = make(200, 104)
    rows = of_form(k, form)
    assert len(rows) > 3
    for s in rows:
        made: kernel_ir.Kernel = lower(k.replace(schedule=s))
        counted = features(Census(k), s)
        assert made.block == counted.threads == s.row.threads
        assert made.shared_bytes == counted.shared_bytes
        assert made.grid == (counted.blocks, 1, 1)
        assert tile.parse_row(str(s.row)) is s.row


def test_pins_put_rows_on_the_menu() -> None:
    wide = "WORK=t128,TILE=16x64,STAGE=smem"
    assert wide not in {str(s.row) for s in schedules(transposed(100, 64), "sm_90a")}
    assert [str(s.row) for s in schedules(transposed(100, 64), "sm_90a", pins=wide)] == [wide]
    few = "WORK=t4x8,TILE=v2,REDUCE=cross"
    assert [str(s.row) for s in schedules(summed(100, 64), "sm_90a", pins=few)] == [few]


@pytest.mark.parametrize("k, pins, why", [
    (transposed(64, 64), "WORK=t256,TILE=8x8,STAGE=smem", "Divides"),
    (transposed(64, 64), "WORK=t48,TILE=32x48,STAGE=smem", "Divides"),
    (transposed(64, 64), "WORK=t0,TILE=32x32,STAGE=smem", "Divides"),
    (transposed(64, 64), "WORK=t2048,TILE=64x64,STAGE=smem", "FitsThreads"),
    (transposed(64, 64), "WORK=t1024,TILE=256x256,STAGE=smem", "FitsShared"),
    (transposed(64, 64), "WORK=t32,TILE=64x64,STAGE=smem", "FitsRegisters"),
    (summed(64, 36), "WORK=t8x32,TILE=v8,REDUCE=cross", "Divides"),
    (summed(64, 36), "WORK=t3x8,REDUCE=cross", "Divides"),
    (summed(64, 36), "WORK=t64x32,REDUCE=cross", "FitsThreads"),
    (summed(64, 64), "WORK=t32x32,TILE=v8,REDUCE=cross", "FitsRegisters"),
    (summed(64, 36), STAGED, "no rule proposes it"),
    (transposed(64, 64), "WORK=t8x32,REDUCE=cross", "no rule proposes it"),
])
def test_what_makes_a_row_illegal(k: tile.Kernel, pins: str, why: str) -> None:
    with pytest.raises(EmmyError, match=why):
        schedules(k, "sm_90a", pins=pins)


def test_predicted_times_prefer_the_coalesced_form() -> None:
    for k, form, floor in ((transposed(8192, 8192), "transpose", 188e-6), (summed(8192, 8192), "cross", 64e-6)):
        times = {s: seconds(k, s) for s in schedules(k, "sm_90a")}
        best = min(times, key=lambda s: (times[s], str(s.row)))
        assert best.form == form
        assert floor < times[best] < 1.15 * floor
        assert times[best] < 0.75 * min(t for s, t in times.items() if s.form != form)


def test_half_types_take_tiles_with_long_lines() -> None:
    t = tensors(dt.bf16, x=(8192, 8192), y=(8192, 8192))
    body = loop.Round(dt.bf16, op("add", load(t, "x", 1, 0), load(t, "y", 0, 1)))
    k = kernel(body, (0, 1), {0: 8192, 1: 8192}, t, dt.bf16)
    assert min(schedules(k, "sm_90a"), key=lambda s: (seconds(k, s), str(s.row))).row.tile == "64x64"
