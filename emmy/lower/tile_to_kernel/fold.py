"""Form "fold": the threads of a block (REDUCE=coop) or a warp (REDUCE=warp) hold one point of the row axes, run the folds
together, level by level, and then write the columns.

A level is the folds that read only results of earlier levels; those of one level that run over as many elements share a
loop.  Each thread folds a strided part; lanes join by shuffles, warps through shared memory, by the fold's own merge.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=coop or WORK=w<warps>,TILE=v<width>,REDUCE=warp.
"""

from __future__ import annotations

from math import prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.global_memory import StoreGlobal
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.instructions.shuffle import ShuffleXor
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Expr, Kernel, SharedBuffer, Thread, Var, const
from emmy.lower.tile_to_kernel.finish import finish, store_run
from emmy.lower.tile_to_kernel.scalar import Emitter

WARP = 32


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a fold-then-map over rows."""
    row, extents = schedule.row, kernel.extents
    threads, width = row.threads, int(row.tile.removeprefix("v") or 1)
    rows = prod(extents[a] for a in schedule.rows)
    outer = Emitter(kernel)
    shared: list[SharedBuffer] = []
    if row.reduce == "warp":
        warps = threads // WARP
        lane, size = outer.let("lane", Thread() % WARP), WARP
        position = outer.let("row", outer.whole(Block(0) * warps + Thread() // WARP))
        blocks, guard = -(-rows // warps), position < rows if rows % warps else None
    else:
        lane, size, position, blocks, guard = outer.let("lane", Thread()), threads, outer.whole(Block(0)), rows, None
    scope = outer.child()
    scope.place(schedule.rows, position)
    for level in levels(kernel):
        for group in by_extent(kernel, level):
            states = partial(scope, group, lane, size, width)
            for fold, state in zip(group, states, strict=True):
                join_lanes(scope, fold, state)
                if size > WARP:
                    state = join_warps(scope, fold, state, lane, size // WARP, shared)
                scope.finish(fold, state)
    write(scope, schedule.columns, lane, size, width)
    outer.emit(If(guard, tuple(scope.body))) if guard is not None else outer.emit(*scope.body)
    return finish(kernel, outer, (blocks, 1, 1), threads, tuple(shared))


def levels(kernel: tile.Kernel) -> list[list[tile.Fold]]:
    """The folds that the threads run together, by how many folds come before each.  A fold that depends on another's axis is
    not among them: it is nested in that one, and each thread runs it alone."""
    folds = {f.name: f for f in kernel.folds}
    outer = set(kernel.outer)
    depth: dict[str, int] = {}
    for f in kernel.folds:
        below = [v.fold for v in loop.walk(f.lifts) if isinstance(v, tile.FoldResult)]
        depth[f.name] = 1 + max((depth[n] for n in below if folds[n].span <= outer), default=-1)
    together = [f for f in kernel.folds if f.span <= outer]
    return [[f for f in together if depth[f.name] == d] for d in sorted({depth[f.name] for f in together})]


def by_extent(kernel: tile.Kernel, folds: list[tile.Fold]) -> list[list[tile.Fold]]:
    """Folds over equally long axes share a loop; a scan, which stops early, has its own."""
    groups: dict[object, list[tile.Fold]] = {}
    for f in folds:
        groups.setdefault(f.name if f.kind == "scan" else kernel.extents[f.axis], []).append(f)
    return list(groups.values())


def partial(scope: Emitter, group: list[tile.Fold], lane: Expr, size: int, width: int) -> list[tuple[Var, ...]]:
    """Each thread's state after its part of the axis: elements lane*width, lane*width + 1, …, then size*width further."""
    states = [scope.initial(f) for f in group]
    first = group[0]
    extent = scope.kernel.extents[first.axis]
    width = width if extent % width == 0 and first.kind != "scan" else 1
    stop = scope.index(first.upto) + 1 if first.upto is not None else const(scope.integer, extent)
    for f in group:
        scope.hoist(f.lifts, f.axis)
    start = Var(scope.name("r"), scope.integer)
    body = scope.child()
    for f, state in zip(group, states, strict=True):
        arrays = body.load_vectors(f.lifts, f.axis, start, width)
        elements = []
        for e in range(width):
            inner = body.neighbour(f.axis, start, const(scope.integer, e), arrays)
            elements.append(tuple(inner.value(x) for x in f.lifts))
            body.emit(*inner.body)
        body.accumulate(f, state, elements)
    scope.emit(For(start, scope.whole(lane) * width, stop, const(scope.integer, size * width), False, tuple(body.body)))
    return states


def join_lanes(scope: Emitter, fold: tile.Fold, state: tuple[Var, ...], lanes: int = WARP) -> None:
    """Butterfly: every lane ends with the state of its group of `lanes`."""
    mask = lanes // 2
    while mask:
        other = tuple(Var(scope.name("o"), s.element) for s in state)
        for o, s in zip(other, state, strict=True):
            scope.emit(ShuffleXor(o, s, mask))
        scope.merge(fold, state, other)
        mask //= 2


def join_warps(scope: Emitter, fold: tile.Fold, state: tuple[Var, ...], lane: Expr, warps: int,
               shared: list[SharedBuffer]) -> tuple[Var, ...]:
    """Warps leave their states in shared memory; every warp then joins them all."""
    buffers = [SharedBuffer(scope.name("warps"), s.element, warps) for s in state]
    shared += buffers
    scope.emit(If(lane % WARP == 0, tuple(StoreShared(b.name, lane // WARP, s) for b, s in zip(buffers, state, strict=True))), Barrier())
    loaded = tuple(Var(scope.name("o"), s.element) for s in state)
    scope.emit(*(LoadShared(o, b.name, lane % warps) for o, b in zip(loaded, buffers, strict=True)))
    joined = tuple(scope.declare("s", o) for o in loaded)
    join_lanes(scope, fold, joined, warps)
    return joined


def write(scope: Emitter, columns: tuple[int, ...], lane: Expr, size: int, width: int) -> None:
    """Store the result at every point of the columns, the threads striding over them; or once, where there are none."""
    kernel = scope.kernel
    if not columns:
        once = scope.child()
        value = scope.value(kernel.result)
        once.emit(StoreGlobal(kernel.output.name, once.output_offset(), value))
        scope.emit(If(lane == 0, tuple(once.body)))
        return
    *rest, last = columns
    extents = kernel.extents
    width = width if extents[last] % width == 0 and last == kernel.outer[-1] else 1
    steps = extents[last] // width
    total = prod(extents[a] for a in columns) // width
    scope.hoist([kernel.result], *columns)
    position = Var(scope.name("c"), scope.integer)
    body = scope.child()
    body.place(rest, position // steps)
    store_run(body, last, body.let("i", (position % steps if rest else position) * width), width)
    scope.emit(For(position, scope.whole(lane), const(scope.integer, total), const(scope.integer, size), False, tuple(body.body)))
