"""Copies to several blocks of a cluster and arrivals at theirs: what comes, a planted fault for each rule, text, what nvcc takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import (
    Arrive,
    ArrivePeer,
    Barrier,
    ClusterArrive,
    ClusterWait,
    CopyTile,
    CopyWindows,
    ExpectBytes,
    FenceAsync,
    FenceBarriers,
    If,
    InitBarrier,
    StoreShared,
    SyncWarp,
    WaitBarrier,
)
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.kernel_ir import Block, Expr, Kernel, Stmt, Thread, Var, Windows, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit, emit_module
from emmy.runtime.build import build
from tests.hopper_kernels import shared_tiles
from tests.lower.tile_to_kernel.test_hopper_shares import changed
from tests.window_kernels import windows_probe


def run(k: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """What the blocks make of tiles, and the tiles."""
    src, c = (p.length for p in k.parameters)
    buffers = {"src": (np.arange(src) % 251).astype(dt.bf16.numpy), "c": np.zeros(c, np.float32)}
    simulate(k, buffers)
    return buffers["c"].reshape(2 * k.cluster, -1), buffers["src"].astype(np.float32)


@pytest.mark.parametrize("rounds, cluster", [(1, 2), (2, 2), (3, 2), (3, 4), (2, 1)])
def test_every_block_has_all_tiles(rounds: int, cluster: int) -> None:
    k = shared_tiles(rounds, cluster)
    got, src = run(k)
    np.testing.assert_array_equal(got, np.broadcast_to(src.reshape(rounds, -1).sum(axis=0), got.shape))
    assert kernel_parser.parse(kernel_text.show(k)) is k


K = shared_tiles()
SECOND, T = Block(0) % 2 == 1, Thread()
Change = Callable[[Any], tuple[Stmt, ...]]


def every(cls: type[Stmt], change: Change, barrier: str = "") -> Change:
    return lambda s: change(s) if isinstance(s, cls) and barrier in ("", getattr(s, "barrier", "")) else (s,)


def replaced(cls: type[Stmt], barrier: str = "", **fields: object) -> Change:
    return every(cls, lambda s: (s.replace(**fields),), barrier)


def only(condition: Expr) -> Change:
    """Of the copies those that are asked for where this holds."""
    return every(CopyTile, lambda s: (If(condition, (s,)),))


def early(s: Stmt) -> tuple[Stmt, ...]:
    """The place of a tile is given back before it is read, and not after."""
    back = If(T % 32 < 2, (ArrivePeer("empty", int32(0), T % 32),))
    return () if isinstance(s, ArrivePeer) else (s, back) if isinstance(s, WaitBarrier) and s.barrier == "full" else (s,)


def own(s: Any) -> tuple[Stmt, ...]:
    """The place of a tile is given back to the block that has it, and to no other."""
    if isinstance(s, InitBarrier) and s.barrier == "empty":
        return (s.replace(count=1),)
    return (If(T % 32 < 1, (Arrive("empty", int32(0)),)),) if isinstance(s, ArrivePeer) else (s,)


def written(s: Stmt) -> tuple[Stmt, ...]:
    """Whoever has read writes what another block's copy then overwrites."""
    return s, StoreShared("tile", T % 32, const(dt.f32, 1)), FenceAsync(), s


