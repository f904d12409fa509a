"""Form "contraction" on Hopper: sums of products by groups of four warps that multiply out of shared memory (wgmma).

The first group of 128 threads copies: a thread of it for each side asks the copy engine for boxes of that side's operands, `depth`
elements of the folded axis a stage, into a ring of stages; a side that needs not wait for an earlier kernel runs ahead of one that has
to.  Each other group multiplies 64 rows at a time of what has arrived, one stage behind the one that it has asked for, and gives a stage
back when its products are done.  A stage has a barrier that the bytes of both sides complete, and one at which every warp that multiplies
arrives.  While groups compute results of one tile, the ring fills with the next.

A block takes one tile of the result after another (`hopper_raster`), and of the last ones a share of their stages (`hopper_stream`).

A left operand that is computed from what copies bring is computed in registers, the next stage of it beside the products of one
(`hopper_prologue`); what was read for it is given back with that.

Products of a byte's types keep some 14 bits of what they add up.  Their sums of a stage, 128 elements, are begun anew and added in fp32:
while one group does that, another multiplies.

Groups may take turns: each has tiles of its own, and multiplies while the other computes its result.  What a stage brings is then read by
one group; the other leaves as many stages out as a tile has, and waits for its turn before it waits for the first of its own.

Where tiles are few, the blocks of a cluster share one: each takes a part of its stages, and they join (`hopper_shares`).  Where they are
many, those of a cluster may lie one above the other: each block brings a share of their columns to all, and a stage is given back to each.

Row: WORK=g<groups>x1/ws[-turns|/<c|m><blocks of a cluster>],
TILE=wgmma_m64n<wide>k<16|8|32>_<bf16|f16|tf32|e4m3|e5m2>_f32/f<rows>x<columns>/k<depth>,
STAGE=d<stages>/smem-tma[-once],RASTER=gm<together>[/p<blocks>[/sk]]: a tile is 64 * groups * rows by wide * columns, or with turns
64 * rows; depth counts elements; without p a block or a cluster has one tile, with sk the last ones are shared out; operands of columns
that are read once are the first to leave the second-level cache.  Any extents: copies fill with zeros and stores are clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from emmy.instructions import (
    Arrive,
    ArrivePeer,
    Assign,
    Barrier,
    ClusterArrive,
    ClusterWait,
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
    SyncWarp,
    WaitBarrier,
    WaitProducts,
)
from emmy.instructions.mma import depth as k_of
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Element, Expr, Kernel, SharedBuffer, Stmt, Thread, Var, const, int32
from emmy.ir.loop_ir import Load, Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel import hopper_windows as windows
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.fragments import HeldSums
from emmy.lower.tile_to_kernel.hopper_layers import Layers
from emmy.lower.tile_to_kernel.hopper_operand import Operand, clear
from emmy.lower.tile_to_kernel.hopper_prologue import Computed, Prepared, prepared
from emmy.lower.tile_to_kernel.hopper_raster import Raster
from emmy.lower.tile_to_kernel.hopper_result import Result
from emmy.lower.tile_to_kernel.hopper_shares import Shares
from emmy.lower.tile_to_kernel.hopper_stream import Stream
from emmy.lower.tile_to_kernel.hopper_tiling import Tiling, tiling
from emmy.lower.tile_to_kernel.layered import Layered, layered
from emmy.lower.tile_to_kernel.register_tile import Held
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Product, counted, products
from emmy.lower.tile_to_kernel.warpgroups import GROUP, WARPS, Ring, Turns

HALVES = (dt.bf16, dt.f16)
SHARE = {2: (40, 232), 3: (32, 160)}    # registers of a thread that copies and of one that multiplies, by groups that multiply


class Phase(NamedTuple):
    """Stages that follow one another: the axis that their elements run along, taps, stages of a tap, of all taps, and of the phases before
    it, operands with whether they are left ones, and for each array of sums its factors."""

    axis: int
    taps: tuple[int, ...]
    chunks: int
    steps: int
    before: int
    operands: tuple[tuple[Operand, bool], ...]
    factors: tuple[tuple[str, Operand | Computed, Operand], ...]

    @property
    def computed(self) -> list[Computed]:
        """The left operands that are computed."""
        return list(dict.fromkeys(left for _, left, _ in self.factors if isinstance(left, Computed)))


class Multiplication:
    """The operands of a kernel's products, their barriers and the tiles of its result.

    The sums of a join are one: its products come in phases, one for each, that share the ring and the registers."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, t: Tiling, layers: Layered | None = None):
        self.kernel, self.schedule, self.tiling = kernel, schedule, t
        nests, joined = windows.nests(kernel), schedule.form == "join"
        each = [p for nest in nests for p in products(scope, [nest[0]], schedule.rows, schedule.columns)]
        found = [self.views(scope.free, nest, p) for nest, p in zip(nests, each, strict=True)]
        if not joined and len(axes := {(x.axis, x.taps) for x in found}) > 1:
            raise IRError(f"{kernel.name} sums over different axes: {sorted(axes)}")
        self.barriers = SharedBuffer(scope.name("barrier"), dt.i64, 2 * t.stages)     # that a stage is full; that it is empty
        self.operands: dict[tuple[Load, bool], Operand] = {}
        self.computed: dict[Value, Computed] = {}
        factors = [(self.left(scope, x, joined), self.operand(scope, *x.right, False, joined)) for x in found]
        results = [nest[-1].result() for nest in nests]
        self.sums = {result: scope.name("sum") for result in (results[:1] if joined else results)}
        self.parts = {x: scope.name("part") if t.apart else x for x in self.sums.values()}      # what products add to
        scope.values.update({result: const(dt.f32, 0) for result in results[1:] if joined})     # which the first one has already
        arrays = [*self.sums.values()] * (len(results) if joined else 1)
        made = [(x, array, *sides) for x, array, sides in zip(found, arrays, factors, strict=True)]
        phases = [self.phase([one]) for one in made] if joined else [self.phase(made)]
        phases.sort(key=lambda phase: -phase.steps)                     # what is short may have to wait for an earlier kernel
        ends = [*accumulate(phase.steps for phase in phases)]
        self.phases = [phase._replace(before=end - phase.steps) for phase, end in zip(phases, ends, strict=True)]
        self.raster = (Layers(scope, layers, schedule, t) if layers else Raster(kernel, schedule, t) if not t.stream else
                       Stream(scope, kernel, schedule, t, ends[-1], self.sums.values()))
        self.turns = Turns(scope, t.groups) if t.turns else None
        self.shares = Shares(scope, t.cluster, t.groups, t.rows, t.width, self.sums.values()) if t.cluster > 1 else None
        if self.phases[0].steps < t.cluster:
            raise IRError(f"{kernel.name}: row {schedule.row}: {t.cluster} blocks share {self.phases[0].steps} stages")

    def extent(self, axes: tuple[int, ...]) -> int:
        return prod(self.kernel.extents[a] for a in axes)

    def views(self, free: Mapping[Value, frozenset[int]], nest: windows.Nest, product: Product) -> windows.Summed | Prepared:
        """What a nest sums over, and its operands."""
        s, left, right, element = self.schedule, product.left, product.right, self.tiling.element
        found: windows.Summed | Prepared | None = None
        if left is not None and right is not None:
            found = windows.summed(self.kernel, nest, element, (left, right), (s.rows, s.columns), s.batch)
            if found is None and len(nest) == 1 and s.form == "contraction" and element in HALVES and self.tiling.stack == 1:
                found = prepared(self.kernel, free, nest[0], left, right, element, (s.rows, s.columns), s.batch)
        if found is None:
            raise IRError(f"{self.kernel.name}: {[left, right]} are no operands that tensor maps have")
        return found

    def left(self, scope: Emitter, x: windows.Summed | Prepared, joined: bool) -> Operand | Computed:
        """A left operand: in shared memory, or computed from what is there."""
        if isinstance(x, windows.Summed):
            return self.operand(scope, *x.operands[0], True, joined)
        if x.value not in self.computed:
            raw = {load: self.operand(scope, load, view, True, False) for load, view in x.raw}
            self.computed[x.value] = Computed(scope, x, raw, self.tiling.element, self.tiling.depth, self.tiling.rows)
        return self.computed[x.value]

    def operand(self, scope: Emitter, load: Load, view: windows.View, left: bool, shared: bool) -> Operand:
        """A load as an operand; `shared`: it lies where one of its side lay before."""
        if (load, left) not in self.operands:
            t, positions = self.tiling, self.tiling.height if left else self.tiling.width
            once = not left and self.schedule.row.stage.endswith("-once")
            ring = t.ring if load.element.bytes == t.element.bytes else t.ring._replace(element=load.element)
            if t.depth % ring.line:
                raise IRError(f"{self.kernel.name}: {t.depth} elements of {load.element} are no whole lines of {maps.BYTES} bytes")
            buffer = next((x.buffer for (_, side), x in self.operands.items() if side == left), None) if shared else None
            self.operands[load, left] = Operand(scope, load, view, positions, ring, once, buffer, 1 if left else t.stack)
        return self.operands[load, left]

    def phase(self, made: Sequence[tuple[windows.Summed | Prepared, str, Operand | Computed, Operand]]) -> Phase:
        """The stages of sums over the same axes."""
        axis, taps = made[0][0].axis, made[0][0].taps
        chunks = -(-self.kernel.extents[axis] // self.tiling.depth)
        operands = dict.fromkeys((x, side) for _, _, left, right in made for x, side in (
            *((x, True) for x in (left.raw.values() if isinstance(left, Computed) else (left,))), (right, False)))
        return Phase(axis, taps, chunks, chunks * self.extent(taps), 0, tuple(operands), tuple(one[1:] for one in made))

    def prepare(self, scope: Emitter, stored: tuple[str, ...]) -> None:
        """Barriers, by one thread, and a meeting of all."""
        s = Var(scope.name("s"), dt.i32)
        made = scope.child()
        name, stages = self.barriers.name, self.tiling.stages
        made.emit(InitBarrier(name, s, 2), InitBarrier(name, s + stages, WARPS * self.tiling.sharing * self.tiling.stack))
        maps_ = (*(x.map.name for x in self.operands.values()), *stored)
        share, met = (self.shares.made(), (ClusterArrive(), Barrier())) if self.shares else ((), (Barrier(),))
        turns = self.turns.made() if self.turns else ()
        first = *(PrefetchMap(name) for name in maps_), counted(s, stages, made), *share, *turns, FenceBarriers()
        scope.emit(If(Thread() == 0, first), *(met if self.tiling.stack == 1 else (ClusterArrive(), ClusterWait())))

    def share(self, scope: Emitter, phase: Phase) -> tuple[Expr, Expr]:
        """The first stage of a phase that this block takes, and the one after its last."""
        return self.shares.part(scope, phase.steps) if self.shares else self.raster.part(scope, phase.before, phase.steps)

    def copy(self, scope: Emitter, left: bool) -> None:
        """What the thread does that copies the operands of a side."""
        ring, t, name = Ring(scope, self.tiling.stages), self.tiling, self.barriers.name

        def tile_(inner: Emitter, row: Expr, column: Expr) -> None:
            for phase in self.phases:
                operands = [x for x, side in phase.operands if side == left]
                size = sum(x.brought for x in operands)
                step, (begin, stop) = Var(inner.name("step"), dt.i32), self.share(inner, phase)
                body = inner.child()
                body.emit(WaitBarrier(name, ring.slot + t.stages, ring.phase ^ 1), ExpectBytes(name, ring.slot, size))
                chunk: Expr = step
                if phase.taps:
                    body.place(phase.taps, body.whole(step // phase.chunks))
                    chunk = step % phase.chunks
                start = body.let("k", chunk * t.depth)
                for x in operands:
                    body.emit(*x.copies(body, ring.slot, start, row if left else column, name, self.raster.rank))
                body.emit(*ring.advance())
                inner.emit(For(step, begin, stop, int32(1), False, tuple(body.body)))

        self.raster.each_tile(scope, tile_)
        if t.stack > 1 and not left:    # no block ends before every other has given back its last stages, and nothing comes after that
            last = scope.child()
            last.emit(WaitBarrier(name, ring.slot + t.stages, ring.phase ^ 1), *ring.advance())
            scope.emit(For(Var(scope.name("s"), dt.i32), int32(0), int32(t.stages), int32(1), False, tuple(last.body)))

    def multiply(self, scope: Emitter, result: Result) -> None:
        """What a group does that multiplies."""
        t = self.tiling
        for array in dict.fromkeys((*self.sums.values(), *self.parts.values())):
            scope.emit(DeclareArray(array, dt.f32, t.rows * t.width // 2, None))
        for x in self.computed.values():
            x.declare(scope)
        clear(scope, self.operands.values(), t.groups)
        ring, before = Ring(scope, t.stages), scope.declare("before", int32(0))
        steps = sum(phase.steps for phase in self.phases)
        if self.turns:
            self.turns.enter(scope, result.group, result.lane)
            scope.emit(If(result.group == 1, ring.skip(steps)))

        def tile_(inner: Emitter, row: Expr, column: Expr) -> None:
            result.begin(inner, row, column + self.shares.rank * self.shares.strip if self.shares else column)
            self.apart(inner, ring, result) if t.apart else self.together(inner, ring, before, result)
            if self.shares:
                self.shares.join(inner, result.group * GROUP + result.thread)
            self.raster.finish(inner, result)
            inner.emit(*(ring.skip(steps) if self.turns else ()))

        self.raster.each_tile(scope, tile_, result.group if self.turns else None)
        result.end(scope)

    def leave(self, result: Result, slot: Expr, begun: Expr | None = None) -> Stmt:
        """A warp gives back a stage, one that has `begun`: to the block that fills it, or to all whose copies do."""
        barrier, at, blocks = self.barriers.name, slot + self.tiling.stages, self.tiling.stack
        one, arrive = ((result.lane < blocks, ArrivePeer(barrier, at, result.lane)) if blocks > 1 else
                       (result.lane == 0, Arrive(barrier, at)))
        return If(one if begun is None else one & begun, (arrive,))

    def together(self, scope: Emitter, ring: Ring, before: Var, result: Result) -> None:
        """The sums of a tile, which the products of all its stages add to; `before`: the stage whose products may still run."""
        sums, barriers = tuple(self.sums.values()), self.barriers.name
        for x in self.computed.values():
            x.begin(scope, result)
        scope.emit(*(self.turns.wait() if self.turns else ()), FenceProducts(sums))
        for phase in self.phases:
            step, (begin, stop) = Var(scope.name("step"), dt.i32), self.share(scope, phase)
            body = scope.child()
            begun = step > begin if self.shares and not phase.before else self.raster.begun(step, phase.before)
            left_before = self.leave(result, before, begun)
            body.emit(WaitBarrier(barriers, ring.slot, ring.phase))
            for x in phase.computed:
                x.compute(body, ring.slot, body.let("k", step * self.tiling.depth))
            if phase.computed:
                body.emit(SyncWarp(), WaitProducts(0), left_before)    # one lane gives back what all have read
            for x in phase.computed:
                x.hand_on(body)
            body.emit(FenceProducts(tuple(x.array for x in phase.computed)))
            self.step(body, phase, ring.slot, begun, result.start)
            body.emit(CommitProducts(), *([] if phase.computed else [WaitProducts(1), left_before]),
                      Assign(before, ring.slot), *ring.advance())
            scope.emit(For(step, begin, stop, int32(1), False, tuple(body.body)))
        scope.emit(*([self.turns.hand_on()] if self.turns else []), WaitProducts(0, sums), self.leave(result, before))
        if self.computed:       # x * 1 + -0 is x; the assembler takes a conversion of sums without it for one of sums under way (C7514)
            self.each_sum(scope, lambda array, e: Apply("fma", (Element(array, dt.f32, e), const(dt.f32, 1), const(dt.f32, -0.0))))

    def apart(self, scope: Emitter, ring: Ring, result: Result) -> None:
        """The sums of a tile, of those of its stages."""
        parts, barriers = tuple(self.parts.values()), self.barriers.name
        self.each_sum(scope, lambda array, e: const(dt.f32, 0))
        scope.emit(*(self.turns.wait() if self.turns else ()))
        for phase in self.phases:
            body, (begin, stop) = scope.child(), self.share(scope, phase)
            body.emit(WaitBarrier(barriers, ring.slot, ring.phase), FenceProducts(parts))
            self.step(body, phase, ring.slot, const(dt.bool_, False), result.start)
            body.emit(CommitProducts(), WaitProducts(0, parts), self.leave(result, ring.slot))
            self.each_sum(body, lambda array, e: Apply("add", (Element(array, dt.f32, e), Element(self.parts[array], dt.f32, e))))
            body.emit(*ring.advance())
            scope.emit(For(Var(scope.name("step"), dt.i32), begin, stop, int32(1), False, tuple(body.body)))
        scope.emit(*([self.turns.hand_on()] if self.turns else []))

    def each_sum(self, scope: Emitter, value: Callable[[str, Expr], Expr]) -> None:
        """Set every element of the sums, of an array by its name."""
        e = Var(scope.name("e"), dt.i32)
        body = scope.child()
        body.emit(*(SetElement(array, dt.f32, e, value(array, e)) for array in self.sums.values()))
        scope.emit(counted(e, self.tiling.rows * self.tiling.width // 2, body))

    def held(self) -> dict[Value, Held]:
        """Where each fold's result is."""
        made = self.shares.totals if self.shares else {}
        return {result: HeldSums(made.get(array, array), dt.f32, True, True) for result, array in self.sums.items()}

    def step(self, scope: Emitter, phase: Phase, slot: Expr, begun: Expr, start: Expr) -> None:
        """The products of a stage, of a group's rows from `start` on; they begin the sums of a tile that has not `begun`."""
        t = self.tiling
        q, i, j = (Var(scope.name(x), dt.i32) for x in "qij")
        body = scope.child()
        for array, left, right in phase.factors:
            part = self.parts[array]
            from_right, into = right.at(slot, q, j * t.wide), (i * t.columns + j) * (t.wide // 2)
            to, chunk = (right.buffer.name, from_right, right.major, begun | (q > 0)), t.ring.line * t.depth
            if isinstance(left, Computed):
                body.emit(MultiplyWarpgroupRegisters(t.element, t.wide, part, into, left.array, left.at(i, q), *to, chunk))
            else:
                from_left = left.at(slot, q, start + i * 64)
                body.emit(MultiplyWarpgroup(t.element, t.wide, part, into, left.buffer.name, from_left, left.major, *to, chunk))
        rows, columns = scope.child(), scope.child()
        columns.emit(counted(j, t.columns, body))
        rows.emit(counted(i, t.rows, columns))
        deep = t.depth if phase.chunks > 1 else min(t.depth, self.kernel.extents[phase.axis])
        scope.emit(counted(q, -(-deep // k_of(t.element)), rows))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a contraction; IRError where an operand is none that a tensor map has."""
    if not kernel.folds:
        raise IRError(f"{kernel.name}: a contraction needs a fold")
    t = tiling(schedule.row)
    found = layered(kernel) if schedule.form == "layered" else None
    if found:
        kernel, schedule = found.kernel, schedule.replace(batch=(found.axis,))
    scope = Emitter(kernel)
    m = Multiplication(scope, kernel, schedule, t, found)
    result = Result(scope, kernel, schedule, t.groups, t.rows, t.width // t.cluster, m.held(), t.cluster, t.turns,
                    m.raster.written if isinstance(m.raster, Layers) else None)
    m.prepare(scope, tuple(x.name for x in result.maps))
    m.raster.enter(scope)
    copying, multiplying = scope.child(), scope.child()
    for left in (True, False):
        alone = copying.child()
        m.copy(alone, left)
        copying.emit(If(Thread() == (0 if left else 32), tuple(alone.body)))
    copying.emit(*[ClusterWait()] * (t.cluster > 1))
    result.enter(multiplying)
    m.multiply(multiplying, result)
    t.part(scope, SHARE, copying.body, multiplying.body)
    shared = *dict.fromkeys(x.buffer for x in m.operands.values()), *result.shared, *(m.shares.shared if m.shares else ()), m.barriers
    shared += *((m.turns.barrier,) if m.turns else ()), *m.raster.tables
    maps_ = *(x.map for x in m.operands.values()), *result.maps
    return finish(kernel, scope, (m.raster.grid, 1, 1), t.threads, shared, maps_, m.raster.own, m.raster.size)
