"""Operands of tensor cores in shared memory: tiles, how they get there, and how warps read them as fragments.

A tile is stored in rows along the axis on which the operand lies contiguous in global memory, in chunks of 16 bytes.  Others than halves
lie contiguous along the folded axis, and are f32 rounded to tf32 or a byte's types.
Chunk c of row r lies at place c ^ swizzle(r) of its row, so that the 8 rows of one matrix and the 8 neighbouring chunks that 8
threads write lie in 8 different groups of banks: with P chunks a row and Q = gcd(P, 8), rows r and r' begin in the same group
where r = r' mod 8/Q, and swizzle(r) = r mod 8 / (8/Q) tells those of 8 rows apart.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from math import gcd

from emmy.instructions.cp_async import CopyAsync
from emmy.instructions.ldmatrix import LoadMatrix
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.instructions.shared_memory import StoreSharedVector
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Convert, Element, Expr, SharedBuffer, Thread, Var, int32
from emmy.ir.loop_ir import Value, load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import vectorises
from emmy.lower.tile_to_kernel.register_tile import Held
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Side, Strip, both, counted, under

CHUNK = 16      # bytes of one row of a matrix
MATRIX = 16     # positions and folded elements of one fragment read


@dataclass(frozen=True)
class RowFragments(Strip):
    """The rows of a lane's sums: two, 8 apart, in each tile of 16; `thread` is the first."""

    @property
    def run(self) -> int:
        return 1

    def local(self, k: Expr) -> Expr:
        return self.thread + (k // 2 * 16 + k % 2 * 8)


@dataclass(frozen=True)
class ColumnFragments(Strip):
    """The columns of a lane's sums: two neighbours in each tile of 8; `thread` is the first."""

    @property
    def run(self) -> int:
        return 2

    def local(self, k: Expr) -> Expr:
        return self.thread + (k // 2 * 8 + k % 2)


class HeldSums(Held):
    """Sums at a lane's rows and columns, four a tile of mma, tiles row-major."""

    def at(self, i: Expr, j: Expr, columns: int) -> Element:
        return Element(self.array, self.element, (i // 2 * (columns // 2) + j // 2) * 4 + (i % 2 * 2 + j % 2))


class Panel(Side):
    """One value of a side as tiles of `element`.  A load that lies in aligned runs of 16 bytes is copied asynchronously; any other value,
    of halves, is computed in registers and rounded as it is written.  `left`: which operand of mma it is; `first`: where the warp's
    positions begin."""

    def __init__(self, scope: Emitter, value: Value, strip: Strip, axis: int, depth: int, threads: int, slots: int, element: DType,
                 left: bool, first: Expr, lane: Expr):
        super().__init__(scope, [value], strip, axis, depth, threads, slots)
        self.left, self.element, self.piece, self.word = left, element, CHUNK // element.bytes, 4 // element.bytes
        self.by_depth = self.along == axis
        self.pitch = depth if self.by_depth else strip.width
        self.spread = gcd(self.pitch // self.piece, 8)
        self.buffer = SharedBuffer(self.buffers[0].name, element.stored, slots * self.slot)
        load = load_of(value, element.stored)
        whole = load is not None and scope.kernel.extents[self.along] % self.piece == 0
        self.load = load if load and whole and vectorises(scope.kernel, load, self.along, self.piece) else None
        if element.bytes != 2 and not (self.load and self.by_depth):
            raise IRError(f"{scope.kernel.name}: {value} does not lie in runs of 16 bytes of {element} along the folded axis")
        if self.load is not None:
            self.vector = self.piece
            self.chunks = -(-self.slot // (self.piece * threads))
        # which of the four 8 x 8 matrices of a read this lane gives a row of: the left operand of mma has its halves of rows next to
        # each other in registers, the right one its halves of the folded axis
        matrix, line = lane // 8, lane % 8
        position, element_half = (matrix % 2, matrix // 2) if left else (matrix // 2, matrix % 2)
        row = first + position * 8 + line if self.by_depth else element_half * 8 + line
        self.line = scope.let("line", row * self.pitch)
        self.chunk = scope.let("chunk", element_half if self.by_depth else first // self.piece + position)
        self.turn = scope.let("turn", self.swizzle(line))

    @property
    def slot(self) -> int:
        return self.depth * self.strip.width

    def swizzle(self, row: Expr) -> Expr:
        """What the chunks of a row are exchanged by."""
        return row % 8 // (8 // self.spread) if self.spread > 1 else int32(0)

    def _run(self, scope: Emitter, c: Expr, e: int = 0) -> tuple[Expr, Expr, Expr, Expr | None]:
        """The thread's run `c` of a tile: where it begins on the folded axis and in the strip, the place of its element `e`, which begins a
        chunk or the run, and whether there is one."""
        n, per = self.vector, self.pitch // self.vector
        index = scope.let("c", Thread() + c * self.threads)
        guard = None if self.slot // n % self.threads == 0 else index < self.slot // n
        row, part = index // per, index % per
        whole = n % self.piece == 0
        chunk, rest = (part * (n // self.piece) + e // self.piece, int32(0)) if whole else (part * n // self.piece, part * n % self.piece)
        place = row * self.pitch + ((chunk ^ self.swizzle(row)) * self.piece + rest)
        return (part * n, row, place, guard) if self.by_depth else (row, part * n, place, guard)

    def _chunk(self, scope: Emitter, c: Expr) -> tuple[Expr, Expr, Expr | None]:
        depth, across, _, guard = self._run(scope, c)
        return depth, across, guard

    def moved(self, first: Expr) -> Panel:
        """The panel with its strip beginning at another position."""
        other = copy(self)
        other.strip = replace(self.strip, first=first)
        return other

    def bring(self, scope: Emitter, start: Expr, slot: Expr) -> None:
        """Begin to copy the tile at `start` of the folded axis to element `slot` of the buffer, or compute and write it."""
        if self.load is not None:
            self.copy(scope, start, slot)
        else:
            arrays = self.declare(scope)
            self.fetch(scope, arrays, start)
            self.commit(scope, arrays, slot)

    def copy(self, scope: Emitter, start: Expr, slot: Expr) -> None:
        """Begin to copy the tile at `start` of the folded axis to element `slot` of the buffer; zeros beyond the ends of either axis."""
        assert self.load is not None
        c = Var(scope.name("c"), dt.i32)
        outer = scope.child()
        depth, across, place, guard = self._run(outer, c)
        k, at = outer.let("k", start + depth), outer.let("p", self.strip.first + across)
        inner = outer.child()
        inner.place(self.strip.axes, inner.whole(at))
        inner.axes[self.axis] = inner.whole(k)
        there = both(self.strip.inside(at), None if self.extent % self.depth == 0 else k < self.extent)
        source = inner.offset(self.load.tensor, self.load.point)
        inner.emit(CopyAsync(self.buffer.name, slot + place, self.piece, self.load.tensor, source, there))
        outer.emit(*under(guard, inner.body))
        scope.emit(counted(c, self.chunks, outer))

    def commit(self, scope: Emitter, arrays: list[str], slot: Expr) -> None:
        """Round what `fetch` computed and write it to the tile at element `slot` of the buffer."""
        (array,), n, step = arrays, self.vector, min(self.vector, self.piece)
        for c in range(self.chunks):
            for e in range(0, n, step):
                _, _, place, guard = self._run(scope, int32(c), e)
                scope.emit(*under(guard, [StoreSharedVector(self.buffer.name, slot + place, array, c * n + e, step)]))

    def fragments(self, scope: Emitter, count: int, step: Expr, slot: Expr) -> str:
        """The elements that a lane holds of `count` fragments of 16 positions, at the step-th 32 bytes of the folded axis of the tile at
        `slot`: 4 words for each fragment, as the left operand of mma or as the right ones of two."""
        array, t = scope.name("a"), Var(scope.name("t"), dt.i32)
        lines, chunks = (t, step) if self.by_depth else (step, t)
        at = slot + (self.line + lines * (MATRIX * self.pitch) + ((self.chunk + chunks * 2) ^ self.turn) * self.piece)
        body, held = scope.child(), 4 * self.word
        body.emit(LoadMatrix(array, t * held, held, self.buffer.name, at, not self.by_depth))
        if self.element is dt.tf32:
            e = Var(scope.name("e"), dt.i32)
            nearest = scope.child()
            nearest.emit(SetElement(array, dt.f32, t * held + e, Convert(dt.f32, Convert(dt.tf32, Element(array, dt.f32, t * held + e)))))
            body.emit(counted(e, held, nearest))
        scope.emit(DeclareArray(array, self.element.stored, count * held, None))
        scope.emit(counted(t, count, body))
        return array
