"""Sums of warpgroups that the blocks of a cluster share: each adds up a part of the products, and they add up what they have.

A block has the tile of its cluster and a share of its stages, so that few tiles keep more multiprocessors busy.  Of as many strips of
columns as there are blocks each block owns one.  When its products are done, a thread sends its sums of every other strip to the thread of
its place in the block that owns it, four in one store, and adds what comes for its own to its own: block after block from its own rank on,
an order that no race changes.  What follows the sums is then computed and written of that strip alone.  Messages have places of their own
in shared memory, and a barrier that counts their bytes; a cluster has one tile, so that no place is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from emmy.instructions import (
    ClusterWait,
    DeclareArray,
    ExpectBytes,
    If,
    InitBarrier,
    LoadSharedVector,
    SetElement,
    StoreClusterVector,
    WaitBarrier,
)
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, SharedBuffer, Stmt, Var, int32
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted
from emmy.lower.tile_to_kernel.warpgroups import GROUP

RUN = 4         # sums of a thread that lie beside each other: of two rows, at two columns


def add_run(scope: Emitter, total: str, run: Expr, e: Var, come: str, load: Stmt) -> None:
    """Add to a thread's `run`-th four sums in an array what `load` brings to the array `come`; `e` counts them."""
    at, one = run * RUN + e, scope.child()
    one.emit(SetElement(total, dt.f32, at, Apply("add", (Element(total, dt.f32, at), Element(come, dt.f32, e)))))
    scope.emit(DeclareArray(come, dt.f32, RUN, None), load, counted(e, RUN, one))


class Shares:
    """The exchange of a cluster of `blocks`, of sums in arrays of `tiles` of 64 rows by `width` columns, for each of `groups`."""

    def __init__(self, scope: Emitter, blocks: int, groups: int, tiles: int, width: int, sums: Iterable[str]):
        self.blocks, self.groups, self.tiles, self.strip = blocks, groups, tiles, width // blocks
        self.lane = self.strip // 2             # sums that a thread has of 64 rows of a strip
        self.rank = scope.let("rank", Block(0) % blocks)
        self.met = SharedBuffer(scope.name("met"), dt.i64, 1)
        self.inboxes = {x: SharedBuffer(scope.name("inbox"), dt.f32, (blocks - 1) * groups * GROUP * tiles * self.lane) for x in sums}
        self.totals = {x: scope.name("total") for x in self.inboxes}

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return self.met, *self.inboxes.values()

    def part(self, scope: Emitter, count: int) -> tuple[Expr, Expr]:
        """The first of `count` stages that this block takes, and the one after its last."""
        return scope.let("begin", self.rank * count // self.blocks), scope.let("stop", (self.rank + 1) * count // self.blocks)

    def made(self) -> tuple[Stmt, ...]:
        """The barrier of what will come, by one thread, before all blocks meet."""
        return (InitBarrier(self.met.name, int32(0), 1),
                ExpectBytes(self.met.name, int32(0), sum(b.length * b.element.bytes for b in self.inboxes.values())))

    def join(self, scope: Emitter, thread: Expr) -> None:
        """Send the sums of the other strips, and make the totals of this block's.  `thread`: of those that multiply."""
        scope.emit(*(DeclareArray(total, dt.f32, self.tiles * self.lane, None) for total in self.totals.values()), ClusterWait())
        for strip in range(self.blocks):
            keep, send = scope.child(), scope.child()
            behind = send.let("behind", (self.rank + (self.blocks - strip - 1)) % self.blocks)     # the owner, less 1
            for k in range(self.tiles):
                first, e = (k * self.blocks + strip) * self.lane, Var(keep.name("e"), dt.i32)
                one = keep.child()
                for array, inbox in self.inboxes.items():
                    one.emit(SetElement(self.totals[array], dt.f32, e + k * self.lane, Element(array, dt.f32, e + first)))
                    send.emit(*(StoreClusterVector(inbox.name, self.place(behind, (k * self.lane + at) // RUN, thread), int32(strip), array,
                                                   first + at, self.met.name, int32(0)) for at in range(0, self.lane, RUN)))
                keep.emit(counted(e, self.lane, one))
            scope.emit(If(self.rank == strip, tuple(keep.body), tuple(send.body)))
        scope.emit(WaitBarrier(self.met.name, int32(0), int32(0)))
        behind_, run, e = (Var(scope.name(x), dt.i32) for x in ("behind", "run", "e"))
        runs, body = scope.child(), scope.child()
        for array, inbox in self.inboxes.items():
            come = body.name("come")
            add_run(body, self.totals[array], run, e, come, LoadSharedVector(come, 0, inbox.name, self.place(behind_, run, thread), RUN))
        runs.emit(counted(run, self.tiles * self.lane // RUN, body))
        scope.emit(counted(behind_, self.blocks - 1, runs))

    def place(self, behind: Expr, run: Expr | int, thread: Expr) -> Expr:
        """Where four sums of a thread lie in an inbox, of the block so far behind: those of neighbouring threads beside each other."""
        return ((behind * (self.tiles * self.lane // RUN) + run) * (self.groups * GROUP) + thread) * RUN
