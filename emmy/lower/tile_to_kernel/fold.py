"""Form "fold": the threads of a block (REDUCE=coop) or a warp (REDUCE=warp) hold one point of the row axes, run the folds
together, level by level, and then write the columns.

A level is the folds that read only results of earlier levels; those of one level that run over as many elements share a
loop.  Each thread folds a strided part; lanes join by shuffles, warps through shared memory, by the fold's own merge.
With STAGE=reg every stage walks the same positions, and what one computes and a later one asks for is kept in registers.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=coop or WORK=w<warps>,TILE=v<width>,REDUCE=warp, each with or without STAGE=reg; there,
REDUCE=coop/apart or warp/apart takes softmax folds apart (`untwist`).  Of a block, STAGE=smem keeps the row in shared memory (`kept_row`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.registers import SetElement
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Expr, Kernel, SharedBuffer, Thread, Var, const
from emmy.ir.operators import MONOIDS
from emmy.lower.tile_to_kernel.address import LONG
from emmy.lower.tile_to_kernel.finish import finish, put, store_run
from emmy.lower.tile_to_kernel.held import Held, levels
from emmy.lower.tile_to_kernel.kept_row import keep
from emmy.lower.tile_to_kernel.lanes import WARP, butterfly
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.strip import Part
from emmy.lower.tile_to_kernel.twist import RECIPES
from emmy.lower.tile_to_kernel.untwist import untwisted

AHEAD, AHEAD_BYTES = 16, 64      # elements that enter a state together, and bytes that a thread asks for before it waits, at most


class Team(NamedTuple):
    """Threads that share a row: `lane` of `size`, each with runs of `width` neighbours; `held` is what it keeps in registers.  They have
    `part` of every axis, or all of it."""

    lane: Expr
    size: int
    width: int
    held: Held | None
    part: Part | None = None

    def passes(self, extent: int) -> int:
        """How many runs a thread has along an axis."""
        return -(-extent // (self.size * self.width))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a fold-then-map over rows."""
    row, extents = schedule.row, kernel.extents
    how, _, apart = row.reduce.partition("/")
    kernel = untwisted(kernel) if apart or row.stage == "smem" else kernel
    threads, width = row.threads, int(row.tile.removeprefix("v") or 1)
    rows = prod(extents[a] for a in schedule.rows)
    outer = Emitter(kernel)
    shared: list[SharedBuffer] = []
    held = Held(kernel, schedule.columns) if row.stage == "reg" else None
    if how == "warp":
        warps = threads // WARP
        team = Team(outer.let("lane", Thread() % WARP), WARP, width, held)
        position = outer.let("row", outer.whole(Block(0)) * warps + outer.whole(Thread() // WARP))
        blocks, guard = -(-rows // warps), position < rows if rows % warps else None
    else:
        team, position, blocks, guard = Team(outer.let("lane", Thread()), threads, width, held), outer.whole(Block(0)), rows, None
    scope = outer.child()
    scope.place(schedule.rows, position)
    shared += keep(scope, schedule.columns, team.lane, threads, width) if row.stage == "smem" else []
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
        step(body, body.let("i", team.part.begin + start) if team.part else start, 0)
        stop = team.part.stop if team.part else stop
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
    if team.held is None and team.part is None and first.kind != "scan":
        many = ahead(scope.kernel, team.width, team.passes(extent))
        whole = extent // (team.size * team.width * many) * (team.size * team.width * many)
        for begin, end, count in ((0, whole, many), (whole, extent, 1)):
            if begin < end:
                stretch(scope, group, states, team, begin, end, count)
        return states

    def step(body: Emitter, start: Expr, number: int) -> None:
        for f, state in zip(group, states, strict=True):
            known, fresh = team.held.run(scope, body, f.lifts, f.axis, start, team.width, number) if team.held else ({}, {})
            arrays = known | body.load_vectors(f.lifts, f.axis, start, team.width, known)
            elements = []
            for e in range(team.width):
                inner = body.neighbour(f.axis, start, const(scope.integer, e), arrays)
                for v, array in fresh.items():
                    inner.values[v] = inner.let("h", inner.value(v))
                    inner.emit(SetElement(array, v.dtype, const(scope.integer, e), inner.values[v]))
                elements.append(tuple(inner.value(x) for x in f.lifts))
                body.emit(*inner.body)
            body.accumulate(f, state, elements)

    along(scope, extent, stop, team, step)
    return states


def ahead(kernel: tile.Kernel, width: int, passes: int) -> int:
    """How many of a thread's runs are read at once and enter its state together."""
    widest = max((t.element.bytes for t in kernel.tensors), default=4)
    return max(1, min(AHEAD_BYTES // (width * widest), AHEAD // width, passes // 2))


def stretch(scope: Emitter, group: list[tile.Fold], states: list[tuple[Var, ...]], team: Team, begin: int, end: int, count: int) -> None:
    """Fold the elements from `begin` to `end`, `count` runs of each thread a round, all of whose loads come first."""
    r, step = Var(scope.name("r"), scope.integer), team.size * team.width
    body = scope.child()
    starts = [r, *(body.let("r", r + u * step) for u in range(1, count))]
    read = [[body.load_vectors(f.lifts, f.axis, start, team.width) for start in starts] for f in group]
    for f, state, arrays in zip(group, states, read, strict=True):
        elements = []
        for start, of in zip(starts, arrays, strict=True):
            run = body.child()
            if team.width > LONG:
                run.hoist_run(f.lifts, f.axis, start, team.width, of)
            body.emit(*run.body)
            for e in range(team.width):
                inner = run.neighbour(f.axis, start, const(scope.integer, e), of, team.width)
                elements.append(tuple(inner.value(x) for x in f.lifts))
                body.emit(*inner.body)
        body.accumulate(f, state, elements)
    first = scope.whole(team.lane) * team.width + begin
    scope.emit(For(r, first, const(scope.integer, end), const(scope.integer, count * step), False, tuple(body.body)))


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
            known = team.held.run(scope, body, kernel.results, last, start, width, number)[0] if team.held else {}
            store_run(body, last, start, width, arrays=known)

        along(scope, extents[last], const(scope.integer, extents[last]), team._replace(width=width), step)
        return
    steps = extents[last] // width
    total = prod(extents[a] for a in columns) // width
    position = Var(scope.name("c"), scope.integer)
    body = scope.child()
    body.place(rest, position // steps)
    store_run(body, last, body.let("i", position % steps * width), width)
    scope.emit(For(position, scope.whole(team.lane), const(scope.integer, total), const(scope.integer, team.size), False, tuple(body.body)))
