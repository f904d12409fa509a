"""Operands of tensor cores in shared memory: tiles of halves, how they get there, and how warps read them as fragments.

A tile is stored in rows along the axis on which the operand lies contiguous in global memory, in chunks of 8 halves (16 bytes).
Chunk c of row r lies at place c ^ swizzle(r) of its row, so that the 8 rows of one matrix and the 8 neighbouring chunks that 8
threads write lie in 8 different groups of banks: with P chunks a row and Q = gcd(P, 8), rows r and r' begin in the same group
where r = r' mod 8/Q, and swizzle(r) = r mod 8 / (8/Q) tells those of 8 rows apart.
"""

from __future__ import annotations

from math import gcd

from emmy.instructions.cp_async import CopyAsync
from emmy.instructions.ldmatrix import LoadMatrix
from emmy.instructions.registers import DeclareArray
from emmy.instructions.shared_memory import StoreSharedVector
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, SharedBuffer, Thread, Var, int32
from emmy.ir.loop_ir import Value, load_of
from emmy.lower.tile_to_kernel.scalar import Emitter, vectorises
from emmy.lower.tile_to_kernel.staging import Side, Strip, both, counted, under

CHUNK = 8       # halves of one row of a matrix: 16 bytes
MATRIX = 16     # positions and folded elements of one fragment read


class Panel(Side):
    """One value of a side as tiles of `element`.  A load that lies in aligned runs of 8 is copied asynchronously; any other value is
    computed in registers and rounded as it is written."""

    def __init__(self, scope: Emitter, value: Value, strip: Strip, axis: int, depth: int, threads: int, slots: int, element: DType,
                 left: bool, first: Expr):
        super().__init__(scope, [value], strip, axis, depth, threads, slots)
        self.left, self.first, self.element = left, first, element      # `first`: where the warp's positions begin in the tile
        self.by_depth = self.along == axis
        self.pitch = depth if self.by_depth else strip.width
        self.spread = gcd(self.pitch // CHUNK, 8)
        self.buffer = SharedBuffer(self.buffers[0].name, element, slots * self.slot)
        load = load_of(value, element)
        whole = load is not None and scope.kernel.extents[self.along] % CHUNK == 0
        self.load = load if load and whole and vectorises(scope.tensors[load.tensor], load.point, self.along, CHUNK) else None
        if self.load is not None:
            self.vector = CHUNK
            self.chunks = -(-self.slot // (CHUNK * threads))

    @property
    def slot(self) -> int:
        return self.depth * self.strip.width

    def swizzled(self, row: Expr, chunk: Expr) -> Expr:
        """The place in its row of a chunk of a row."""
        return chunk ^ row % 8 // (8 // self.spread) if self.spread > 1 else chunk

    def place(self, depth: Expr, across: Expr) -> Expr:
        """The place in a tile of element `depth` of the folded axis at position `across`."""
        row, column = (across, depth) if self.by_depth else (depth, across)
        return row * self.pitch + (self.swizzled(row, column // CHUNK) * CHUNK + column % CHUNK)

    def copy(self, scope: Emitter, start: Expr, slot: Expr) -> None:
        """Begin to copy the tile at `start` of the folded axis to element `slot` of the buffer; zeros beyond the ends of either axis."""
        assert self.load is not None
        c = Var(scope.name("c"), dt.i32)
        outer = scope.child()
        depth, across, guard = self._chunk(outer, c)
        k, at = outer.let("k", start + depth), outer.let("p", self.strip.first + across)
        inner = outer.child()
        inner.place(self.strip.axes, inner.whole(at))
        inner.axes[self.axis] = inner.whole(k)
        there = both(self.strip.inside(at), None if self.extent % self.depth == 0 else k < self.extent)
        source = inner.offset(self.load.tensor, self.load.point)
        inner.emit(CopyAsync(self.buffer.name, slot + self.place(depth, across), CHUNK, self.load.tensor, source, there))
        outer.emit(*under(guard, inner.body))
        scope.emit(counted(c, self.chunks, outer))

    def commit(self, scope: Emitter, arrays: list[str], slot: Expr) -> None:
        """Round what `fetch` computed and write it to the tile at element `slot` of the buffer."""
        (array,), n = arrays, self.vector
        for c in range(self.chunks):
            depth, across, guard = self._chunk(scope, int32(c))
            scope.emit(*under(guard, [StoreSharedVector(self.buffer.name, slot + self.place(depth, across), array, c * n, n)]))

    def fragments(self, scope: Emitter, count: int, step: Expr, slot: Expr) -> str:
        """The halves that a lane holds of `count` fragments of 16 positions, at 16 elements of the folded axis from 16 * step on of the tile
        at `slot`: 8 for each fragment, as the left operand of mma or as the right ones of two."""
        array, t = scope.name("a"), Var(scope.name("t"), dt.i32)
        lane = Thread() % 32
        matrix, line = lane // 8, lane % 8
        near, far = matrix % 2, matrix // 2         # which of two 8 x 8 matrices: next to each other in registers, and further apart
        position, element = (near, far) if self.left else (far, near)
        if self.by_depth:
            row, chunk = self.first + position * 8 + line + t * MATRIX, element + step * 2
        else:
            row, chunk = element * 8 + line + step * MATRIX, self.first // CHUNK + position + t * 2
        at = slot + (row * self.pitch + self.swizzled(line, chunk) * CHUNK)
        body = scope.child()
        body.emit(LoadMatrix(array, t * 8, 8, self.buffer.name, at, not self.by_depth))
        scope.emit(DeclareArray(array, self.element, count * 8, None))
        scope.emit(counted(t, count, body))
        return array
