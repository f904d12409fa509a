"""The order in which blocks of warpgroups take the tiles of a result.

A block takes every `blocks`-th tile, in groups of `together` rows of tiles, column by column: blocks that run at one time read few rows and
few columns.  Where a cluster shares tiles, all its blocks take the same; where they lie one above the other, a cluster takes them together,
the last ones too that are below the result.  Where groups take turns, each has every other one of its block's.  Blocks that share out the
last tiles have an order of their own (`hopper_stream`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from emmy.instructions import For
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Apply, Block, Expr, GlobalBuffer, SharedBuffer, Var, const, int32
from emmy.lower.tile_to_kernel.hopper_tiling import Tiling
from emmy.lower.tile_to_kernel.scalar import Emitter

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.hopper_result import Result


class Raster:
    """The tiles of a kernel's result, or stacks of them: so many `down` and `across` in each layer of the batch; `grid` blocks take them.
    `rank`: which tile of a stack is this block's."""

    def __init__(self, kernel: tile.Kernel, schedule: tile.Schedule, t: Tiling):
        self.schedule, self.tiling = schedule, t
        rows, columns, batch = (prod(kernel.extents[a] for a in axes) for axes in (schedule.rows, schedule.columns, schedule.batch))
        self.down, self.across = -(-rows // (t.height * t.stack)), -(-columns // t.width)
        self.tiles = self.down * self.across * batch
        self.size = t.cluster * t.stack         # blocks of a cluster
        self.clusters = min(t.blocks // t.stack or self.tiles, self.tiles)
        self.grid = self.clusters * self.size
        self.rank: Expr = Block(0) % t.stack if t.stack > 1 else int32(0)

    @property
    def tables(self) -> tuple[SharedBuffer, ...]:
        """What it keeps in shared memory."""
        return ()

    def enter(self, scope: Emitter) -> None:
        """What all threads do before the first tile."""

    @property
    def own(self) -> tuple[GlobalBuffer, ...]:
        """The buffers through which blocks share tiles."""
        return ()

    def each_tile(self, scope: Emitter, body: Callable[[Emitter, Expr, Expr], None], group: Expr | None = None) -> None:
        """`body` for the first row and column of each tile of this block, at its point of the batch; of one that takes turns, those of the
        `group`."""
        own = Block(0) // self.size if self.size > 1 else Block(0)
        several = self.clusters < self.tiles or group is not None
        number: Expr = Var(scope.name("tile"), dt.i32) if several else own
        inner = scope.child() if several else scope
        self.tile(inner, number, body)
        if isinstance(number, Var):
            first, step = (own, self.clusters) if group is None else (own + group * self.clusters, self.clusters * self.tiling.groups)
            scope.emit(For(number, first, int32(self.tiles), int32(step), False, tuple(inner.body)))

    def tile(self, inner: Emitter, number: Expr, body: Callable[[Emitter, Expr, Expr], None]) -> None:
        """`body` for the tile of that number, at its point of the batch."""
        here: Expr = number
        layer = self.down * self.across
        if layer < self.tiles:
            inner.place(self.schedule.batch, inner.whole(inner.let("layer", number // layer)))
            here = inner.let("t", number % layer)
        else:
            inner.place(self.schedule.batch, inner.whole(int32(0)))
        row, column = self.place(inner, here, self.down)
        row = row * self.tiling.stack + self.rank if self.tiling.stack > 1 else row
        body(inner, inner.let("m", row * self.tiling.height), inner.let("n", column * self.tiling.width))

    def part(self, scope: Emitter, before: int, steps: int) -> tuple[Expr, Expr]:
        """Of `steps` stages of a tile, so many stages behind its first, the first that this block takes, and the one after its last."""
        return int32(0), int32(steps)

    def begun(self, step: Expr, before: int) -> Expr:
        """Whether the block has taken a stage of the tile ahead of that one."""
        return step > 0 if before == 0 else const(dt.bool_, True)

    def finish(self, scope: Emitter, result: Result) -> None:
        """What becomes of the sums of the tile that was begun last."""
        result.store(scope)

    def place(self, scope: Emitter, number: Expr, down: int | Expr) -> tuple[Expr, Expr]:
        """The row and the column of the tile, or stack, of that number of a layer that has so many `down`."""
        together = self.tiling.together // self.tiling.stack
        if isinstance(down, int) and together >= down:
            return number % down, number // down
        first = scope.let("first", number // (together * self.across) * together)
        inside = scope.let("inside", number % (together * self.across))
        height: Expr = int32(together)
        if not isinstance(down, int) or down % together:
            height = scope.let("height", Apply("min", (down - first, height)))
        return first + inside % height, inside // height
