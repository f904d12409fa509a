"""Tiles of fp32 operands by asynchronous copies, past the registers: which chunks a thread asks for, and where they go.

An operand that lies contiguous along the folded axis is turned over on the way, word by word: the lanes of a warp copy 8 elements of that
axis at 4 positions, whose places are in 32 different banks.  Any other goes in vectors of 16 bytes where it lies in such.
"""

from __future__ import annotations

from math import gcd

from emmy.instructions.cp_async import CopyAsync
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Expr, Thread, int32
from emmy.ir.loop_ir import load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import vectorises
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import RUN, Side, both, under

PATCH = 8, 4    # elements of the folded axis and positions that a warp copies word by word


class TileCopies:
    """How a block's threads copy the tiles of a side, `chunks` each; IRError where a value is no load of f32."""

    def __init__(self, scope: Emitter, side: Side):
        self.side, self.loads = side, [load for v in side.values if (load := load_of(v, dt.f32)) is not None]
        if len(self.loads) < len(side.values):
            raise IRError(f"{scope.kernel.name}: {', '.join(map(str, side.values))}: what asynchronous copies bring is f32 in memory")
        self.turned, width = side.along == side.axis, side.strip.width
        whole = gcd(scope.kernel.extents[side.along], width) % RUN == 0 and not self.turned
        self.vector = RUN if whole and all(vectorises(scope.kernel, load, side.along, RUN) for load in self.loads) else 1
        self.count = side.depth * width // self.vector
        self.chunks = -(-self.count // side.threads)
        # where the threads are whole lines of chunks, those of a thread are a constant apart
        self.line = side.depth if self.turned else width // self.vector
        self.even = side.threads % (self.line * (PATCH[1] if self.turned else 1)) == 0
        if self.even:
            depth, across = self.place(Thread())
            self.first = scope.let("d", depth), scope.let("a", across)

    def place(self, chunk: Expr) -> tuple[Expr, Expr]:
        """The place of a chunk on the folded axis and along the strip."""
        if not self.turned:
            return chunk // self.line, chunk % self.line * self.vector
        deep, high = gcd(PATCH[0], self.side.depth), gcd(PATCH[1], self.side.strip.width)
        patch, patches = chunk // (deep * high), self.side.depth // deep
        return patch % patches * deep + chunk % deep, patch // patches * high + chunk // deep % high

    def copy(self, scope: Emitter, start: Expr, slot: Expr, chunks: range, always: bool) -> None:
        """Begin to copy some chunks of the tile at `start` of the folded axis to element `slot` of the buffers; zeros beyond the ends of
        either axis.  `always`: the tile begins before the end."""
        side = self.side
        for c in chunks:
            body = scope.child()
            number = Thread() + c * side.threads
            if self.even:
                further = c * (side.threads // self.line)
                depth, across = self.first[0] + (0 if self.turned else further), self.first[1] + (further if self.turned else 0)
            else:
                depth, across = self.place(body.let("c", number))
            k, at = body.let("k", start + depth), body.let("p", side.strip.first + across)
            body.place(side.strip.axes, body.whole(at))
            body.axes[side.axis] = body.whole(k)
            there = both(side.strip.inside(at), None if always and side.extent % side.depth == 0 else k < side.extent)
            to = body.let("s", slot + depth * side.pitch + across)
            body.emit(*(CopyAsync(buffer.name, to, self.vector, load.tensor, body.offset(load.tensor, load.point), there)
                        for load, buffer in zip(self.loads, side.buffers, strict=True)))
            scope.emit(*under(None if (c + 1) * side.threads <= self.count else number < int32(self.count), body.body))
