"""Form "cross": folds across the axis that lies contiguous in memory, such as a sum over the first axis of a matrix.

The lanes of a block run along the output axis c (`schedule.rows`) that is contiguous, after the axes of `schedule.batch`, row-major:
every thread holds `width` neighbours along c.  The `down` threads of a lane share out the folded axis, level by level as in form
"fold", join by the fold's merge, in a warp by shuffles and between warps through shared memory, and then the columns that are left.

With STAGE=smem the block's strip stays in shared memory (`strip`), and softmax folds are taken apart (`untwist`).  There the blocks of a
cluster may share a strip, each with a part of the folded axis, and join their states (`cluster`).

Row: WORK=t<down>x<across>,TILE=v<width>,REDUCE=cross, with or without STAGE=smem; with it, WORK=t<down>x<across>/c<blocks> for a cluster.
The width divides the extent of c; other tails are predicated.
Shared bytes: down * across * width * (bytes of a state) at most, for each fold; (extent of a part) * across * width * (bytes of an element)
for each load that is staged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadSharedVector, StoreSharedVector
from emmy.instructions.shuffle import ShuffleXor
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import strip
from emmy.lower.tile_to_kernel.cluster import Exchange, join_blocks
from emmy.lower.tile_to_kernel.finish import finish, store, store_run
from emmy.lower.tile_to_kernel.fold import by_extent
from emmy.lower.tile_to_kernel.held import levels, stages
from emmy.lower.tile_to_kernel.lanes import WARP
from emmy.lower.tile_to_kernel.register_tile import parts
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, neutral
from emmy.lower.tile_to_kernel.staging import both, counted, under
from emmy.lower.tile_to_kernel.untwist import untwisted

AHEAD_BYTES, AHEAD = 64, 8      # a thread reads up to so many bytes of a tensor, from so many elements of the folded axis, at once


class Run:
    """A thread's `width` neighbours along axis c from `start`, and the register arrays of what is known for each of them."""

    def __init__(self, axis: int, start: Expr, width: int):
        self.axis, self.start, self.width = axis, start, width
        self.held: dict[Value, str] = {}

    def know(self, scope: Emitter, value: Value, array: str) -> None:
        """Element e of `array` is `value` at neighbour e; at all of them, if the value does not depend on c."""
        self.held[value] = array
        if self.axis not in scope.free.get(value, {self.axis}):
            scope.values[value] = Element(array, value.dtype, int32(0))

    def bind(self, scope: Emitter, lane: Expr) -> None:
        """Make what is known at neighbour `lane` the values of a scope."""
        scope.values.update((v, Element(array, v.dtype, lane)) for v, array in self.held.items())

    def at(self, scope: Emitter, lane: Expr, arrays: dict[Value, str]) -> Emitter:
        """A scope for neighbour `lane`, `arrays` being what `load_vectors` has read."""
        inner = scope.neighbour(self.axis, self.start, lane, arrays)
        self.bind(inner, lane)
        return inner

    def lane(self, scope: Emitter) -> Expr:
        """The number of a neighbour: a variable to loop over, unless there is one only."""
        return Var(scope.name("e"), scope.integer) if self.width > 1 else const(scope.integer, 0)

    def each(self, scope: Emitter, lane: Expr, body: Emitter) -> None:
        """Emit `body` for each neighbour."""
        scope.emit(*([counted(lane, self.width, body)] if isinstance(lane, Var) else body.body))

    def hold(self, scope: Emitter, roots: Sequence[Value], *axes: int) -> None:
        """Compute before a loop over `axes` what of `roots` does not depend on them: once for the thread, or for each neighbour."""
        scope.hoist(roots, *axes, self.axis)
        values = parts(scope, roots, (self.axis,), axes, self.held)
        if not values:
            return
        arrays = scope.load_vectors(values, self.axis, self.start, self.width)
        lane = self.lane(scope)
        inner = self.at(scope, lane, arrays)
        for v in values:
            name = scope.name("h")
            scope.emit(DeclareArray(name, v.dtype, self.width, None))
            inner.emit(SetElement(name, v.dtype, lane, inner.value(v)))
            self.held[v] = name
        self.each(scope, lane, inner)


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of folds across a contiguous axis; IRError where the row or a fold does not fit the form."""
    staged = schedule.row.stage == "smem"
    kernel = untwisted(kernel) if staged else kernel
    down, across, width = blocks(kernel, schedule)
    cluster = schedule.row.cluster
    scope = Emitter(kernel)
    lanes = *(a for a in kernel.outer if a in schedule.batch), *schedule.rows
    columns = [a for a in kernel.outer if a in schedule.columns]
    total = prod(kernel.extents[a] for a in lanes)
    place = scope.let("down", Thread() // across) if down > 1 else int32(0)
    lane = scope.let("lane", Thread() % across)
    flat = scope.let("at", scope.whole(Block(0) // cluster) * (across * width) + scope.whole(lane) * width)
    inside = None if total % (across * width) == 0 else flat < total
    # threads beyond the end do the last run's work, so that they meet the others at barriers, and store nothing
    scope.place(lanes, flat if inside is None else scope.let("at", Apply("min", (flat, const(scope.integer, total - width)))))
    run = Run(lanes[-1], scope.axes[lanes[-1]], width)
    every = {n: strip.part_of(scope, n, cluster) for n in sorted({kernel.extents[a] for a in axes_walked(kernel, columns)})}
    shared: list[SharedBuffer] = []
    body, order = scope, levels(kernel)
    exchange = Exchange(scope, cluster, order, across * width, shared) if cluster > 1 else None
    if staged:
        (part,) = every.values()
        share = strip.Share(place, down, width, across * width, scope.let("offset", lane * width))
        shared += strip.stage(scope, run.axis, tuple(columns), part, share)
    joining = meeting(down, across)
    for number, level in enumerate(order):
        states = {f: array for group in by_extent(kernel, level) for f, array in gather(scope, run, group, place, down, every).items()}
        if joining < down:
            for f, arrays in states.items():
                meet(scope, run, f, arrays, across)
        if joining * cluster > 1:
            buffers = {f: leave(scope, run, f, arrays, joining * across, across if joining < down else 0, shared)
                       for f, arrays in states.items()}
            scope.emit(Barrier())
        if exchange:
            buffers = join_blocks(scope, exchange, buffers, number, joining, across * width, shared)
        if level is order[-1]:
            body = scope.child()
        for f, arrays in states.items():
            joined = join(body, run, f, buffers[f], lane, across, joining if cluster == 1 else 1) if joining * cluster > 1 else arrays
            for channel, array in enumerate(joined[:len(f.lifts)]):
                run.know(body, f.result(channel), array)
    write(body, run, columns, place, down, every)
    only = both(inside, place == 0 if down > 1 and not columns else None)
    scope.emit(*under(only, body.body))
    return finish(kernel, scope, (-(-total // (across * width)) * cluster, 1, 1), down * across, tuple(shared), cluster=cluster)


def axes_walked(kernel: tile.Kernel, columns: Sequence[int]) -> list[int]:
    """The axes that threads of a lane share out: of folds that they run together, and of what they write."""
    return [a for stage in stages(kernel, tuple(columns)) for _, a in stage]


def meeting(down: int, across: int) -> int:
    """How many states of a lane meet in shared memory: those of warps, where a warp has each lane several times, or of threads."""
    return down if across >= WARP or WARP % across else max(1, down * across // WARP)


def blocks(kernel: tile.Kernel, schedule: tile.Schedule) -> tuple[int, int, int]:
    """Threads of a block down and across, and how many neighbours each holds."""
    row = schedule.row
    work, run = re.fullmatch(r"t(\d+)x(\d+)(?:/c\d+)?", row.work), re.fullmatch(r"v(\d+)|", row.tile)
    if not work or not run or row.reduce != "cross" or row.stage not in ("", "smem") or len(schedule.rows) != 1:
        raise IRError(f"{kernel.name}: row {row}: a fold across lanes is spelled WORK=t8x32,TILE=v4,REDUCE=cross")
    down, across, width = int(work[1]), int(work[2]), int(run[1] or 1)
    if down * across % 32 or kernel.extents[schedule.rows[0]] % width or not kernel.folds:
        raise IRError(f"{kernel.name}: row {row}: a block has whole warps, and the width divides {kernel.extents[schedule.rows[0]]}")
    if any(f.kind == "scan" for level in levels(kernel) for f in level):
        raise IRError(f"{kernel.name}: a scan is not folded across lanes")
    if row.cluster > 1 and (row.stage != "smem" or width > down or not strip.strip_loads(kernel, schedule.rows[0], schedule.columns)):
        raise IRError(f"{kernel.name}: row {row}: blocks of a cluster share strips in shared memory, where each lane has as many threads "
                      "as neighbours")
    return down, across, width


def gather(scope: Emitter, run: Run, group: list[tile.Fold], place: Expr, down: int,
           every: dict[int, strip.Part]) -> dict[tile.Fold, list[str]]:
    """Fold the thread's share of the block's part of the axis, elements `place`, `place + down`, …: for each fold its state's arrays."""
    states: dict[tile.Fold, list[str]] = {}
    for f in group:
        states[f] = [scope.name("s") for _ in neutral(f)]
        scope.emit(*(DeclareArray(array, e.dtype, run.width, e) for array, e in zip(states[f], neutral(f), strict=True)))
    lifts = [x for f in group for x in f.lifts]
    run.hold(scope, lifts, *(f.axis for f in group))
    part = every[scope.kernel.extents[group[0].axis]]
    ahead = rounds(scope.kernel, run.width, part.least, down)
    whole = part.least // (down * ahead) * (down * ahead)
    for start, stop, count in ((0, const(scope.integer, whole), ahead), (whole, part.stop, 1)):
        if start < (whole if count > 1 else part.length):
            stretch(scope, run, states, lifts, scope.whole(place) + start, stop, down, count, part.begin)
    return states


