"""Form "twist": a softmax-twisted fold over keys j, tile by tile, in one pass: attention.

A block holds a tile of rows and all columns.  For each tile of keys it computes the scores (a contraction of staged operands, or
elementwise), takes the maximum over the lanes that share a row, rescales what it has, and adds: weights times the values that depend
on no column to one sum a row, and weights through shared memory times the staged values of the columns.

Row: WORK=t<down>x<across>,TILE=<fma|mul>_f32/f<rows>x<keys>/k<depth>,STAGE=d1/smem, `across` a power of two up to 32.  A score tile has
down*rows rows and across*keys keys.  Any extents: tails are predicated; a thread holds ceil(N / across) columns, up to a multiple of 4.
Shared bytes: 4 * (L * ceil(D / depth) * depth * (down*rows + 4) + R * depth * (across*keys + 4)
                   + (down*rows * (across*keys + 4) if V else 0) + V * across*keys * (across * held columns + 4))
for a score of L left and R right operands folded over D elements, and V channels that depend on the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadSharedVector, StoreSharedVector
from emmy.instructions.shuffle import ShuffleXor
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import softmax
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.register_tile import Cells, Contraction, Held, multiply_add
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import PAD, RUN, Product, Side, Tiling, counted, products, strip, tiling

LOW = const(dt.f32, float("-inf"))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a twisted fold over rows by columns; IRError where the kernel is not one or the row does not fit."""
    t = tiling(schedule.row)
    if t.stages != 1 or t.across > 32 or t.across & (t.across - 1):
        raise IRError(f"row {schedule.row}: a twist has STAGE=d1/smem, and a power of two up to 32 threads across")
    return one_pass(kernel, schedule, lambda scope: Pass(scope, schedule, t), t.threads)


