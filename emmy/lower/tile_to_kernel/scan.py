"""Form "scan": a block holds one point of the row axes and runs a scan along an output axis c, tile by tile, from first to last.

A tile is `width` elements for each of the block's threads.  A thread adds up its own, warps scan the threads' totals by shuffles, and
leave theirs in shared memory; before a thread's elements then come the carry of earlier tiles, the warps before its own, and the lanes
before it.  Two tiles take turns in shared memory, so that one barrier a tile suffices.

A scan of pieces of c, up to c % length, has a block for each piece.  What else it takes to write a piece depends on the piece alone, such
as the product of the pieces before it: the block folds that first.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=scan.  The width divides the length of a piece; a tile's other runs beyond it are neutral.
Shared bytes: 2 * warps * bytes of an element, and 4 or 8 for each warp and other fold.
"""

from __future__ import annotations

from math import gcd, prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.global_memory import StoreGlobalVector
from emmy.instructions.registers import Assign, DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.instructions.shuffle import ShuffleUp
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS
from emmy.lower.tile_to_kernel.address import LANE, by_runs, in_runs
from emmy.lower.tile_to_kernel.finish import finish, store
from emmy.lower.tile_to_kernel.fold import Team, join_lanes, join_warps, partial
from emmy.lower.tile_to_kernel.lanes import WARP, scan
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, neutral
from emmy.lower.tile_to_kernel.staging import under


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a scan along the axis `schedule.columns`; IRError where the kernel is none or the row does not fit."""
    (fold, length), (column,) = scanned(kernel, schedule.columns), schedule.columns
    threads, width = schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
    extent = length
    if threads % WARP or threads > WARP * WARP or extent % width or schedule.row.reduce != "scan":
        raise IRError(f"{kernel.name}: row {schedule.row}: a scan is spelled WORK=t256,TILE=v4,REDUCE=scan, its width dividing {extent}")
    scope, operator, unit = Emitter(kernel), MONOIDS[fold.recipe].operator, neutral(fold)[0]
    pieces = kernel.extents[column] // length
    block = scope.whole(Block(0))
    scope.place(schedule.rows, block // pieces if pieces > 1 else block)
    begin = scope.let("begin", block % pieces * length) if pieces > 1 else const(scope.integer, 0)
    scope.axes[column] = begin
    warps = threads // WARP
    shared = [before(scope, f, threads) for f in kernel.folds if f is not fold]
    lane, warp = scope.let("lane", Thread() % WARP), scope.let("warp", Thread() // WARP)
    totals = SharedBuffer(scope.name("totals"), unit.dtype, 2 * warps)
    carry, turn = scope.declare("carry", unit), scope.declare("turn", int32(0))
    scope.hoist(fold.lifts, fold.axis)
    scope.hoist(kernel.results, column)
    start, body = Var(scope.name("r"), scope.integer), scope.child()
    first = body.let("at", start + scope.whole(Thread()) * width)
    inside = None if extent % (threads * width) == 0 else first < extent
    own = body.name("s")
    body.emit(DeclareArray(own, unit.dtype, width, None if inside is None else unit))
    # the thread's elements, each with those before it
    read = body.child()
    arrays = read.load_vectors(fold.lifts, fold.axis, first, width)
    for e in range(width):
        each = read.neighbour(fold.axis, first, const(scope.integer, e), arrays)
        x = each.value(fold.lifts[0])
        each.emit(SetElement(own, unit.dtype, int32(e), Apply(operator, (Element(own, unit.dtype, int32(e - 1)), x)) if e else x))
        read.emit(*each.body)
    body.emit(*under(inside, read.body))
    # the lanes before it, then the warps before its own
    sum_ = body.declare("w", Element(own, unit.dtype, int32(width - 1)))
    scan(body, operator, sum_, lane)
    previous = Var(body.name("o"), unit.dtype)
    body.emit(ShuffleUp(previous, sum_, 1), If((lane == WARP - 1), (StoreShared(totals.name, turn + warp, sum_),)), Barrier())
    earlier, all_ = body.declare("b", carry), body.declare("c", carry)
    w, step = Var(body.name("w"), int32(0).dtype), body.child()
    other = Var(step.name("o"), unit.dtype)
    step.emit(LoadShared(other, totals.name, turn + w), Assign(all_, Apply(operator, (all_, other))),
              Assign(earlier, Apply("select", (w < warp, all_, earlier))))
    body.emit(For(w, int32(0), int32(warps), int32(1), True, tuple(step.body)), Assign(carry, all_), Assign(turn, warps - turn))
    offset = body.let("b", Apply("select", (lane == 0, earlier, Apply(operator, (earlier, previous)))))
    write = body.child()
    put(write, fold, column, begin + first, width, own, operator, offset)
    body.emit(*under(inside, write.body))
    whole, tile_ = const(scope.integer, extent), const(scope.integer, threads * width)
    scope.emit(For(start, const(scope.integer, 0), whole, tile_, False, tuple(body.body)))
    buffers = [totals, *(b for of in shared for b in of)]
    return finish(kernel, scope, (pieces * prod(kernel.extents[a] for a in schedule.rows), 1, 1), threads, tuple(buffers))


def scanned(kernel: tile.Kernel, columns: tuple[int, ...]) -> tuple[tile.Fold, int]:
    """The scan of a kernel up to the current place in a piece of the output axis `columns`, and the length of a piece; IRError if there is
    none, or the kernel's other folds do not depend on the piece alone."""
    found = [(f, kernel.extents[f.axis]) for f in kernel.folds if f.kind == "scan" and len(columns) == 1
             and to_place(kernel, f, columns[0], kernel.extents[f.axis])]
    for fold, length in found:
        others = [f for f in kernel.folds if f is not fold]
        uptos = tuple(loop.IndexOf(f.upto) for f in others if f.upto is not None)
        tops = all(f.span <= set(kernel.outer) and f.kind != "twist" for f in kernel.folds)
        ahead = not any(v is fold.result() for f in others for v in loop.walk(f.lifts))
        if tops and ahead and by_runs(kernel, (*uptos, *(x for f in kernel.folds for x in f.lifts)), columns[0], length):
            return fold, length
    raise IRError(f"{kernel.name}: form scan takes a scan up to a place in a piece of an output axis, and folds that depend on the piece")


