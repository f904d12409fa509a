"""Form "cross" with STAGE=smem: what a thread reads for a fold and again to write its results stays in shared memory in between.

A block's strip is all of the folded axis by the block's lanes.  Each thread copies the elements it will itself read, 16 bytes at a
time, so that it waits for its own copies and for no other thread's.
"""

from __future__ import annotations

from collections import Counter

from emmy.instructions.control import For
from emmy.instructions.cp_async import CommitCopies, CopyAsync, WaitCopies
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Expr, SharedBuffer, Var, const
from emmy.lower.tile_to_kernel.address import vectorises
from emmy.lower.tile_to_kernel.held import at_position, levels
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, Place


def strip_loads(kernel: tile.Kernel, lane: int | None, columns: tuple[int, ...]) -> list[tuple[loop.Load, int]]:
    """The loads that two stages of folding and writing make at the same positions, in runs of 16 bytes along axis `lane`, or along the axis
    that each walks where there is none, each with that axis; none where the stages walk different lengths, or over elements of several
    sizes, or along an axis of lanes where nothing or more than one axis is written after folding."""
    stages = [[(f.lifts, f.axis) for f in level] for level in levels(kernel)] + [[(kernel.results, a)] for a in columns]
    if len({kernel.extents[a] for stage in stages for _, a in stage}) != 1 or lane is not None and len(columns) != 1:
        return []

    def loads(roots: tuple[loop.Value, ...], axis: int) -> list[tuple[loop.Load, int]]:
        found = [v for v, on in tile.free_axes(roots).items() if isinstance(v, loop.Load) and axis in on and not v.operands]
        return [(v, axis) for v in found if vectorises(kernel, v, axis if lane is None else lane, VECTOR_BYTES // v.element.bytes)]

    met = [{p for roots, a in stage for p in loads(roots, a)} for stage in stages]
    count = Counter(p for stage in met for p in {at_position(v, a) for v, a in stage})
    found = {(v, a): None for stage in met for v, a in sorted(stage, key=str) if count[at_position(v, a)] > 1}
    return list(found) if len({v.element.bytes for v, _ in found}) == 1 else []


def stage(scope: Emitter, axis: int, start: Expr, width: int, columns: tuple[int, ...], place: Expr, lane: Expr, down: int,
          across: int) -> list[SharedBuffer]:
    """Copy the thread's elements of the strip and wait for them; the loads are then read from the buffers."""
    kernel = scope.kernel
    buffers: dict[loop.Value, SharedBuffer] = {}
    for v, a in strip_loads(kernel, axis, columns):
        extent, position = kernel.extents[a], at_position(v, a)

        def at(inner: Emitter, a: int = a) -> Expr:
            return inner.axes[a] * (across * width) + inner.whole(lane) * width

        if position not in buffers:
            buffers[position] = SharedBuffer(scope.name("strip"), v.element, extent * across * width)
            r = Var(scope.name("r"), scope.integer)
            body = scope.child()
            body.axes.update({a: r, axis: start})
            offset = body.offset(v.tensor, v.point)
            body.emit(CopyAsync(buffers[position].name, at(body), width, v.tensor, offset))
            scope.emit(For(r, scope.whole(place), const(scope.integer, extent), const(scope.integer, down), False, tuple(body.body)))
        scope.places[v] = Place(buffers[position].name, at, width)
    scope.emit(CommitCopies(), WaitCopies(0))
    return list(buffers.values())
