"""Operands of products of warpgroups: where tiles of a load lie in a ring in shared memory, how they get there, how products find them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from emmy.instructions import DeclareArray, FenceAsync, For, NamedBarrier, StoreSharedVector
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, SharedBuffer, Stmt, Thread, Var, const, int32
from emmy.ir.loop_ir import Load
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.hopper_windows import View
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.warpgroups import GROUP

CHUNK = 16      # bytes that move as one vector


class Stages(NamedTuple):
    """What a ring holds of each of its operands: `stages` times `depth` elements of the folded axis."""

    depth: int
    stages: int
    element: DType

    @property
    def line(self) -> int:
        """Elements of a line of a swizzled box."""
        return maps.BYTES // self.element.bytes


class Operand:
    """A load as tiles of one side in a ring in shared memory: lines of 128 bytes along the folded axis or, of halves, of 64 positions.
    Of as many `blocks` of a cluster each brings a share of the positions to all."""

    def __init__(self, scope: Emitter, load: Load, view: View, positions: int, t: Stages, once: bool = False,
                 buffer: SharedBuffer | None = None, blocks: int = 1):
        self.view, self.positions, self.stages, self.once, self.blocks = view, positions, t, once, blocks
        self.filled = view.filled(positions) if blocks == 1 else positions
        self.share, rest = divmod(self.filled, blocks)
        if rest or self.share % view.unit and blocks > 1:
            raise IRError(f"{blocks} blocks do not share {positions} positions of {load.tensor} in boxes of multiples of {view.unit}")
        self.box = view.box(self.share)
        self.buffer = buffer or SharedBuffer(scope.name("tile"), t.element.stored, t.stages * self.slot, 1024)
        deep = t.line if view.by_depth else t.depth
        self.map = view.map(scope.name("map"), scope.tensors[load.tensor], deep, self.box, element=t.element)

    @property
    def slot(self) -> int:
        """Elements of a stage."""
        return self.stages.depth * self.positions

    @property
    def major(self) -> str:
        return "k" if self.view.by_depth else "mn"

    def copies(self, scope: Emitter, slot: Expr, start: Expr, first: Expr, barrier: str,
               rank: Expr | None = None) -> list[Stmt]:
        """Ask for the tile at an element of the folded axis and a position of the side, or for the share of it of the block of `rank`."""
        lines = range(0, self.stages.depth, self.stages.line) if self.view.by_depth else (0,)
        own, mask = (int32(0), None) if rank is None or self.blocks == 1 else (rank * self.share, int32((1 << self.blocks) - 1))
        return [self.view.copy(scope, self.buffer.name, slot * self.slot + self.place(k, own + p), self.map.name, start + k,
                               first + (own + p), barrier, slot, self.once, mask)
                for k in lines for p in range(0, self.share, self.box)]

    @property
    def brought(self) -> int:
        """Bytes that arrive for a stage."""
        return self.stages.depth * self.filled * self.buffer.element.bytes

    def clear(self, scope: Emitter, thread: Expr, threads: int) -> None:
        """Zeros where nothing ever arrives: the positions of a tile that lie behind the end of a short side."""
        line, chunk = self.stages.line, CHUNK // self.buffer.element.bytes
        chunks = (self.positions - self.filled) * line // chunk
        if not chunks:
            return
        parts = self.stages.stages * self.slot // (self.positions * line)      # lines of all positions
        c, zero = Var(scope.name("c"), dt.i32), scope.name("zero")
        scope.emit(DeclareArray(zero, self.buffer.element, chunk, const(self.buffer.element, 0)))
        body = scope.child()
        if self.view.by_depth:
            at = c // chunks * (self.positions * line) + (self.filled * line + c % chunks * chunk)
        else:
            tail = (self.positions - self.filled) * self.stages.depth // chunk
            at = c // tail * self.slot + (self.filled * self.stages.depth + c % tail * chunk)
        body.emit(StoreSharedVector(self.buffer.name, at, zero, 0, chunk))
        scope.emit(For(c, thread, int32(parts * chunks), int32(threads), False, tuple(body.body)))

    def place(self, k: int, position: Expr) -> Expr:
        """Where in a stage the line lies that begins at element `k` of the folded axis and a position, multiples of a line and of a box."""
        return position * self.stages.line + k * self.positions if self.view.by_depth else position * self.stages.depth

    def at(self, slot: Expr, q: Expr, position: Expr) -> Expr:
        """Where the q-th 32 bytes of the folded axis begin, from a position on."""
        line = self.stages.line
        if self.view.by_depth:
            return slot * self.slot + (q // 4 * (line * self.positions) + q % 4 * (line // 4)) + position * line
        return slot * self.slot + q * (16 * line) + position * self.stages.depth


def clear(scope: Emitter, operands: Collection[Operand], groups: int) -> None:
    """Zeros where no box brings anything, by all groups that multiply, before their first product."""
    if all(x.filled == x.positions for x in operands):
        return
    for x in {x.buffer: x for x in operands}.values():
        x.clear(scope, Thread() - GROUP, GROUP * groups)
    scope.emit(FenceAsync(), NamedBarrier(int32(groups + 1), GROUP * groups))
