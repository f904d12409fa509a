"""The scores of 64 rows by a tile of keys in the registers of a group of warps, and what becomes of them: the weights of a softmax.

A lane has two rows, 8 apart, and two neighbouring keys in each 8, as the sums of a warpgroup's product lie.  Scores, then weights, take
the place of these sums; rounded to halves, weights lie as the left operand of the next product takes them.

Weights are powers of two: a positive factor of the score and log2(e) are multiplied in with one rounding, 2^(f*s - f*m), and the pivot m
is the maximum of what is left of the score.
"""

from __future__ import annotations

from dataclasses import replace
from math import e as EULER
from math import isfinite, log2, prod

from emmy.instructions import DeclareArray, SetElement
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Convert, Element, Expr, Var, const, int32
from emmy.ir.loop_ir import Load, Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel import softmax
from emmy.lower.tile_to_kernel.fragments import ColumnFragments, HeldSums
from emmy.lower.tile_to_kernel.hopper_result import GroupRows, Result
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles
from emmy.lower.tile_to_kernel.register_tile import Cells
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Strip, both, counted, products
from emmy.lower.tile_to_kernel.twist_tile import LOW, Pass


def scaled(score: Value) -> tuple[float, Value]:
    """A positive factor and a value whose product the score is; -inf has every factor."""
    match score:
        case loop.Apply("mul", (loop.Const(element, bits), x)) | loop.Apply("mul", (x, loop.Const(element, bits))):
            factor, (inner, value) = float(dt.value(element, bits)), scaled(x)
            return (factor * inner, value) if factor > 0 and isfinite(factor) else (1.0, score)
        case loop.Apply("select", (c, x, loop.Const(_, bits) as low)) if low.dtype is dt.f32 and bits == LOW.bits:
            factor, value = scaled(x)
            return factor, loop.Apply("select", (c, value, low))
        case loop.Apply("select", (c, loop.Const(_, bits) as low, x)) if low.dtype is dt.f32 and bits == LOW.bits:
            factor, value = scaled(x)
            return factor, loop.Apply("select", (c, low, value))
    return 1.0, score


