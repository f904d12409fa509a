"""Form "transpose": a map that reads some tensors along another axis than it writes.

A block computes a tile of `rows` (axis p) by `columns` (axis q, the output's last).  Loads that lie contiguous along p are copied
to shared memory along p and read from there along q; every other load is made along q before the block waits, so that all reads
are under way together.  A shared tile is stored [q][p] in the tensor's own dtype, each line one 4-byte word (or one wider
element) longer than it must be: lanes that walk down a column meet different banks.

Row: WORK=t<threads>,TILE=<rows>x<columns>,STAGE=smem.  Any extents: tails are predicated.
Shared bytes: columns * (rows * bytes + max(bytes, 4)) for each staged load.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import gcd, prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadShared, StoreSharedVector
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.loop_ir import Load, Value
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import stride, vectorises
from emmy.lower.tile_to_kernel.finish import finish, store_run
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter
from emmy.lower.tile_to_kernel.staging import both, counted, under

WORD = 4        # bytes of a bank of shared memory


@dataclass(frozen=True)
class Tile:
    """A block's tile, and how its threads share it out: along `fast` first, in runs of `run` neighbours."""

    rows: int
    columns: int
    threads: int
    p: int
    q: int
    first: dict[int, Expr]

    def runs(self, run: int) -> int:
        """How many runs of `run` elements a thread has."""
        return self.rows * self.columns // (run * self.threads)

    def widest(self, extent: int, side: int, element_bytes: int) -> int:
        """The longest run along a side of the tile that fills every thread, ends where the axis does and is one access."""
        return next((n for n in (16, 8, 4, 2) if n * element_bytes <= VECTOR_BYTES and extent % n == side % n == 0
                     and self.rows * self.columns % (n * self.threads) == 0), 1)

    def place(self, scope: Emitter, k: Expr, run: int, along_rows: bool) -> tuple[Expr, Expr, Expr | None]:
        """Where in the tile the thread's run `k` begins, and whether that lies inside the output (None: it always does)."""
        side = self.rows if along_rows else self.columns
        at = scope.let("k", Thread() + k * self.threads)
        fast, slow = at % (side // run) * run, at // (side // run)
        row, column = (scope.let(*x) for x in (("row", fast if along_rows else slow), ("column", slow if along_rows else fast)))
        extents, spots = scope.kernel.extents, ((self.p, self.rows, row), (self.q, self.columns, column))
        return row, column, both(*(self.first[a] + scope.whole(x) < extents[a] for a, size, x in spots if extents[a] % size))

    def enter(self, scope: Emitter, row: Expr, column: Expr) -> None:
        """Give p and q the coordinates of a place of the tile."""
        for axis, local in ((self.p, row), (self.q, column)):
            scope.axes[axis] = scope.let("i", self.first[axis] + scope.whole(local))


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a transposing map; IRError where the kernel folds, or its row does not cover a tile with whole threads."""
    scope = Emitter(kernel)
    t = tiling(scope, schedule)
    blocks = [-(-kernel.extents[a] // n) for a, n in ((t.p, t.rows), (t.q, t.columns))]
    direct, staged = split(scope, t)
    scope.hoist(kernel.results, t.p, t.q)
    tiles = [Staged(scope, t, v) for v in staged]
    for s in tiles:
        s.fetch(scope)
    width = t.widest(kernel.extents[t.q], t.columns, max(o.element.bytes for o in kernel.outputs))
    held = hold(scope, t, direct, width)
    for s in tiles:
        s.commit(scope)
    scope.emit(Barrier())
    k = Var(scope.name("k"), dt.i32)
    outer = scope.child()
    row, column, guard = t.place(outer, k, width, along_rows=False)
    inner = outer.child()
    t.enter(inner, row, column)

    def bind(cell: Emitter, lane: Expr) -> None:
        cell.values.update((v, Element(array, v.dtype, k * width + lane)) for v, array in held.items())
        cell.values.update((s.load, s.read(cell, row, column + lane)) for s in tiles)

    if width == 1:
        bind(inner, int32(0))
    else:
        inner.values.update((v, Element(array, v.dtype, k * width)) for v, array in held.items())    # what depends on p alone is read here
    store_run(inner, t.q, inner.axes[t.q], width, bind)
    outer.emit(*under(guard, inner.body))
    scope.emit(counted(k, t.runs(width), outer))
    grid = prod((*blocks, *(kernel.extents[a] for a in schedule.batch))), 1, 1
    return finish(kernel, scope, grid, t.threads, tuple(s.buffer for s in tiles))


def tiling(scope: Emitter, schedule: tile.Schedule) -> Tile:
    """The block's tile, with the other axes placed: blocks run along q first, then p, then those."""
    kernel, row = scope.kernel, schedule.row
    sides = re.fullmatch(r"(\d+)x(\d+)", row.tile)
    if kernel.folds or not sides or row.stage != "smem" or row.reduce or len(schedule.rows) != 1 or schedule.columns != kernel.outer[-1:]:
        raise IRError(f"{kernel.name}: row {row}: a transposing map has no folds, and is spelled WORK=t256,TILE=32x32,STAGE=smem")
    rows, columns = map(int, sides.groups())
    if row.threads % 32 or rows * columns % row.threads:
        raise IRError(f"row {row}: {row.threads} threads do not share out {rows * columns} elements in whole warps")
    (p,), (q,) = schedule.rows, schedule.columns
    down, across = (-(-kernel.extents[a] // n) for a, n in ((p, rows), (q, columns)))
    block = scope.whole(Block(0))
    scope.place([a for a in kernel.outer if a in schedule.batch], block // (down * across))
    first = {p: scope.let("p", block // across % down * rows), q: scope.let("q", block % across * columns)}
    return Tile(rows, columns, row.threads, p, q, first)


def split(scope: Emitter, t: Tile) -> tuple[list[Load], list[Load]]:
    """The loads of the results that vary over the tile, those inside another's point left out: made along q, and staged."""
    direct: list[Load] = []
    staged: list[Load] = []
    seen, stack = set[Value](), list(scope.kernel.results)
    while stack:
        v = stack.pop()
        if v in seen or scope.free[v].isdisjoint((t.p, t.q)):
            continue
        seen.add(v)
        if isinstance(v, Load):
            across = t.q in scope.free[v] and stride(scope.kernel, v, t.p) == 1
            (staged if across else direct).append(v)
        elif not isinstance(v, loop.IndexOf):
            stack.extend(v.operands)
    return direct, staged


def hold(scope: Emitter, t: Tile, loads: list[Load], width: int) -> dict[Load, str]:
    """Read `loads` at each of the thread's output elements into register arrays."""
    held = {v: scope.name("h") for v in loads}
    if not held:
        return held
    scope.emit(*(DeclareArray(array, v.dtype, t.runs(width) * width, None) for v, array in held.items()))
    k = Var(scope.name("k"), dt.i32)
    outer = scope.child()
    row, column, guard = t.place(outer, k, width, along_rows=False)
    inner = outer.child()
    t.enter(inner, row, column)
    inner.hoist(loads, t.q)
    first = inner.axes[t.q]
    arrays = inner.load_vectors(loads, t.q, first, width)
    lane = Var(scope.name("e"), scope.integer) if width > 1 else const(scope.integer, 0)
    each = inner.neighbour(t.q, first, lane, arrays)
    for v, array in held.items():
        each.emit(SetElement(array, v.dtype, k * width + lane, each.value(v)))
    inner.emit(*([counted(lane, width, each)] if isinstance(lane, Var) else each.body))
    outer.emit(*under(guard, inner.body))
    scope.emit(counted(k, t.runs(width), outer))
    return held


class Staged:
    """A load whose tile goes through shared memory, in its stored dtype."""

    def __init__(self, scope: Emitter, t: Tile, load: Load):
        self.tile, self.load, element = t, load, load.element
        self.pad = max(1, WORD // element.bytes)
        self.pitch = t.rows + self.pad
        self.buffer = SharedBuffer(scope.name("tile"), element, t.columns * self.pitch)
        run = t.widest(scope.kernel.extents[t.p], t.rows, element.bytes)
        self.run = next((n for n in (16, 8, 4, 2) if n <= run and vectorises(scope.kernel, load, t.p, n)), 1)
        self.array = scope.name("r")

    def fetch(self, scope: Emitter) -> None:
        """Read the thread's runs along p into registers."""
        element, runs = self.load.element, self.tile.runs(self.run)
        scope.emit(DeclareArray(self.array, element, runs * self.run, None))
        for k in range(runs):
            row, column, guard = self.tile.place(scope, int32(k), self.run, along_rows=True)
            inner = scope.child()
            self.tile.enter(inner, row, column)
            offset = inner.offset(self.load.tensor, self.load.point)
            if self.run == 1:
                x = Var(scope.name("x"), element)
                inner.emit(LoadGlobal(x, self.load.tensor, offset), SetElement(self.array, element, int32(k), x))
            else:
                inner.emit(LoadGlobalVector(self.array, k * self.run, self.load.tensor, offset, self.run))
            scope.emit(*under(guard, inner.body))

    def commit(self, scope: Emitter) -> None:
        """Write what `fetch` read to the shared tile, in accesses as wide as its lines are aligned."""
        step = gcd(self.run, self.pad)
        for k in range(self.tile.runs(self.run)):
            row, column, guard = self.tile.place(scope, int32(k), self.run, along_rows=True)
            inner = scope.child()
            for e in range(0, self.run, step):
                inner.emit(StoreSharedVector(self.buffer.name, column * self.pitch + row + e, self.array, k * self.run + e, step))
            scope.emit(*under(guard, inner.body))

    def read(self, scope: Emitter, row: Expr, column: Expr) -> Expr:
        """The element at a place of the tile."""
        x = Var(scope.name("x"), self.load.dtype)
        scope.emit(LoadShared(x, self.buffer.name, column * self.pitch + row))
        return x
