"""Forms "fold" and "cross" with STAGE=smem: what a thread reads for a fold and again to write its results stays in shared memory.

A block has all of the folded axis, or one of as many parts as its cluster has blocks, by its lanes.  Each thread copies the elements it
will itself read, 16 bytes at a time, so that it waits for its own copies and for no other thread's.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from emmy.instructions.control import For
from emmy.instructions.cp_async import CommitCopies, CopyAsync, WaitCopies
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Expr, SharedBuffer, Var, const
from emmy.lower.tile_to_kernel.address import vectorises
from emmy.lower.tile_to_kernel.held import at_position, stages
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, Place


class Part(NamedTuple):
    """The elements of an axis that a block has: from `begin` on, `stop` of them, which are `least` or more and `length` at most."""

    begin: Expr
    stop: Expr
    least: int
    length: int

    def local(self, scope: Emitter, axis: int) -> Expr:
        """The place of a scope's point of `axis` in the part."""
        return scope.axes[axis] - self.begin


def part_of(scope: Emitter, extent: int, blocks: int) -> Part:
    """The part of an axis that a block of a cluster of `blocks` has: the last may have fewer elements than the others."""
    length = -(-extent // blocks)
    if blocks == 1:
        return Part(const(scope.integer, 0), const(scope.integer, extent), extent, extent)
    begin = scope.let("begin", scope.whole(Block(0) % blocks) * length)
    stop = Apply("min", (extent - begin, const(scope.integer, length))) if extent % blocks else const(scope.integer, length)
    return Part(begin, scope.let("stop", stop), extent - (blocks - 1) * length, length)


def strip_loads(kernel: tile.Kernel, lane: int | None, columns: tuple[int, ...]) -> list[tuple[loop.Load, int]]:
    """The loads that two stages of folding and writing make at the same positions, in runs of 16 bytes along axis `lane`, or along the axis
    that each walks where there is none, each with that axis; none where the stages walk different lengths, or over elements of several
    sizes, or along an axis of lanes where nothing or more than one axis is written after folding."""
    walked = stages(kernel, columns)
    if len({kernel.extents[a] for stage in walked for _, a in stage}) != 1 or lane is not None and len(columns) != 1:
        return []

    def loads(roots: tuple[loop.Value, ...], axis: int) -> list[tuple[loop.Load, int]]:
        found = [v for v, on in tile.free_axes(roots).items() if isinstance(v, loop.Load) and axis in on and not v.operands]
        return [(v, axis) for v in found if vectorises(kernel, v, axis if lane is None else lane, VECTOR_BYTES // v.element.bytes)]

    met = [{p for roots, a in stage for p in loads(roots, a)} for stage in walked]
    count = Counter(p for stage in met for p in {at_position(v, a) for v, a in stage})
    found = {(v, a): None for stage in met for v, a in sorted(stage, key=str) if count[at_position(v, a)] > 1}
    return list(found) if len({v.element.bytes for v, _ in found}) == 1 else []


class Share(NamedTuple):
    """What a thread copies of a part: runs of `width` elements, at every `step`-th position from `first` on.  A position has `pitch`
    elements in shared memory, and the thread's run begins at `offset` of them."""

    first: Expr
    step: int
    width: int
    pitch: int
    offset: Expr


def stage(scope: Emitter, lane: int | None, columns: tuple[int, ...], part: Part, share: Share) -> list[SharedBuffer]:
    """Copy the thread's share of the block's part and wait for it; the loads are then read from the buffers."""
    kernel = scope.kernel
    buffers: dict[loop.Value, SharedBuffer] = {}
    for v, a in strip_loads(kernel, lane, columns):
        position = at_position(v, a)

        def at(inner: Emitter, a: int = a) -> Expr:
            return part.local(inner, a) * share.pitch + inner.whole(share.offset)

        if position not in buffers:
            buffers[position] = SharedBuffer(scope.name("strip"), v.element, part.length * share.pitch)
            r = Var(scope.name("r"), scope.integer)
            body = scope.child()
            body.axes[a] = part.begin + r
            body.emit(CopyAsync(buffers[position].name, at(body), share.width, v.tensor, body.offset(v.tensor, v.point)))
            scope.emit(For(r, scope.whole(share.first), part.stop, const(scope.integer, share.step), False, tuple(body.body)))
        scope.places[v] = Place(buffers[position].name, at, share.width)
    scope.emit(CommitCopies(), WaitCopies(0))
    return list(buffers.values())
