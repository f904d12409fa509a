"""Form "scan" with STAGE=lookback: each tile of a scan has a block of its own, which looks back at what the tiles before it have published
(Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016): one read and one write of each element.

A block takes the next tile by a ticket, so that the blocks of all tiles before have begun and none waits for ever.  Its threads scan their
runs; its first warp publishes the tile's product, then combines what the 32 tiles before have published, and the 32 before these, until one
knows the product of all up to and with itself; then it publishes its own.  How many tiles that takes is a matter of time, and so is where
the parentheses stand: sums of floats may differ from one launch to the next by their rounding.

A look takes as long as the second-level cache takes to answer.  Long tiles need fewer of them, and so does a block all of whose warps look,
each at 32 tiles further back (STAGE=lookback/all).

Row: WORK=t<threads>,TILE=v<width>x<runs>,REDUCE=scan,STAGE=lookback.  A thread has so many runs of `width`, and for each of them the warps
of a tile lie side by side; all warps together have 32 runs or a multiple.  The width divides the length of a piece; runs beyond it are
neutral.  The elements have 4 bytes.
Scratch: a word for the tickets and one a tile.  Shared bytes: 4 for each run of a warp, the carry, and the ticket; 16 for each warp that
looks beside others.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import If, While
from emmy.instructions.registers import Assign, DeclareArray, SetElement
from emmy.instructions.shared_memory import LoadShared, StoreShared
from emmy.instructions.shuffle import FirstLane, ShuffleUp
from emmy.instructions.status import Await, Publish, TakeTicket
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Element, Expr, GlobalBuffer, Kernel, SharedBuffer, Thread, Var, const, int32
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.lanes import WARP, butterfly, scan
from emmy.lower.tile_to_kernel.scalar import Emitter, neutral
from emmy.lower.tile_to_kernel.scan import put, scanned
from emmy.lower.tile_to_kernel.staging import under

OWN, ALL = 1, 2     # what a tile has published: its own product, or that of all tiles up to it


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a scan along the axis `schedule.columns`; IRError where the kernel is none or the row does not fit."""
    (fold, length), (column,) = scanned(kernel, schedule.columns), schedule.columns
    row, unit = schedule.row, neutral(fold)[0]
    threads, (width, rounds) = row.threads, shape(row)
    whole = threads % WARP == 0 and threads <= WARP * WARP and rounds > 0 and threads * rounds % (WARP * WARP) == 0 and length % width == 0
    if not whole or len(kernel.folds) > 1 or unit.dtype not in (dt.f32, dt.i32):
        raise IRError(f"{kernel.name}: row {row}: a scan that looks back is of elements of 4 bytes, with no fold beside it, and spelled "
                      f"WORK=t256,TILE=v4x8,REDUCE=scan,STAGE=lookback, its width dividing {length}")
    scope, operator = Emitter(kernel), MONOIDS[fold.recipe].operator
    warps, step = threads // WARP, threads * width
    size, pieces = step * rounds, kernel.extents[column] // length
    tiles, sequences = -(-length // size), pieces * prod(kernel.extents[a] for a in schedule.rows)
    ticket, totals = SharedBuffer(scope.name("ticket"), dt.i32, 1), SharedBuffer(scope.name("totals"), unit.dtype, warps * rounds)
    status = GlobalBuffer(scope.name("status") + "_", dt.i64, 1 + sequences * tiles, "scratch")

    taken, number = Var(scope.name("n"), dt.i32), Var(scope.name("n"), dt.i32)
    scope.emit(If(Thread() == 0, (TakeTicket(status.name, int32(0), taken), StoreShared(ticket.name, int32(0), taken))), Barrier(),
               LoadShared(number, ticket.name, int32(0)))
    sequence, place = scope.let("row", number // tiles), scope.let("tile", number % tiles)
    scope.place(schedule.rows, scope.whole(sequence // pieces))
    begin = scope.let("begin", scope.whole(sequence % pieces) * length)
    scope.axes[column] = begin
    lane, warp = scope.let("lane", Thread() % WARP), scope.let("warp", Thread() // WARP)
    scope.hoist(fold.lifts, fold.axis)
    scope.hoist(kernel.results, column)

    firsts = [scope.let("at", scope.whole(place) * size + scope.whole(Thread()) * width + k * step) for k in range(rounds)]
    guards = [None if length % size == 0 else first < length for first in firsts]
    runs = [read(scope, fold, first, guard, width, operator) for first, guard in zip(firsts, guards, strict=True)]
    before = []
    for k, own in enumerate(runs):
        sum_ = scope.declare("w", Element(own, unit.dtype, int32(width - 1)))
        before.append(lanes_before(scope, sum_, operator, lane))
        scope.emit(If(lane == WARP - 1, (StoreShared(totals.name, warp + k * warps, sum_),)))
    scope.emit(Barrier())
    tiles_before = Looker(Words(status.name, 1 + sequence * tiles, place), operator, unit, lane, warp)
    carry, shared = (all_look if row.stage == "lookback/all" else one_looks)(scope, tiles_before, totals, threads)
    for k, (own, previous) in enumerate(zip(runs, before, strict=True)):
        earlier = Var(scope.name("b"), unit.dtype)
        scope.emit(LoadShared(earlier, totals.name, warp + k * warps))
        start = scope.let("b", Apply(operator, (carry, earlier)))
        offset = scope.let("b", Apply("select", (lane == 0, start, Apply(operator, (start, previous)))))
        write = scope.child()
        put(write, fold, column, begin + firsts[k], width, own, operator, offset)
        scope.emit(*under(guards[k], write.body))
    return finish(kernel, scope, (sequences * tiles, 1, 1), threads, (ticket, totals, *shared), own=(status,))


def shape(row: tile.Row) -> tuple[int, int]:
    """Elements of a run, and runs of a thread, of a row that looks back; none where it is spelled otherwise."""
    found = re.fullmatch(r"v(\d+)x(\d+)", row.tile)
    return (int(found[1]), int(found[2])) if found else (1, 0)


def read(scope: Emitter, fold: tile.Fold, first: Expr, guard: Expr | None, width: int, operator: str) -> str:
    """The thread's run from `first` on, each element with those before it; neutral where `guard` does not hold."""
    (x,), own = fold.lifts, scope.name("s")
    scope.emit(DeclareArray(own, x.dtype, width, None if guard is None else neutral(fold)[0]))
    body = scope.child()
    arrays = body.load_vectors(fold.lifts, fold.axis, first, width)
    for e in range(width):
        each = body.neighbour(fold.axis, first, const(scope.integer, e), arrays)
        value = each.value(x)
        each.emit(SetElement(own, x.dtype, int32(e), Apply(operator, (Element(own, x.dtype, int32(e - 1)), value)) if e else value))
        body.emit(*each.body)
    scope.emit(*under(guard, body.body))
    return own


def lanes_before(scope: Emitter, sum_: Var, operator: str, lane: Expr) -> Var:
    """Scan `sum_` along the lanes of a warp; what a lane had before its own (the first lane: its own)."""
    scan(scope, operator, sum_, lane)
    previous = Var(scope.name("o"), sum_.element)
    scope.emit(ShuffleUp(previous, sum_, 1))
    return previous


class Words(NamedTuple):
    """Where the tiles of a sequence publish: in words of the buffer `status` from `first` on.  The block's is the one of `place`."""

    status: str
    first: Expr
    place: Expr


class Looker(NamedTuple):
    """A thread that looks back: at which words, what it combines by and what is neutral, its lane and its warp."""

    words: Words
    operator: str
    unit: Expr
    lane: Expr
    warp: Expr

    def total(self, scope: Emitter, totals: SharedBuffer) -> Expr:
        """What one warp does: each of the `totals`, a multiple of 32, becomes what comes before it in the tile; the last lane has the
        product of all, and publishes it."""
        (status, first, place), operator, lane = self.words, self.operator, self.lane
        each = totals.length // WARP
        own = [Var(scope.name("o"), self.unit.dtype) for _ in range(each)]
        scope.emit(*(LoadShared(o, totals.name, lane * each + k) for k, o in enumerate(own)))
        upto: list[Expr] = [own[0]]
        for o in own[1:]:
            upto.append(scope.let("u", Apply(operator, (upto[-1], o))))
        total = scope.declare("w", upto[-1])
        previous = lanes_before(scope, total, operator, lane)
        before = scope.let("b", Apply("select", (lane == 0, self.unit, previous)))
        earlier = [before, *(Apply(operator, (before, x)) for x in upto[:-1])]
        scope.emit(*(StoreShared(totals.name, lane * each + k, x) for k, x in enumerate(earlier)))
        kind = Apply("select", (place == 0, int32(ALL), int32(OWN)))
        scope.emit(If(lane == WARP - 1, (Publish(status, first + place, kind, total),)))
        return total

    def look(self, scope: Emitter, at: Var) -> tuple[Var, Var]:
        """What a warp sees whose lanes await the words of tiles `at`, each that of the tile before: the product back to the nearest that
        knows all before it, and the lane of that one, 32 if none does.  Before the first tile all is known, and neutral."""
        flag, value = scope.declare("g", int32(ALL)), scope.declare("v", self.unit)
        seen, found = Var(scope.name("g"), dt.i32), Var(scope.name("v"), self.unit.dtype)
        await_ = Await(self.words.status, self.words.first + at, seen, found)
        scope.emit(If(Apply("le", (int32(0), at)), (await_, Assign(flag, seen), Assign(value, found))))
        return value, self.nearest(scope, flag == ALL, value)

    def nearest(self, scope: Emitter, knows: Expr, value: Var) -> Var:
        """The first lane that `knows` all before it, 32 if none does; `value` becomes the product of those up to it."""
        nearest = Var(scope.name("n"), dt.i32)
        scope.emit(FirstLane(nearest, knows), Assign(value, Apply("select", (Apply("le", (self.lane, nearest)), value, self.unit))))
        butterfly(scope, self.operator, value, WARP)
        return nearest

    def publish_all(self, carry: Expr, total: Expr) -> Publish:
        return Publish(self.words.status, self.words.first + self.words.place, int32(ALL), Apply(self.operator, (carry, total)))


def one_looks(outer: Emitter, looker: Looker, totals: SharedBuffer, threads: int) -> tuple[Expr, tuple[SharedBuffer, ...]]:
    """What comes before the tile, which the first warp finds out, and the shared buffers that this takes."""
    place, lane, scope = looker.words.place, looker.lane, outer.child()
    carried = SharedBuffer(outer.name("carry"), looker.unit.dtype, 1)
    total = looker.total(scope, totals)
    carry, at, more = scope.declare("carry", looker.unit), scope.declare("k", place - 1 - lane), scope.declare("more", place > 0)
    step = scope.child()
    value, nearest = looker.look(step, at)
    step.emit(Assign(carry, Apply(looker.operator, (value, carry))), Assign(at, at - WARP), Assign(more, nearest == WARP))
    scope.emit(While(more, tuple(step.body)), If((lane == WARP - 1) & (place > 0), (looker.publish_all(carry, total),)),
               If(lane == 0, (StoreShared(carried.name, int32(0), carry),)))
    known = Var(outer.name("c"), looker.unit.dtype)
    outer.emit(If(looker.warp == 0, tuple(scope.body)), Barrier(), LoadShared(known, carried.name, int32(0)))
    return known, (carried,)


def all_look(outer: Emitter, looker: Looker, totals: SharedBuffer, threads: int) -> tuple[Expr, tuple[SharedBuffer, ...]]:
    """The same, of all warps, each of which looks at 32 tiles further back than the one before it.  Two looks take turns in shared memory,
    so that one barrier each suffices; that of the first tells all threads the `totals`, too."""
    (_, _, place), operator, unit, lane, warp = looker
    warps, element = threads // WARP, unit.dtype
    whole, parts, ends = (SharedBuffer(outer.name(n), e, k) for n, e, k in (
        ("whole", element, 1), ("parts", element, 2 * warps), ("ends", dt.i32, 2 * warps)))
    scope = outer.child()
    total = looker.total(scope, totals)
    scope.emit(If(lane == WARP - 1, (StoreShared(whole.name, int32(0), total),)))
    outer.emit(If(warp == 0, tuple(scope.body)))
    carry, at = outer.declare("carry", unit), outer.declare("k", place - 1 - Thread())
    more, turn = outer.declare("more", place >= 0), outer.declare("turn", int32(0))
    step = outer.child()
    value, nearest = looker.look(step, at)
    step.emit(If(lane == 0, (StoreShared(parts.name, turn + warp, value), StoreShared(ends.name, turn + warp, nearest))), Barrier())
    part, end = Var(step.name("p"), element), Var(step.name("e"), dt.i32)
    step.emit(LoadShared(part, parts.name, turn + lane % warps), LoadShared(end, ends.name, turn + lane % warps))
    seen = step.declare("p", Apply("select", (lane < warps, part, unit)))
    last = looker.nearest(step, (lane < warps) & (end < WARP), seen)
    step.emit(Assign(carry, Apply(operator, (seen, carry))), Assign(at, at - threads), Assign(more, last == WARP),
              Assign(turn, warps - turn))
    product = Var(outer.name("w"), element)
    publish = LoadShared(product, whole.name, int32(0)), looker.publish_all(carry, product)
    outer.emit(While(more, tuple(step.body)), If((Thread() == WARP - 1) & (place > 0), publish))
    return carry, (whole, parts, ends)
