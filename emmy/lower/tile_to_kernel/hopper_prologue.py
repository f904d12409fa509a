"""Left operands of products of warpgroups that are computed from tensors in memory: an activation, a scale, a product of two tensors.

What the value reads along rows and the folded axis, its raw tensors, comes to shared memory as any operand does.  A group of warps
computes its 64 rows where the product takes them from registers: of each 16 elements of the folded axis a lane has two rows, 8 apart, and
of each two pairs of neighbours, 8 apart.  What the value reads of rows alone is read once a tile, what is alike in long runs of the folded
axis, as the scale of a group, once a stage, and what it reads of the folded axis alone for each pair.
The values of a stage are computed beside the products of the stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from emmy.instructions import DeclareArray, LoadSharedVector, SetElement
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Convert, Element, Expr, Var, const, int32
from emmy.ir.loop_ir import Load, Value
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.address import by_runs
from emmy.lower.tile_to_kernel.hopper_operand import CHUNK, Operand
from emmy.lower.tile_to_kernel.hopper_result import Result
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import both, counted

DEEP = 16       # elements of the folded axis that one product of halves takes
RUN = 128       # elements of a run of it that is long enough for threads to read what is alike in it

Views = tuple[tuple[Load, maps.View], ...]


class Prepared(NamedTuple):
    """A sum of products over one axis: the value that is computed, its raw tensors, and the operand that lies in memory."""

    axis: int
    value: Value
    raw: Views
    right: tuple[Load, maps.View]
    taps: tuple[int, ...] = ()


def prepared(kernel: tile.Kernel, free: Mapping[Value, frozenset[int]], f: tile.Fold, left: Value, right: Value, element: DType,
             sides: Sequence[Iterable[int]], batch: Iterable[int]) -> Prepared | None:
    """The sum `f` of left * right, of rows and of columns; None where no tensor map has `right` or what `left` reads along both axes."""
    tensors, (rows, columns), batch = {t.name: t for t in kernel.tensors}, tuple(map(tuple, sides)), tuple(batch)
    load = loop.load_of(right, element)
    view = load and maps.operand(tensors[load.tensor], load.point, f.axis, columns, batch, kernel.extents)
    raw = raw_tensors(kernel, free, left, f.axis, rows, batch)
    return Prepared(f.axis, left, raw, (load, view)) if load and view and raw else None


def raw_tensors(kernel: tile.Kernel, free: Mapping[Value, frozenset[int]], value: Value, axis: int, rows: Iterable[int],
                batch: Iterable[int]) -> Views | None:
    """What `value` loads along the folded axis and rows, each contiguous along the folded axis, but for what is alike in long runs; None
    where a map has one of them not."""
    tensors, rows, out = {t.name: t for t in kernel.tensors}, tuple(rows), []
    for v in loop.walk((value,)):
        if isinstance(v, tile.FoldResult) or isinstance(v, Load) and v.operands:
            return None
        if isinstance(v, Load) and axis in free[v] and not free[v].isdisjoint(rows) and not by_runs(kernel, (v,), axis, RUN):
            view = maps.operand(tensors[v.tensor], v.point, axis, rows, batch, kernel.extents)
            if view is None or not view.by_depth:
                return None
            out.append((v, view))
    return tuple(out) or None


class Computed:
    """A computed left operand, `tiles` times 64 rows of a group.  `raw`: its tensors in shared memory; `array`: registers that products
    read, whose values are computed in others while the products of the stage before go on."""

    def __init__(self, scope: Emitter, p: Prepared, raw: Mapping[Load, Operand], element: DType, depth: int, tiles: int):
        self.axis, self.raw, self.element, self.depth, self.tiles = p.axis, dict(raw), element, depth, tiles
        match p.value:      # it is rounded as it becomes an operand
            case loop.Round(to, x) if to is element: self.value = x
            case _: self.value = p.value
        self.array, self.following = scope.name("left"), scope.name("next")
        self.tail = scope.kernel.extents[self.axis] % depth != 0

    @property
    def registers(self) -> int:
        """Elements that a thread holds of a stage."""
        return self.tiles * self.depth // 2

    def at(self, i: Expr, q: Expr) -> Expr:
        """Where the elements are that a thread has of 64 rows and the q-th 16 of a stage."""
        return (i * (self.depth // DEEP) + q) * 8

    def declare(self, scope: Emitter) -> None:
        scope.emit(*(DeclareArray(array, self.element, self.registers, None) for array in (self.array, self.following)))

    def begin(self, scope: Emitter, result: Result) -> None:
        """Before the products of a tile: what the value reads of each of a lane's rows."""
        self.result, self.lines = result, []
        for n in range(2 * self.tiles):
            line = scope.child()
            at = line.let("p", result.rows.first + result.rows.local(int32(n)))
            line.place(result.rows.axes, line.whole(at))
            line.guard = result.rows.inside(at)
            line.hoist([self.value], self.axis)
            scope.emit(*line.body)
            self.lines.append(line)

    def compute(self, scope: Emitter, slot: Expr, start: Expr) -> None:
        """The values of the stage in a slot, at an element of the folded axis, rounded to halves; zeros beyond its end."""
        q, c = Var(scope.name("q"), dt.i32), Var(scope.name("c"), dt.i32)
        stage = [self.alike(scope, line, start, self.depth) for line in self.lines]
        outer = scope.child()
        lines = [self.alike(outer, line, start + q * DEEP, DEEP) for line in stage]
        body = outer.child()
        inside = body.let("d", q * DEEP + c * 8 + self.result.lane % 4 * 2)
        first = body.whole(body.let("k", start + inside))
        runs = {} if self.tail else body.load_vectors([self.value], self.axis, first, 2, self.raw.keys() | lines[0].values.maps[0])
        for n, row in enumerate(lines):
            line = body.child()
            line.axes.update(row.axes.maps[0])
            line.values.update(row.values.maps[0])
            arrays = {load: line.name("x") for load in self.raw}
            for load, array in arrays.items():
                line.emit(DeclareArray(array, load.element.compute, 2, None),
                          LoadSharedVector(array, 0, self.raw[load].buffer.name, self.place(load, slot, n, inside), 2))
            e = Var(line.name("e"), line.integer)
            each = line.neighbour(self.axis, first, e, runs | arrays)
            there = first + e < scope.kernel.extents[self.axis] if self.tail else None
            each.guard = there
            value = each.value(self.value)
            value = Apply("select", (there, value, const(dt.f32, 0))) if there is not None else value
            at = self.at(int32(n // 2), q) + (c * 4 + n % 2 * 2)
            each.emit(SetElement(self.following, self.element, at + maps.narrow(e), Convert(self.element, value)))
            line.emit(counted(e, 2, each))
            body.emit(*line.body)
        outer.emit(counted(c, 2, body))
        scope.emit(counted(q, self.depth // DEEP, outer))

    def alike(self, scope: Emitter, row: Emitter, start: Expr, width: int) -> Emitter:
        """One of the lines, with what is alike in a run of the folded axis that begins at `start`."""
        line = scope.child()
        line.axes.update(row.axes.maps[0])
        line.values.update(row.values.maps[0])
        line.guard = row.guard
        if self.tail and width < self.depth:
            inside = start < scope.kernel.extents[self.axis]
            line.guard = both(line.guard, inside)
        line.hoist_run([self.value], self.axis, scope.whole(start), width, self.raw)
        scope.emit(*line.body)
        return line

    def place(self, load: Load, slot: Expr, n: int, inside: Expr) -> Expr:
        """Where a raw tensor has an element of a stage at a lane's n-th row: in lines of 128 bytes, swizzled by a row's place among 8."""
        x, r = self.raw[load], self.result
        piece, line = CHUNK // load.element.bytes, maps.BYTES // load.element.bytes
        row = r.start + r.warp * 16 + r.lane // 4 + (n // 2 * 64 + n % 2 * 8)
        chunk = inside % line // piece ^ r.lane // 4
        return slot * x.slot + inside // line * (line * x.positions) + row * line + chunk * piece + inside % piece

    def hand_on(self, scope: Emitter) -> None:
        """The values that were computed are what products read."""
        e = Var(scope.name("e"), dt.i32)
        body = scope.child()
        body.emit(SetElement(self.array, self.element, e, Element(self.following, self.element, e)))
        scope.emit(counted(e, self.registers, body))
