"""Form "twist" on Hopper: a softmax-twisted fold over keys j in one pass, multiplied by groups of four warps out of shared memory.

The first group of 128 threads copies: one thread of it asks for boxes of queries, and of keys and values in rings of stages.  Each other
group has 64 rows and all columns in registers.  A step multiplies queries by a tile of keys into registers and, at the same time, the
weights of the tile before, as a left operand in registers, by its values; the maxima, weights and rescaling of the step's scores then
run beside the second product.  With turns, one group issues its products while the others compute weights.

Weights are powers of two: a positive factor of the score and log2(e) are multiplied in with one rounding, and the pivot is the maximum of
what is left of the score.  Keys go from the last tile to the first.  A block takes every `blocks`-th tile of rows, the tiles of `layers`
points of the batch together, the last rows first; blocks change direction from round to round, so that each has long tiles and short
ones.  Where the row says so, tiles of keys whose scores are all -inf are left out, and tiles where the mask holds have none.  Which these
are values of rows may tell (`read_bounds`): every warp that multiplies finds that for itself, and so does the one that copies.

Row: WORK=g<groups>/ws[-turns],TILE=wgmma_m64n<keys>k16_<bf16|f16>_f32/f1x1,STAGE=d<stages>q<queries>/smem-tma,
RASTER=gb<layers>/p<blocks>[/live].  Any extents: copies fill with zeros, keys beyond the end score -inf, stores are clipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import NamedTuple

from emmy.instructions import (
    Arrive,
    Barrier,
    CommitProducts,
    DeclareArray,
    ExpectBytes,
    FenceBarriers,
    FenceProducts,
    For,
    If,
    InitBarrier,
    MultiplyWarpgroup,
    MultiplyWarpgroupRegisters,
    PrefetchMap,
    SetElement,
    WaitBarrier,
    WaitProducts,
)
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Stmt, TensorMap, Thread, Var, fold, int32
from emmy.ir.loop_ir import Value, load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.hopper_operand import Operand, Stages, clear
from emmy.lower.tile_to_kernel.hopper_result import Result
from emmy.lower.tile_to_kernel.hopper_softmax import RegisterPass
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles, Order
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted
from emmy.lower.tile_to_kernel.warpgroups import WARPS, Groups, Ring, Turns

# registers of a thread that copies and of one that multiplies, by whether a warp finds which keys count and by groups that multiply
SHARE = {False: {2: (24, 240), 3: (32, 160)}, True: {2: (40, 232), 3: (32, 160)}}


class Tiling(Groups):
    """A row as numbers: groups that multiply, 64 rows each, whether they take turns, keys of a tile, stages of keys and values, tiles of
    queries, points of the batch together, blocks, whether keys that do not count are left out, type of the operands."""

    turns: bool
    keys: int
    stages: int
    queries: int
    layers: int
    blocks: int
    live: bool
    element: DType


def tiling(row: tile.Row) -> Tiling:
    """The numbers of a row; IRError if it is not one of this form."""
    work, stage = re.fullmatch(r"g(\d+)/ws(-turns)?", row.work), re.fullmatch(r"d(\d+)q(\d+)/smem-tma", row.stage)
    cover = re.fullmatch(r"wgmma_m64n(\d+)k16_(bf16|f16)_f32/f1x1", row.tile)
    raster = re.fullmatch(r"gb(\d+)/p(\d+)(/live)?", row.raster)
    if not work or not cover or not stage or not raster or row.reduce:
        raise IRError(f"row {row}: a row of this form is spelled "
                      "WORK=g2/ws-turns,TILE=wgmma_m64n128k16_bf16_f32/f1x1,STAGE=d2q1/smem-tma,RASTER=gb8/p132/live")
    out = Tiling(int(work[1]), 1, bool(work[2]), int(cover[1]), int(stage[1]), int(stage[2]), int(raster[1]), int(raster[2]),
                 bool(raster[3]), dt.named(cover[2]))
    if not 1 <= out.groups <= 3 or out.keys % 16 or not 16 <= out.keys <= 256 or min(out.stages, out.queries, out.layers, out.blocks) < 1:
        raise IRError(f"row {row}: it takes 1 to 3 groups and 16 to 256 keys in 16s")
    return out


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a twisted fold; IRError where the kernel is not one or a tensor map has not its operands."""
    t = tiling(schedule.row)
    scope = Emitter(kernel)
    pass_ = BulkPass(scope, schedule, t)
    pass_.prepare()
    alone, multiplying = scope.child(), scope.child()
    pass_.copy(alone)
    pass_.multiply(multiplying)
    copies = If(Thread() < 32 if pass_.together else Thread() == 0, tuple(alone.body))
    t.part(scope, SHARE[pass_.together], (copies,), multiplying.body)
    return finish(kernel, scope, (pass_.order.blocks, 1, 1), t.threads, pass_.shared, pass_.maps)