def to_place(kernel: tile.Kernel, fold: tile.Fold, column: int, length: int) -> bool:
    """Whether a scan stops at the place in its run of `length`, as long as its own axis, that a point of `column` is."""
    assert fold.upto is not None
    return kernel.extents[column] % max(length, 1) == 0 and length > 1 and in_runs(kernel, fold.upto, column, length) is Ax(LANE)


def before(scope: Emitter, fold: tile.Fold, threads: int) -> list[SharedBuffer]:
    """Let all threads know the result of a fold that depends on the piece alone; the shared buffers through which they do."""
    shared: list[SharedBuffer] = []
    ((state),) = partial(scope, [fold], Team(scope.whole(Thread()), threads, 1, None))
    join_lanes(scope, fold, state)
    if threads > WARP:
        state = join_warps(scope, fold, state, Thread(), threads // WARP, shared)
    scope.finish(fold, state)
    return shared


def put(scope: Emitter, fold: tile.Fold, column: int, first: Expr, width: int, own: str, operator: str, offset: Expr) -> None:
    """Store the results of a thread's run: an element's scan is what comes before the run, and the run up to it."""
    kernel = scope.kernel
    arrays = scope.load_vectors(kernel.results, column, first, width)
    result, vectors = fold.result(), column == kernel.outer[-1] and width > 1
    outs = [scope.name("y") for _ in kernel.outputs]
    if vectors:
        scope.emit(*(DeclareArray(out, t.element.compute, width, None) for out, t in zip(outs, kernel.outputs, strict=True)))
    for e in range(width):
        cell = scope.neighbour(column, first, const(scope.integer, e), arrays)
        cell.values[result] = cell.let("v", Apply(operator, (offset, Element(own, result.dtype, int32(e)))))
        if vectors:
            values = tuple(map(cell.value, kernel.results))
            cell.emit(*(SetElement(out, t.element.compute, const(scope.integer, e), v)
                        for out, t, v in zip(outs, kernel.outputs, values, strict=True)))
        else:
            store(cell)
        scope.emit(*cell.body)
    if vectors:
        scope.axes[column] = first
        at = scope.output_offset()
        for out, t in zip(outs, kernel.outputs, strict=True):
            step = gcd(width, VECTOR_BYTES // t.element.bytes)
            scope.emit(*(StoreGlobalVector(t.name, at + k, out, k, step) for k in range(0, width, step)))
