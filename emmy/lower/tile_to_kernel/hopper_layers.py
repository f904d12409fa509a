"""The tiles of products of rows with the matrix that each asks for (`layered`): which rows ask for a layer is known when it runs.

Before its first tile each block looks at what all rows ask for.  Where no row asks for an earlier layer than the one before it, a table in
shared memory says where the rows of each layer begin, and how many tiles the layers before it have: tiles begin where layers do, and the
last one of a layer has rows of the next, which are not written with it.  Otherwise every layer has every tile, and a row is written with
that of its own.

Pairs of a layer and one of its tiles are taken as rows of tiles are, `together` at a time.  The layer of a pair is found by halving.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from emmy.instructions import (
    Assign,
    Barrier,
    DeclareArray,
    For,
    If,
    LoadShared,
    SetElement,
    StoreShared,
    SyncWarp,
)
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Element, Expr, SharedBuffer, Stmt, Thread, Var, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.hopper_raster import Raster
from emmy.lower.tile_to_kernel.hopper_tiling import Tiling
from emmy.lower.tile_to_kernel.lanes import WARP, butterfly, scan
from emmy.lower.tile_to_kernel.layered import Layered
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import both, counted

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.hopper_result import Result


AT_ONCE = 8         # rows that a thread looks at before it waits for any


class Layers(Raster):
    """The order of a kernel's pairs.  `table`: the first row of each layer and the one after the last; the pairs before each layer, and
    before their end; of each warp, whether it has seen rows in disorder, and whether any has."""

    def __init__(self, scope: Emitter, found: Layered, schedule: tile.Schedule, t: Tiling):
        super().__init__(found.kernel, schedule, t)
        self.found, self.rows, self.layers = found, prod(found.kernel.extents[a] for a in schedule.rows), found.layers
        self.before, self.seen = self.layers + 1, 2 * self.layers + 2
        self.warps = t.threads // WARP
        self.table = SharedBuffer(scope.name("layers"), dt.i32, self.seen + self.warps)
        if self.tiles >= 2**31:
            raise IRError(f"{found.kernel.name}: row {schedule.row}: {self.tiles} tiles of all layers are more than 32 bits count")

    @property
    def tables(self) -> tuple[SharedBuffer, ...]:
        return (self.table,)

    def read(self, scope: Emitter, at: Expr, stem: str) -> Var:
        """A number of the table."""
        found = Var(scope.name(stem), dt.i32)
        scope.emit(LoadShared(found, self.table.name, at))
        return found

    def write(self, at: Expr, value: Expr) -> Stmt:
        return StoreShared(self.table.name, at, value)

    def asked(self, scope: Emitter, row: Expr) -> Expr:
        """The layer that a row asks for."""
        body = scope.child()
        body.place(self.schedule.rows, body.whole(row))
        asked = body.let("layer", maps.narrow(body.value(self.found.asked)))
        scope.emit(*body.body)
        return Apply("max", (Apply("min", (asked, int32(self.layers - 1))), int32(0)))      # no index lies outside, but one may be wrong

    def enter(self, scope: Emitter) -> None:
        """Fill the table, by all threads."""
        lane, disorder = scope.let("lane", Thread() % WARP), scope.declare("disorder", int32(0))
        self.look(scope, disorder)
        butterfly(scope, "max", disorder, WARP)
        scope.emit(If(lane == 0, (self.write(self.seen + Thread() // WARP, disorder),)))
        self.begin(scope)
        counting = scope.child()
        self.count(counting, lane)
        scope.emit(Barrier(), If(Thread() < WARP, tuple(counting.body)), Barrier())

    def look(self, scope: Emitter, disorder: Var) -> None:
        """Each thread looks at every so many-th row and the one before it."""
        base, k = Var(scope.name("base"), dt.i32), Var(scope.name("k"), dt.i32)
        here, last = scope.name("here"), scope.name("last")
        body, reading, judging = scope.child(), scope.child(), scope.child()
        row = reading.let("p", Apply("min", (base + k * self.tiling.threads, int32(self.rows - 1))))
        for array, of in ((here, row), (last, Apply("max", (row - 1, int32(0))))):
            body.emit(DeclareArray(array, dt.i32, AT_ONCE, None))
            reading.emit(SetElement(array, dt.i32, k, self.asked(reading, of)))
        earlier = Element(here, dt.i32, k) < Element(last, dt.i32, k)
        judging.emit(Assign(disorder, Apply("select", (earlier, int32(1), disorder))))
        body.emit(counted(k, AT_ONCE, reading), counted(k, AT_ONCE, judging))
        scope.emit(For(base, Thread(), int32(self.rows), int32(self.tiling.threads * AT_ONCE), False, tuple(body.body)))

    def begin(self, scope: Emitter) -> None:
        """Where each layer begins: how many rows, in order, ask for an earlier one."""
        g, body = Var(scope.name("g"), dt.i32), scope.child()
        at: Expr = int32(0)
        for step in (1 << k for k in reversed(range(self.rows.bit_length()))):
            further = body.let("p", Apply("min", (at + step, int32(self.rows))))
            at = body.let("p", Apply("select", (self.asked(body, further - 1) < g, further, at)))
        body.emit(self.write(g, at))
        scope.emit(For(g, Thread(), int32(self.layers + 1), int32(self.tiling.threads), False, tuple(body.body)))

    def count(self, scope: Emitter, lane: Expr) -> None:
        """A warp counts the pairs before each layer, 32 layers at a time, or all where rows are in disorder."""
        seen = Var(scope.name("seen"), dt.i32)
        scope.emit(LoadShared(seen, self.table.name, self.seen + lane, lane < self.warps, int32(0)))
        disorder = scope.declare("disorder", seen)
        butterfly(scope, "max", disorder, WARP)
        carry, chunk = scope.declare("carry", int32(0)), Var(scope.name("chunk"), dt.i32)
        body = scope.child()
        layer = body.let("g", chunk + lane)
        begin, end = (self.read(body, Apply("min", (layer + k, int32(self.layers))), "row") for k in (0, 1))
        own = body.let("own", (end - begin + (self.tiling.height - 1)) // self.tiling.height)
        total, sums = body.declare("total", own), body.declare("sums", own)
        scan(body, "add", sums, lane)
        butterfly(body, "add", total, WARP)
        body.emit(If(layer < self.layers, (self.write(self.before + 1 + layer, carry + sums),)), Assign(carry, carry + total))
        scope.emit(For(chunk, int32(0), int32(self.layers), int32(WARP), False, tuple(body.body)), SyncWarp(),
                   If(lane == 0, (self.write(int32(self.before), int32(0)), self.write(int32(self.seen), disorder))),
                   If((lane == 0) & (disorder > 0), (self.write(int32(self.before + self.layers), int32(self.down * self.layers)),)))

    def each_tile(self, scope: Emitter, body: Callable[[Emitter, Expr, Expr], None], group: Expr | None = None) -> None:
        number, inner = Var(scope.name("tile"), dt.i32), scope.child()
        self.pairs = self.read(scope, int32(self.before + self.layers), "pairs")
        seen = self.read(scope, int32(self.seen), "seen")
        self.ordered, self.disordered = scope.let("ordered", seen == 0), scope.let("disordered", seen > 0)
        self.tile(inner, number, body)
        first, step = (Block(0), 1) if group is None else (Block(0) + group * self.clusters, self.tiling.groups)
        scope.emit(For(number, first, self.pairs * self.across, int32(step * self.clusters), False, tuple(inner.body)))

    def tile(self, inner: Emitter, number: Expr, body: Callable[[Emitter, Expr, Expr], None]) -> None:
        """`body` for the tile of that number, at its layer."""
        pair, column = (inner.let(name, e) for name, e in zip(("pair", "across"), self.place(inner, number, self.pairs), strict=True))
        layer: Expr = int32(0)
        for step in (1 << k for k in reversed(range((self.layers - 1).bit_length()))):      # the last layer with no more pairs before it
            further = inner.let("g", Apply("min", (layer + step, int32(self.layers))))      # before the end there are more than any has
            layer = inner.let("g", Apply("select", (self.read(inner, self.before + further, "before") <= pair, further, layer)))
        before, begin, end = (self.read(inner, at, "at") for at in (self.before + layer, layer, layer + 1))
        row = begin + (pair - before) * self.tiling.height
        self.layer, row, self.end = (inner.let(name, Apply("select", (self.disordered, e, f))) for name, e, f in (
            ("layer", pair % self.layers, layer), ("m", pair // self.layers * self.tiling.height, row), ("end", int32(self.rows), end)))
        inner.place(self.schedule.batch, inner.whole(self.layer))
        self.alone = inner.let("alone", (row + self.tiling.height <= self.end) & self.ordered)
        body(inner, row, inner.let("n", column * self.tiling.width))

    def written(self, scope: Emitter, row: Expr, inside: Expr | None) -> Expr:
        """Whether a row, if it is `inside`, is written with the tile: none but those in disorder need be asked."""
        test = scope.child()
        test.guard = both(inside, self.disordered)
        own = self.asked(test, row) == self.layer
        scope.emit(*test.body)
        return scope.let("written", Apply("select", (self.ordered, row < self.end, own)))

    def finish(self, scope: Emitter, result: Result) -> None:
        result.store(scope, self.alone)