FAULTS: dict[str, tuple[Change, str, str]] = {
    "only to oneself": (replaced(CopyTile, mask=None), "deadlock", "lacks 0 of 1 arrivals and 1024 bytes"),
    "only to the other": (replaced(CopyTile, mask=int32(2)), "bytes|deadlock", ""),
    "to a block that is not there": (replaced(CopyTile, mask=int32(7)), "cluster", "block 2 of a cluster of 2"),
    "one share is missing": (only(SECOND), "deadlock", "lacks 0 of 1 arrivals and 1024 bytes"),
    "one share twice": (replaced(CopyTile, index=int32(0)), "race", "copy is under way"),
    "its own bytes alone": (replaced(ExpectBytes, bytes=1024), "bytes", ""),
    "no bytes expected": (every(ExpectBytes, lambda s: (Arrive("full", int32(0)),)), "race", "whose copy is under way"),
    "nothing given back": (every(ArrivePeer, lambda s: ()), "deadlock", "empty"),
    "given back to oneself": (every(ArrivePeer, lambda s: (If(T % 32 == Block(0) % 2, (s,)),)), "deadlock", "lacks 1 of 2 arrivals"),
    "given back to the other": (every(ArrivePeer, lambda s: (If(T % 32 < 1, (s.replace(rank=1 - Block(0) % 2),)),)),
                                "deadlock", "lacks 1 of 2 arrivals"),
    "each waits for its own readers": (own, "race", "a copy goes to element 0 of tile, written by"),
    "one arrival too few": (replaced(InitBarrier, "empty", count=1), "deadlock", "lacks"),
    "one arrival too many": (replaced(InitBarrier, "empty", count=3), "deadlock", "of 3 arrivals"),
    "to a block out of the cluster": (replaced(ArrivePeer, rank=T % 32 + 1), "cluster", "block 2 of a cluster of 2"),
    "no wait for readers": (every(WaitBarrier, lambda s: (), "empty"), "barrier", "counts 1 arrivals a phase, and more arrive"),
    "read before it has come": (every(WaitBarrier, lambda s: (), "full"), "uninitialised|race", ""),
    "given back before it is read": (early, "race", "is written and read by warp 1"),
    "barriers that others have not made": (every(ClusterWait, lambda s: ()), "uninitialised|race", "as a barrier and"),
    "barriers that are not fenced": (every(FenceBarriers, lambda s: ()), "race", "is used as a barrier and made by"),
    "a meeting of the block": (every(ClusterWait, lambda s: (Barrier(),)), "race", "made by thread 0 of block 1 of its cluster"),
    "an arrival orders no writes": (every(SyncWarp, written), "race", "written by thread"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    change, kinds, said = FAULTS[name]
    broken = changed(K, change)
    assert broken is not K
    with pytest.raises(SimulationError) as error:
        run(broken)
    assert error.value.kind in kinds.split("|") and said in str(error.value), error.value


def test_a_block_that_ends_early_is_met_by_what_comes_later() -> None:
    """Without its last wait a block ends when its own readers have; the other's arrivals come to nobody."""
    def early(s: Stmt) -> tuple[Stmt, ...]:
        return (s.replace(body=s.body[:-1]),) if isinstance(s, If) and isinstance(s.body[-1], WaitBarrier) else (s,)
    with pytest.raises(SimulationError) as error:
        run(changed(K, early))
    assert (error.value.kind == "unfinished" and "arrivals are on their way to it" in str(error.value)
            or error.value.kind == "cluster" and "has ended" in str(error.value))


COPY = CopyTile("tile", int32(0), "map_src", (int32(0), int32(0)), "full", int32(0), False, int32(3))


@pytest.mark.parametrize("s, message", [
    (COPY.replace(mask=int32(0)), "a constant of 1 to 255"), (COPY.replace(mask=int32(256)), "a constant of 1 to 255"),
    (COPY.replace(mask=T), "a constant of 1 to 255"), (COPY.replace(once=True), "read once and goes to several blocks"),
    (ArrivePeer("tile", int32(0), int32(0)), "a barrier is an element of i64"), (ArrivePeer("full", int32(0), Var("y", dt.i32)), "y"),
])
def test_malformed(s: Stmt, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(K.replace(body=(s,)))


def test_windows_go_to_several_blocks() -> None:
    """Both blocks ask for windows of their own, which go to both; text."""
    k = windows_probe((2, 5, 6, 64), Windows((-1, -1), (5, 6), (1, 1)), (24, 64), (0, 2, 3, 0), (0, 2), name="windows_to")
    shown = {}
    for mask in (None, int32(2)):
        made = changed(k, every(CopyWindows, lambda s, mask=mask: (If(Block(0) == 0, (s.replace(mask=mask),)),)))     # type: ignore[misc]
        met = If(Thread() == 0, (InitBarrier("full", int32(0), 1), FenceBarriers())), ClusterArrive(), ClusterWait()
        made = made.replace(body=(*met, *made.body[2:]), cluster=2, grid=(2, 1, 1))
        shown[mask] = made
    of = shown[int32(2)]
    assert "on full[0] to 2;" in kernel_text.show(of) and kernel_parser.parse(kernel_text.show(of)) is of
    buffers = {"a": np.arange(2 * 5 * 6 * 64).astype(dt.bf16.numpy), "raw": np.zeros(24 * 64, dt.bf16.numpy)}
    with pytest.raises(SimulationError) as error:       # the first block waits for what goes to the second
        simulate(of, buffers)
    assert error.value.kind == "deadlock" and "3072 bytes" in str(error.value)
    assert "emmy_copy_windows_4_to(&map_a, &tile[0], 0, 2, 3, 0, 0, 2, &full[0], 2);" in emit(of)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_them() -> None:
    text = emit_module((K, shared_tiles(2, 4).replace(name="four")))
    assert "emmy_copy_tile_2_to(&map_src, &tile[block_x % 2 * 512], r * 16 + block_x % 2 * 8, 0, &full[0], 3);" in text
    assert "emmy_arrive_peer(&empty[0], lane);" in text
    for report in build(text, "sm_90a").functions.values():
        assert report.spill_bytes == 0
