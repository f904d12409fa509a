"""Copies of windows by the copy engine: one element of each of many windows of a tensor, as sums over windows ask for them.

A copy begins at one window and goes on row by row through all windows of the tensor's images, as its map lays them (`Windows`).  Of each
it reads the element that lies at given offsets from the window's beginning; zeros, where the tensor has none.  (PTX ISA, "im2col mode".)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from emmy.instructions.arithmetic import spell
from emmy.instructions.bulk_copy import check_tile, copies, tile_traffic
from emmy.instructions.cluster import check_mask
from emmy.instructions.mbarrier import check_barrier
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, Kernel, Scope, Stmt, TensorMap
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step


class CopyWindows(Stmt):
    """The windows of `map` from that at `coordinates` on, outermost first, begin their way to `index` of the shared buffer `target`: their
    elements at `offsets`, as many of the innermost dimension as a tile has.  Their bytes count on a barrier.  Each active thread asks for
    one tile.  With a `mask` it goes to those blocks of the cluster (`emmy.instructions.cluster`)."""

    target: str
    index: Expr
    map: str
    coordinates: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    barrier: str
    at: Expr
    mask: Expr | None = None
    asynchronous = True
    syntax = "copy_windows {target}[{index}] = {map}{coordinates} offsets{offsets} on {barrier}[{at}]< to {mask}>"

    def check(self, scope: Scope) -> None:
        check_tile(scope, self.map, "read", self.coordinates, self.target, self.index, windows=True)
        of = scope.buffer(self.map, TensorMap)
        if len(self.offsets) != len(of.shape) - 2:
            raise IRError(f"{len(self.offsets)} offsets in {self.map}, whose windows have {len(of.shape) - 2} dimensions")
        for e in self.offsets:
            scope.expr(e, dt.i32)
            if isinstance(e, Const) and not 0 <= e.value < of.window_offsets:
                raise IRError(f"an offset of {e.value} in {self.map}; they are below {of.window_offsets}")
        check_barrier(scope, self.barrier, self.at)
        check_mask(scope, self.mask)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        at = ", ".join(map(spell, (*self.coordinates, *self.offsets)))
        way, to = ("", "") if self.mask is None else ("_to", f", {spell(self.mask)}")
        return [f"emmy_copy_windows_{len(self.coordinates)}{way}(&{self.map}, &{self.target}[{spell(self.index)}], {at}, "
                f"&{self.barrier}[{spell(self.at)}]{to});"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.tiles import WindowTile

        tile, rank = WindowTile(machine.kernel, self.map), len(self.coordinates)
        return copies(self, machine, tile.map.buffer, tile.count, (*self.coordinates, *self.offsets),
                      lambda w, start, where: tile.check_windows(w, self.target, start, where[:rank], where[rank:]),
                      lambda data, where: tile.windows(data, where[:rank], where[rank:]), self.mask)

    def traffic(self, kernel: Kernel) -> float:
        return tile_traffic(kernel, self.map)
