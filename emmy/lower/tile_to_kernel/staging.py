"""Operands of a contraction in shared memory: which values are staged, how threads copy a tile of them, who reads what.

A tile of an operand has `depth` elements of the folded axis by `width` positions of one side, stored [depth][width + PAD]
so that a thread reads neighbouring positions as one vector and the lanes of a warp meet no bank conflict.  Threads copy along
the axis on which the operand lies contiguous in global memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd, prod
from typing import NamedTuple

from emmy.instructions.control import For, If
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadSharedVector, StoreShared, StoreSharedVector
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Element, Expr, SharedBuffer, Stmt, Thread, Var, const, int32
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import LONG, repeats, stride
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter

PAD = 4         # f32 elements after each row of a shared tile
RUN = 4         # f32 elements of the widest shared access
WIDEST = 16     # elements of a run that a thread reads at once, at most


class Tiling(NamedTuple):
    """A row of the tiled forms: `down` x `across` threads hold `rows` x `columns` accumulators each and fold `depth` elements a step.
    `ring`: asynchronous copies fill the stages."""

    down: int
    across: int
    rows: int
    columns: int
    depth: int
    stages: int
    fused: bool
    ring: bool

    @property
    def threads(self) -> int:
        return self.down * self.across


def tiling(row: tile.Row) -> Tiling:
    """The row as numbers: WORK=t<down>x<across>,TILE=<fma|mul>_f32/f<rows>x<columns>/k<depth>,STAGE=d<1|2>/smem, or
    d<stages>/smem-async with 2 stages or more."""
    work = re.fullmatch(r"t(\d+)x(\d+)", row.work)
    cover = re.fullmatch(r"(fma|mul)_f32/f(\d+)x(\d+)/k(\d+)", row.tile)
    stage = re.fullmatch(r"d([12])/smem|d([2-9])/smem-async", row.stage)
    if not work or not cover or not stage or row.reduce:
        raise IRError(f"row {row}: a tiled form is spelled WORK=t16x16,TILE=fma_f32/f8x8/k8,STAGE=d2/smem or d3/smem-async")
    down, across, rows, columns, depth, stages = map(int, (*work.groups(), *cover.groups()[1:], stage[1] or stage[2]))
    out = Tiling(down, across, rows, columns, depth, stages, cover[1] == "fma", stage[1] is None)
    if min(out[:-2]) < 1 or out.threads % 32 or out.threads > 1024 or out.ring and out.depth < 2:
        raise IRError(f"row {row}: {out.threads} threads; a block has whole warps, at most 32 of them, and a ring stages 2 deep or more")
    return out


def counted(var: Var, count: int, body: Emitter, unroll: bool = True) -> For:
    """`body` for `var` = 0, 1, …, count - 1."""
    return For(var, const(var.element, 0), const(var.element, count), const(var.element, 1), unroll, tuple(body.body))


def under(guard: Expr | None, body: list[Stmt]) -> list[Stmt]:
    """`body` where `guard` holds, or everywhere if there is none."""
    return body if guard is None else [If(guard, tuple(body))]


def both(*conditions: Expr | None) -> Expr | None:
    """The conjunction of those conditions that are given."""
    given = [c for c in conditions if c is not None]
    return reduce(lambda x, y: x & y, given) if given else None


@dataclass(frozen=True)
class Strip:
    """The positions of one side of a block's tile that a thread holds: `count` of them in runs of neighbours, the runs of the `threads`
    threads of that side next to each other.  A position is the row-major index over `axes`, below `extent`; the tile begins at `first`."""

    axes: tuple[int, ...]
    extent: int
    first: Expr
    thread: Expr
    threads: int
    count: int

    @property
    def run(self) -> int:
        return gcd(self.count, RUN)

    @property
    def width(self) -> int:
        return self.threads * self.count

    def local(self, k: Expr) -> Expr:
        """The place in the tile of the thread's position `k`."""
        return k // self.run * (self.run * self.threads) + (self.thread * self.run + k % self.run)

    def inside(self, at: Expr) -> Expr | None:
        """Whether a position is one of the tensor's; None where all are."""
        return None if self.extent % self.width == 0 else at < self.extent


