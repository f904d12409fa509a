"""Stream-K (Osama et al. 2023, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU"): blocks
that stay share out the stages of the last tiles, so that all of them end at one time.

Each block takes whole tiles first, as many as all others, and of the stages of the tiles that are left, one tile after another, a run as
long as everybody's.  Left are the tiles of the last, incomplete wave, and those of the wave before it if there is one: a run is then one
tile long or longer, so that no tile has more than two parts, and what is written and read is as much as for the last wave alone.

A run begins within a tile, or where one does.  The part of a tile that does not begin it is the first that its block takes of its run: its
sums go to memory, and a signal for them.  Whoever has the beginning of a tile that it does not end adds what the later runs have of it, in
their order, so that the same bits come each time, and computes and writes the result.  That is the last part of its run, when the others
have long had the first of theirs, or at least have no more to do than it.

Nobody waits for ever.  A block gives its signal before it waits for any, and it waits only for blocks of lower numbers, the later runs:
those have a place whether all blocks have one at once, of which there are no more than multiprocessors, or are placed in their order.

Every thread writes the sums that it holds and reads those of the thread of its number, four at a time, beside those of its neighbours.
Exchange: 4 bytes of each sum of a tile for all blocks but one.  Signals: one of each of these blocks' groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from emmy.instructions import (
    AwaitSignal,
    For,
    GiveSignal,
    If,
    LoadGlobalVector,
    StoreGlobalVector,
)
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Expr, GlobalBuffer, Var, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.hopper_raster import Raster
from emmy.lower.tile_to_kernel.hopper_shares import RUN, add_run
from emmy.lower.tile_to_kernel.hopper_tiling import Tiling
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted
from emmy.lower.tile_to_kernel.warpgroups import GROUP

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.hopper_result import Result


class Stream(Raster):
    """The order of a kernel whose tiles have `steps` stages, and whose sums are in the arrays `sums` of each thread."""

    def __init__(self, scope: Emitter, kernel: tile.Kernel, schedule: tile.Schedule, t: Tiling, steps: int, sums: Iterable[str]):
        super().__init__(kernel, schedule, t)
        self.grid, self.steps, self.sums = t.blocks, steps, tuple(sums)
        self.whole = max(self.tiles // self.grid - 1, 0)        # tiles that a block takes alone
        self.shared = self.tiles - self.whole * self.grid       # that all take together
        self.stages = self.shared * steps
        if self.stages < self.grid or self.stages * self.grid >= 2**31:
            raise IRError(f"{kernel.name}: row {schedule.row}: {self.grid} blocks share {self.stages} stages")
        self.held = t.rows * t.width // 2                       # sums of a thread in an array
        self.partial = GlobalBuffer(scope.name("partial") + "_", dt.f32,
                                    (self.grid - 1) * len(self.sums) * t.groups * GROUP * self.held, "exchange")
        self.signals = GlobalBuffer(scope.name("given") + "_", dt.i32, (self.grid - 1) * t.groups, "signals")

    @property
    def own(self) -> tuple[GlobalBuffer, ...]:
        return self.partial, self.signals

    def each_tile(self, scope: Emitter, body: Callable[[Emitter, Expr, Expr], None], group: Expr | None = None) -> None:
        """`body` for the first row and column of each tile that this block has a part of."""
        turn = Var(scope.name("turn"), dt.i32)
        self.run = scope.let("run", self.grid - 1 - Block(0))
        start, stop = (scope.let(name, at * self.stages // self.grid) for name, at in (("start", self.run), ("stop", self.run + 1)))
        first = scope.let("first", start // self.steps)
        turns = scope.let("turns", (stop - 1) // self.steps - first + (self.whole + 1))
        inner = scope.child()
        self.alone = turn < self.whole if self.whole else None
        of = inner.let("shared", turn + (first - self.whole))
        begin, self.stops = of * self.steps, of * self.steps + self.steps
        number = inner.let("tile", self.unless_alone(of + self.whole * self.grid, Block(0) + turn * self.grid))
        self.begin = inner.let("begin", self.unless_alone(Apply("max", (start - begin, int32(0))), int32(0)))
        self.stop = inner.let("stop", self.unless_alone(Apply("min", (stop - begin, int32(self.steps))), int32(self.steps)))
        self.tile(inner, number, body)
        scope.emit(For(turn, int32(0), turns, int32(1), False, tuple(inner.body)))

    def unless_alone(self, value: Expr, otherwise: Expr) -> Expr:
        """A value of a tile that blocks share, another of one that this block has alone."""
        return value if self.alone is None else Apply("select", (self.alone, otherwise, value))

    def part(self, scope: Emitter, before: int, steps: int) -> tuple[Expr, Expr]:
        if steps == self.steps:
            return self.begin, self.stop
        return (scope.let("begin", Apply("max", (self.begin - before, int32(0)))),
                scope.let("stop", Apply("min", (self.stop - before, int32(steps)))))

    def begun(self, step: Expr, before: int) -> Expr:
        return step + before > self.begin

    def finish(self, scope: Emitter, result: Result) -> None:
        """Hand on the sums of a part that does not begin its tile; else add those of the others, and store the tile."""
        give, take = scope.child(), scope.child()
        runs = self.held // RUN
        for k, array in enumerate(self.sums):
            give.emit(*(StoreGlobalVector(self.partial.name, self.at(result, self.run - 1, k * runs + run), array, run * RUN, RUN)
                        for run in range(runs)))
        before = (self.stops * self.grid + (self.stages - 1)) // self.stages    # runs that have stages before the tile's end
        last = scope.let("last", self.unless_alone(before - 1, int32(0)))
        give.emit(result.meet(), If(result.thread == 0, (GiveSignal(self.signals.name, self.signal(result, self.run - 1)),)))
        slot, run, e = (Var(take.name(x), dt.i32) for x in ("slot", "run", "e"))
        come, each = take.child(), take.child()
        come.emit(If(result.thread == 0, (AwaitSignal(self.signals.name, self.signal(result, slot)),)), result.meet())
        for k, array in enumerate(self.sums):
            other = each.name("come")
            load = LoadGlobalVector(other, 0, self.partial.name, self.at(result, slot, run + k * runs), RUN)
            add_run(each, array, run, e, other, load)
        come.emit(counted(run, runs, each))
        take.emit(For(slot, self.run, last, int32(1), False, tuple(come.body)))
        result.store(take)
        scope.emit(If(self.begin > 0, tuple(give.body), tuple(take.body)))

    def at(self, result: Result, slot: Expr, run: Expr | int) -> Expr:
        """Where the four sums of this thread lie that are its `run`-th: of the run after the `slot`-th."""
        each, threads = len(self.sums) * self.held // RUN, self.tiling.groups * GROUP
        return ((slot * each + run) * threads + result.group * GROUP + result.thread) * RUN

    def signal(self, result: Result, slot: Expr) -> Expr:
        """The signal of this group for the sums in a slot."""
        return slot * self.tiling.groups + result.group
