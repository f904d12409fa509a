"""What the blocks of a cluster tell each other: each sends its states to all, itself included, and joins what has come, first block to
last, so that all have the same bits.  A block waits for its messages alone, and ends when it has had them all."""

from __future__ import annotations

from collections.abc import Sequence

from emmy.instructions.barrier import Barrier
from emmy.instructions.cluster import ClusterArrive, ClusterWait, StoreCluster
from emmy.instructions.control import For, If
from emmy.instructions.mbarrier import ExpectBytes, FenceBarriers, InitBarrier, WaitBarrier
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Block, Convert, Expr, SharedBuffer, Stmt, Thread, Var, const, int32
from emmy.lower.tile_to_kernel.scalar import Emitter, neutral


class Exchange:
    """Messages by level of folds: `each` states of every fold from each of `blocks`.  Made before a block does anything else, so that all
    blocks are there by the time that the first has something to tell."""

    def __init__(self, scope: Emitter, blocks: int, levels: Sequence[Sequence[tile.Fold]], each: int, shared: list[SharedBuffer]):
        self.blocks, self.each, self.levels, self.started = blocks, each, levels, False
        self.rank = scope.let("rank", Block(0) % blocks)
        self.met = SharedBuffer(scope.name("met"), dt.i64, len(levels))
        self.inboxes = {f: [SharedBuffer(scope.name("inbox"), sent(x.dtype), blocks * each) for x in neutral(f)]
                        for level in levels for f in level}
        shared += [self.met, *(b for boxes in self.inboxes.values() for b in boxes)]
        made: list[Stmt] = []
        for k, level in enumerate(levels):
            size = blocks * each * sum(b.element.bytes for f in level for b in self.inboxes[f])
            made += [InitBarrier(self.met.name, int32(k), 1), ExpectBytes(self.met.name, int32(k), size)]
        scope.emit(If(Thread() == 0, (*made, FenceBarriers())), ClusterArrive())

    def start(self, scope: Emitter) -> None:
        """All blocks are there, and have made their barriers."""
        scope.emit(*[ClusterWait()] * (not self.started))
        self.started = True

    def send(self, scope: Emitter, fold: tile.Fold, state: Sequence[Expr], place: Expr, rank: Expr) -> None:
        """The thread's state goes to one place of `each` that this block has in the inbox of another."""
        level = next(k for k, folds in enumerate(self.levels) if fold in folds)
        for b, s in zip(self.inboxes[fold], state, strict=True):
            value = s if b.element is s.dtype else Convert(b.element, s)
            scope.emit(StoreCluster(b.name, self.rank * self.each + place, rank, value, self.met.name, int32(level)))

    def wait(self, scope: Emitter, level: int) -> None:
        """The states of a level have come from all blocks."""
        scope.emit(WaitBarrier(self.met.name, int32(level), int32(0)))


def sent(dtype: DType) -> DType:
    """What a component of a state is sent as: 4 or 8 bytes."""
    return dtype if dtype.bytes >= 4 else dt.i32


def left_here(scope: Emitter, dtype: DType, buffer: SharedBuffer, at: Expr) -> Expr:
    """An element of a shared buffer, in a dtype."""
    var = Var(scope.name("o"), buffer.element)
    scope.emit(LoadShared(var, buffer.name, at))
    return var if var.dtype is dtype else var != const(var.dtype, 0)


def join_blocks(scope: Emitter, exchange: Exchange, left: dict[tile.Fold, list[SharedBuffer]], level: int, parts: int, columns: int,
                shared: list[SharedBuffer]) -> dict[tile.Fold, list[SharedBuffer]]:
    """For folds whose states `parts` of this block's threads have left, for each of `columns`, buffers of the states of all blocks.  A
    thread joins a column; the block has as many threads at least."""
    exchange.start(scope)
    body = scope.child()
    for f, buffers in left.items():
        state = joined(body, f, buffers, parts, columns)
        for rank in range(exchange.blocks):
            exchange.send(body, f, state, Thread(), int32(rank))
    scope.emit(If(Thread() < columns, tuple(body.body)))
    exchange.wait(scope, level)
    body, made = scope.child(), dict[tile.Fold, list[SharedBuffer]]()
    for f in left:
        state = joined(body, f, exchange.inboxes[f], exchange.blocks, columns)
        made[f] = [SharedBuffer(scope.name("joined"), s.dtype, columns) for s in state]
        body.emit(*(StoreShared(b.name, Thread(), s) for b, s in zip(made[f], state, strict=True)))
    scope.emit(If(Thread() < columns, tuple(body.body)), Barrier())
    shared += [b for buffers in made.values() for b in buffers]
    return made


def joined(scope: Emitter, fold: tile.Fold, buffers: list[SharedBuffer], count: int, columns: int) -> tuple[Var, ...]:
    """The state of the thread's column: of `count` that are there, `columns` apart."""
    def one(to: Emitter, number: Expr) -> tuple[Expr, ...]:
        return tuple(left_here(to, x.dtype, b, number * columns + Thread()) for x, b in zip(neutral(fold), buffers, strict=True))

    state = tuple(scope.declare("s", x) for x in one(scope, int32(0)))
    k, inner = Var(scope.name("k"), dt.i32), scope.child()
    inner.merge(fold, state, one(inner, k))
    scope.emit(*[For(k, int32(1), int32(count), int32(1), True, tuple(inner.body))] * (count > 1))
    return state