def strip(kernel: tile.Kernel, axes: tuple[int, ...], first: Expr, thread: Expr, threads: int, count: int) -> Strip:
    return Strip(axes, prod(kernel.extents[a] for a in axes), first, thread, threads, count)


class Product(NamedTuple):
    """A fold that sums left * right, or one of them; `left` depends on rows and `right` on columns."""

    fold: tile.Fold
    left: Value | None
    right: Value | None


def products(scope: Emitter, folds: list[tile.Fold], rows: tuple[int, ...], columns: tuple[int, ...]) -> list[Product]:
    """Each fold's lift as a product of two sides.  IRError unless all are sums over one axis of fp32 products that split."""
    if len({f.axis for f in folds}) > 1:
        raise IRError(f"{scope.kernel.name}: a tiled form folds one axis, not {sorted({f.axis for f in folds})}")
    out = []
    for f in folds:
        if f.kind != "reduce" or f.recipe != "add" or f.lifts[0].dtype is not dt.f32:
            raise IRError(f"{scope.kernel.name}: fold {f.name} is {f.kind} {f.recipe} of {f.lifts[0].dtype}; a tiled form sums fp32")
        sides = split(factors(f.lifts[0]), scope.free, rows, columns)
        if sides is None:
            raise IRError(f"{scope.kernel.name}: fold {f.name}: a factor depends on rows and columns alike")
        out.append(Product(f, *sides))
    scope.free.update(tile.free_axes(tuple(v for p in out for v in (p.left, p.right) if v is not None)))
    return out


def split(parts: Iterable[Value], free: Mapping[Value, frozenset[int]], rows: Iterable[int], columns: Iterable[int],
          ) -> tuple[Value | None, Value | None] | None:
    """The product of the factors that depend on rows, and of those on columns; what depends on neither goes with rows, if any does.  None
    where a factor depends on both."""
    sides: dict[str, list[Value]] = {"left": [], "right": [], "neither": []}
    for v in parts:
        on_rows, on_columns = (not free[v].isdisjoint(axes) for axes in (rows, columns))
        if on_rows and on_columns:
            return None
        sides["left" if on_rows else "right" if on_columns else "neither"].append(v)
    sides["left" if sides["left"] or not sides["right"] else "right"] += sides["neither"]
    left, right = (reduce(lambda x, y: loop.Apply("mul", (x, y)), sides[s]) if sides[s] else None for s in ("left", "right"))
    return left, right


def factors(v: Value) -> list[Value]:
    """The factors of a product of any nesting, left to right."""
    return [x for a in v.args for x in factors(a)] if isinstance(v, loop.Apply) and v.op == "mul" else [v]


