"""What becomes of the sums of a group of warps: values of the result, from registers to memory.

The result is computed where the sums are, 16 columns at a time.  What depends on columns alone is computed once a tile, before
its products, and kept in shared memory; what depends on rows alone is kept in registers.  Halves whose columns are contiguous leave in
boxes of 64 rows by up to 64 columns, through one of two places in shared memory; other results are written by each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from emmy.instructions import (
    Assign,
    CommitStores,
    DeclareArray,
    FenceAsync,
    For,
    If,
    LoadSharedVector,
    NamedBarrier,
    SetElement,
    StoreGlobal,
    StoreGlobalVector,
    StoreMatrices,
    StoreShared,
    StoreTile,
    WaitStores,
)
from emmy.instructions.bulk_copy import swizzled
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Element, Expr, SharedBuffer, Stmt, TensorMap, Thread, Var, int32
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.fragments import ColumnFragments, RowFragments
from emmy.lower.tile_to_kernel.register_tile import Cells, Held, parts_of
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter
from emmy.lower.tile_to_kernel.staging import both, counted, under

BOX = 64            # rows of a box that is stored


@dataclass(frozen=True)
class GroupRows(RowFragments):
    """The rows of a lane's sums: two, 8 apart, in each tile of 64; `thread` is the first."""

    def local(self, k: Expr) -> Expr:
        return self.thread + (k // 2 * 64 + k % 2 * 8)


@dataclass(frozen=True)
class AnyRows(GroupRows):
    """The same of a tile that begins at any row."""

    def inside(self, at: Expr) -> Expr | None:
        return at < self.extent


@dataclass(frozen=True)
class StripColumns(ColumnFragments):
    """The columns of a lane's sums of a strip, one of those that a tile of `whole` columns is cut into."""

    whole: int

    def inside(self, at: Expr) -> Expr | None:
        return None if self.extent % self.whole == 0 else at < self.extent


class Stored:
    """A result and how it is stored: if `boxed`, through boxes of `buffer`, which `map` has where there is a `view`; else by each
    thread.  `anywhere`: tiles begin at any row."""

    def __init__(self, scope: Emitter, tensor: tile.Tensor, value: Value, schedule: tile.Schedule, groups: int, width: int, anywhere: bool):
        kernel, self.tensor, self.value = scope.kernel, tensor, value
        view = maps.result(tensor, kernel.outer, schedule.rows, schedule.columns, schedule.batch, kernel.extents)
        self.columns = next((n for n in (64, 32, 16) if width % n == 0), 0)     # of a box
        crosses = anywhere and view is not None and len(view.side) > 1      # a box that begins at any row may cross an inner end
        self.view = view if self.columns and not crosses else None
        self.boxed = self.columns > 0 and maps.in_lines(tensor, kernel.outer, schedule.columns, kernel.extents)
        if self.boxed:
            self.buffer = SharedBuffer(scope.name("out"), tensor.element, groups * 2 * BOX * self.columns, 1024)
        if self.view is not None:
            self.map = self.view.map(scope.name("map"), tensor, self.columns, BOX, self.columns * tensor.element.bytes)


@dataclass(frozen=True)
class Line:
    """One of a lane's rows: its place among the cells, its axes, and whether it is one of the result's, and written with this tile, None
    where all are."""

    index: Expr
    axes: Mapping[int, Expr]
    inside: Expr | None
    written: Expr | None


class Result:
    """The results of a kernel, tile by tile.  `sums`: where each fold's result is, `tiles` of 64 rows by `width` columns of a group, one of
    as many `strips` of a tile; a tile has the rows of all groups or, where they take `turns`, of one.  `written`: whether a row, if it is
    inside, is written with a tile, of tiles that may have the same rows and begin at any."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, groups: int, tiles: int, width: int,
                 sums: Mapping[Value, Held], strips: int = 1, turns: bool = False,
                 written: Callable[[Emitter, Expr, Expr | None], Expr] | None = None):
        self.kernel, self.schedule, self.groups, self.tiles, self.width, self.sums = kernel, schedule, groups, tiles, width, sums
        self.whole, self.turns, self.written = width * strips, turns, written
        self.stored = [Stored(scope, t, v, schedule, groups, width, written is not None)
                       for t, v in zip(kernel.outputs, kernel.results, strict=True)]
        self.boxed = [x for x in self.stored if x.boxed]
        self.mapped = [x for x in self.boxed if x.view is not None]
        kept = parts_of(scope.free, kernel.results, schedule.columns, schedule.rows, sums.keys())
        self.kept = [v for v in kept if v.dtype is dt.f32]
        self.values = SharedBuffer(scope.name("columns"), dt.f32, groups * len(self.kept) * width)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        return tuple(x.map for x in self.mapped)

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return (*(x.buffer for x in self.boxed), *([self.values] if self.kept else []))

    def enter(self, scope: Emitter) -> None:
        """Who a thread is among those that multiply."""
        self.group, self.thread = scope.let("group", Thread() // 128 - 1), scope.let("thread", Thread() % 128)
        self.warp, self.lane = scope.let("warp", self.thread // 32), scope.let("lane", Thread() % 32)
        self.turn = scope.declare("turn", int32(0)) if self.boxed else None

    @property
    def start(self) -> Expr:
        """The first row of a tile that is this group's."""
        return int32(0) if self.turns else self.group * (64 * self.tiles)

    def meet(self) -> Stmt:
        """The threads of a group meet."""
        return NamedBarrier(self.group + 1, 128)

    def begin(self, scope: Emitter, row: Expr, column: Expr) -> None:
        """Before the products of the tile at a row and column: what its results need of rows alone and of columns alone."""
        extents, s = self.kernel.extents, self.schedule
        first = scope.let("row", self.start + self.warp * 16 + self.lane // 4)
        self.row, self.column = row, column
        self.rows = (AnyRows if self.written else GroupRows)(
            s.rows, prod(extents[a] for a in s.rows), row, first, 32 * self.groups, 2 * self.tiles)
        self.columns = StripColumns(s.columns, prod(extents[a] for a in s.columns), column, scope.let("column", self.lane % 4 * 2), 4,
                                    self.width // 4, self.whole)
        self.cells = Cells(self.rows, self.columns, dict(self.sums))
        self.cells.prepare(scope, self.kernel.results, "rows")
        if not self.kept:
            return
        c = Var(scope.name("c"), dt.i32)
        body = scope.child()
        at = body.let("p", column + c)
        body.place(s.columns, body.whole(at))
        body.guard = both(body.guard, self.columns.inside(at))
        body.emit(*(StoreShared(self.values.name, self.place(k, c), body.value(v)) for k, v in enumerate(self.kept)))
        if not self.boxed:
            scope.emit(self.meet())     # the values before have been read
        scope.emit(For(c, self.thread, int32(self.width), int32(128), False, tuple(body.body)))

    def place(self, k: int, column: Expr) -> Expr:
        """Where the k-th value of columns lies at a column of the tile."""
        return (self.group * len(self.kept) + k) * self.width + column

    def store(self, scope: Emitter, alone: Expr | None = None) -> None:
        """Compute and write the results of a tile whose sums are there; `alone`: whether no other tile has its rows, if others may."""
        i = Var(scope.name("i"), dt.i32)
        body = scope.child()
        lines = []
        for h in (0, 1):
            at = body.let("p", self.rows.first + self.rows.local(i * 2 + h))
            line = body.child()
            line.place(self.rows.axes, line.whole(at))
            inside = self.rows.inside(at)
            written = self.written(line, at, inside) if self.written and len(self.boxed) < len(self.stored) else None
            body.emit(*line.body)
            lines.append(Line(i * 2 + h, {a: line.axes[a] for a in self.rows.axes}, inside, written))
        if self.boxed:
            self.boxes(body, i, lines, alone)
        else:
            scope.emit(*([self.meet()] if self.kept else []))
            j = Var(body.name("j"), dt.i32)
            inner = body.child()
            self.fragment(inner, j, lines, self.arrays(inner, 4), 0)
            body.emit(counted(j, self.width // 8, inner))
        scope.emit(counted(i, self.tiles, body))

    def arrays(self, scope: Emitter, length: int) -> list[str]:
        """Registers for some elements of each result."""
        names = [scope.name("y") for _ in self.stored]
        scope.emit(*(DeclareArray(name, x.tensor.element.compute, length, None) for name, x in zip(names, self.stored, strict=True)))
        return names

    def boxes(self, scope: Emitter, i: Expr, lines: list[Line], alone: Expr | None) -> None:
        """Boxes of some columns: a place that the box before last has left, its lines written as matrices, one thread that stores it."""
        assert self.turn is not None
        wide = self.boxed[0].columns
        piece, q = Var(scope.name("piece"), dt.i32), Var(scope.name("q"), dt.i32)
        body = scope.child()
        body.emit(*([If(self.thread == 0, (WaitStores(1, True),))] if self.mapped else []), self.meet())
        box = body.let("box", (self.group * 2 + self.turn) * (BOX * wide))
        inner = body.child()
        values = self.arrays(inner, 8)
        for p in (0, 1):
            self.fragment(inner, (piece * (wide // 16) + q) * 2 + p, lines, values, p * 4)
        line = (self.warp * 16 + self.lane % 16) * wide + (q * 16 + self.lane // 16 * 8)
        inner.emit(*(StoreMatrices(x.buffer.name, box + swizzled(line, x.tensor.element, 2 * wide), array, int32(0), 8)
                     for x, array in zip(self.stored, values, strict=True) if x.boxed))
        body.emit(counted(q, wide // 16, inner), *([FenceAsync()] if self.mapped else []), self.meet())
        row = self.row + (self.start + i * 64)
        one = body.child()
        for x in self.mapped:
            assert x.view is not None
            one.emit(StoreTile(x.map.name, x.view.coordinates(one, self.column + piece * wide, row), x.buffer.name, box))
        if self.mapped:
            body.emit(If(self.thread == 0, (*under(alone, one.body), CommitStores())))
        for x in self.boxed:
            apart = body.child()
            if x.view is None or alone is not None:
                self.lines(apart, x, box, row, self.column + piece * wide)
            body.emit(*([If(alone, (), tuple(apart.body))] if alone is not None and x.view is not None else apart.body))
        body.emit(Assign(self.turn, self.turn ^ 1))
        scope.emit(counted(piece, self.width // wide, body))

    def lines(self, scope: Emitter, x: Stored, box: Expr, row: Expr, column: Expr) -> None:
        """Each warp writes 16 lines of a box, neighbours along a line at once, as vectors where a map could have moved them."""
        k, run = Var(scope.name("k"), dt.i32), VECTOR_BYTES // x.tensor.element.bytes if x.view is not None else 1
        body, each = scope.child(), x.columns // run
        at = body.let("at", k * 32 + self.lane)
        down, across = self.warp * 16 + at // each, at % each * run
        cell, line, place = body.child(), body.let("p", row + down), body.let("p", column + across)
        cell.place(self.rows.axes, cell.whole(line))
        cell.place(self.columns.axes, cell.whole(place))
        values, lies = cell.name("v"), box + swizzled(down * x.columns + across, x.tensor.element, 2 * x.columns)
        written = self.written(body, line, self.rows.inside(line)) if self.written else None
        cell.emit(DeclareArray(values, x.tensor.element.compute, run, None), LoadSharedVector(values, 0, x.buffer.name, lies, run),
                  StoreGlobalVector(x.tensor.name, cell.output_offset(), values, 0, run))
        body.emit(*under(both(self.rows.inside(line), written, self.columns.inside(place)), cell.body))
        scope.emit(counted(k, each // 2, body))

    def fragment(self, scope: Emitter, j: Expr, lines: list[Line], into: list[str], first: int) -> None:
        """The results at a lane's two rows and its two columns of the j-th 8, as elements of `into` from `first` on; written, where
        they are not to leave in boxes."""
        results, last = self.kernel.results, self.columns.axes[-1]
        column = scope.let("p", self.columns.first + self.columns.local(j * 2))
        arrays = [scope.name("c") for _ in self.kept]
        for k, array in enumerate(arrays):
            scope.emit(DeclareArray(array, dt.f32, 2, None),
                       LoadSharedVector(array, 0, self.values.name, self.place(k, self.columns.local(j * 2)), 2))
        known = {v for v in loop.walk((*self.kept, *self.cells.held)) if isinstance(v, loop.Load)}
        pairs = self.kernel.extents[last] % 2 == 0
        for h, line in enumerate(lines):
            cell = scope.child()
            cell.axes.update(line.axes)
            e = Var(cell.name("e"), cell.integer)
            if pairs and line.inside is None and self.columns.inside(column) is None:
                cell.place(self.columns.axes, cell.whole(column))
                start = cell.axes[last]
                each = cell.neighbour(last, start, e, cell.load_vectors(results, last, start, 2, known))
            else:
                each = cell.child()
                at = each.let("p", column + maps.narrow(e))
                each.place(self.columns.axes, each.whole(at))
                each.guard = both(line.inside, self.columns.inside(at))
            self.cells.bind(each, line.index, j * 2 + maps.narrow(e))
            each.values.update((v, Element(array, dt.f32, e)) for v, array in zip(self.kept, arrays, strict=True))
            for x, array in zip(self.stored, into, strict=True):
                each.emit(SetElement(array, x.tensor.element.compute, e + (first + 2 * h), each.value(x.value)))
            cell.emit(counted(e, 2, each))
            scope.emit(*cell.body)
            for x, array in zip(self.stored, into, strict=True):
                if not x.boxed:
                    self.write(scope, x, line, column, array, first + 2 * h, pairs and last == self.kernel.outer[-1])

    def write(self, scope: Emitter, x: Stored, line: Line, column: Expr, array: str, first: int, together: bool) -> None:
        """Two elements of a result, to neighbours in memory if `together`."""
        for e in (0,) if together else (0, 1):
            at, cell = scope.let("p", column + e), scope.child()
            cell.axes.update(line.axes)
            cell.place(self.columns.axes, cell.whole(at))
            offset = cell.output_offset()
            cell.emit(StoreGlobalVector(x.tensor.name, offset, array, first, 2) if together else
                      StoreGlobal(x.tensor.name, offset, Element(array, x.tensor.element.compute, int32(first + e))))
            scope.emit(*under(both(line.inside, line.written, self.columns.inside(at)), cell.body))

    def end(self, scope: Emitter) -> None:
        """Shared memory stays until its last box has been read."""
        if self.mapped:
            scope.emit(If(self.thread == 0, (WaitStores(0, True),)))
