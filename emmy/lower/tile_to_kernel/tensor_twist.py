"""Form "twist" on tensor cores: a softmax-twisted fold over keys j in one pass, its score and its sums products of halves.

A block of R warps holds R * F * 16 rows and all columns, a warp F * 16 rows of them.  Each step multiplies the rows' queries by G * 8
keys, rescales what the warp has to the new maxima, and multiplies the weights, rounded to halves, by the keys' values: the sums of
one product lie in registers as the left operand of the next takes them.  Tiles of keys and values form a ring of stages.

Row: WORK=w<R>,TILE=mma_m16n8k16_<bf16|f16>_f32/f<F>x<G>,STAGE=d<stages>/smem-async[,RASTER=live], G even, at least 2 stages; any extents.
A live row leaves out tiles of keys whose scores are all -inf (`key_tiles`).
Shared bytes: 2 * (R * F * 16 * D + stages * G * 8 * (D + V * N)) for a score over D elements and V channels of N columns, D and N
rounded up to multiples of 16.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.cp_async import CommitCopies, WaitCopies
from emmy.instructions.mma import MultiplyMatrices
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Block, Const, Convert, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.fragments import ColumnFragments, HeldSums, Panel, RowFragments
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles
from emmy.lower.tile_to_kernel.register_tile import Cells
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted, products, under
from emmy.lower.tile_to_kernel.twist_tile import Pass, one_pass


class Tiling(NamedTuple):
    """A row as numbers: warps, tiles of a warp by rows and by keys, stages, operand type, whether keys that do not count are left out."""

    warps: int
    rows: int
    keys: int
    stages: int
    element: DType
    live: bool

    @property
    def threads(self) -> int:
        return 32 * self.warps


def tiling(row: tile.Row) -> Tiling:
    """The numbers of a row; IRError if it is not one of this form."""
    work = re.fullmatch(r"w(\d+)", row.work)
    cover = re.fullmatch(r"mma_m16n8k16_(bf16|f16)_f32/f(\d+)x(\d+)", row.tile)
    stage = re.fullmatch(r"d(\d+)/smem-async", row.stage)
    if not work or not cover or not stage or row.reduce or row.raster not in ("", "live"):
        raise IRError(f"row {row}: a twist on tensor cores is spelled WORK=w4,TILE=mma_m16n8k16_bf16_f32/f1x8,STAGE=d2/smem-async")
    out = Tiling(int(work[1]), int(cover[2]), int(cover[3]), int(stage[1]), dt.named(cover[1]), row.raster == "live")
    if min(out[:-2]) < 1 or out.keys % 2 or out.stages < 2 or out.threads > 1024:
        raise IRError(f"row {row}: it takes an even number of tiles of keys, 2 stages or more, and at most 32 warps")
    return out


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a twisted fold on tensor cores; IRError where the kernel is not one or the row does not fit."""
    t = tiling(schedule.row)
    return one_pass(kernel, schedule, lambda scope: TensorPass(scope, schedule, t), t.threads)


