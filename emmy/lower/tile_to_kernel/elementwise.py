"""Form "map": one thread computes `width` neighbouring elements of each output, folds included, in serial loops.

Row: WORK=t<threads>,TILE=v<width>.  The grid covers the outputs once; a tail is predicated.  Where the width does not divide the
innermost axis, runs go on across its end: they lie in the outputs as in memory, and so do the loads made where these are written.
"""

from __future__ import annotations

from math import prod

from emmy.instructions.control import For, If
from emmy.instructions.global_memory import LoadGlobalVector, StoreGlobalVector
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Element, Expr, Kernel, Thread, Var, const
from emmy.ir.loop_ir import Load, walk
from emmy.lower.tile_to_kernel.address import lies_as_output
from emmy.lower.tile_to_kernel.finish import finish, store, store_run
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a map."""
    row = schedule.row
    threads, width = row.threads, int(row.tile.removeprefix("v") or 1)
    total = prod(kernel.shape) // width
    blocks = -(-total // threads)
    outer = Emitter(kernel)
    position = outer.let("t", outer.whole(Block(0)) * threads + outer.whole(Thread()))
    inner = outer.child()
    if width == 1:
        inner.place(kernel.outer, position)
        store(inner)
    elif kernel.extents[kernel.outer[-1]] % width:
        across_lines(inner, inner.let("i", position * width), width)
    else:
        *rest, last = kernel.outer
        steps = kernel.extents[last] // width
        inner.place(rest, position // steps)
        start = inner.let("i", (position % steps if rest else position) * width)
        store_run(inner, last, start, width)
    guard = position < total
    outer.emit(*inner.body) if total % threads == 0 else outer.emit(If(guard, tuple(inner.body)))
    return finish(kernel, outer, (blocks, 1, 1), threads)


def across_lines(scope: Emitter, start: Expr, width: int) -> None:
    """Compute and store the `width` elements of each output from offset `start` (a multiple of `width`), each at its own point."""
    kernel = scope.kernel
    arrays = {v: scope.name("x") for v in walk(kernel.results) if isinstance(v, Load) and lies_as_output(kernel, v)}
    for load, array in arrays.items():
        scope.emit(DeclareArray(array, load.element.compute, width, None))
        step = min(width, VECTOR_BYTES // load.element.bytes)
        scope.emit(*(LoadGlobalVector(array, k, load.tensor, start + k, step) for k in range(0, width, step)))
    outs, lane = {t: scope.name("y") for t in kernel.outputs}, Var(scope.name("e"), scope.integer)
    inner = scope.child()
    inner.place(kernel.outer, inner.let("at", start + lane))
    inner.values.update({load: Element(array, load.element.compute, lane) for load, array in arrays.items()})
    values = tuple(map(inner.value, kernel.results))
    inner.emit(*(SetElement(out, t.element.compute, lane, value) for (t, out), value in zip(outs.items(), values, strict=True)))
    scope.emit(*(DeclareArray(out, t.element.compute, width, None) for t, out in outs.items()))
    scope.emit(For(lane, const(scope.integer, 0), const(scope.integer, width), const(scope.integer, 1), True, tuple(inner.body)))
    for t, out in outs.items():
        step = min(width, VECTOR_BYTES // t.element.bytes)
        scope.emit(*(StoreGlobalVector(t.name, start + k, out, k, step) for k in range(0, width, step)))
