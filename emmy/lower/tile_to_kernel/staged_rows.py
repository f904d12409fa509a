"""Form "fold" with STAGE=smem: a block brings whole rows to shared memory, folds them there, and writes them from there.

A tensor that holds one row after the other is contiguous from the first row of a block to its last, whatever a row's length is: it is
copied 16 bytes at a time where no row by itself is aligned.  `lanes` threads then share each row, at every `lanes`-th element of it;
softmax folds are taken apart (`untwist`), and with few elements a thread what one stage computes for a later one stays in registers.
Results of rows are left in shared memory, where a tensor of their dtype was if there is one, and copied out.

The lanes of a warp read several rows at a time, each at about the same element.  Rows of an even number of 16 bytes would have these in few
banks, and rows of 128 bytes in one: between such rows 16 bytes are left out, so that eight neighbouring rows begin in banks of their own.

Row: WORK=t<rows>x<lanes>,TILE=v<width>,REDUCE=coop,STAGE=smem, the width being how many of the narrowest elements a copy moves; rows
divide the row axes, and the width what the rows of a block hold.
Shared bytes: rows * `pitch` * (bytes of an element of each tensor so held), and 4 or 8 for each fold and warp of a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import If
from emmy.instructions.cp_async import CommitCopies, CopyAsync, WaitCopies
from emmy.instructions.global_memory import StoreGlobalVector
from emmy.instructions.registers import DeclareArray
from emmy.instructions.shared_memory import LoadShared, LoadSharedVector, StoreShared
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Block, Element, Expr, Kernel, SharedBuffer, Thread, Var, const
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import lies_in_rows
from emmy.lower.tile_to_kernel.finish import finish, put
from emmy.lower.tile_to_kernel.fold import Team, along, by_extent, join_lanes, partial
from emmy.lower.tile_to_kernel.held import Held, levels, stages
from emmy.lower.tile_to_kernel.lanes import WARP
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter, Place
from emmy.lower.tile_to_kernel.staging import counted, under
from emmy.lower.tile_to_kernel.untwist import untwisted

HELD = 40       # elements a thread keeps in registers, at most


def row_tensors(kernel: tile.Kernel, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[tuple[loop.Load, int]]:
    """The loads of `kernel` that its row axes hold row by row, each with the axis that it runs along."""
    walked = [part for stage in stages(kernel, columns) for part in stage]
    found = {(v, a): None for roots, a in walked for v in loop.walk(roots) if isinstance(v, loop.Load) and lies_in_rows(kernel, v, rows, a)}
    return list(found)


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of rows in shared memory; IRError where the row does not fit the kernel."""
    kernel = untwisted(kernel)
    rows, lanes = shape(kernel, schedule)
    length = kernel.extents[levels(kernel)[0][0].axis]
    places = row_tensors(kernel, schedule.rows, schedule.columns)
    outer = Emitter(kernel)
    elements = {v.tensor: v.element for v, _ in places}
    apart = pitch(length, [*elements.values(), *(t.element for t in kernel.outputs if schedule.columns)])
    buffers = {t: SharedBuffer(outer.name("rows"), e, rows * apart) for t, e in elements.items()}
    first = outer.let("first", outer.whole(Block(0)) * (rows * length))
    for name, b in buffers.items():
        fetch(outer, b, name, first, rows * lanes, length, apart)
    outer.emit(CommitCopies(), WaitCopies(0), Barrier())
    row, lane = outer.let("row", Thread() // lanes), outer.let("lane", Thread() % lanes)
    begin = outer.let("begin", outer.whole(row) * apart)
    outer.places.update((v, Place(buffers[v.tensor].name, along_row(begin, a), 1)) for v, a in places)
    scope = outer.child()
    order = [a for a in kernel.outer if a in schedule.rows]     # in which rows follow one another
    scope.place(order, scope.whole(Block(0)) * rows + scope.whole(row))
    shared: list[SharedBuffer] = []
    team = Team(lane, lanes, 1, Held(kernel, schedule.columns) if -(-length // lanes) <= HELD else None)
    for level in levels(kernel):
        for group in by_extent(kernel, level):
            for fold, state in zip(group, partial(scope, group, team), strict=True):
                join_lanes(scope, fold, state, min(lanes, WARP))
                if lanes > WARP:
                    state = join_row(scope, fold, state, row, lane, lanes // WARP, rows, shared)
                scope.finish(fold, state)
    if not schedule.columns:
        once = scope.child()
        values = tuple(map(scope.value, kernel.results))
        put(once, values)
        scope.emit(If(lane == 0, tuple(once.body)))
        outer.emit(*scope.body)
        return finish(kernel, outer, (blocks(kernel, schedule, rows), 1, 1), rows * lanes, (*buffers.values(), *shared))
    free, results = list(buffers.values()), []
    for t in kernel.outputs:
        same = next((b for b in free if b.element is t.element), None)
        results.append(same or SharedBuffer(outer.name("rows"), t.element, rows * apart))
        free = [b for b in free if b is not same]
    leave(scope, team, schedule.columns[0], length, begin, results)
    scope.emit(Barrier())
    for t, b in zip(kernel.outputs, results, strict=True):
        spill(scope, b, t.name, first, rows * lanes, length, apart)
    every = tuple(dict.fromkeys((*buffers.values(), *results, *shared)))
    outer.emit(*scope.body)
    return finish(kernel, outer, (blocks(kernel, schedule, rows), 1, 1), rows * lanes, every)


def shape(kernel: tile.Kernel, schedule: tile.Schedule) -> tuple[int, int]:
    """Rows of a block, and lanes of a row."""
    row = schedule.row
    work, run = re.fullmatch(r"t(\d+)x(\d+)", row.work), re.fullmatch(r"v(\d+)", row.tile)
    if not work or not run or row.reduce != "coop" or row.stage != "smem":
        raise IRError(f"{kernel.name}: row {row}: rows in shared memory are spelled WORK=t8x32,TILE=v8,REDUCE=coop,STAGE=smem")
    rows, lanes, width = int(work[1]), int(work[2]), int(run[1])
    extents = {kernel.extents[a] for stage in stages(kernel, schedule.columns) for _, a in stage}
    if len(extents) != 1 or len(schedule.columns) > 1 or any(f.kind == "scan" for f in kernel.folds):
        raise IRError(f"{kernel.name}: folds of several lengths, or scans, share no rows in shared memory")
    if prod(kernel.extents[a] for a in schedule.rows) % rows or rows * max(extents) % width or lanes & (lanes - 1) or rows * lanes % WARP:
        raise IRError(f"{kernel.name}: row {row}: {rows} rows a block divide no row axis, or {width} elements a copy not what they hold")
    return rows, lanes


def blocks(kernel: tile.Kernel, schedule: tile.Schedule, rows: int) -> int:
    return prod(kernel.extents[a] for a in schedule.rows) // rows


def along_row(begin: Expr, axis: int) -> Callable[[Emitter], Expr]:
    """Where a scope's point of `axis` is in the row that begins at `begin`."""
    return lambda inner: begin + inner.axes[axis]


def pitch(length: int, elements: Iterable[DType]) -> int:
    """Elements from the beginning of a row in shared memory to that of the next, of rows of `length` of each of the types `elements`: as
    many more as are 16 bytes of the narrowest, where a row is an even number of these."""
    width = VECTOR_BYTES // min(e.bytes for e in elements)
    return length + width if length % (2 * width) == 0 else length


def runs(buffer: SharedBuffer, length: int, apart: int) -> tuple[int, int]:
    """The elements of 16 bytes of a buffer, and how many runs of so many its rows of `length` are."""
    step = VECTOR_BYTES // buffer.element.bytes
    return step, buffer.length // apart * length // step


def within(at: Expr, step: int, length: int, apart: int) -> Expr:
    """Where a run of rows of `length` is that lie `apart`."""
    return at * step if apart == length else at * step + at // (length // step) * (apart - length)


def fetch(scope: Emitter, buffer: SharedBuffer, tensor: str, first: Expr, threads: int, length: int, apart: int) -> None:
    """Begin to copy a buffer's rows, which lie from `first` on."""
    step, chunks = runs(buffer, length, apart)
    for k in range(-(-chunks // threads)):
        at = scope.let("c", Thread() + k * threads)
        inner = scope.child()
        inner.emit(CopyAsync(buffer.name, within(at, step, length, apart), step, tensor, first + inner.whole(at) * step))
        scope.emit(*under(at < chunks if (k + 1) * threads > chunks else None, inner.body))


def spill(scope: Emitter, buffer: SharedBuffer, tensor: str, first: Expr, threads: int, length: int, apart: int) -> None:
    """Copy a buffer's rows out."""
    (step, chunks), k = runs(buffer, length, apart), Var(scope.name("k"), dt.i32)
    body = scope.child()
    at = body.let("c", Thread() + k * threads)
    inner = body.child()
    array = inner.name("y")
    inner.emit(DeclareArray(array, buffer.element, step, None),
               LoadSharedVector(array, 0, buffer.name, within(at, step, length, apart), step),
               StoreGlobalVector(tensor, first + inner.whole(at) * step, array, 0, step))
    body.emit(*under(at < chunks if chunks % threads else None, inner.body))
    scope.emit(counted(k, -(-chunks // threads), body, unroll=False))


def join_row(scope: Emitter, fold: tile.Fold, state: tuple[Var, ...], row: Expr, lane: Expr, warps: int, rows: int,
             shared: list[SharedBuffer]) -> tuple[Var, ...]:
    """The warps of a row leave their states in shared memory; each of them then joins them all."""
    places = [SharedBuffer(scope.name("warps"), s.element, rows * warps) for s in state]
    shared += places
    at = scope.let("w", row * warps)
    mine = tuple(StoreShared(b.name, at + lane // WARP, s) for b, s in zip(places, state, strict=True))
    scope.emit(If(lane % WARP == 0, mine), Barrier())
    loaded = tuple(Var(scope.name("o"), s.element) for s in state)
    scope.emit(*(LoadShared(o, b.name, at + lane % warps) for o, b in zip(loaded, places, strict=True)))
    joined = tuple(scope.declare("s", o) for o in loaded)
    join_lanes(scope, fold, joined, warps)
    return joined


def leave(scope: Emitter, team: Team, column: int, length: int, begin: Expr, results: list[SharedBuffer]) -> None:
    """Write the thread's results to shared memory, each where none but this thread reads."""
    kernel = scope.kernel
    scope.hoist(kernel.results, column)

    def step(body: Emitter, start: Expr, number: int) -> None:
        known = team.held.run(scope, body, kernel.results, column, start, 1, number)[0] if team.held else {}
        inner = body.neighbour(column, start, const(scope.integer, 0), known)
        inner.axes[column] = start
        inner.values.update((v, Element(array, v.dtype, const(scope.integer, 0))) for v, array in known.items())
        values = tuple(map(inner.value, kernel.results))
        inner.emit(*(StoreShared(b.name, begin + start, value) for b, value in zip(results, values, strict=True)))
        body.emit(*inner.body)

    along(scope, length, const(scope.integer, length), team, step)
