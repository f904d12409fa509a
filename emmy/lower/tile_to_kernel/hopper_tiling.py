"""Rows of products of warpgroups as numbers."""

from __future__ import annotations

import re

from emmy.instructions.mma import depth as k_of
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.hopper_operand import Stages
from emmy.lower.tile_to_kernel.warpgroups import Groups


class Tiling(Groups):
    """A row as numbers: groups that multiply; tiles of each by rows, columns of an instruction, tiles by columns; elements of the folded
    axis a stage; stages; rows of tiles that are taken together; blocks, 0 for one a tile; type of the operands; blocks of a cluster that
    share a tile, or whose tiles lie one above the other; whether groups take turns, each with tiles of its own; whether all blocks share
    out the stages of the last tiles."""

    wide: int
    columns: int
    depth: int
    stages: int
    together: int
    blocks: int
    element: DType
    cluster: int = 1
    stack: int = 1
    turns: bool = False
    stream: bool = False

    @property
    def sharing(self) -> int:
        """Groups that multiply what a stage brings."""
        return 1 if self.turns else self.groups

    @property
    def height(self) -> int:
        return 64 * self.sharing * self.rows

    @property
    def ring(self) -> Stages:
        return Stages(self.depth, self.stages, self.element)

    @property
    def apart(self) -> bool:
        """Whether the sums of a stage are added up apart."""
        return self.element.bytes == 1

    @property
    def width(self) -> int:
        return self.wide * self.columns


def tiling(row: tile.Row) -> Tiling:
    """The numbers of a row; IRError if it is not one of this form."""
    work, stage = re.fullmatch(r"g(\d+)x1/ws(?:(-turns)|/[cm]\d+)?", row.work), re.fullmatch(r"d(\d+)/smem-tma(?:-once)?", row.stage)
    cover = re.fullmatch(r"wgmma_m64n(\d+)k(\d+)_(bf16|f16|tf32|e4m3|e5m2)_f32/f(\d+)x(\d+)/k(\d+)", row.tile)
    raster = re.fullmatch(r"gm(\d+)(?:/p(\d+)(/sk)?)?", row.raster)
    if not work or not cover or not stage or not raster or row.reduce:
        raise IRError(f"row {row}: a row of this form is spelled "
                      "WORK=g2x1/ws,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132")
    wide, deep, element, rows, columns, depth = cover.groups()
    out = Tiling(int(work[1]), int(rows), int(wide), int(columns), int(depth), int(stage[1]), int(raster[1]), int(raster[2] or 0),
                 dt.named(element), row.cluster // row.stack, row.stack, bool(work[2]), bool(raster[3]))
    lines, rest = divmod(out.depth, out.ring.line)
    least = min(out.groups, out.rows, out.wide, out.columns, out.depth, out.stages, out.together)
    if least < 1 or out.groups > 3 or out.wide % 8 or out.wide > 256 or rest or lines > (1 if out.apart else 4) or (
            out.stages < 2 or int(deep) != k_of(out.element)):
        raise IRError(f"row {row}: it takes 1 to 3 groups, an instruction of 8 to 256 columns in 8s and as deep as 32 bytes, "
                      "a depth of 1 to 4 times 128 bytes (128 elements of a byte), 2 stages or more")
    if out.cluster > 1 and (out.blocks or out.width % (8 * out.cluster)):
        raise IRError(f"row {row}: a cluster has one tile, and each of its blocks 8 columns of it or a multiple of them")
    if out.turns and (out.groups != 2 or not out.blocks):
        raise IRError(f"row {row}: two groups take turns, in blocks that stay")
    if out.stack > 1 and (out.blocks % out.stack or out.together % out.stack or out.width % (8 * out.stack)):
        raise IRError(f"row {row}: the rows of tiles in a group and the blocks are whole clusters of {out.stack}, and each block brings "
                      "8 columns or a multiple of them")
    if out.stream and (out.blocks < 2 or out.turns or out.stack > 1):
        raise IRError(f"row {row}: two blocks or more share tiles, in no clusters, and their groups take no turns")
    return out
