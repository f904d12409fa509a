"""Form "contraction": sums of products over one axis k, as tiles of rows by columns held in the registers of a block.

Each step copies `depth` elements of k of the operands to shared memory, then every thread adds rows x columns products for each of
them.  With STAGE=d1 a step waits for its own copies; with d2 the copies of the next step are under way while it adds.  With smem-async
the stages are a ring that asynchronous copies fill, past the registers, for operands that are f32 in memory.  The result is
computed from the sums where they are, so what follows a matmul, and a norm of its rows, cost no memory traffic.

Row: WORK=t<down>x<across>,TILE=<fma|mul>_f32/f<rows>x<columns>/k<depth>,STAGE=d<1|2>/smem, or d<stages>/smem-async.  Any extents: tails
are predicated.
Shared bytes: 4 * stages * depth * (L * (down*rows + 4) + R * (across*columns + 4)) for L distinct left operands and R right ones.
"""

from __future__ import annotations

from math import prod

from emmy.instructions.barrier import Barrier
from emmy.instructions.control import For, If
from emmy.instructions.cp_async import CommitCopies, WaitCopies
from emmy.instructions.registers import Assign
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Expr, Kernel, Thread, Var, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.register_tile import Cells, Contraction
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import Tiling, products, strip, tiling
from emmy.lower.tile_to_kernel.tile_copies import TileCopies

PATCH = 4, 8        # threads of a warp down and across: the shape that reads the fewest words of shared memory
BURSTS = 4          # in which the chunks of a step are asked for: all at once keep what is read of shared memory waiting
PAIRS = 2           # neighbouring lanes down: vectors of 16 bytes that lanes two by two ask for alike are read in half the turns


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a contraction; IRError where a fold is not a sum of products that split into rows and columns."""
    if not kernel.folds:
        raise IRError(f"{kernel.name}: a contraction needs a fold")
    t = tiling(schedule.row)
    scope = Emitter(kernel)
    down, across = patches(scope, t)
    rows = strip(kernel, schedule.rows, scope.let("m", Block(1) * (t.down * t.rows)), down, t.down, t.rows)
    columns = strip(kernel, schedule.columns, scope.let("n", Block(0) * (t.across * t.columns)), across, t.across, t.columns)
    scope.place(schedule.batch, scope.whole(Block(2)))
    sums = products(scope, list(kernel.folds), schedule.rows, schedule.columns)
    contraction = Contraction(scope, sums, rows, columns, t, t.stages, t.stages)
    contraction.clear(scope)
    (ring if t.ring else prefetched if t.stages == 2 else staged)(scope, contraction)
    Cells(rows, columns, contraction.held()).store(scope)
    grid = -(-columns.extent // columns.width), -(-rows.extent // rows.width), prod(kernel.extents[a] for a in schedule.batch)
    return finish(kernel, scope, grid, t.threads, contraction.shared)


def patches(scope: Emitter, t: Tiling) -> tuple[Expr, Expr]:
    """The thread's place down and across its block: warps are patches of the block where its sides allow, else rows of it."""
    down, across = PATCH
    if t.down % down or t.across % across:
        return scope.let("row", Thread() // t.across), scope.let("column", Thread() % t.across)
    warp, lane, warps = Thread() // (down * across), Thread() % (down * across), t.across // across
    return (scope.let("row", warp // warps * down + (lane // (PAIRS * across) * PAIRS + lane % PAIRS)),
            scope.let("column", warp % warps * across + lane // PAIRS % across))


def staged(scope: Emitter, c: Contraction) -> None:
    """Copy, wait, add, for each step; the second wait keeps the next copy from what is still read."""
    start, zero = Var(scope.name("k"), dt.i32), int32(0)
    body = scope.child()
    copies = [(side, side.declare(body)) for side in (c.left, c.right)]
    for side, arrays in copies:
        side.fetch(body, arrays, start)
    body.emit(Barrier())
    for side, arrays in copies:
        side.commit(body, arrays, zero)
    body.emit(Barrier())
    c.step(body, zero, zero)
    scope.emit(For(start, zero, int32(c.extent), int32(c.tiling.depth), False, tuple(body.body)))


def prefetched(scope: Emitter, c: Contraction) -> None:
    """Read the next step's elements before adding this step's, and write them to the other slot after."""
    depth = c.tiling.depth
    first = [(side, side.declare(scope)) for side in (c.left, c.right)]
    for side, arrays in first:
        side.fetch(scope, arrays, int32(0))
        side.commit(scope, arrays, int32(0))
    scope.emit(Barrier())
    start = Var(scope.name("k"), dt.i32)
    body = scope.child()
    slot = body.let("slot", start // depth % 2)
    following = body.let("k", start + depth)
    copies = [(side, side.declare(body)) for side in (c.left, c.right)]
    more, write = body.child(), body.child()
    for side, arrays in copies:
        side.fetch(more, arrays, following)
        side.commit(write, arrays, (1 - slot) * side.slot)
    remain = following < c.extent
    body.emit(If(remain, tuple(more.body)))
    c.step(body, slot * c.left.slot, slot * c.right.slot)
    body.emit(If(remain, tuple(write.body)), Barrier())
    scope.emit(For(start, int32(0), int32(c.extent), int32(depth), False, tuple(body.body)))


def ring(scope: Emitter, c: Contraction) -> None:
    """Ask for the tiles of a step `stages` - 1 steps ahead, some chunks before each element's products, and read the factors of an element
    before the products of the one before it: those of a tile's first element behind the barrier that tells that the tile is there, and that
    the place of the last one is free."""
    t, copies = c.tiling, [(side, TileCopies(scope, side)) for side in (c.left, c.right)]
    for s in range(t.stages - 1):
        if s * t.depth < c.extent:
            for side, of in copies:
                of.copy(scope, int32(s * t.depth), int32(s * side.slot), range(of.chunks), True)
        scope.emit(CommitCopies())
    now, start = scope.declare("slot", int32(0)), Var(scope.name("k"), dt.i32)
    scope.emit(WaitCopies(t.stages - 2), Barrier())
    first = c.read(scope, int32(0), int32(0), int32(0))
    asking = range(0, t.depth - 1, -(-t.depth // BURSTS))       # elements before whose products some chunks are asked for

    def step(body: Emitter, last: bool) -> None:
        factors = first
        if not last:
            ahead = body.let("k", start + (t.stages - 1) * t.depth)
            then = body.let("slot", Apply("select", (now == 0, int32(t.stages - 1), now - 1)))
        for k in range(t.depth):
            following = factors
            if k + 1 < t.depth:
                following = c.read(body, int32(k + 1), now * c.left.slot, now * c.right.slot)
            elif not last:
                body.emit(CommitCopies(), WaitCopies(t.stages - 2), Barrier(),
                          Assign(now, Apply("select", (now == t.stages - 1, int32(0), now + 1))))
                following = c.read(body, int32(0), now * c.left.slot, now * c.right.slot, first)
            for side, of in copies if not last and k in asking else ():
                n, among = asking.index(k), len(asking)
                part = range(of.chunks * n // among, of.chunks * (n + 1) // among)
                of.copy(body, ahead, then * side.slot, part, False)
            c.add(body, factors)
            factors = following

    body = scope.child()
    step(body, False)
    scope.emit(For(start, int32(0), int32((c.extent - 1) // t.depth * t.depth), int32(t.depth), False, tuple(body.body)))
    step(scope, True)