def padded(n: int) -> int:
    return -(-n // 16) * 16


class TensorPass(Pass):
    """One pass over the keys: the state of each row in a warp's fragments, queries and the ring of keys and values in shared memory."""

    def __init__(self, scope: Emitter, schedule: tile.Schedule, t: Tiling):
        kernel, self.scope, self.fragments = scope.kernel, scope, t
        self.fold = self._twist(schedule)
        self.axis, self.score = self.fold.axis, self.fold.lifts[0]
        warp, lane = scope.let("warp", Thread() // 32), scope.let("lane", Thread() % 32)
        down, pair, size = scope.let("row", warp * (t.rows * 16)), scope.let("column", lane % 4 * 2), kernel.extents
        first = scope.let("m", Block(1) * (t.warps * t.rows * 16))
        self.rows = RowFragments(schedule.rows, prod(size[a] for a in schedule.rows), first, scope.let("row", down + lane // 4),
                                 t.warps * 8, t.rows * 2)
        across = prod(size[a] for a in schedule.columns)
        self.columns = ColumnFragments(schedule.columns, across, int32(0), pair, 4, padded(across) // 4)
        self.start = Var(scope.name("j"), dt.i32)
        self.tile = ColumnFragments((self.axis,), size[self.axis], self.start, pair, 4, t.keys * 2)
        self.tiles = KeyTiles(kernel, self.fold, schedule.rows, self.rows.width, self.tile.width, t.live)
        self.score = self.tiles.masked
        scope.free.update(tile.free_axes((self.score,)))
        self.results = {v: HeldSums(*h) if h.on_columns else h for v, h in self._results(schedule).items()}
        nested = [kernel.fold(v.fold) for v in loop.walk((self.score,)) if isinstance(v, tile.FoldResult) and self.axis in v.needs]
        sums = products(scope, nested, schedule.rows, (self.axis,))
        wide = [v for v in self.fold.lifts[1:] if not scope.free[v].isdisjoint(schedule.columns)]
        if len(sums) != 1 or sums[0].left is None or sums[0].right is None or not wide:
            raise IRError(f"{kernel.name}: a twist on tensor cores takes a score with one sum of products of rows and keys, and columns")
        self.sum, over = sums[0].fold.result(), sums[0].fold.axis
        depth = padded(size[over])
        self.steps = depth // 16

        def panel(value: loop.Value, strip: RowFragments | ColumnFragments, axis: int, depth: int, left: bool) -> Panel:
            slots, begin = (1, down) if left else (t.stages, int32(0))
            return Panel(scope, value, strip, axis, depth, t.threads, slots, t.element, left, begin, lane)

        self.query, self.key = panel(sums[0].left, self.rows, over, depth, True), panel(sums[0].right, self.tile, over, depth, False)
        self.panels = {v: panel(v, self.columns, self.axis, self.tile.width, False) for v in wide}
        self.products, self.weights_ = scope.name("score"), scope.name("weights")

    @property
    def lanes(self) -> int:
        return 4

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return tuple(p.buffer for p in (self.query, self.key, *self.panels.values()))

    def begin(self) -> None:
        """Set the neutral state; bring the queries, which serve every tile of keys, and the first tiles of the ring."""
        self.clear()
        self.query.bring(self.scope, int32(0), int32(0))
        scope, width = self.scope, self.tile.width
        last, count, _ = self.tiles.range(scope, Block(1))
        self.low, self.high = scope.let("low", (last + 1 - count) * width), scope.let("high", (last + 1) * width)
        for s in range(self.fragments.stages - 1):
            there, more = self.low + s * width < self.high, scope.child()
            if not isinstance(there, Const) or there.value:
                self.bring(more, self.low + s * width, int32(s))
            scope.emit(*under(None if isinstance(there, Const) else there, more.body), CommitCopies())
        self.cells = Cells(self.rows, self.tile, {self.sum: HeldSums(self.products, dt.f32, True, True)})
        self.cells.prepare(self.scope, self.rooted(), "rows")

    def bring(self, scope: Emitter, start: Expr, slot: Expr) -> None:
        """Bring the keys and values from `start` on to a slot of the ring."""
        self.key.moved(start).bring(scope, int32(0), slot * self.key.slot)
        for panel in self.panels.values():
            panel.bring(scope, start, slot * panel.slot)

    def keys(self) -> None:
        """The loop over tiles of keys."""
        scope, stages, width = self.scope, self.fragments.stages, self.tile.width
        body = scope.child()
        step = body.let("step", (self.start - self.low) // width)
        now, then = body.let("slot", step % stages), body.let("slot", (step + (stages - 1)) % stages)
        following = body.let("k", self.start + (stages - 1) * width)
        body.emit(WaitCopies(stages - 2), Barrier())
        more = body.child()
        self.bring(more, following, then)
        body.emit(If(following < self.high, tuple(more.body)), CommitCopies())
        self.multiply_keys(body, now)
        self.absorb(body, self.evaluate(body))
        self.multiply_values(body, now)
        scope.emit(For(self.start, self.low, self.high, int32(width), False, tuple(body.body)))

    def multiply_keys(self, body: Emitter, slot: Expr) -> None:
        """The sums that the scores of a tile read."""
        t = self.fragments
        body.emit(DeclareArray(self.products, dt.f32, 4 * t.rows * t.keys, const(dt.f32, 0)))
        step = Var(body.name("d"), dt.i32)
        inner = body.child()
        left = self.query.fragments(inner, t.rows, step, int32(0))
        right = self.key.fragments(inner, t.keys // 2, step, slot * self.key.slot)
        self.multiply(inner, self.products, left, int32(0), 8, right, t.keys)
        body.emit(counted(step, self.steps, inner))

    def hand_on(self, body: Emitter, scores: str) -> None:
        """Round the weights of a tile to halves, as left operands: for each tile of rows and each 16 keys, the two tiles of 8 keys."""
        t = self.fragments
        i, c = Var(body.name("i"), dt.i32), Var(body.name("c"), dt.i32)
        at = (i // 2 * (t.keys // 2) + c // 4) * 8 + (c // 2 % 2 * 4 + (i % 2 * 2 + c % 2))
        outer, inner = body.child(), body.child()
        weight = Element(scores, dt.f32, i * self.tile.count + c)
        inner.emit(SetElement(self.weights_, t.element, at, Convert(t.element, weight)))
        outer.emit(counted(c, self.tile.count, inner))
        body.emit(DeclareArray(self.weights_, t.element, 4 * t.rows * t.keys, None), counted(i, self.rows.count, outer))

    def multiply_values(self, body: Emitter, slot: Expr) -> None:
        """Add weights times values over the tile's keys to the wide channels."""
        t, step = self.fragments, Var(body.name("s"), dt.i32)
        inner = body.child()
        for v, into in self.wide():
            right = self.panels[v].fragments(inner, self.columns.width // 16, step, slot * self.panels[v].slot)
            self.multiply(inner, into, self.weights_, step * 8, t.keys * 4, right, self.columns.width // 8)
        body.emit(counted(step, t.keys // 2, inner))

    def multiply(self, scope: Emitter, into: str, left: str, first: Expr, pitch: int, right: str, columns: int) -> None:
        """into += left * right for every tile of rows, whose left fragments begin `pitch` apart from `first` on, and tile of columns."""
        t, i, j = self.fragments, Var(scope.name("i"), dt.i32), Var(scope.name("j"), dt.i32)
        outer, inner = scope.child(), scope.child()
        inner.emit(MultiplyMatrices(t.element, into, (i * columns + j) * 4, left, first + i * pitch, right, j * 4))
        outer.emit(counted(j, columns, inner))
        scope.emit(counted(i, t.rows, outer))
