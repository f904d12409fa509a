"""What a contraction by groups of warps on Hopper does, as the numbers that `extract.cost` prices."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from emmy.ir import tile_ir as tile
from emmy.lower.tile_to_kernel.hopper import tiling
from extract.cost import Features

if TYPE_CHECKING:
    from emmy.tune.features import Census

START_US = 2.0      # barriers, maps, the first stage on its way, and the last boxes
SHARE = 1.2         # of the rate of tensor cores that long kernels sustain under the power limit


def wgmma_features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' contraction under a row of warpgroups."""
    kernel, t = census.kernel, tiling(schedule.row)
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    tiles = ceil(m / t.height) * ceil(n / t.width) * batch
    folds, rounds = len(kernel.folds), ceil(kernel.extents[kernel.folds[0].axis] / t.depth)
    k = rounds * t.depth
    loads = {v for f in kernel.folds for v in census.loads(f.lifts)}
    left = sum(not census.free[v].isdisjoint(schedule.rows) for v in loads)
    stage = 2 * t.depth * (min(t.height, m) * left + min(t.width, n) * (len(loads) - left))     # bytes that arrive
    shared = t.stages * 2 * t.depth * (t.height * left + t.width * (len(loads) - left)) + 16384 * t.groups
    registers = 168 if t.groups == 2 else 128 if t.groups > 2 else 72 + folds * t.rows * t.width // 2
    return Features(census.dram, census.dram, 0, 0, census.dram, 2 * census.slots(kernel.results, *kernel.outer), 0, tiles, t.threads,
                    registers, shared, rounds / t.stages, 1 + t.rows * t.width / 128, 256, 2 * folds * tiles * t.height * t.width * k, SHARE,
                    tiles * rounds * stage, START_US)
