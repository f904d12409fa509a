"""What becomes of the sums of a group of warps: values of the result, from registers to memory.

The result is computed where the sums are, 16 columns at a time.  What depends on columns alone is computed once a tile, before
its products, and kept in shared memory; what depends on rows alone is kept in registers.  Halves whose columns are contiguous leave in
boxes of 64 rows by 64 columns, through one of two places in shared memory; other results are written by each thread.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import both, counted, under

BOX = 64            # rows and columns of a box that is stored


@dataclass(frozen=True)
class GroupRows(RowFragments):
    """The rows of a lane's sums: two, 8 apart, in each tile of 64; `thread` is the first."""

    def local(self, k: Expr) -> Expr:
        return self.thread + (k // 2 * 64 + k % 2 * 8)


class Result:
    """The result of a kernel, tile by tile.  `sums`: where each fold's result is, `tiles` of 64 rows by `width` columns of a group."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, groups: int, tiles: int, width: int,
                 sums: Mapping[Value, Held]):
        self.kernel, self.schedule, self.groups, self.tiles, self.width, self.sums = kernel, schedule, groups, tiles, width, sums
        self.view = maps.result(kernel.output, kernel.outer, schedule.rows, schedule.columns, schedule.batch, kernel.extents)
        self.boxes = self.view is not None and width % BOX == 0
        kept = parts_of(scope.free, [kernel.result], schedule.columns, schedule.rows, sums.keys())
        self.kept = [v for v in kept if v.dtype is dt.f32]
        self.values = SharedBuffer(scope.name("columns"), dt.f32, groups * len(self.kept) * width)
        self.out = SharedBuffer(scope.name("out"), kernel.output.element, groups * 2 * BOX * BOX, 1024)
        self.maps: tuple[TensorMap, ...] = ()
        if self.boxes and self.view is not None:
            self.maps = (self.view.map(scope.name("map"), kernel.output, BOX, BOX),)

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return (*([self.out] if self.boxes else []), *([self.values] if self.kept else []))

    def enter(self, scope: Emitter) -> None:
        """Who a thread is among those that multiply."""
        self.group, self.thread = scope.let("group", Thread() // 128 - 1), scope.let("thread", Thread() % 128)
        self.warp, self.lane = scope.let("warp", self.thread // 32), scope.let("lane", Thread() % 32)
        self.turn = scope.declare("turn", int32(0)) if self.boxes else None

    def meet(self) -> Stmt:
        """The threads of a group meet."""
        return NamedBarrier(self.group + 1, 128)

    def begin(self, scope: Emitter, row: Expr, column: Expr) -> None:
        """Before the products of the tile at a row and column: what its result needs of rows alone and of columns alone."""
        extents, s = self.kernel.extents, self.schedule
        across = self.lane % 4 * 2
        thread = self.group * (64 * self.tiles) + self.warp * 16 + self.lane // 4
        self.row, self.column = row, column
        self.rows = GroupRows(s.rows, prod(extents[a] for a in s.rows), row, scope.let("row", thread), 32 * self.groups, 2 * self.tiles)
        self.columns = ColumnFragments(s.columns, prod(extents[a] for a in s.columns), column, scope.let("column", across), 4,
                                       self.width // 4)
        self.cells = Cells(self.rows, self.columns, dict(self.sums))
        self.cells.prepare(scope, [self.kernel.result], "rows")
        if not self.kept:
            return
        c = Var(scope.name("c"), dt.i32)
        body = scope.child()
        at = body.let("p", column + c)
        body.place(s.columns, body.whole(at))
        body.guard = both(body.guard, self.columns.inside(at))
        body.emit(*(StoreShared(self.values.name, self.place(k, c), body.value(v)) for k, v in enumerate(self.kept)))
        if not self.boxes:
            scope.emit(self.meet())     # the values before have been read
        scope.emit(For(c, self.thread, int32(self.width), int32(128), False, tuple(body.body)))

    def place(self, k: int, column: Expr) -> Expr:
        """Where the k-th value of columns lies at a column of the tile."""
        return (self.group * len(self.kept) + k) * self.width + column

    def store(self, scope: Emitter) -> None:
        """Compute and write the result of a tile whose sums are there."""
        i = Var(scope.name("i"), dt.i32)
        body = scope.child()
        axes = []
        for h in (0, 1):
            at = body.let("p", self.rows.first + self.rows.local(i * 2 + h))
            line = body.child()
            line.place(self.rows.axes, line.whole(at))
            body.emit(*line.body)
            axes.append(({a: line.axes[a] for a in self.rows.axes}, self.rows.inside(at)))
        if not self.boxes and self.kept:
            scope.emit(self.meet())
        (self.boxed if self.boxes else self.direct)(body, i, axes)
        scope.emit(counted(i, self.tiles, body))

    def boxed(self, scope: Emitter, i: Expr, rows: list[tuple[dict[int, Expr], Expr | None]]) -> None:
        """Boxes of 64 columns: a place that the store before last has left, its lines written as matrices, one thread that stores it."""
        assert self.view is not None and self.turn is not None
        piece, q = Var(scope.name("piece"), dt.i32), Var(scope.name("q"), dt.i32)
        body = scope.child()
        body.emit(If(self.thread == 0, (WaitStores(1, True),)), self.meet())
        box = body.let("box", (self.group * 2 + self.turn) * (BOX * BOX))
        inner = body.child()
        halves = inner.name("y")
        inner.emit(DeclareArray(halves, dt.f32, 8, None))
        for p in (0, 1):
            self.fragment(inner, i, (piece * 4 + q) * 2 + p, rows, halves, p * 4)
        line = (self.warp * 16 + self.lane % 16) * BOX + (q * 16 + self.lane // 16 * 8)
        inner.emit(StoreMatrices(self.out.name, box + swizzled(line, self.kernel.output.element), halves, int32(0), 8))
        body.emit(counted(q, 4, inner), FenceAsync(), self.meet())
        one = body.child()
        row = self.row + (self.group * (64 * self.tiles) + i * 64)
        at = self.view.coordinates(one, self.column + piece * BOX, row)
        one.emit(StoreTile(self.maps[0].name, at, self.out.name, box), CommitStores())
        body.emit(If(self.thread == 0, tuple(one.body)), Assign(self.turn, self.turn ^ 1))
        scope.emit(counted(piece, self.width // BOX, body))

    def direct(self, scope: Emitter, i: Expr, rows: list[tuple[dict[int, Expr], Expr | None]]) -> None:
        """Each thread writes what it has, neighbours together where they are neighbours in memory."""
        output, last = self.kernel.output, self.kernel.outer[-1]
        pairs = last == self.columns.axes[-1] and self.kernel.extents[last] % 2 == 0
        j = Var(scope.name("j"), dt.i32)
        body = scope.child()
        values = body.name("y")
        body.emit(DeclareArray(values, output.element.compute, 4, None))
        self.fragment(body, i, j, rows, values, 0)
        for h, (axes, inside) in enumerate(rows):
            for e in (0,) if pairs else (0, 1):
                cell = body.child()
                at = cell.let("p", self.columns.first + self.columns.local(j * 2 + e))
                cell.axes.update(axes)
                cell.place(self.columns.axes, cell.whole(at))
                offset = cell.output_offset()
                value = Element(values, output.element.compute, int32(h * 2 + e))
                store = StoreGlobalVector(output.name, offset, values, h * 2, 2) if pairs else StoreGlobal(output.name, offset, value)
                body.emit(*cell.body, *under(both(inside, self.columns.inside(at)), [store]))
        scope.emit(counted(j, self.width // 8, body))

    def fragment(self, scope: Emitter, i: Expr, j: Expr, rows: list[tuple[dict[int, Expr], Expr | None]], into: str, first: int) -> None:
        """The result at a lane's two rows of tile `i` and two columns of the j-th 8, as elements of `into` from `first` on."""
        result, output, last = self.kernel.result, self.kernel.output, self.columns.axes[-1]
        column = scope.let("p", self.columns.first + self.columns.local(j * 2))
        arrays = [scope.name("c") for _ in self.kept]
        for k, array in enumerate(arrays):
            scope.emit(DeclareArray(array, dt.f32, 2, None),
                       LoadSharedVector(array, 0, self.values.name, self.place(k, self.columns.local(j * 2)), 2))
        known = {v for v in loop.walk((*self.kept, *self.cells.held)) if isinstance(v, loop.Load)}
        aligned = self.kernel.extents[last] % 2 == 0 and self.rows.inside(column) is None and self.columns.inside(column) is None
        for h, (axes, inside) in enumerate(rows):
            cell = scope.child()
            cell.axes.update(axes)
            e = Var(cell.name("e"), cell.integer)
            if aligned:
                cell.place(self.columns.axes, cell.whole(column))
                start = cell.axes[last]
                each = cell.neighbour(last, start, e, cell.load_vectors([result], last, start, 2, known))
            else:
                each = cell.child()
                at = each.let("p", column + maps.narrow(e))
                each.place(self.columns.axes, each.whole(at))
                each.guard = both(inside, self.columns.inside(at))
            self.cells.bind(each, i * 2 + h, j * 2 + maps.narrow(e))
            each.values.update((v, Element(array, dt.f32, e)) for v, array in zip(self.kept, arrays, strict=True))
            each.emit(SetElement(into, output.element.compute, e + (first + 2 * h), each.value(result)))
            cell.emit(counted(e, 2, each))
            scope.emit(*cell.body)

    def end(self, scope: Emitter) -> None:
        """Shared memory stays until its last box has left."""
        if self.boxes:
            scope.emit(If(self.thread == 0, (WaitStores(0, False),)))
