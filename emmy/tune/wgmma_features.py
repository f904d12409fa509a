"""What a contraction by groups of warps on Hopper does, as the numbers that `extract.cost` prices."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from emmy.ir import tile_ir as tile
from emmy.lower.tile_to_kernel.hopper import tiling
from extract.cost import Features

if TYPE_CHECKING:
    from emmy.tune.features import Census

START_US = 2.0
RATES = {8: 0.15, 16: 0.3, 32: 0.5, 64: 0.85, 128: 1.05, 192: 1.08}     # of tensor cores, by columns of an instruction: its operands come from shared memory


def wgmma_features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' contraction under a row of warpgroups."""
    kernel, t = census.kernel, tiling(schedule.row)
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    tiles = ceil(m / t.height) * ceil(n / t.width) * batch
    folds, rounds = len(kernel.folds), ceil(kernel.extents[kernel.folds[0].axis] / t.depth)
    k = rounds * t.depth
    sides = {v for f in kernel.folds for v in census.loads(f.lifts)}
    left = sum(1 for v in sides if not census.free[v].isdisjoint(schedule.rows))
    brought = tiles * 2 * k * (t.height * left + t.width * (len(sides) - left))     # bytes
    rate = max((r for w, r in RATES.items() if w <= t.wide), default=0.1) * min(1.0, 0.8 + t.height / 640)
    work = 2 * census.slots(kernel.results, *kernel.outer)
    shared = t.stages * t.depth * 2 * (t.height * left + t.width * (len(sides) - left)) + 16384 * t.groups
    registers = 168 if t.groups > 1 else 40 + folds * t.rows * t.width // 2
    return Features(census.dram, census.dram, 0, 0, census.dram, work, 0, tiles, t.threads, registers, shared, 1.3 * rounds / t.stages,
                    2 + t.rows * t.width / 64, 256, 2 * folds * tiles * t.height * t.width * k, rate, brought, START_US)
