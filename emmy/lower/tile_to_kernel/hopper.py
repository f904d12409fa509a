"""Form "contraction" on Hopper: sums of products by groups of four warps that multiply out of shared memory (wgmma).

The first group of 128 threads copies: a thread of it for each side asks the copy engine for boxes of that side's operands, `depth`
elements of the folded axis a stage, into a ring of stages; a side that needs not wait for an earlier kernel runs ahead of one that has
to.  Each other group multiplies 64 rows at a time of what has arrived, one stage behind the one that it has asked for, and gives a stage
back when its products are done.  A stage has a barrier that the bytes of both sides complete, and one at which every warp that multiplies
arrives.  While groups compute results of one tile, the ring fills with the next.

A block takes tiles of the result in turn, every `blocks`-th, in groups of `together` rows of tiles, column by column: blocks that run at
one time read few rows and few columns.

Products of a byte's types keep some 14 bits of what they add up.  Their sums of a stage, 128 elements, are begun anew and added in fp32:
while one group does that, another multiplies.

Row: WORK=g<groups>x1/ws,TILE=wgmma_m64n<wide>k<16|8|32>_<bf16|f16|tf32|e4m3|e5m2>_f32/f<rows>x<columns>/k<depth>,
STAGE=d<stages>/smem-tma,RASTER=gm<together>[/p<blocks>]: a tile is 64 * groups * rows by wide * columns, depth counts elements; without p
a block has one tile.  Any extents: copies fill with zeros and stores are clipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from emmy.instructions import (
    Arrive,
    Assign,
    Barrier,
    CommitProducts,
    DeclareArray,
    ExpectBytes,
    FenceAsync,
    FenceBarriers,
    FenceProducts,
    For,
    If,
    InitBarrier,
    MultiplyWarpgroup,
    NamedBarrier,
    PrefetchMap,
    SetElement,
    SetRegisters,
    StoreSharedVector,
    WaitBarrier,
    WaitProducts,
)
from emmy.instructions.mma import depth as k_of
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Stmt, Thread, Var, const, int32
from emmy.ir.loop_ir import Load, Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel import hopper_windows as windows
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.fragments import HeldSums
from emmy.lower.tile_to_kernel.hopper_result import Result
from emmy.lower.tile_to_kernel.register_tile import Held
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Product, counted, products

CHUNK = 16                      # bytes that move as one vector
GROUP, WARPS = 128, 4           # threads and warps that multiply together
SHARE = {2: (40, 232), 3: (32, 160)}    # registers of a thread that copies and of one that multiplies, by groups that multiply


class Tiling(NamedTuple):
    """A row as numbers: groups that multiply; tiles of each by rows, columns of an instruction, tiles by columns; elements of the folded
    axis a stage; stages; rows of tiles that are taken together; blocks, 0 for one a tile; type of the operands."""

    groups: int
    rows: int
    wide: int
    columns: int
    depth: int
    stages: int
    together: int
    blocks: int
    element: DType

    @property
    def line(self) -> int:
        """Elements of a line of a swizzled box."""
        return maps.BYTES // self.element.bytes

    @property
    def apart(self) -> bool:
        """Whether the sums of a stage are added up apart."""
        return self.element.bytes == 1

    @property
    def height(self) -> int:
        return 64 * self.groups * self.rows

    @property
    def width(self) -> int:
        return self.wide * self.columns

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)


def tiling(row: tile.Row) -> Tiling:
    """The numbers of a row; IRError if it is not one of this form."""
    work, stage = re.fullmatch(r"g(\d+)x1/ws", row.work), re.fullmatch(r"d(\d+)/smem-tma", row.stage)
    cover = re.fullmatch(r"wgmma_m64n(\d+)k(\d+)_(bf16|f16|tf32|e4m3|e5m2)_f32/f(\d+)x(\d+)/k(\d+)", row.tile)
    raster = re.fullmatch(r"gm(\d+)(?:/p(\d+))?", row.raster)
    if not work or not cover or not stage or not raster or row.reduce:
        raise IRError(f"row {row}: a row of this form is spelled "
                      "WORK=g2x1/ws,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132")
    wide, deep, element, rows, columns, depth = cover.groups()
    out = Tiling(int(work[1]), int(rows), int(wide), int(columns), int(depth), int(stage[1]), int(raster[1]), int(raster[2] or 0),
                 dt.named(element))
    lines = out.depth // out.line
    if min(out[:-2]) < 1 or out.groups > 3 or out.wide % 8 or out.wide > 256 or out.depth % out.line or lines > (1 if out.apart else 4) or (
            out.stages < 2 or int(deep) != k_of(out.element)):
        raise IRError(f"row {row}: it takes 1 to 3 groups, an instruction of 8 to 256 columns in 8s and as deep as 32 bytes, "
                      "a depth of 1 to 4 times 128 bytes (128 elements of a byte), 2 stages or more")
    return out


class Operand:
    """A load as tiles of one side in a ring in shared memory: lines of 128 bytes along the folded axis or, of halves, of 64 positions."""

    def __init__(self, scope: Emitter, load: Load, view: windows.View, positions: int, t: Tiling):
        self.view, self.positions, self.tiling, self.filled = view, positions, t, view.filled(positions)
        self.box = view.box(self.filled)
        self.buffer = SharedBuffer(scope.name("tile"), t.element.stored, t.stages * self.slot, 1024)
        deep = t.line if view.by_depth else t.depth
        self.map = view.map(scope.name("map"), scope.tensors[load.tensor], deep, self.box, element=t.element)

    @property
    def slot(self) -> int:
        """Elements of a stage."""
        return self.tiling.depth * self.positions

    @property
    def major(self) -> str:
        return "k" if self.view.by_depth else "mn"

    def copies(self, scope: Emitter, slot: Expr, start: Expr, first: Expr, barrier: str) -> list[Stmt]:
        """Ask for the tile at an element of the folded axis and a position of the side."""
        lines = range(0, self.tiling.depth, self.tiling.line) if self.view.by_depth else (0,)
        return [self.view.copy(scope, self.buffer.name, slot * self.slot + self.place(k, p), self.map.name, start + k, first + p, barrier,
                               slot)
                for k in lines for p in range(0, self.filled, self.box)]

    @property
    def brought(self) -> int:
        """Bytes that arrive for a stage."""
        return self.tiling.depth * self.filled * self.buffer.element.bytes

    def clear(self, scope: Emitter, thread: Expr, threads: int) -> None:
        """Zeros where nothing ever arrives: the positions of a tile that lie behind the end of a short side."""
        line, chunk = self.tiling.line, CHUNK // self.buffer.element.bytes
        chunks = (self.positions - self.filled) * line // chunk
        if not chunks:
            return
        parts = self.tiling.stages * self.slot // (self.positions * line)      # lines of all positions
        c, zero = Var(scope.name("c"), dt.i32), scope.name("zero")
        scope.emit(DeclareArray(zero, self.buffer.element, chunk, const(self.buffer.element, 0)))
        body = scope.child()
        if self.view.by_depth:
            at = c // chunks * (self.positions * line) + (self.filled * line + c % chunks * chunk)
        else:
            tail = (self.positions - self.filled) * self.tiling.depth // chunk
            at = c // tail * self.slot + (self.filled * self.tiling.depth + c % tail * chunk)
        body.emit(StoreSharedVector(self.buffer.name, at, zero, 0, chunk))
        scope.emit(For(c, thread, int32(parts * chunks), int32(threads), False, tuple(body.body)))

    def place(self, k: int, position: int) -> int:
        """Where in a stage the line lies that begins at element `k` of the folded axis and a position, multiples of a line and of a box."""
        return k * self.positions + position * self.tiling.line if self.view.by_depth else position * self.tiling.depth

    def at(self, slot: Expr, q: Expr, position: Expr) -> Expr:
        """Where the q-th 32 bytes of the folded axis begin, from a position on."""
        line = self.tiling.line
        if self.view.by_depth:
            return slot * self.slot + (q // 4 * (line * self.positions) + q % 4 * (line // 4)) + position * line
        return slot * self.slot + q * (16 * line) + position * self.tiling.depth


class Ring:
    """Which stage a thread is at, and the parity of its round."""

    def __init__(self, scope: Emitter, stages: int):
        self.stages, self.slot, self.phase = stages, scope.declare("slot", int32(0)), scope.declare("phase", int32(0))

    def advance(self) -> tuple[Stmt, ...]:
        turn = Assign(self.slot, int32(0)), Assign(self.phase, self.phase ^ 1)
        return Assign(self.slot, self.slot + 1), If(self.slot == self.stages, turn)


class Multiplication:
    """The operands of a kernel's products, their barriers and the tiles of its result."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, t: Tiling):
        self.kernel, self.schedule, self.tiling = kernel, schedule, t
        nests = windows.nests(kernel)
        each = products(scope, [nest[0] for nest in nests], schedule.rows, schedule.columns)
        found = [self.views(nest, p) for nest, p in zip(nests, each, strict=True)]
        (self.axis, self.taps), *others = {(x.axis, x.taps) for x in found}
        if others:
            raise IRError(f"{kernel.name} sums over {self.axis}, {self.taps} and over {others}")
        self.chunks = -(-kernel.extents[self.axis] // t.depth)      # stages of a tap
        self.steps = self.chunks * self.extent(self.taps)
        self.down, self.across = -(-self.extent(schedule.rows) // t.height), -(-self.extent(schedule.columns) // t.width)
        self.tiles = self.down * self.across * self.extent(schedule.batch)
        self.grid = min(t.blocks or self.tiles, self.tiles)
        self.barriers = SharedBuffer(scope.name("barrier"), dt.i64, 2 * t.stages)     # that a stage is full; that it is empty
        self.operands: dict[tuple[Load, bool], Operand] = {}
        sides = [x.operands for x in found]
        self.factors = [(self.operand(scope, *left, True), self.operand(scope, *right, False)) for left, right in sides]
        self.sums = {nest[-1].result(): scope.name("sum") for nest in nests}
        self.parts = tuple(scope.name("part") for _ in nests) if t.apart else tuple(self.sums.values())     # what products add to
        self.count = t.rows * t.width // 2      # of a thread's sums

    def extent(self, axes: tuple[int, ...]) -> int:
        return prod(self.kernel.extents[a] for a in axes)

    def views(self, nest: windows.Nest, product: Product) -> windows.Summed:
        """What a nest sums over, and its operands."""
        s, factors = self.schedule, [v for v in (product.left, product.right) if v is not None]
        found = windows.summed(self.kernel, nest, self.tiling.element, factors, (s.rows, s.columns), s.batch) if len(factors) > 1 else None
        if found is None:
            raise IRError(f"{self.kernel.name}: {factors} are no operands that tensor maps have")
        return found

    def operand(self, scope: Emitter, load: Load, view: windows.View, left: bool) -> Operand:
        if (load, left) not in self.operands:
            positions = self.tiling.height if left else self.tiling.width
            self.operands[load, left] = Operand(scope, load, view, positions, self.tiling)
        return self.operands[load, left]

    def each_tile(self, scope: Emitter, body: Callable[[Emitter, Expr, Expr], None]) -> None:
        """`body` for the first row and column of each tile of this block, at its point of the batch."""
        number: Var | Block = Var(scope.name("tile"), dt.i32) if self.grid < self.tiles else Block(0)
        inner = scope.child() if self.grid < self.tiles else scope
        here: Expr = number
        layer = self.down * self.across
        if layer < self.tiles:
            inner.place(self.schedule.batch, inner.whole(inner.let("layer", number // layer)))
            here = inner.let("t", number % layer)
        else:
            inner.place(self.schedule.batch, inner.whole(int32(0)))
        row, column = self.raster(inner, here)
        body(inner, inner.let("m", row * self.tiling.height), inner.let("n", column * self.tiling.width))
        if isinstance(number, Var):
            scope.emit(For(number, Block(0), int32(self.tiles), int32(self.grid), False, tuple(inner.body)))

    def raster(self, scope: Emitter, number: Expr) -> tuple[Expr, Expr]:
        """The row and the column of the tile of that number."""
        together = min(self.tiling.together, self.down)
        if together == self.down:
            return number % together, number // together
        first = scope.let("first", number // (together * self.across) * together)
        inside = scope.let("inside", number % (together * self.across))
        height: Expr = int32(together)
        if self.down % together:
            height = scope.let("height", Apply("min", (self.down - first, height)))
        return first + inside % height, inside // height

    def prepare(self, scope: Emitter, stored: tuple[str, ...]) -> None:
        """Barriers, by one thread, and a meeting of all."""
        s = Var(scope.name("s"), dt.i32)
        made = scope.child()
        name, stages = self.barriers.name, self.tiling.stages
        made.emit(InitBarrier(name, s, 2), InitBarrier(name, s + stages, WARPS * self.tiling.groups))
        maps_ = (*(x.map.name for x in self.operands.values()), *stored)
        first = *(PrefetchMap(name) for name in maps_), counted(s, stages, made), FenceBarriers()
        scope.emit(If(Thread() == 0, first), Barrier())

    def copy(self, scope: Emitter, left: bool) -> None:
        """What the thread does that copies the operands of a side."""
        ring, t = Ring(scope, self.tiling.stages), self.tiling
        operands = [x for (_, side), x in self.operands.items() if side == left]
        size = sum(x.brought for x in operands)

        def tile_(inner: Emitter, row: Expr, column: Expr) -> None:
            step = Var(inner.name("step"), dt.i32)
            body = inner.child()
            name = self.barriers.name
            body.emit(WaitBarrier(name, ring.slot + t.stages, ring.phase ^ 1), ExpectBytes(name, ring.slot, size))
            chunk: Expr = step
            if self.taps:
                body.place(self.taps, body.whole(step // self.chunks))
                chunk = step % self.chunks
            start = body.let("k", chunk * t.depth)
            for x in operands:
                body.emit(*x.copies(body, ring.slot, start, row if left else column, name))
            body.emit(*ring.advance())
            inner.emit(counted(step, self.steps, body, unroll=False))

        self.each_tile(scope, tile_)

    def multiply(self, scope: Emitter, result: Result) -> None:
        """What a group does that multiplies."""
        t = self.tiling
        for array in dict.fromkeys((*self.sums.values(), *self.parts)):
            scope.emit(DeclareArray(array, dt.f32, self.count, None))
        if any(x.filled < x.positions for x in self.operands.values()):
            for x in self.operands.values():
                x.clear(scope, Thread() - GROUP, GROUP * t.groups)
            scope.emit(FenceAsync(), NamedBarrier(int32(t.groups + 1), GROUP * t.groups))
        ring, before, barriers = Ring(scope, t.stages), scope.declare("before", int32(0)), self.barriers.name
        leave = Arrive(barriers, before + t.stages)

        def tile_(inner: Emitter, row: Expr, column: Expr) -> None:
            result.begin(inner, row, column)
            step = Var(inner.name("step"), dt.i32)
            body = inner.child()
            if t.apart:
                self.each_sum(inner, lambda array, part, e: const(dt.f32, 0))
                body.emit(WaitBarrier(barriers, ring.slot, ring.phase), FenceProducts(self.parts))
                self.step(body, ring.slot, const(dt.bool_, False), result.group)
                body.emit(CommitProducts(), WaitProducts(0, self.parts), If(result.lane == 0, (Arrive(barriers, ring.slot + t.stages),)))
                self.each_sum(body, lambda array, part, e: Apply("add", (Element(array, dt.f32, e), Element(part, dt.f32, e))))
                body.emit(*ring.advance())
                inner.emit(counted(step, self.steps, body, unroll=False))
                result.store(inner)
                return
            inner.emit(FenceProducts(self.parts))
            body.emit(WaitBarrier(barriers, ring.slot, ring.phase), FenceProducts())
            self.step(body, ring.slot, step > 0, result.group)
            body.emit(CommitProducts(), WaitProducts(1),
                      If((result.lane == 0) & (step > 0), (leave,)), Assign(before, ring.slot), *ring.advance())
            inner.emit(counted(step, self.steps, body, unroll=False), WaitProducts(0, self.parts),
                       If(result.lane == 0, (leave,)))
            result.store(inner)

        self.each_tile(scope, tile_)
        result.end(scope)

    def held(self) -> dict[Value, Held]:
        """Where each fold's result is."""
        return {result: HeldSums(array, dt.f32, True, True) for result, array in self.sums.items()}

    def each_sum(self, scope: Emitter, value: Callable[[str, str, Expr], Expr]) -> None:
        """Set every element of the sums, of an array and what products have added beside it."""
        e = Var(scope.name("e"), dt.i32)
        body = scope.child()
        arrays = zip(self.sums.values(), self.parts, strict=True)
        body.emit(*(SetElement(array, dt.f32, e, value(array, part, e)) for array, part in arrays))
        scope.emit(counted(e, self.count, body))

    def step(self, scope: Emitter, slot: Expr, keep: Expr, group: Expr) -> None:
        """The products of a stage; the first begin sums anew, or add to them if `keep`."""
        t = self.tiling
        q, i, j = (Var(scope.name(x), dt.i32) for x in "qij")
        body = scope.child()
        for array, (left, right) in zip(self.parts, self.factors, strict=True):
            from_left = left.at(slot, q, group * (64 * t.rows) + i * 64)
            from_right, into = right.at(slot, q, j * t.wide), (i * t.columns + j) * (t.wide // 2)
            body.emit(MultiplyWarpgroup(t.element, t.wide, array, into, left.buffer.name, from_left, left.major, right.buffer.name,
                                        from_right, right.major, keep | (q > 0), t.line * t.depth))
        rows, columns = scope.child(), scope.child()
        columns.emit(counted(j, t.columns, body))
        rows.emit(counted(i, t.rows, columns))
        scope.emit(counted(q, t.depth // k_of(t.element), rows))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a contraction; IRError where an operand is none that a tensor map has."""
    if not kernel.folds:
        raise IRError(f"{kernel.name}: a contraction needs a fold")
    t = tiling(schedule.row)
    scope = Emitter(kernel)
    m = Multiplication(scope, kernel, schedule, t)
    result = Result(scope, kernel, schedule, t.groups, t.rows, t.width, m.held())
    m.prepare(scope, tuple(x.name for x in result.maps))
    copying, multiplying = scope.child(), scope.child()
    for left in (True, False):
        alone = copying.child()
        m.copy(alone, left)
        copying.emit(If(Thread() == (0 if left else 32), tuple(alone.body)))
    result.enter(multiplying)
    m.multiply(multiplying, result)
    share = SHARE.get(t.groups)
    give, take = ((SetRegisters(share[0], False),), (SetRegisters(share[1], True),)) if share else ((), ())
    scope.emit(If(Thread() < GROUP, (*give, *copying.body), (*take, *multiplying.body)))
    shared = *(x.buffer for x in m.operands.values()), *result.shared, m.barriers
    return finish(kernel, scope, (m.grid, 1, 1), t.threads, shared, (*(x.map for x in m.operands.values()), *result.maps))
