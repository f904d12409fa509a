"""Form "contraction" on tensor cores: sums of products over one axis k, added in fp32 by mma.m16n8, 32 bytes of k at once.

A block of R x C warps holds R * F * 16 rows by C * G * 8 columns, each warp F x G products of 16 x 8.  The tiles of `stages` steps of
k form a ring in shared memory: while one is multiplied, those of the next steps are on their way, so a step has one barrier.
Operands that are of its type in memory go there by asynchronous copies; others are computed in registers and rounded to halves.
The result is computed from the sums where they are.

Row: WORK=w<R>x<C>,TILE=mma_m16n8k<16|8|32>_<bf16|f16|tf32|e4m3|e5m2>_f32/f<F>x<G>/k<depth>,STAGE=d<stages>/smem-async.  G even,
depth a multiple of 32 bytes, at least 2 stages; any extents: tails are predicated.  Shared bytes: stages * depth * (L * rows + R * columns)
elements for L distinct left operands and R right ones.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.cp_async import CommitCopies, WaitCopies
from emmy.instructions.mma import MultiplyMatrices, word
from emmy.instructions.mma import depth as k_of
from emmy.instructions.registers import DeclareArray
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Block, Expr, Kernel, Thread, Var, const, int32
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.fragments import ColumnFragments, HeldSums, Panel, RowFragments
from emmy.lower.tile_to_kernel.register_tile import Cells, Held
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted, products


class Tiling(NamedTuple):
    """A row as numbers: warps by rows and columns, tiles of a warp by rows and columns, elements of k a stage, stages, operand type."""

    down: int
    across: int
    rows: int
    columns: int
    depth: int
    stages: int
    element: DType

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across


def tiling(row: tile.Row) -> Tiling:
    """The numbers of a row; IRError if it is not one of this form."""
    work = re.fullmatch(r"w(\d+)x(\d+)", row.work)
    cover = re.fullmatch(r"mma_m16n8k(\d+)_(bf16|f16|tf32|e4m3|e5m2)_f32/f(\d+)x(\d+)/k(\d+)", row.tile)
    stage = re.fullmatch(r"d(\d+)/smem-async", row.stage)
    if not work or not cover or not stage or row.reduce:
        raise IRError(f"row {row}: a row of tensor cores is spelled WORK=w2x4,TILE=mma_m16n8k16_bf16_f32/f4x4/k32,STAGE=d3/smem-async")
    down, across, deep, rows, columns, depth, stages = map(int, (*work.groups(), cover[1], *cover.groups()[2:], stage[1]))
    out = Tiling(down, across, rows, columns, depth, stages, dt.named(cover[2]))
    k = k_of(out.element)
    if min(out[:-1]) < 1 or out.columns % 2 or deep != k or out.depth % k or out.stages < 2 or out.threads > 1024:
        raise IRError(f"row {row}: it takes an even number of columns of tiles, a depth in {k}s, 2 stages or more, at most 1024 threads")
    return out


class Multiplication:
    """The sums of a block, the panels they are made of, and the ring of their tiles."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, t: Tiling):
        warp, lane = scope.let("warp", Thread() // 32), scope.let("lane", Thread() % 32)
        down, across = scope.let("row", warp // t.across * (t.rows * 16)), scope.let("column", warp % t.across * (t.columns * 8))

        def extent(axes: tuple[int, ...]) -> int:
            return prod(kernel.extents[a] for a in axes)

        first = scope.let("m", Block(1) * (t.down * t.rows * 16)), scope.let("n", Block(0) * (t.across * t.columns * 8))
        self.rows = RowFragments(schedule.rows, extent(schedule.rows), first[0], scope.let("row", down + lane // 4), t.down * 8, t.rows * 2)
        self.columns = ColumnFragments(schedule.columns, extent(schedule.columns), first[1], scope.let("column", across + lane % 4 * 2),
                                       t.across * 4, t.columns * 2)
        scope.place(schedule.batch, scope.whole(Block(2)))
        self.tiling, self.panels = t, dict[tuple[Value, bool], Panel]()
        self.products = products(scope, list(kernel.folds), schedule.rows, schedule.columns)
        self.extent = kernel.extents[kernel.folds[0].axis]
        self.sums = [scope.name("sum") for _ in self.products]
        for p in self.products:
            for value, left in ((p.left, True), (p.right, False)):
                if value is None:
                    raise IRError(f"{kernel.name}: fold {p.fold.name} is no product of rows and columns")
                strip, begin = (self.rows, down) if left else (self.columns, across)
                if (value, left) not in self.panels:
                    self.panels[value, left] = Panel(scope, value, strip, p.fold.axis, t.depth, t.threads, t.stages, t.element, left,
                                                     begin, lane)
        self.copied = [p for p in self.panels.values() if p.load is not None]
        self.computed = [p for p in self.panels.values() if p.load is None]

    def run(self, scope: Emitter) -> None:
        """Add up all products."""
        t, extent = self.tiling, self.extent
        for array in self.sums:
            scope.emit(DeclareArray(array, dt.f32, 4 * t.rows * t.columns, const(dt.f32, 0)))
        for s in range(t.stages - 1):
            if s * t.depth < extent:
                for panel in self.panels.values():
                    panel.bring(scope, int32(s * t.depth), int32(s * panel.slot))
            scope.emit(CommitCopies())
        start = Var(scope.name("k"), dt.i32)
        body = scope.child()
        step = body.let("step", start // t.depth)
        now, then = body.let("slot", step % t.stages), body.let("slot", (step + (t.stages - 1)) % t.stages)
        following = body.let("k", start + (t.stages - 1) * t.depth)
        body.emit(WaitCopies(t.stages - 2), Barrier())
        more, write = body.child(), body.child()
        for panel in self.copied:
            panel.copy(more, following, then * panel.slot)
        for panel in self.computed:
            arrays = panel.declare(body)
            panel.fetch(more, arrays, following)
            panel.commit(write, arrays, then * panel.slot)
        body.emit(If(following < extent, tuple(more.body)), CommitCopies())
        self.step(body, now)
        if self.computed:
            body.emit(If(following < extent, tuple(write.body)))
        scope.emit(For(start, int32(0), int32(extent), int32(t.depth), False, tuple(body.body)))

    def step(self, scope: Emitter, slot: Expr) -> None:
        """Add the products of the tiles in a slot of the ring."""
        t = self.tiling
        k, i, j = (Var(scope.name(x), dt.i32) for x in "kij")
        body = scope.child()
        counts = {True: t.rows, False: t.columns // 2}
        arrays = {key: panel.fragments(body, counts[panel.left], k, slot * panel.slot) for key, panel in self.panels.items()}
        inner, outer = body.child(), body.child()
        for p, into in zip(self.products, self.sums, strict=True):
            assert p.left is not None and p.right is not None
            left, right = arrays[p.left, True], arrays[p.right, False]
            n = word(t.element)
            inner.emit(MultiplyMatrices(t.element, into, (i * t.columns + j) * 4, left, i * (4 * n), right, j * (2 * n)))
        outer.emit(counted(j, t.columns, inner))
        body.emit(counted(i, t.rows, outer))
        scope.emit(counted(k, t.depth // k_of(t.element), body))

    def held(self) -> dict[Value, Held]:
        """Where each fold's result is."""
        return {p.fold.result(): HeldSums(array, dt.f32, True, True) for p, array in zip(self.products, self.sums, strict=True)}


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a contraction on tensor cores; IRError where a fold is not a sum of products of two sides."""
    if not kernel.folds:
        raise IRError(f"{kernel.name}: a contraction needs a fold")
    t = tiling(schedule.row)
    scope = Emitter(kernel)
    m = Multiplication(scope, kernel, schedule, t)
    m.run(scope)
    Cells(m.rows, m.columns, m.held()).store(scope)
    grid = -(-m.columns.extent // m.columns.width), -(-m.rows.extent // m.rows.width), prod(kernel.extents[a] for a in schedule.batch)
    return finish(kernel, scope, grid, t.threads, tuple(p.buffer for p in m.panels.values()))