class RegisterPass(Pass):
    """The state of each row of `groups` groups of warps: `span` keys of scores at a time, weights of the type `half`."""

    def __init__(self, scope: Emitter, schedule: tile.Schedule, groups: int, span: int, half: DType, steps: KeyTiles):
        self.scope, self.kernel, self.schedule, self.groups, self.span, self.half, self.steps = (
            scope, scope.kernel, schedule, groups, span, half, steps)
        self.fold = self._twist(schedule)
        self.axis = self.fold.axis
        self.results = {v: HeldSums(*h) if h.on_columns else h for v, h in self._results(schedule).items()}
        (self.factor, self.score), (factor, self.whole) = scaled(steps.masked), scaled(steps.whole)
        if factor != self.factor:
            self.factor, self.score, self.whole = 1.0, steps.masked, steps.whole
        scope.free.update(tile.free_axes((self.score, self.whole)))
        nested = [self.kernel.fold(v.fold) for v in loop.walk((self.score,)) if isinstance(v, tile.FoldResult) and self.axis in v.needs]
        sums = products(scope, nested, schedule.rows, (self.axis,))
        if len(sums) != 1:
            raise IRError(f"{self.kernel.name}: the score of {self.fold.name} has {len(sums)} sums of products; a group of warps takes one")
        self.product, self.sum = sums[0], sums[0].fold.result()
        self.products, self.weights_, self.scale = scope.name("score"), scope.name("weight"), scope.name("scale")

    @property
    def lanes(self) -> int:
        return 4

    def begin_tile(self, scope: Emitter, row: Expr, lane: Result) -> None:
        """The neutral state, and what the scores read of rows alone."""
        s, size = self.schedule, self.kernel.extents
        for channel, h in enumerate(self.results.values()):
            if not h.on_columns:
                scope.emit(DeclareArray(h.array, dt.f32, 2, const(dt.f32, 0) if channel else LOW))
        first = scope.let("m", row * 64 * self.groups)
        down = scope.let("row", lane.group * 64 + lane.warp * 16 + lane.lane // 4)
        self.rows = GroupRows(s.rows, prod(size[a] for a in s.rows), first, down, 32 * self.groups, 2)
        self.pair = scope.let("column", lane.lane % 4 * 2)
        self.tile = ColumnFragments((self.axis,), size[self.axis], int32(0), self.pair, 4, self.span // 4)
        self.cells = Cells(self.rows, self.tile, {self.sum: HeldSums(self.products, dt.f32, True, True)})
        narrow = [v for v, _ in self.narrow()]
        self.cells.prepare(scope, [self.score, self.whole, *narrow], "rows")
        self.places = []
        for n in (0, 1):
            line = scope.child()
            at = line.let("p", self.rows.first + self.rows.local(int32(n)))
            line.place(s.rows, line.whole(at))
            scope.emit(*line.body)
            self.places.append(({a: line.axes[a] for a in s.rows}, self.rows.inside(at)))

    def hand_on(self, scope: Emitter, scores: str) -> None:
        """Round the weights of a tile to halves: sums lie as the left operand of the next product takes them."""
        c, body = Var(scope.name("c"), dt.i32), scope.child()
        body.emit(SetElement(self.weights_, self.half, c, Convert(self.half, Element(scores, dt.f32, c))))
        scope.emit(counted(c, self.span // 2, body))

    def absorb_tile(self, scope: Emitter, start: Expr, masked: bool) -> None:
        """Scores of the tile of keys at `start` to weights where they are; the state of narrow channels, and the factor of what was."""
        score = self.score if masked else self.whole
        strip = replace(self.tile, first=start)
        tail = masked and strip.extent % strip.width != 0
        if score is not self.sum or tail:
            self.cell(scope, strip, score, tail)
        pivot, *_ = (h.array for h in self.results.values())
        log = self.factor * log2(EULER)
        for h in (0, 1):
            old = Element(pivot, dt.f32, int32(h))
            tops = scope.name("top")
            c, body = Var(scope.name("c"), dt.i32), scope.child()
            at = self.cells.held[self.sum].at(int32(h), c, self.tile.count)
            body.emit(SetElement(tops, dt.f32, c % 2, Apply("max", (Element(tops, dt.f32, c % 2), at))))
            scope.emit(DeclareArray(tops, dt.f32, 2, old), counted(c, self.tile.count, body))
            both_ = Apply("max", (Element(tops, dt.f32, int32(0)), Element(tops, dt.f32, int32(1))))
            top = self.across(scope, scope.let("m", both_), "max")
            base = scope.let("b", Apply("select", (Apply("eq", (top, LOW)), const(dt.f32, 0), Apply("mul", (top, const(dt.f32, -log))))))
            scope.emit(SetElement(self.scale, dt.f32, int32(h), self.power(old, log, base)), SetElement(pivot, dt.f32, int32(h), top))
            self.weigh(scope, strip, h, log, base)

    @staticmethod
    def power(score: Expr, log: float, base: Expr) -> Expr:
        return Apply("exp2", (Apply("fma", (score, const(dt.f32, log), base)),))

    def weigh(self, scope: Emitter, strip: Strip, h: int, log: float, base: Expr) -> None:
        """The weights of a lane's row `h`, and their sums with the values of narrow channels."""
        c, body = Var(scope.name("c"), dt.i32), scope.child()
        at = self.cells.held[self.sum].at(int32(h), c, self.tile.count)
        w = body.let("w", self.power(at, log, base))
        body.emit(SetElement(self.products, dt.f32, at.index, w))
        parts = {s: scope.name("part") for _, s in self.narrow()}
        for v, s in self.narrow():
            if isinstance(v, loop.Const):
                value: Expr = body.value(v)
            else:
                key = body.let("p", strip.first + strip.local(c))
                body.place((self.axis,), body.whole(key))
                body.guard = both(self.places[h][1], strip.inside(key))
                body.axes.update(self.places[h][0])
                body.values.update((x, held.at(int32(h), c, self.tile.count)) for x, held in self.cells.held.items())
                value = body.value(v)
            part = Element(parts[s], dt.f32, c % 2)
            body.emit(SetElement(parts[s], dt.f32, c % 2, Apply("add", (part, softmax.times(w, value)))))
        scope.emit(*(DeclareArray(p, dt.f32, 2, const(dt.f32, 0)) for p in parts.values()), counted(c, self.tile.count, body))
        for s, p in parts.items():
            before, scale = Element(s, dt.f32, int32(h)), Element(self.scale, dt.f32, int32(h))
            both_ = Apply("add", (Element(p, dt.f32, int32(0)), Element(p, dt.f32, int32(1))))
            scope.emit(SetElement(s, dt.f32, int32(h), Apply("fma", (before, scale, both_))))

    def cell(self, scope: Emitter, strip: Strip, score: Value, tail: bool) -> None:
        """The scores of a tile where its sums are; -inf beyond the last key."""
        j = Var(scope.name("j"), dt.i32)
        pairs = scope.child()
        key = pairs.let("p", strip.first + strip.local(j * 2))
        for h, (axes, inside) in enumerate(self.places):
            row = pairs.child()
            row.axes.update(axes)
            e = Var(row.name("e"), row.integer)
            there = row.whole(key) + e < strip.extent if tail else None
            row.guard = both(inside, there) if any(isinstance(v, Load) for v in loop.walk((score,))) else None
            if row.guard is None:
                each = row.neighbour(self.axis, row.whole(key), e, row.load_vectors([score], self.axis, row.whole(key), 2))
            else:
                each = row.child()
                each.axes[self.axis] = row.whole(key) + e
            at = j * 2 + maps.narrow(e)
            each.values.update((v, held.at(int32(h), at, self.tile.count)) for v, held in self.cells.held.items())
            value = each.value(score)
            value = Apply("select", (there, value, LOW)) if there is not None else value
            each.emit(SetElement(self.products, dt.f32, self.cells.held[self.sum].at(int32(h), at, self.tile.count).index, value))
            row.emit(counted(e, 2, each))
            pairs.emit(*row.body)
        scope.emit(counted(j, self.tile.count // 2, pairs))

    def join(self, scope: Emitter) -> None:
        """The sums of the lanes that share a row; the pivot is of the score as it was written."""
        for h in (0, 1):
            at = int32(h)
            for _, s in self.narrow():
                scope.emit(SetElement(s, dt.f32, at, self.across(scope, scope.let("l", Element(s, dt.f32, at)), "add")))
            pivot = Element(next(iter(self.results.values())).array, dt.f32, at)
            if self.factor != 1.0:
                scope.emit(SetElement(pivot.array, dt.f32, at, Apply("mul", (pivot, const(dt.f32, self.factor)))))
