"""Form "scan": a block holds one point of the row axes and runs a scan along an output axis c, tile by tile, from first to last.

A tile is `width` elements for each of the block's threads.  A thread adds up its own, warps scan the threads' totals by shuffles, and
leave theirs in shared memory; before a thread's elements then come the carry of earlier tiles, the warps before its own, and the lanes
before it.  Two tiles take turns in shared memory, so that one barrier a tile suffices.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=scan.  The width divides the extent of c; a tile's other runs beyond it are neutral.
Shared bytes: 2 * warps * bytes of an element.
"""

from __future__ import annotations

from math import gcd, prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.global_memory import StoreGlobalVector
from emmy.instructions.registers import Assign, DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.instructions.shuffle import ShuffleUp
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS
from emmy.lower.tile_to_kernel.finish import finish, store
from emmy.lower.tile_to_kernel.lanes import WARP
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, neutral
from emmy.lower.tile_to_kernel.staging import under


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a scan along the axis `schedule.columns`; IRError where the kernel is none or the row does not fit."""
    fold, (column,) = scanned(kernel, schedule), schedule.columns
    threads, width = schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
    extent = kernel.extents[column]
    if threads % WARP or threads > WARP * WARP or extent % width or schedule.row.reduce != "scan":
        raise IRError(f"{kernel.name}: row {schedule.row}: a scan is spelled WORK=t256,TILE=v4,REDUCE=scan, its width dividing {extent}")
    scope, operator, unit = Emitter(kernel), MONOIDS[fold.recipe].operator, neutral(fold)[0]
    scope.place(schedule.rows, scope.whole(Block(0)))
    warps = threads // WARP
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
    total: Expr = unit
    for e in range(width):
        each = read.neighbour(fold.axis, first, const(scope.integer, e), arrays)
        x = each.value(fold.lifts[0])
        total = Apply(operator, (total, x)) if e else x
        each.emit(SetElement(own, unit.dtype, int32(e), total))
        total = Element(own, unit.dtype, int32(e))
        read.emit(*each.body)
    if inside is not None:      # beyond the end every element is what the last is: nothing follows
        body.emit(*under(inside, read.body))
    else:
        body.emit(*read.body)
    total = Element(own, unit.dtype, int32(width - 1))
    # the lanes before it, then the warps before its own
    sum_ = body.declare("w", total)
    for delta in (1, 2, 4, 8, 16):
        below = Var(body.name("o"), unit.dtype)
        body.emit(ShuffleUp(below, sum_, delta), Assign(sum_, Apply("select", (lane < delta, sum_, Apply(operator, (below, sum_))))))
    previous = Var(body.name("o"), unit.dtype)
    body.emit(ShuffleUp(previous, sum_, 1), If((lane == WARP - 1), (StoreShared(totals.name, turn + warp, sum_),)), Barrier())
    before, all_ = body.declare("b", carry), body.declare("c", carry)
    w, step = Var(body.name("w"), int32(0).dtype), body.child()
    other = Var(step.name("o"), unit.dtype)
    step.emit(LoadShared(other, totals.name, turn + w), Assign(all_, Apply(operator, (all_, other))),
              Assign(before, Apply("select", (w < warp, all_, before))))
    body.emit(For(w, int32(0), int32(warps), int32(1), True, tuple(step.body)), Assign(carry, all_), Assign(turn, warps - turn))
    offset = body.let("b", Apply("select", (lane == 0, before, Apply(operator, (before, previous)))))
    write = body.child()
    put(write, fold, column, first, width, own, operator, offset)
    body.emit(*under(inside, write.body))
    scope.emit(For(start, const(scope.integer, 0), const(scope.integer, extent), const(scope.integer, threads * width), False, tuple(body.body)))
    return finish(kernel, scope, (prod(kernel.extents[a] for a in schedule.rows), 1, 1), threads, (totals,))


def scanned(kernel: tile.Kernel, schedule: tile.Schedule) -> tile.Fold:
    """The scan of a kernel that is one scan, up to the current point of an output axis as long as its own."""
    folds = [f for f in kernel.folds if f.kind == "scan" and len(schedule.columns) == 1 and f.upto is Ax(schedule.columns[0])]
    if len(kernel.folds) != 1 or len(folds) != 1 or kernel.extents[folds[0].axis] != kernel.extents[schedule.columns[0]]:
        raise IRError(f"{kernel.name}: form scan takes one scan, up to a point of an output axis")
    return folds[0]


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
