"""Scans whose tiles look back: the simulated kernel against NumPy in float64 in many orders of blocks, planted faults, and what nvcc
says."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import Assign, Barrier, If, Publish, StoreShared, TakeTicket, While
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Apply, Block, Kernel, Stmt, int32, walk
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda
from emmy.lower.tile_to_kernel import look_back
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors
from tests.lower.tile_to_kernel.test_scan import ROWS, scans

Change = Callable[[Stmt], Stmt | None]


STAGES = "lookback", "lookback/all"


def row(threads: int, width: int, runs: int, stage: str = "lookback") -> tile.Schedule:
    return schedule("scan", f"WORK=t{threads},TILE=v{width}x{runs},REDUCE=scan,STAGE={stage}", (0,), (2,))


@pytest.mark.parametrize("threads, width, runs, n", [
    (1024, 1, 1, 5000), (256, 1, 4, 1024), (512, 2, 2, 9000), (128, 4, 8, 12292), (1024, 1, 1, 37), (256, 1, 16, 9000), (192, 2, 16, 12292),
    (1024, 1, 4, 37)])
@pytest.mark.parametrize("stage", STAGES)
def test_sums_and_maxima_up_to_a_point(threads: int, width: int, runs: int, n: int, stage: str) -> None:
    """Of tiles that divide the rows and tiles that do not."""
    for monoid, right in (("add", np.add), ("max", np.maximum)):
        k = scans(n, monoid)
        x, y = (v.astype(np.float64) for v in random(k).values())
        made = look_back.lower(k, row(threads, width, runs, stage))
        np.testing.assert_allclose(run(k, made, random(k)), 2 * right.accumulate(x, 1) + y, rtol=1e-4, atol=1e-4)


def whole(n: int, shape: str = "WORK=t1024,TILE=v1x1", stage: str = "lookback") -> tuple[tile.Kernel, Kernel]:
    """Sums of whole numbers, which are the same in any order, and their kernel."""
    t = tensors(dt.i32, x=(n,))
    k = kernel(loop.Scan("add", 1, Ax(2), load(t, "x", 1)), (2,), {1: n, 2: n}, t, dt.i32)
    return k, look_back.lower(k, schedule("scan", f"{shape},REDUCE=scan,STAGE={stage}", (), (2,)))


def sums(made: Kernel, n: int, seed: int) -> bool:
    x, out = np.arange(n, dtype=np.int32) % 1000, np.zeros(n, np.int32)
    simulate(made, {"x": x, "out": out}, seed=seed)
    return bool((out == x.cumsum()).all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape, stage", [("WORK=t1024,TILE=v1x1", "lookback"), ("WORK=t64,TILE=v1x16", "lookback/all"),
                                          ("WORK=t256,TILE=v1x4", "lookback/all")])
def test_any_order_of_blocks(seed: int, shape: str, stage: str) -> None:
    """70 tiles, so that some look back beyond 32 others, and beyond 64."""
    _, made = whole(70_000, shape, stage)
    assert sums(made, 70_000, seed)


def test_pieces_of_an_axis() -> None:
    n, piece = 6000, 1500
    t = tensors(x=(ROWS, n))
    start = ix.mul(ix.div(Ax(2), piece), piece)
    within = loop.Scan("add", 1, ix.mod(Ax(2), piece), load(t, "x", 0, ix.add(start, Ax(1))))
    k = kernel(op("mul", within, number(3)), (0, 2), {0: ROWS, 1: piece, 2: n}, t)
    x = random(k)["x"].astype(np.float64).reshape(ROWS, -1, piece)
    made = look_back.lower(k, row(1024, 1, 1))
    np.testing.assert_allclose(run(k, made, random(k)), 3 * x.cumsum(2).reshape(ROWS, n), rtol=1e-4, atol=1e-3)


def changed(made: Kernel, change: Change) -> Kernel:
    """The kernel with each statement as `change` has it, left out where that is None."""
    def body(of: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out = []
        for s in of:
            new = change(s)
            if new is not None:
                out.append(new.replace(**{f: body(getattr(new, f)) for f in ("body", "orelse") if hasattr(new, f)}))
        return tuple(out)
    return made.replace(body=body(made.body))


def no_ticket(s: Stmt) -> Stmt | None:
    """Tiles by the number of the block."""
    if isinstance(s, TakeTicket):
        return None
    return s.replace(value=Block(0)) if isinstance(s, StoreShared) and s.buffer.startswith("ticket") else s


def never_all(s: Stmt) -> Stmt | None:
    """A tile that has looked back does not say so: those after it do without."""
    return None if isinstance(s, If) and any(isinstance(x, Publish) and x.flag is int32(look_back.ALL) for x in s.body) else s


def all_too_soon(s: Stmt) -> Stmt | None:
    """A tile says at once that it knows all before it, and means its own."""
    return s.replace(flag=int32(look_back.ALL)) if isinstance(s, Publish) else s


def early_runs_alone(s: Stmt) -> Stmt | None:
    """Of the runs that a lane of the first warp adds up, later ones lack the lanes before."""
    if isinstance(s, StoreShared) and s.buffer.startswith("totals") and isinstance(s.value, Apply) and s.value.op == "add":
        return s.replace(value=s.value.args[1])
    return s


def silent(s: Stmt) -> Stmt | None:
    return None if isinstance(s, Publish) else s


def fails(made: Kernel, n: int) -> set[str]:
    """How it fails in some orders of blocks; "numbers" where only they are wrong."""
    found = set()
    for seed in range(6):
        try:
            found |= set() if sums(made, n, seed) else {"numbers"}
        except SimulationError as error:
            found.add(error.kind)
    return found


def no_barrier(s: Stmt) -> Stmt | None:
    """Warps read what the others of the block saw before it is there."""
    return s.replace(body=tuple(x for x in s.body if not isinstance(x, Barrier))) if isinstance(s, While) else s


def no_turn(s: Stmt) -> Stmt | None:
    """Every look leaves what it saw in the same place, where slower warps may still read the look before."""
    return None if isinstance(s, Assign) and s.var.name.startswith("turn") else s


def test_planted_faults_where_all_warps_look() -> None:
    _, made = whole(70_000, "WORK=t64,TILE=v1x16", "lookback/all")
    assert fails(changed(made, no_barrier), 70_000) == {"uninitialised"}
    far = changed(made, never_all)
    assert fails(far, 70_000) == set()
    assert "race" in fails(changed(far, no_turn), 70_000)


@pytest.mark.parametrize("stage", STAGES)
def test_planted_faults(stage: str) -> None:
    n = 20_000
    _, made = whole(n, stage=stage)
    assert fails(made, n) == set()
    assert "deadlock" in fails(changed(made, no_ticket), n)
    assert fails(changed(made, silent), n) == {"deadlock"}
    assert "numbers" in fails(changed(made, all_too_soon), n)
    assert fails(changed(made, never_all), n) == set()       # slow, but right: looks back to the first tile
    _, made = whole(n, "WORK=t256,TILE=v1x16", stage)
    assert fails(made, n) == set()
    assert fails(changed(made, early_runs_alone), n) == {"numbers"}


def test_the_rules_admit_it_where_rounding_may_differ() -> None:
    def rows(k: tile.Kernel, math: str) -> set[str]:
        return {str(s.row) for s in schedules(k, "sm_90a", math) if s.row.stage in STAGES}

    assert {f"WORK=t256,TILE=v4x16,REDUCE=scan,STAGE={stage}" for stage in STAGES} <= rows(scans(4096), "fast")
    assert not rows(scans(4096), "exact")
    t = tensors(dt.i64, x=(ROWS, 4096))
    assert not rows(kernel(loop.Scan("add", 1, Ax(2), load(t, "x", 0, 1)), (0, 2), {0: ROWS, 1: 4096, 2: 4096}, t, dt.i64), "fast")


@pytest.mark.parametrize("wrong", ["WORK=t96,TILE=v1x8,REDUCE=scan,STAGE=lookback", "WORK=t64,TILE=v4x16,REDUCE=scan,STAGE=lookback",
                                   "WORK=t1024,TILE=v1,REDUCE=scan,STAGE=lookback", "WORK=t2048,TILE=v1x1,REDUCE=scan,STAGE=lookback"])
def test_a_row_that_does_not_fit(wrong: str) -> None:
    with pytest.raises(IRError, match="looks back"):
        look_back.lower(scans(37), schedule("scan", wrong, (0,), (2,)))


def test_its_text_reads_back() -> None:
    for stage in STAGES:
        made = look_back.lower(scans(5000), row(256, 2, 8, stage))
        assert kernel_parser.parse(kernel_text.show(made)) is made
        assert sum(isinstance(s, Publish) for s in walk(made.body)) == 2


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_89", "sm_120"])
def test_nvcc_takes_it_without_spills(target: str) -> None:
    made = [look_back.lower(scans(1 << 16).replace(name=f"scan_{of[0]}_{of[1]}_{of[2]}_{len(stage)}"), row(*of, stage))
            for of in ((256, 4, 8), (256, 4, 16), (512, 4, 8), (512, 8, 4)) for stage in STAGES]
    reports = build(kernel_to_cuda.emit_module(made), target).functions
    assert len(reports) == 8 and not any(r.spill_bytes for r in reports.values())