def order(t: Tiling, steps: KeyTiles, batch: int) -> Order:
    """The order of the tiles of rows of a row of this form."""
    return Order(steps.tiles, batch, min(t.layers, batch), min(t.blocks, steps.tiles * batch), steps.skips)


class Barriers(NamedTuple):
    """Barriers of a ring: full when the bytes have come, empty when every warp that multiplies has read them."""

    full: SharedBuffer
    empty: SharedBuffer
    stages: int


class BulkPass(RegisterPass):
    """The pass over the keys: queries, keys and values in shared memory, the state of each row in the registers of a group."""

    def __init__(self, scope: Emitter, schedule: tile.Schedule, t: Tiling):
        super().__init__(scope, schedule, t.groups, t.keys, t.element, self._steps(scope, schedule, t))
        self.bulk, kernel, size = t, self.kernel, self.kernel.extents
        left, right, over, wide = self.product.left, self.product.right, self.product.fold.axis, [v for v, _ in self.wide()]
        if left is None or right is None or not wide:
            raise IRError(f"{kernel.name}: a twist of this form takes a score with one sum of products of rows and keys, and columns")
        self.depth, across = size[over], prod(size[a] for a in schedule.columns)
        self.width = -(-across // 16) * 16
        deep, lines = (-(-n // maps.LINE) * maps.LINE for n in (self.depth, across))
        self.query = self.operand(left, over, schedule.rows, schedule.batch, t.height, deep, t.queries)
        self.key = self.operand(right, over, (self.axis,), schedule.batch, t.keys, deep, t.stages)
        self.values_by = {v: self.operand(v, self.axis, schedule.columns, schedule.batch, lines, t.keys, t.stages) for v in wide}
        self.order = order(t, self.steps, prod(size[a] for a in schedule.batch))
        self.rings = [Barriers(SharedBuffer(scope.name("full"), dt.i64, n), SharedBuffer(scope.name("empty"), dt.i64, n), n)
                      for n in (t.queries, t.stages, t.stages)]
        self.turns = Turns(scope, t.groups) if t.turns else None
        self.out = Result(scope, kernel, schedule, t.groups, 1, self.width, self.results)

    @staticmethod
    def _steps(scope: Emitter, schedule: tile.Schedule, t: Tiling) -> KeyTiles:
        twist = next((f for f in scope.kernel.folds if f.kind == "twist"), None)
        if twist is None:
            raise IRError(f"{scope.kernel.name}: form twist takes a fold of kind twist")
        return KeyTiles(scope.kernel, twist, schedule.rows, t.height, t.keys, t.live)

    def operand(self, value: Value, folded: int, side: tuple[int, ...], batch: tuple[int, ...], positions: int, depth: int,
                stages: int) -> Operand:
        """A load of halves as tiles in a ring."""
        t, kernel = self.bulk, self.kernel
        load = load_of(value, t.element)
        view = load and maps.operand(self.scope.tensors[load.tensor], load.point, folded, side, batch, kernel.extents)
        if not load or not view:
            raise IRError(f"{kernel.name}: {value} is no operand that a tensor map has")
        return Operand(self.scope, load, view, positions, Stages(depth, stages, t.element))

    @property
    def together(self) -> bool:
        """Whether the warp of the thread that copies goes with it, to find which keys count for a tile of rows."""
        return bool(self.steps.read) and self.steps.read.vary

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.query, self.key, *self.values_by.values()

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        return *(x.map for x in self.operands), *self.out.maps

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        barriers = [b for ring in self.rings for b in (ring.full, ring.empty)]
        return *(x.buffer for x in self.operands), *self.out.shared, *barriers, *([self.turns.barrier] if self.turns else [])

    def prepare(self) -> None:
        """Barriers, by one thread, and a meeting of all."""
        scope, arrivals = self.scope, WARPS * self.bulk.groups
        made = [InitBarrier(b.name, int32(s), n) for ring in self.rings for b, n in ((ring.full, 1), (ring.empty, arrivals))
                for s in range(ring.stages)]
        turns = self.turns.made() if self.turns else ()
        scope.emit(If(Thread() == 0, (*(PrefetchMap(m.name) for m in self.maps), *made, *turns, FenceBarriers())), Barrier())

    # -- tiles of rows ------------------------------------------------------------------------------------------
    def each_tile(self, scope: Emitter, body: Callable[[Emitter, Expr], None]) -> None:
        """`body` for the number of each tile of rows of this block, at its point of the batch."""
        o = self.order
        rounds, left = divmod(o.tiles, o.blocks)
        turn = Var(scope.name("round"), dt.i32)
        inner = scope.child()
        back = int32(o.blocks - 1) - Block(0)
        at = fold("select", turn % 2 == 1, back, Block(0)) if o.uneven else Block(0)
        number = inner.let("tile", turn * o.blocks + at)
        trips: Expr = int32(rounds)
        if left:
            trips = scope.let("rounds", fold("select", (back if o.uneven and rounds % 2 else Block(0)) < left, trips + 1, trips))
        row = number
        if o.batch == 1:
            inner.place(self.schedule.batch, inner.whole(int32(0)))
        else:
            first = inner.let("layer", number // (o.layers * o.down) * o.layers)
            inside = inner.let("inside", number % (o.layers * o.down))
            height: Expr = int32(o.layers)
            if o.batch % o.layers:
                height = inner.let("layers", fold("min", o.batch - first, height))
            inner.place(self.schedule.batch, inner.whole(first + inside % height))
            row = inside // height
        body(inner, inner.let("rows", o.down - 1 - row if o.uneven else row))
        scope.emit(For(turn, int32(0), trips, int32(1), False, tuple(inner.body)))

    def copy(self, scope: Emitter) -> None:
        """What the thread does that copies, with its warp where that finds which keys count: a tile of queries, then keys one tile ahead of
        values."""
        t, stages = self.bulk, [Ring(scope, ring.stages) for ring in self.rings]

        def bring(inner: Emitter, which: int, operands: Iterable[tuple[Operand, Expr, Expr]]) -> None:
            ring, at, given = self.rings[which], stages[which], list(operands)
            size = sum(x.brought for x, _, _ in given)
            inner.emit(WaitBarrier(ring.empty.name, at.slot, at.phase ^ 1), ExpectBytes(ring.full.name, at.slot, size))
            for x, start, first in given:
                inner.emit(*x.copies(inner, at.slot, start, first, ring.full.name))
            inner.emit(*at.advance())

        def tile_(inner: Emitter, row: Expr) -> None:
            last, count, _ = self.steps.range(inner, row)
            outer, inner = inner, inner.child() if self.together else inner

            def keys(body: Emitter, step: Expr) -> None:
                bring(body, 1, [(self.key, int32(0), body.let("j", (last - step) * t.keys))])

            def values(body: Emitter, step: Expr) -> None:
                start = body.let("j", (last - step) * t.keys)
                bring(body, 2, [(x, start, int32(0)) for x in self.values_by.values()])

            keys(inner, int32(0))
            bring(inner, 0, [(self.query, int32(0), inner.let("m", row * t.height))])
            step = Var(inner.name("step"), dt.i32)
            body = inner.child()
            keys(body, step)
            values(body, step - 1)
            inner.emit(For(step, int32(1), count, int32(1), False, tuple(body.body)))
            values(inner, count - 1)
            if self.together:
                outer.emit(If(Thread() == 0, tuple(inner.body)))

        self.each_tile(scope, tile_)

    # -- groups that multiply -----------------------------------------------------------------------------------
    def multiply(self, scope: Emitter) -> None:
        """What a group does that multiplies."""
        t, out = self.bulk, self.out
        out.enter(scope)
        wide = [s for _, s in self.wide()]
        scope.emit(DeclareArray(self.products, dt.f32, t.keys // 2), DeclareArray(self.weights_, t.element, t.keys // 2),
                   *(DeclareArray(s, dt.f32, self.width // 2) for s in wide), DeclareArray(self.scale, dt.f32, 2))
        clear(scope, self.operands, t.groups)
        self.stages = [Ring(scope, ring.stages) for ring in self.rings]
        if self.turns:
            self.turns.enter(scope, out.group, out.lane)

        def tile_(inner: Emitter, row: Expr) -> None:
            self.begin_tile(inner, row, out)
            tiles = self.steps.range(inner, row, True)
            inner.emit(self.wait(0), self.wait(1), FenceProducts((self.products,)))
            self.multiply_keys(inner)
            inner.emit(CommitProducts(), WaitProducts(0, (self.products,)), *self.free(1))
            self.absorb_tile(inner, inner.let("j", tiles.last * t.keys), self.steps.masked_first)
            self.hand_on(inner, self.products)
            for low, high, masked in self.steps.loops(inner, row, tiles):
                step = Var(inner.name("step"), dt.i32)
                body = inner.child()
                self.step(body, step, body.let("j", (tiles.last - step) * t.keys), masked)
                inner.emit(For(step, low, high, int32(1), False, tuple(body.body)))
            inner.emit(*self.free(0), self.wait(2), FenceProducts((self.weights_, *wide)))
            self.multiply_values(inner, int32(1) < tiles.steps)
            inner.emit(CommitProducts(), WaitProducts(0, tuple(wide)), *self.free(2))
            self.end_tile(inner)

        self.each_tile(scope, tile_)
        out.end(scope)

    def wait(self, which: int) -> Stmt:
        return WaitBarrier(self.rings[which].full.name, self.stages[which].slot, self.stages[which].phase)

    def free(self, which: int) -> tuple[Stmt, ...]:
        """This warp has read the stage that it is at; on to the next."""
        ring = self.stages[which]
        return If(self.out.lane == 0, (Arrive(self.rings[which].empty.name, ring.slot),)), *ring.advance()

    def multiply_keys(self, scope: Emitter) -> None:
        """The sums that the scores of a tile read."""
        t, d = self.bulk, Var(scope.name("d"), dt.i32)
        body = scope.child()
        left = self.query.at(self.stages[0].slot, d, self.out.group * 64)
        right = self.key.at(self.stages[1].slot, d, int32(0))
        body.emit(MultiplyWarpgroup(t.element, t.keys, self.products, int32(0), self.query.buffer.name, left, self.query.major,
                                    self.key.buffer.name, right, self.key.major, d > 0, maps.LINE * self.key.stages.depth))
        scope.emit(counted(d, -(-self.depth // 16), body))

    def multiply_values(self, scope: Emitter, more: Expr) -> None:
        """Add weights times values over the tile's keys to the wide channels; without `more` that begins their sums."""
        t, q = self.bulk, Var(scope.name("q"), dt.i32)
        body = scope.child()
        for v, into in self.wide():
            x = self.values_by[v]
            body.emit(MultiplyWarpgroupRegisters(t.element, self.width, into, int32(0), self.weights_, q * 8, x.buffer.name,
                                                 x.at(self.stages[2].slot, q, int32(0)), x.major, (q > 0) | more,
                                                 maps.LINE * x.stages.depth))
        scope.emit(counted(q, t.keys // 16, body))

    def step(self, scope: Emitter, step: Expr, start: Expr, masked: bool) -> None:
        """One tile of keys, and the values of the tile before."""
        wide = tuple(s for _, s in self.wide())
        scope.emit(self.wait(1))
        if self.turns:
            scope.emit(*self.turns.wait())
        scope.emit(FenceProducts((self.products, self.weights_, *wide)))
        self.multiply_keys(scope)
        scope.emit(CommitProducts(), self.wait(2), FenceProducts())
        self.multiply_values(scope, step > 1)
        scope.emit(CommitProducts())
        if self.turns:
            scope.emit(self.turns.hand_on())
        scope.emit(WaitProducts(1, (self.products,)), *self.free(1))
        self.absorb_tile(scope, start, masked)
        scope.emit(WaitProducts(0, wide), *self.free(2))
        n = Var(scope.name("n"), dt.i32)
        for array in wide:
            body = scope.child()
            body.emit(SetElement(array, dt.f32, n, Apply("mul", (Element(array, dt.f32, n), Element(self.scale, dt.f32, n // 2 % 2)))))
            scope.emit(counted(n, self.width // 2, body))
        self.hand_on(scope, self.products)

    def end_tile(self, scope: Emitter) -> None:
        """Join the sums of the lanes that share a row, and store the result."""
        self.join(scope)
        self.out.begin(scope, self.rows.first, int32(0))
        self.out.store(scope)