def one_pass(kernel: tile.Kernel, schedule: tile.Schedule, make: Callable[[Emitter], Pass], threads: int) -> Kernel:
    """The Kernel IR of blocks that each make one pass over the keys, for a tile of rows at a point of the batch."""
    scope = Emitter(kernel)
    scope.place(schedule.batch, scope.whole(Block(2)))
    pass_ = make(scope)
    pass_.begin()
    pass_.keys()
    pass_.end()
    grid = 1, -(-pass_.rows.extent // pass_.rows.width), prod(kernel.extents[a] for a in schedule.batch)
    return finish(kernel, scope, grid, threads, pass_.shared)


def held_columns(extent: int, across: int) -> int:
    """Columns a thread holds: its share, in whole vectors."""
    share = -(-extent // across)
    return share if share <= 2 else -(-share // RUN) * RUN


class Pass:
    """One pass over the keys: the state of each row, and the tiles that the block holds."""

    def __init__(self, scope: Emitter, schedule: tile.Schedule, t: Tiling):
        kernel, self.scope, self.tiling = scope.kernel, scope, t
        self.fold = self._twist(schedule)
        self.axis, self.score = self.fold.axis, self.fold.lifts[0]
        self.row, self.column = scope.let("row", Thread() // t.across), scope.let("column", Thread() % t.across)
        first = scope.let("m", Block(1) * (t.down * t.rows))
        self.rows = strip(kernel, schedule.rows, first, self.row, t.down, t.rows)
        held = held_columns(prod(kernel.extents[a] for a in schedule.columns), t.across)
        self.columns = strip(kernel, schedule.columns, int32(0), self.column, t.across, held)
        self.start = Var(scope.name("j"), dt.i32)
        self.tile = strip(kernel, (self.axis,), self.start, self.column, t.across, t.columns)
        self.results = self._results(schedule)
        nested = [kernel.fold(v.fold) for v in loop.walk((self.score,)) if isinstance(v, tile.FoldResult) and self.axis in v.needs]
        sums = products(scope, nested, schedule.rows, (self.axis,))
        self.scores = Contraction(scope, sums, self.rows, self.tile, t, self._slots(sums), 1) if sums else None
        wide = [v for v in self.fold.lifts[1:] if not scope.free[v].isdisjoint(schedule.columns)]
        self.values = Side(scope, wide, self.columns, self.axis, self.tile.width, t.threads) if wide else None
        self.weights = SharedBuffer(scope.name("weights"), dt.f32, self.rows.width * self.pitch)

    def _twist(self, schedule: tile.Schedule) -> tile.Fold:
        kernel = self.scope.kernel
        twists = [f for f in kernel.folds if f.kind == "twist"]
        if len(twists) != 1 or twists[0].recipe != "softmax" or any(v.dtype is not dt.f32 for v in twists[0].lifts):
            raise IRError(f"{kernel.name}: form twist takes one fold of kind twist and recipe softmax, of fp32")
        score, *values = (self.scope.free[v] for v in twists[0].lifts)
        columns, rows = set(schedule.columns), set(schedule.rows)
        if score & columns or any(v & columns and v & rows for v in values):
            raise IRError(f"{kernel.name}: the score of {twists[0].name} depends on columns, or a value on rows and columns alike")
        return twists[0]

    def _results(self, schedule: tile.Schedule) -> dict[Value, Held]:
        """Where the fold's results are: the pivot and one sum a row for each row, a sum a column for each cell."""
        wide = [not self.scope.free[v].isdisjoint(schedule.columns) for v in self.fold.lifts]
        results: dict[Value, Held] = {self.fold.result(c): Held(self.scope.name("state"), dt.f32, True, w) for c, w in enumerate(wide)}
        self.scope.free.update(tile.free_axes(tuple(results)))
        return results

    def _slots(self, sums: list[Product]) -> int:
        return -(-self.scope.kernel.extents[sums[0].fold.axis] // self.tiling.depth) if sums else 0

    @property
    def lanes(self) -> int:
        """Neighbouring lanes that share a row."""
        return self.tiling.across

    @property
    def pitch(self) -> int:
        return self.tile.width + PAD

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return (*(self.scores.shared if self.scores else ()), *((self.weights, *self.values.buffers) if self.values else ()))

    def narrow(self) -> list[tuple[Value, str]]:
        """The channels with one sum a row: value and the array of sums."""
        return [(v, h.array) for v, h in zip(self.fold.lifts[1:], list(self.results.values())[1:], strict=True) if not h.on_columns]

    def wide(self) -> list[tuple[Value, str]]:
        """The channels with a sum for each cell."""
        return [(v, h.array) for v, h in zip(self.fold.lifts[1:], list(self.results.values())[1:], strict=True) if h.on_columns]

    # -- before, during and after the keys ----------------------------------------------------------------------
    def clear(self) -> None:
        """Set the neutral state."""
        for channel, h in enumerate(self.results.values()):
            length = self.rows.count * (self.columns.count if h.on_columns else 1)
            self.scope.emit(DeclareArray(h.array, dt.f32, length, const(dt.f32, 0) if channel else LOW))

    def begin(self) -> None:
        """Set the neutral state; copy the left operands of the score, which serve every tile of keys."""
        self.clear()
        scope = self.scope
        if self.scores and self.scores.left.values:
            side, d = self.scores.left, Var(scope.name("d"), dt.i32)
            body = scope.child()
            arrays = side.declare(body)
            side.fetch(body, arrays, d)
            side.commit(body, arrays, d * side.pitch)
            scope.emit(For(d, int32(0), int32(side.extent), int32(side.depth), False, tuple(body.body)))
        self.cells = Cells(self.rows, self.tile, self.scores.held() if self.scores else {})
        self.cells.prepare(scope, self.rooted(), "rows")

    def rooted(self) -> list[Value]:
        """What is computed for each row and key."""
        return [self.score, *(v for v, _ in self.narrow())]

    def keys(self) -> None:
        """The loop over tiles of keys."""
        scope = self.scope
        body = scope.child()
        staged = None
        if self.values:
            staged = self.values.declare(body)
            self.values.fetch(body, staged, self.start)
        if not self.scores:
            body.emit(Barrier())
        else:
            self.contract(body, self.scores)
        if self.values and staged:
            self.values.commit(body, staged, int32(0))
        self.absorb(body, self.evaluate(body))
        if self.values:
            body.emit(Barrier())
            self.gather(body, self.values)
        extent = scope.kernel.extents[self.axis]
        scope.emit(For(self.start, int32(0), int32(extent), int32(self.tile.width), False, tuple(body.body)))

    def contract(self, body: Emitter, c: Contraction) -> None:
        """The sums that the scores of a tile read."""
        d = Var(body.name("d"), dt.i32)
        c.clear(body)
        step = body.child()
        arrays = c.right.declare(step)
        c.right.fetch(step, arrays, d)
        step.emit(Barrier())
        c.right.commit(step, arrays, int32(0))
        step.emit(Barrier())
        c.step(step, d * c.left.pitch, int32(0))
        body.emit(For(d, int32(0), int32(c.extent), int32(c.tiling.depth), False, tuple(step.body)))

    def evaluate(self, body: Emitter) -> list[str]:
        """Registers with the scores of a tile, -inf beyond the last key, and with the values of its narrow channels ("" for a constant)."""
        cells = Cells(self.rows, self.tile, dict(self.cells.held))
        cells.prepare(body, self.rooted(), "columns")
        roots = self.rooted()
        arrays = ["" if isinstance(v, loop.Const) and v is not self.score else body.name("p") for v in roots]
        size = self.rows.count * self.tile.count
        body.emit(*(DeclareArray(a, dt.f32, size, None) for a in arrays if a))
        outer, i, c, cell, guard, key = cells.each(body)
        cell.guard = guard
        inside = self.tile.inside(key)
        for v, array in zip(roots, arrays, strict=True):
            if array:
                value = cell.value(v)
                masked = Apply("select", (inside, value, LOW)) if v is self.score and inside is not None else value
                cell.emit(SetElement(array, dt.f32, i * self.tile.count + c, masked))
        cells.close(body, outer, i, c, cell)
        return arrays

    def absorb(self, body: Emitter, arrays: list[str]) -> None:
        """Rescale the state to the tile's maximum, add to the narrow channels, and hand on the weights."""
        scores, *values = arrays
        pivot = next(iter(self.results.values())).array
        i = Var(body.name("i"), dt.i32)
        row = body.child()
        old = Element(pivot, dt.f32, i)
        top: Expr = old
        for c in range(self.tile.count):
            top = Apply("max", (top, Element(scores, dt.f32, i * self.tile.count + c)))
        top = self.across(row, row.let("m", top), "max")
        against = softmax.base(row, top)
        scale = row.let("c", softmax.weight(old, against))
        row.emit(SetElement(pivot, dt.f32, i, top))
        sums = {s: Apply("mul", (Element(s, dt.f32, i), scale)) for _, s in self.narrow()}
        for c in range(self.tile.count):
            at = i * self.tile.count + c
            w = row.let("w", softmax.weight(Element(scores, dt.f32, at), against))
            row.emit(SetElement(scores, dt.f32, at, w))
            for (v, s), array in zip(self.narrow(), values, strict=True):
                value = Element(array, dt.f32, at) if array else body.value(v)
                sums[s] = Apply("add", (sums[s], softmax.times(w, value)))
        row.emit(*(SetElement(s, dt.f32, i, total) for s, total in sums.items()))
        n = Var(body.name("n"), dt.i32)
        columns = row.child()
        for h in self.results.values():
            if h.on_columns:
                held = h.at(i, n, self.columns.count)
                columns.emit(SetElement(h.array, dt.f32, held.index, Apply("mul", (held, scale))))
        if columns.body:
            row.emit(counted(n, self.columns.count, columns))
        body.emit(counted(i, self.rows.count, row))
        self.hand_on(body, scores)

    def hand_on(self, body: Emitter, scores: str) -> None:
        """Leave the weights of a tile in shared memory."""
        if self.values:
            run = self.tile.run
            for r in range(self.rows.count):
                at = body.let("s", self.rows.local(int32(r)) * self.pitch)
                for c in range(0, self.tile.count, run):
                    body.emit(StoreSharedVector(self.weights.name, at + self.tile.local(int32(c)), scores, r * self.tile.count + c, run))

    def across(self, row: Emitter, value: Expr, operator: str) -> Expr:
        """`value` joined over the lanes that share a row."""
        mask = self.lanes // 2
        while mask:
            other = Var(row.name("o"), value.dtype)
            row.emit(ShuffleXor(other, value, mask))
            value = row.let("v", Apply(operator, (value, other)))
            mask //= 2
        return value

    def gather(self, body: Emitter, values: Side) -> None:
        """Add weights times values over the tile's keys to the wide channels, a vector of keys at a time."""
        run, j = gcd(self.tile.width, RUN), Var(body.name("j"), dt.i32)
        inner = body.child()
        weights = inner.name("w")
        inner.emit(DeclareArray(weights, dt.f32, self.rows.count * run, None))
        for r in range(self.rows.count):
            inner.emit(LoadSharedVector(weights, r * run, self.weights.name, self.rows.local(int32(r)) * self.pitch + j, run))
        e, i, n = (Var(body.name(s), dt.i32) for s in "ein")
        key = inner.child()
        columns, row = key.child(), key.child()
        for v, array in self.wide():
            staged = values.read(key, v, j + e, int32(0))
            at = i * self.columns.count + n
            columns.emit(SetElement(array, dt.f32, at, multiply_add(
                Element(weights, dt.f32, i * run + e), Element(staged, dt.f32, n), Element(array, dt.f32, at), self.tiling.fused)))
        row.emit(counted(n, self.columns.count, columns))
        key.emit(counted(i, self.rows.count, row))
        inner.emit(counted(e, run, key))
        body.emit(For(j, int32(0), int32(self.tile.width), int32(run), False, tuple(inner.body)))

    def end(self) -> None:
        """Join the sums of the lanes that share a row, and store the result."""
        scope, i = self.scope, Var(self.scope.name("i"), dt.i32)
        row = scope.child()
        for _, s in self.narrow():
            row.emit(SetElement(s, dt.f32, i, self.across(row, Element(s, dt.f32, i), "add")))
        if row.body:
            scope.emit(counted(i, self.rows.count, row))
        Cells(self.rows, self.columns, self.results).store(scope)
