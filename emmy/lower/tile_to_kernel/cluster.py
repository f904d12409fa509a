"""States that the blocks of a cluster join: each leaves its own in its shared memory, and reads those of all blocks, first to last, so that
all have the same bits.  Once to join them all blocks meet; before it ends, a block waits until the others have read what it left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from emmy.instructions.barrier import Barrier
from emmy.instructions.cluster import ClusterArrive, ClusterWait, LoadCluster
from emmy.instructions.control import For, If
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Expr, SharedBuffer, Thread, Var, int32

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.scalar import Emitter

Read = Callable[["Emitter", Var, SharedBuffer, Expr], None]     # a variable becomes what the part of this number has left in a buffer


def join_blocks(scope: Emitter, left: dict[tile.Fold, list[SharedBuffer]], parts: int, columns: int, cluster: int,
                shared: list[SharedBuffer]) -> dict[tile.Fold, list[SharedBuffer]]:
    """For folds whose states `parts` of this block's threads have left, for each of `columns`, buffers of the states of all blocks.  A
    thread joins a column; the block has as many threads at least."""

    def here(to: Emitter, var: Var, b: SharedBuffer, number: Expr) -> None:
        to.emit(LoadShared(var, b.name, number * columns + Thread()))

    def there(to: Emitter, var: Var, b: SharedBuffer, number: Expr) -> None:
        to.emit(LoadCluster(var, b.name, Thread(), number))

    own = join_columns(scope, left, parts, columns, here)
    scope.emit(ClusterArrive(), ClusterWait())
    every = join_columns(scope, own, cluster, columns, there)
    scope.emit(Barrier())
    shared += [b for buffers in (*own.values(), *every.values()) for b in buffers]
    return every


def join_columns(scope: Emitter, left: dict[tile.Fold, list[SharedBuffer]], count: int, columns: int,
                 read: Read) -> dict[tile.Fold, list[SharedBuffer]]:
    """Each of the first `columns` threads joins `count` states of its column of each fold, and leaves the result in a new buffer."""
    body, made = scope.child(), dict[tile.Fold, list[SharedBuffer]]()
    for f, buffers in left.items():
        made[f] = [SharedBuffer(scope.name("joined"), b.element, columns) for b in buffers]
        state = one(body, buffers, int32(0), read)
        state = tuple(body.declare("s", x) for x in state)
        k, inner = Var(body.name("k"), dt.i32), body.child()
        inner.merge(f, state, one(inner, buffers, k, read))
        body.emit(*[For(k, int32(1), int32(count), int32(1), False, tuple(inner.body))] * (count > 1))
        body.emit(*(StoreShared(b.name, Thread(), s) for b, s in zip(made[f], state, strict=True)))
    scope.emit(If(Thread() < columns, tuple(body.body)))
    return made


def one(scope: Emitter, buffers: list[SharedBuffer], number: Expr, read: Read) -> tuple[Var, ...]:
    """The state that the part of this number has left."""
    state = tuple(Var(scope.name("o"), b.element) for b in buffers)
    for var, b in zip(state, buffers, strict=True):
        read(scope, var, b, number)
    return state
