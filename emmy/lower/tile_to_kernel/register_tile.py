"""A thread's tile of values in registers: rows by columns of them, accumulated, read by cell and stored."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Element, Expr, SharedBuffer, Var, const, int32
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.finish import store, store_run
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Product, Side, Strip, Tiling, both, counted, under

Factors = tuple[dict[Value, str], dict[Value, str]]     # of each side, the registers that hold its values
UNROLLED = 1024     # multiply-adds that stand in a row: more leave the first-level instruction cache


class Held(NamedTuple):
    """A register array that holds a value at a thread's rows, at its columns, or at both, row-major."""

    array: str
    element: DType
    on_rows: bool
    on_columns: bool

    def at(self, i: Expr, j: Expr, columns: int) -> Element:
        row = i if self.on_rows else int32(0)
        return Element(self.array, self.element, row * columns + j if self.on_columns else row)


def multiply_add(x: Expr, y: Expr, z: Expr, fused: bool) -> Expr:
    """x * y + z, rounded once if `fused`."""
    return Apply("fma", (x, y, z)) if fused else Apply("add", (Apply("mul", (x, y)), z))


def outer_product(scope: Emitter, into: str, left: str | None, right: str | None, rows: int, columns: int, fused: bool) -> None:
    """into[i][j] += left[i] * right[j]; where one side is missing, into[i] += left[i] or into[j] += right[j].

    Products stand two rows by two columns, down and up in turn, so that each reads one factor of the product before it: registers are
    read in two banks, and one that stays for the next instruction is not read again."""
    i, j = Var(scope.name("i"), dt.i32), Var(scope.name("j"), dt.i32)
    body = scope.child()
    if left is None or right is None:
        array, at, count = (right, j, columns) if left is None else (left, i, rows)
        assert array is not None
        body.emit(SetElement(into, dt.f32, at, Apply("add", (Element(into, dt.f32, at), Element(array, dt.f32, at)))))
        scope.emit(counted(at, count, body))
        return
    def add(row: Expr, column: Expr) -> None:
        at = row * columns + column
        value = multiply_add(Element(left, dt.f32, row), Element(right, dt.f32, column), Element(into, dt.f32, at), fused)
        body.emit(SetElement(into, dt.f32, at, value))

    high, wide = (2, 2) if rows % 2 == columns % 2 == 0 else (1, 1)
    row = Apply("select", (j % 2 == 0, i * high, rows - high - i * high)) if high > 1 else i
    for down, across in ((0, 0), (1, 0), (1, 1), (0, 1))[:high * wide]:
        add(row + down, j * wide + across)
    outer = scope.child()
    outer.emit(counted(i, rows // high, body))
    scope.emit(counted(j, columns // wide, outer))


class Contraction:
    """Sums of products over one axis, accumulated in registers over a thread's rows and columns."""

    def __init__(self, scope: Emitter, products: list[Product], rows: Strip, columns: Strip, t: Tiling, left_slots: int, right_slots: int):
        self.products, self.rows, self.columns, self.tiling = products, rows, columns, t
        axis = products[0].fold.axis
        self.extent = scope.kernel.extents[axis]
        self.left = Side(scope, [p.left for p in products if p.left is not None], rows, axis, t.depth, t.threads, left_slots)
        self.right = Side(scope, [p.right for p in products if p.right is not None], columns, axis, t.depth, t.threads, right_slots)
        self.accumulators = [scope.name("acc") for _ in products]

    @property
    def shared(self) -> tuple[SharedBuffer, ...]:
        return (*self.left.buffers, *self.right.buffers)

    def held(self) -> dict[Value, Held]:
        """Where each fold's result is."""
        pairs = zip(self.products, self.accumulators, strict=True)
        return {p.fold.result(): Held(array, dt.f32, p.left is not None, p.right is not None) for p, array in pairs}

    def clear(self, scope: Emitter) -> None:
        for p, array in zip(self.products, self.accumulators, strict=True):
            length = (self.rows.count if p.left is not None else 1) * (self.columns.count if p.right is not None else 1)
            scope.emit(DeclareArray(array, dt.f32, length, const(dt.f32, 0)))

    def read(self, scope: Emitter, k: Expr, left_slot: Expr, right_slot: Expr, into: Factors | None = None) -> Factors:
        """The factors at the k-th element of the tiles that begin at these elements of the shared buffers."""
        given = into or ({}, {})
        return ({v: self.left.read(scope, v, k, left_slot, given[0].get(v)) for v in self.left.values},
                {v: self.right.read(scope, v, k, right_slot, given[1].get(v)) for v in self.right.values})

    def add(self, scope: Emitter, factors: Factors) -> None:
        """Add the products of factors in registers."""
        lefts, rights = factors
        for p, array in zip(self.products, self.accumulators, strict=True):
            outer_product(scope, array, lefts.get(p.left), rights.get(p.right), self.rows.count, self.columns.count, self.tiling.fused)  # type: ignore[arg-type]

    def step(self, scope: Emitter, left_slot: Expr, right_slot: Expr) -> None:
        """Add the products of `depth` elements, whose tiles begin at these elements of the shared buffers."""
        most = max(1, min(16, UNROLLED // (self.rows.count * self.columns.count)))
        part = max(n for n in range(1, most + 1) if self.tiling.depth % n == 0)
        k = Var(scope.name("k"), dt.i32)
        block = Var(scope.name("k"), dt.i32) if part < self.tiling.depth else int32(0)
        body = scope.child()
        self.add(body, self.read(body, block * part + k, left_slot, right_slot))
        loop_ = counted(k, part, body)
        if isinstance(block, Var):
            whole = scope.child()
            whole.emit(loop_)
            loop_ = counted(block, self.tiling.depth // part, whole, unroll=False)
        scope.emit(loop_)


def parts(scope: Emitter, roots: Iterable[Value], axes: tuple[int, ...], others: tuple[int, ...], held: Iterable[Value]) -> list[Value]:
    """The largest values below `roots` that depend on some of `axes` and none of `others`, but for those already held and bare indices."""
    return parts_of(scope.free, roots, axes, others, {*held, *scope.values})


def parts_of(free: Mapping[Value, frozenset[int]], roots: Iterable[Value], axes: Iterable[int], others: Iterable[int],
             known: Container[Value]) -> list[Value]:
    """The largest values below `roots` that depend on some of `axes` and none of `others`, but for those known and bare indices."""
    found: dict[Value, None] = {}
    seen, stack = set[Value](), list(roots)
    while stack:
        v = stack.pop()
        if v in seen or v in known or isinstance(v, loop.IndexOf):
            continue
        seen.add(v)
        if not free[v].isdisjoint(axes) and free[v].isdisjoint(others):
            found[v] = None
        else:
            stack.extend(v.operands)
    return list(found)


def hold_parts(scope: Emitter, roots: Iterable[Value], along: Strip, others: tuple[int, ...], held: dict[Value, Held],
               on_rows: bool) -> None:
    """Evaluate once for each of a thread's positions along a strip what depends on that side alone, and add it to `held`."""
    values = parts(scope, roots, along.axes, others, held)
    if not values:
        return
    k = Var(scope.name("i"), dt.i32)
    body = scope.child()
    at = body.let("p", along.first + along.local(k))
    body.place(along.axes, body.whole(at))
    body.guard = both(body.guard, along.inside(at))
    for v, h in held.items():
        if h.on_rows is on_rows and h.on_columns is not on_rows:
            body.values[v] = h.at(k, k, 1)
    for v in values:
        made = Held(scope.name("h"), v.dtype, on_rows, not on_rows)
        scope.emit(DeclareArray(made.array, made.element, along.count, None))
        body.emit(SetElement(made.array, made.element, k, body.value(v)))
        held[v] = made
    scope.emit(counted(k, along.count, body))


class Cells:
    """The cells of a thread's tile: at rows by columns, with the values that are held there."""

    def __init__(self, rows: Strip, columns: Strip, held: dict[Value, Held]):
        self.rows, self.columns, self.held = rows, columns, held

    def prepare(self, scope: Emitter, roots: Iterable[Value], side: str) -> None:
        """Hold what the roots read of the block alone and of one side, "rows" or "columns", alone."""
        axes = self.rows.axes + self.columns.axes
        scope.values.update((v, h.at(int32(0), int32(0), 1)) for v, h in self.held.items() if scope.free[v].isdisjoint(axes))
        scope.hoist(roots, *axes)
        mine, other = (self.rows, self.columns) if side == "rows" else (self.columns, self.rows)
        hold_parts(scope, roots, mine, other.axes, self.held, side == "rows")

    def bind(self, scope: Emitter, i: Expr, j: Expr) -> None:
        """Make what is held at row `i` and column `j` the values of a scope."""
        for v, h in self.held.items():
            scope.values[v] = h.at(i, j, self.columns.count)

    def each(self, scope: Emitter, step: int = 1) -> tuple[Emitter, Var, Var, Emitter, Expr | None, Expr]:
        """Scopes of a loop over rows and one over every `step`-th column inside: (row scope, i, j, cell scope, guard, column position)."""
        i, j = Var(scope.name("i"), dt.i32), Var(scope.name("j"), dt.i32)
        outer = scope.child()
        row = outer.let("p", self.rows.first + self.rows.local(i))
        outer.place(self.rows.axes, outer.whole(row))
        cell = outer.child()
        first = j * step
        column = cell.let("p", self.columns.first + self.columns.local(first))
        cell.place(self.columns.axes, cell.whole(column))
        self.bind(cell, i, first)
        return outer, i, j, cell, both(self.rows.inside(row), self.columns.inside(column)), column

    def close(self, scope: Emitter, outer: Emitter, i: Var, j: Var, cell: Emitter, step: int = 1) -> None:
        """Emit the loops that `each` opened."""
        outer.emit(counted(j, self.columns.count // step, cell))
        scope.emit(counted(i, self.rows.count, outer))

    def store(self, scope: Emitter) -> None:
        """Store the kernel's results at every cell inside the outputs, runs of columns as vectors where they are neighbours in memory."""
        kernel, run = scope.kernel, self.columns.run
        for side in ("rows", "columns"):
            self.prepare(scope, kernel.results, side)
        last = self.columns.axes[-1] if self.columns.axes else None
        vector = run if last is not None and last == kernel.outer[-1] and kernel.extents[last] % run == 0 else 1
        outer, i, j, cell, guard, _ = self.each(scope, vector)
        body = cell.child()
        if last is None or vector == 1:
            store(body)
        else:
            store_run(body, last, body.axes[last], vector, lambda inner, lane: self.bind(inner, i, j * vector + lane))
        cell.emit(*under(guard, body.body))
        self.close(scope, outer, i, j, cell, vector)
