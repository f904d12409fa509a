"""Clusters: blocks that run at once, meet at a barrier of their own, and write to each other's shared memory.

A block's rank is its index along x modulo the size of its cluster.  What is sent counts on a barrier of the block that it is sent to, which
that block has made before all met; it waits there for what it expects, and must not end before it has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from emmy.instructions.arithmetic import spell
from emmy.instructions.lanes import lane_by_lane
from emmy.instructions.mbarrier import check_barrier
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp

MOST = 8        # blocks of a cluster

class ClusterArrive(Bare):
    """Every thread of the cluster arrives.  Those who wait see the barriers that were made and fenced before, and nothing else: what more
    they would see costs a fence of all memory.  Whole warps arrive."""

    asynchronous = True
    syntax = "cluster_arrive"
    call = "emmy_cluster_arrive();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("barrier", "is reached by a part of a warp only")
            w.engine.gathering.arrive(w)
        return run


class ClusterWait(Bare):
    """A thread, which has arrived, waits until all threads of the cluster have."""

    asynchronous = True
    syntax = "cluster_wait"
    call = "emmy_cluster_wait();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> Iterator[object]:
            w.require_all("barrier", "is reached by a part of a warp only")
            yield from w.engine.gathering.wait(w)
        return run


class StoreCluster(Stmt):
    """An element of a shared buffer of the block of `rank` in the cluster becomes `value`, 4 or 8 bytes of the buffer's dtype.  They are on
    their way until the phase ends that they count on, of that block's barrier.  Each active thread sends one."""

    buffer: str
    index: Expr
    rank: Expr
    value: Expr
    barrier: str
    at: Expr
    asynchronous = True
    syntax = "store_cluster {buffer}[{index}] of {rank} = {value} on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        found = scope.buffer(self.buffer, SharedBuffer)
        scope.expr(self.index, dt.i32, dt.i64)
        scope.expr(self.rank, dt.i32)
        scope.expr(self.value)
        check_barrier(scope, self.barrier, self.at)
        if self.value.dtype is not found.element or found.element.bytes not in (4, 8):
            raise IRError(f"{self.buffer} holds {found.element}, and {self.value.dtype} is sent; "
                          "a store to another block is 4 or 8 bytes of one dtype")
        if isinstance(self.rank, Const) and not 0 <= self.rank.value < MOST:
            raise IRError(f"block {self.rank.value} of a cluster, which has at most {MOST}")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_store_cluster(&{self.buffer}[{spell(self.index)}], {spell(self.rank)}, {spell(self.value)}, "
                f"&{self.barrier}[{spell(self.at)}]);"]

    def meaning(self, machine: Machine) -> Step:
        item = machine.kernel.types[self.buffer].bytes

        def one(w: Warp, lane: int, index: int, rank: int, value: float, barrier: int) -> None:
            peer = w.engine.peer(w, rank)
            phases = peer.barrier(w, self.barrier, barrier, w.mask)
            memory = peer.shared[self.buffer]
            place = memory.engine_write(w, index, 1, lane, by_engine=False)
            peer.fly(w, self, phases, item, partial(memory.land, place, value))
        return lane_by_lane(machine, (self.index, self.rank, self.value, self.at), one)
