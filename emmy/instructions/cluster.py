"""Clusters: blocks that run at once, meet at a barrier of their own, and write to each other's shared memory.

A block's rank is its index along x modulo the size of its cluster.  What is sent counts on a barrier of the block that it is sent to, which
that block has made before all met; it waits there for what it expects, and must not end before it has come.

A copy by the copy engine may go to several blocks at once, those whose bits are set in its mask: to the same place in the shared memory of
each, where its bytes count on the same barrier.  (PTX ISA, "cp.async.bulk.tensor", `.multicast::cluster`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.instructions.lanes import lane_by_lane
from emmy.instructions.mbarrier import check_barrier
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Array, Step, Warp

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


def check_mask(scope: Scope, mask: Expr | None) -> None:
    """IRError unless these are blocks of a cluster: bit k that of rank k; None is the block of the thread that asks."""
    if mask is None:
        return
    scope.expr(mask, dt.i32)
    if not isinstance(mask, Const) or not 0 < mask.value < 1 << MOST:
        raise IRError(f"a mask of blocks of a cluster is a constant of 1 to {(1 << MOST) - 1}")


class ArrivePeer(Stmt):
    """Each active thread arrives at element `at` of `barrier` of the block of `rank` in the cluster.  Whoever waits for the phase knows
    that the thread has read what it read before, and may let copies overwrite it; what the thread wrote is not seen, which costs a fence
    of all memory.  (PTX ISA, "mbarrier.arrive", `.relaxed`.)"""

    barrier: str
    at: Expr
    rank: Expr
    asynchronous = True
    syntax = "arrive {barrier}[{at}] of {rank}"

    def check(self, scope: Scope) -> None:
        check_barrier(scope, self.barrier, self.at)
        scope.expr(self.rank, dt.i32)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_arrive_peer(&{self.barrier}[{spell(self.at)}], {spell(self.rank)});"]

    def meaning(self, machine: Machine) -> Step:
        stated = machine.stated(self)

        def one(w: Warp, lane: int, at: int, rank: int) -> None:
            peer = w.engine.peer(w, rank)
            peer.call(w, stated, peer.barrier(w, self.barrier, at, w.mask), lane)
        return lane_by_lane(machine, (self.at, self.rank), one)


class _Sent(Stmt):
    """What each active thread sends to `buffer`, from `index` on, of the block of `rank` in the cluster.  It is on its way until the phase
    ends that it counts on, of that block's barrier."""

    buffer: str
    index: Expr
    rank: Expr
    asynchronous = True

    def check_sent(self, scope: Scope, sent: DType, barrier: str, at: Expr) -> None:
        found = scope.buffer(self.buffer, SharedBuffer)
        scope.expr(self.index, dt.i32, dt.i64)
        scope.expr(self.rank, dt.i32)
        check_barrier(scope, barrier, at)
        if sent is not found.element or found.element.bytes not in (4, 8):
            raise IRError(f"{self.buffer} holds {found.element}, and {sent} is sent; "
                          "a store to another block is 4 or 8 bytes of one dtype")
        if isinstance(self.rank, Const) and not 0 <= self.rank.value < MOST:
            raise IRError(f"block {self.rank.value} of a cluster, which has at most {MOST}")

    def fly(self, w: Warp, lane: int, index: int, rank: int, values: Array, barrier: tuple[str, int]) -> None:
        """The thread of a lane, alone active, sends these elements."""
        peer = w.engine.peer(w, rank)
        phases = peer.barrier(w, *barrier, w.mask)
        memory = peer.shared[self.buffer]
        place = memory.engine_write(w, index, len(values), lane, by_engine=False)
        peer.fly(w, self, phases, values.nbytes, partial(memory.land, place, values))


class StoreCluster(_Sent):
    """An element of a shared buffer of the block of `rank` in the cluster becomes `value`, 4 or 8 bytes of the buffer's dtype."""

    value: Expr
    barrier: str
    at: Expr
    syntax = "store_cluster {buffer}[{index}] of {rank} = {value} on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        scope.expr(self.value)
        self.check_sent(scope, self.value.dtype, self.barrier, self.at)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_store_cluster(&{self.buffer}[{spell(self.index)}], {spell(self.rank)}, {spell(self.value)}, "
                f"&{self.barrier}[{spell(self.at)}]);"]

    def meaning(self, machine: Machine) -> Step:
        element, stated = machine.kernel.types[self.buffer].numpy, machine.stated(self)

        def one(w: Warp, lane: int, index: int, rank: int, value: float, at: int) -> None:
            stated.fly(w, lane, index, rank, np.array([value], element), (self.barrier, at))
        return lane_by_lane(machine, (self.index, self.rank, self.value, self.at), one)


class StoreClusterVector(_Sent):
    """Four elements of 4 bytes of a shared buffer of the block of `rank` in the cluster, from an `index` that 4 divides, become
    `array[offset]` and on."""

    array: str
    offset: int
    barrier: str
    at: Expr
    syntax = "store_cluster_vector {buffer}[{index}] of {rank} = {array}[{offset} +: 4] on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        found = scope.register(self.array, "array")
        self.check_sent(scope, found.dtype, self.barrier, self.at)
        if found.dtype.bytes != 4 or not 0 <= self.offset <= found.length - 4:
            raise IRError(f"4 elements from {self.offset} of {self.array}, which has {found.length} of {found.dtype.bytes} bytes; "
                          "16 bytes are sent")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_store_cluster_vector(&{self.buffer}[{spell(self.index)}], {spell(self.rank)}, &{self.array}[{self.offset}], "
                f"&{self.barrier}[{spell(self.at)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.warp import Fault

        slot, stated = machine.slot(self.array), machine.stated(self)

        def one(w: Warp, lane: int, index: int, rank: int, at: int) -> None:
            if index % 4:
                raise Fault("bounds", f"4 elements of {self.buffer} from {index} on, which is no multiple of 4", w.active(w.mask))
            values = np.array([w.spread(w.registers[slot].get(w, self.offset + j))[lane] for j in range(4)])
            stated.fly(w, lane, index, rank, values, (self.barrier, at))
        return lane_by_lane(machine, (self.index, self.rank, self.at), one)
