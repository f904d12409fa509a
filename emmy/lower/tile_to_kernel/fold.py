"""Form "fold": the threads of a block (REDUCE=coop) or a warp (REDUCE=warp) hold one point of the row axes, run the folds
together, level by level, and then write the columns.

A level is the folds that read only results of earlier levels; those of one level that run over as many elements share a
loop.  Each thread folds a strided part; lanes join by shuffles, warps through shared memory, by the fold's own merge.
With STAGE=reg every stage walks the same positions, and what two of them load is kept in registers.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=coop or WORK=w<warps>,TILE=v<width>,REDUCE=warp, each with or without STAGE=reg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.global_memory import LoadGlobalVector
from emmy.instructions.registers import DeclareArray
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Expr, Kernel, SharedBuffer, Thread, Var, const
from emmy.ir.loop_ir import Value
from emmy.ir.operators import MONOIDS
from emmy.lower.tensor_to_loop import rename
from emmy.lower.tile_to_kernel.finish import finish, put, store_run
from emmy.lower.tile_to_kernel.lanes import WARP, butterfly
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, vectorises
from emmy.lower.tile_to_kernel.twist import RECIPES


class Team(NamedTuple):
    """Threads that share a row: `lane` of `size`, each with runs of `width` neighbours; `held` is what it keeps in registers."""

    lane: Expr
    size: int
    width: int
    held: Held | None

    def passes(self, extent: int) -> int:
        """How many runs a thread has along an axis."""
        return -(-extent // (self.size * self.width))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a fold-then-map over rows."""
    row, extents = schedule.row, kernel.extents
    threads, width = row.threads, int(row.tile.removeprefix("v") or 1)
    rows = prod(extents[a] for a in schedule.rows)
    outer = Emitter(kernel)
    shared: list[SharedBuffer] = []
    held = Held(kernel, schedule.columns) if row.stage == "reg" else None
    if row.reduce == "warp":
        warps = threads // WARP
        team = Team(outer.let("lane", Thread() % WARP), WARP, width, held)
        position = outer.let("row", outer.whole(Block(0) * warps + Thread() // WARP))
        blocks, guard = -(-rows // warps), position < rows if rows % warps else None
    else:
        team, position, blocks, guard = Team(outer.let("lane", Thread()), threads, width, held), outer.whole(Block(0)), rows, None
    scope = outer.child()
    scope.place(schedule.rows, position)
    for level in levels(kernel):
        for group in by_extent(kernel, level):
            states = partial(scope, group, team)
            for fold, state in zip(group, states, strict=True):
                join_lanes(scope, fold, state)
                if team.size > WARP:
                    state = join_warps(scope, fold, state, team.lane, team.size // WARP, shared)
                scope.finish(fold, state)
    write(scope, schedule.columns, team)
    outer.emit(If(guard, tuple(scope.body))) if guard is not None else outer.emit(*scope.body)
    return finish(kernel, outer, (blocks, 1, 1), threads, tuple(shared))


class Held:
    """Loads that a thread keeps from one stage to the next: those that two stages make at the same positions of their axes."""

    def __init__(self, kernel: tile.Kernel, columns: tuple[int, ...]):
        self.loads = held_loads(kernel, columns)
        self.arrays: dict[tuple[Value, int], str] = {}

    def fetch(self, scope: Emitter, body: Emitter, roots: tuple[Value, ...], axis: int, start: Expr, width: int,
              number: int) -> dict[loop.Load, str]:
        """The register arrays of the held loads below `roots` for run `number`; those not read yet are read in `body`."""
        found: dict[loop.Load, str] = {}
        for v in loads_along(roots, axis):
            key = at_position(v, axis), number
            if key[0] not in self.loads or not (width == 1 or vectorises(body.tensors[v.tensor], v.point, axis, width)):
                continue
            if key not in self.arrays:
                self.arrays[key] = scope.name("x")
                scope.emit(DeclareArray(self.arrays[key], v.element.compute, width, None))
                first = body.child()
                first.axes[axis] = start
                offset = first.offset(v.tensor, v.point)
                step = min(width, VECTOR_BYTES // v.element.bytes)
                body.emit(*first.body, *(LoadGlobalVector(self.arrays[key], k, v.tensor, offset + k, step) for k in range(0, width, step)))
            found[v] = self.arrays[key]
        return found


def held_loads(kernel: tile.Kernel, columns: tuple[int, ...]) -> set[Value]:
    """The loads, by position along their axis, that two stages (levels of folds, and the writing of columns) have in common."""
    stages = [(f.lifts, f.axis, depth) for depth, level in enumerate(levels(kernel)) for f in level]
    stages += [(kernel.results, a, -1) for a in columns]
    met = {(load, depth) for roots, axis, depth in stages for load in {at_position(v, axis) for v in loads_along(roots, axis)}}
    count = Counter(load for load, _ in met)
    return {load for load, n in count.items() if n > 1}


def loads_along(roots: tuple[Value, ...], axis: int) -> list[loop.Load]:
    """The loads below `roots` whose point mentions `axis` itself, in order."""
    free = tile.free_axes(roots)
    return [v for v in free if isinstance(v, loop.Load) and axis in free[v] and not v.operands]


def at_position(load: Value, axis: int) -> Value:
    """`load` with `axis` made nameless, so that loads along different axes compare."""
    return rename(load, {axis: -1})


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


def along(scope: Emitter, extent: int, stop: Expr, team: Team, step: Callable[[Emitter, Expr, int], None]) -> None:
    """Walk an axis: `step` writes into a scope what a thread does with the run that starts at an expression.  One loop, or, where
    values are held, every run in line; a run past the end does nothing."""
    if team.held is None:
        start, body = Var(scope.name("r"), scope.integer), scope.child()
        step(body, start, 0)
        stride = const(scope.integer, team.size * team.width)
        scope.emit(For(start, scope.whole(team.lane) * team.width, stop, stride, False, tuple(body.body)))
        return
    for number in range(team.passes(extent)):
        first = scope.let("r", scope.whole(team.lane) * team.width + number * team.size * team.width)
        body = scope.child()
        step(body, first, number)
        inside = (number + 1) * team.size * team.width <= extent
        scope.emit(*body.body) if inside else scope.emit(If(first < stop, tuple(body.body)))


def partial(scope: Emitter, group: list[tile.Fold], team: Team) -> list[tuple[Var, ...]]:
    """Each thread's state after its part of the axis: runs of `width` elements, `size` runs apart."""
    states = [scope.initial(f) for f in group]
    first = group[0]
    extent = scope.kernel.extents[first.axis]
    team = team if extent % team.width == 0 and first.kind != "scan" else team._replace(width=1)
    stop = scope.index(first.upto) + 1 if first.upto is not None else const(scope.integer, extent)
    for f in group:
        scope.hoist(f.lifts, f.axis)

    def step(body: Emitter, start: Expr, number: int) -> None:
        for f, state in zip(group, states, strict=True):
            arrays = team.held.fetch(scope, body, f.lifts, f.axis, start, team.width, number) if team.held else {}
            arrays |= body.load_vectors(f.lifts, f.axis, start, team.width, arrays)
            elements = []
            for e in range(team.width):
                inner = body.neighbour(f.axis, start, const(scope.integer, e), arrays)
                elements.append(tuple(inner.value(x) for x in f.lifts))
                body.emit(*inner.body)
            body.accumulate(f, state, elements)

    along(scope, extent, stop, team, step)
    return states


def join_lanes(scope: Emitter, fold: tile.Fold, state: tuple[Var, ...], lanes: int = WARP) -> None:
    """Every lane ends with the state of its group of `lanes`."""
    if fold.kind == "twist":
        RECIPES[fold.recipe].join(scope, state, lanes)
    else:
        butterfly(scope, MONOIDS[fold.recipe].operator, state[0], lanes)


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


def write(scope: Emitter, columns: tuple[int, ...], team: Team) -> None:
    """Store the results at every point of the columns, the threads striding over them; or once, where there are none."""
    kernel = scope.kernel
    if not columns:
        once = scope.child()
        put(once, tuple(map(scope.value, kernel.results)))
        scope.emit(If(team.lane == 0, tuple(once.body)))
        return
    *rest, last = columns
    extents = kernel.extents
    neighbours = last == kernel.outer[-1] or team.held is not None      # what is held was read in runs of this width
    width = team.width if extents[last] % team.width == 0 and neighbours else 1
    scope.hoist(kernel.results, *columns)
    if not rest:
        def step(body: Emitter, start: Expr, number: int) -> None:
            arrays = team.held.fetch(scope, body, kernel.results, last, start, width, number) if team.held else {}
            store_run(body, last, start, width, arrays=arrays)

        along(scope, extents[last], const(scope.integer, extents[last]), team._replace(width=width), step)
        return
    steps = extents[last] // width
    total = prod(extents[a] for a in columns) // width
    position = Var(scope.name("c"), scope.integer)
    body = scope.child()
    body.place(rest, position // steps)
    store_run(body, last, body.let("i", position % steps * width), width)
    scope.emit(For(position, scope.whole(team.lane), const(scope.integer, total), const(scope.integer, team.size), False, tuple(body.body)))