def stretch(scope: Emitter, run: Run, states: dict[tile.Fold, list[str]], lifts: list[Value], start: Expr, stop: Expr, down: int,
            count: int, begin: Expr) -> None:
    """Fold the elements from `start` to `stop` after `begin`, `down` apart, `count` of them a round, all of whose loads come first."""
    r = Var(scope.name("r"), scope.integer)
    body = scope.child()
    elements = []
    for u in range(count):
        at = body.child()
        at.axes.update((f.axis, begin + r + u * down) for f in states)
        at.hoist(lifts, run.axis)
        elements.append((at, at.load_vectors(lifts, run.axis, run.start, run.width)))
        body.emit(*at.body)
    lane = run.lane(scope)
    each = run.at(body, lane, {})
    cells = [run.at(at, lane, arrays) for at, arrays in elements]
    values = {f: [tuple(map(cell.value, f.lifts)) for cell in cells] for f in states}
    each.emit(*(s for cell in cells for s in cell.body))
    for f, arrays in states.items():
        update(each, f, arrays, lane, partial(each.accumulate, f, elements=values[f]))
    run.each(body, lane, each)
    scope.emit(For(r, start, stop, const(scope.integer, count * down), False, tuple(body.body)))


def rounds(kernel: tile.Kernel, width: int, extent: int, down: int) -> int:
    """How many elements of the folded axis a thread reads at once."""
    widest = max((t.element.bytes for t in kernel.tensors), default=4)
    return max(1, min(AHEAD, AHEAD_BYTES // (width * widest), extent // down))


def update(scope: Emitter, fold: tile.Fold, arrays: list[str], lane: Expr, change: Callable[[tuple[Var, ...]], None]) -> None:
    """Let `change` act on the state that `arrays` hold at neighbour `lane`."""
    elements = [Element(array, x.dtype, lane) for array, x in zip(arrays, neutral(fold), strict=True)]
    state = tuple(scope.declare("t", e) for e in elements)
    change(state)
    scope.emit(*(SetElement(e.array, e.element, e.index, s) for e, s in zip(elements, state, strict=True)))


def meet(scope: Emitter, run: Run, fold: tile.Fold, arrays: list[str], across: int) -> None:
    """Merge the states of a warp's threads that have the same lane: each ends with that of all of them."""
    e = run.lane(scope)
    each = scope.child()

    def exchange(state: tuple[Var, ...]) -> None:
        mask = WARP // 2
        while mask >= across:
            others = tuple(Var(each.name("o"), s.element) for s in state)
            each.emit(*(ShuffleXor(o, s, mask) for o, s in zip(others, state, strict=True)))
            each.merge(fold, state, others)
            mask //= 2

    update(each, fold, arrays, e, exchange)
    run.each(scope, e, each)


def leave(scope: Emitter, run: Run, fold: tile.Fold, arrays: list[str], threads: int, first: int,
          shared: list[SharedBuffer]) -> list[SharedBuffer]:
    """Write the states of `threads` to shared memory, next to each other, neighbours of a thread together: those of every thread, or of
    the `first` of each warp."""
    buffers = [SharedBuffer(scope.name("part"), x.dtype, threads * run.width) for x in neutral(fold)]
    shared += buffers
    thread: Expr = Thread() // WARP * first + Thread() % WARP if first else Thread()
    stores = scope.child()
    for array, b in zip(arrays, buffers, strict=True):
        step = gcd(run.width, VECTOR_BYTES // b.element.bytes)
        stores.emit(*(StoreSharedVector(b.name, thread * run.width + k, array, k, step) for k in range(0, run.width, step)))
    scope.emit(*under(Thread() % WARP < first if first else None, stores.body))
    return buffers


def join(scope: Emitter, run: Run, fold: tile.Fold, buffers: list[SharedBuffer], lane: Expr, across: int, down: int) -> list[str]:
    """Merge the states that the threads of a lane have left, first to last: the arrays of the result."""

    def read(to: Emitter, stem: str, thread: Expr) -> list[str]:
        arrays = [to.name(stem) for _ in buffers]
        for array, b in zip(arrays, buffers, strict=True):
            step = gcd(run.width, VECTOR_BYTES // b.element.bytes)
            to.emit(DeclareArray(array, b.element, run.width, None))
            to.emit(*(LoadSharedVector(array, k, b.name, thread * run.width + k, step) for k in range(0, run.width, step)))
        return arrays

    joined = read(scope, "s", lane)
    if down == 1:
        return joined
    d = Var(scope.name("d"), dt.i32)
    body = scope.child()
    others = read(body, "o", d * across + lane)
    e = run.lane(body)
    each = body.child()
    other = tuple(Element(o, b.element, e) for o, b in zip(others, buffers, strict=True))
    update(each, fold, joined, e, lambda state: each.merge(fold, state, other))
    run.each(body, e, each)
    scope.emit(For(d, int32(1), int32(down), int32(1), False, tuple(body.body)))
    return joined


def write(scope: Emitter, run: Run, columns: list[int], place: Expr, down: int, every: dict[int, strip.Part]) -> None:
    """Store the results at the thread's neighbours for every point of the block's part of the columns, the threads of a lane striding over
    them."""
    if not columns:
        store_neighbours(scope, run)
        return
    kernel = scope.kernel
    run.hold(scope, kernel.results, *columns)
    position = Var(scope.name("c"), scope.integer)
    body = scope.child()
    total = prod(kernel.extents[a] for a in columns)
    begin, stop = every[total][:2] if len(columns) == 1 else (const(scope.integer, 0), const(scope.integer, total))
    body.place(columns, begin + position)
    store_neighbours(body, run)
    scope.emit(For(position, scope.whole(place), stop, const(scope.integer, down), False, tuple(body.body)))


def store_neighbours(scope: Emitter, run: Run) -> None:
    """Store the results at the thread's neighbours: as vectors where c is the outputs' last axis."""
    kernel = scope.kernel
    if run.axis == kernel.outer[-1]:
        run.bind(scope, const(scope.integer, 0)) if run.width == 1 else None
        store_run(scope, run.axis, run.start, run.width, run.bind)
        return
    lane = run.lane(scope)
    scope.hoist(kernel.results, run.axis)
    inner = run.at(scope, lane, scope.load_vectors(kernel.results, run.axis, run.start, run.width))
    store(inner)
    run.each(scope, lane, inner)
