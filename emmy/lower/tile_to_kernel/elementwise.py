"""Form "map": one thread computes `width` neighbouring elements of each output, folds included, in serial loops.

Row: WORK=t<threads>,TILE=v<width>.  The grid covers the outputs once; a tail is predicated.
"""

from __future__ import annotations

from math import prod

from emmy.instructions.control import If
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Kernel, Thread
from emmy.lower.tile_to_kernel.finish import finish, store, store_run
from emmy.lower.tile_to_kernel.scalar import Emitter


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
    else:
        *rest, last = kernel.outer
        steps = kernel.extents[last] // width
        inner.place(rest, position // steps)
        start = inner.let("i", (position % steps if rest else position) * width)
        store_run(inner, last, start, width)
    guard = position < total
    outer.emit(*inner.body) if total % threads == 0 else outer.emit(If(guard, tuple(inner.body)))
    return finish(kernel, outer, (blocks, 1, 1), threads)