class Side:
    """Values on the same side of a tile, copied to shared memory together: `depth` elements of `axis` by `strip.width` positions."""

    def __init__(self, scope: Emitter, values: list[Value], strip: Strip, axis: int, depth: int, threads: int, slots: int = 1):
        self.values, self.strip, self.axis, self.depth, self.threads = list(dict.fromkeys(values)), strip, axis, depth, threads
        self.extent, self.pitch = scope.kernel.extents[axis], strip.width + PAD
        self.buffers = [SharedBuffer(scope.name("tile"), dt.f32, slots * depth * self.pitch) for _ in self.values]
        loads = [(scope.tensors[v.tensor], v) for v in loop.walk(tuple(self.values)) if isinstance(v, loop.Load)]
        last = strip.axes[-1] if strip.axes else axis
        weight = {a: sum(prod(t.shape) for t, v in loads if stride(scope.kernel, v, a) == 1 or repeats(scope.kernel, v, a, WIDEST))
                  for a in (axis, last)}
        self.along = axis if weight[axis] > weight[last] else last
        fits = gcd(scope.kernel.extents[self.along], depth if self.along == axis else strip.width)
        self.vector = next((n for n in (WIDEST, 8, 4, 2) if fits % n == 0 and depth * strip.width >= n * threads and any(
            (each := repeats(scope.kernel, v, self.along, n)) and n // each * t.element.bytes <= VECTOR_BYTES for t, v in loads)), 1)
        self.chunks = -(-depth * strip.width // (self.vector * threads))

    @property
    def slot(self) -> int:
        """Elements of one tile in shared memory."""
        return self.depth * self.pitch

    def _chunk(self, scope: Emitter, c: Expr) -> tuple[Expr, Expr, Expr | None]:
        """The first element of the thread's chunk `c` of a tile: place on the folded axis, place along the strip, whether there is one."""
        total, n = self.depth * self.strip.width // self.vector, self.vector
        chunk = scope.let("c", Thread() + c * self.threads)
        guard = None if total % self.threads == 0 else chunk < total
        if self.along == self.axis:
            return chunk % (self.depth // n) * n, chunk // (self.depth // n), guard
        return chunk // (self.strip.width // n), chunk % (self.strip.width // n) * n, guard

    def declare(self, scope: Emitter) -> list[str]:
        """Registers for this thread's part of one tile of each value."""
        arrays = [scope.name("r") for _ in self.values]
        scope.emit(*(DeclareArray(a, dt.f32, self.chunks * self.vector, None) for a in arrays))
        return arrays

    def fetch(self, scope: Emitter, arrays: list[str], start: Expr) -> None:
        """Evaluate the part of the tiles that begin at `start` of the folded axis into registers; zero beyond the ends of either axis."""
        c, n = Var(scope.name("c"), dt.i32), self.vector
        outer = scope.child()
        depth, across, guard = self._chunk(outer, c)
        k, at = outer.let("k", start + depth), outer.let("p", self.strip.first + across)
        guard = both(guard, self.strip.inside(at), None if self.extent % self.depth == 0 else k < self.extent)
        inner = outer.child()
        inner.place(self.strip.axes, inner.whole(at))
        inner.axes[self.axis] = inner.whole(k)
        first = inner.axes[self.along]
        # where numbers share an element, its place in the run tells which of them one is
        packed = any(repeats(scope.kernel, v, self.along, n) > 1 for v in loop.walk(tuple(self.values)) if isinstance(v, loop.Load))
        apart = n == 1 or n > LONG and packed
        lanes = [const(scope.integer, e) for e in range(n)] if apart else [Var(scope.name("e"), scope.integer)]
        inner.hoist(self.values, self.along)
        runs = inner.load_vectors(self.values, self.along, first, n)
        if n > LONG:
            inner.hoist_run(self.values, self.along, first, n, runs)
        for lane in lanes:
            each = inner.neighbour(self.along, first, lane, runs, n)
            for array, v in zip(arrays, self.values, strict=True):
                each.emit(SetElement(array, dt.f32, c * n + lane, each.value(v)))
            inner.emit(*([counted(lane, n, each)] if isinstance(lane, Var) else each.body))
        if guard is not None:
            zero = scope.child()
            e = Var(scope.name("e"), dt.i32)
            zero.emit(*(SetElement(a, dt.f32, e, const(dt.f32, 0)) for a in arrays))
            scope.emit(counted(e, self.chunks * n, zero))
        outer.emit(*under(guard, inner.body))
        scope.emit(counted(c, self.chunks, outer))

    def commit(self, scope: Emitter, arrays: list[str], slot: Expr) -> None:
        """Write what `fetch` read to the tiles that begin at element `slot` of the shared buffers."""
        n = self.vector
        for c in range(self.chunks):
            depth, across, guard = self._chunk(scope, int32(c))
            inner = scope.child()
            at = scope.let("s", slot + depth * self.pitch + across)
            for array, buffer in zip(arrays, self.buffers, strict=True):
                if self.along == self.axis:
                    inner.emit(*(StoreShared(buffer.name, at + e * self.pitch, Element(array, dt.f32, int32(c * n + e))) for e in range(n)))
                else:
                    step = min(n, RUN)
                    inner.emit(*(StoreSharedVector(buffer.name, at + e, array, c * n + e, step) for e in range(0, n, step)))
            scope.emit(*under(guard, inner.body))

    def read(self, scope: Emitter, value: Value, row: Expr, slot: Expr, into: str | None = None) -> str:
        """The registers that hold this thread's positions of `value` at element `row` of the tile at `slot`: `into`, or new ones."""
        buffer, array, s = self.buffers[self.values.index(value)], into or scope.name("a"), self.strip
        scope.emit(*([] if into else [DeclareArray(array, dt.f32, s.count, None)]))
        at = slot + row * self.pitch
        scope.emit(*(LoadSharedVector(array, k, buffer.name, at + s.local(int32(k)), s.run) for k in range(0, s.count, s.run)))
        return array
