"""What a twist by groups of warps on Hopper does, as the numbers that `extract.cost` prices."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.operators import OPERATORS
from emmy.lower.tile_to_kernel.hopper_twist import scaled, tiling
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles
from extract.cost import Features

if TYPE_CHECKING:
    from emmy.tune.features import Census

A_SCORE = 9.0       # slots: maximum, exponent (on a unit of an eighth of the rate), sum, half of a rounding
RATES = {1: 0.5, 2: 0.72, 3: 0.72}      # of tensor cores, by groups that multiply


def wgmma_twist_features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' twist under a row of warpgroups."""
    kernel, t = census.kernel, tiling(schedule.row)
    twist = next(f for f in kernel.folds if f.kind == "twist")
    steps = KeyTiles(kernel, twist, schedule.rows, t.height, t.keys, t.live)
    batch, columns = census.size(schedule.batch), 16 * ceil(census.size(schedule.columns) / 16)
    depth = 16 * ceil(sum(kernel.extents[f.axis] for f in kernel.folds if f is not twist) / 16)
    wide = sum(1 for v in twist.lifts[1:] if not census.free[v].isdisjoint(schedule.columns))
    tiles, passes = steps.tiles * batch, steps.total * batch        # of rows; of rows by keys
    scores = passes * t.height * t.keys
    deep = depth + wide * columns
    score = sum(OPERATORS[v.op].flops for v in loop.walk((scaled(steps.whole)[1],)) if isinstance(v, loop.Apply))
    work = scores * (A_SCORE + score + wide * columns / t.keys) * (1.0 if t.turns else 1.08) + 2 * census.slots(kernel.results, *kernel.outer)
    brought = 2 * (passes * t.keys * deep + tiles * t.height * depth)
    shared = 2 * (t.queries * t.height * depth + t.stages * t.keys * deep) + 16384 * t.groups
    length = passes / tiles
    return Features(census.dram, census.dram, 0, 0, census.dram, work, 0, tiles, t.threads, 168, shared,
                    (1.0 if t.queries > 1 else 1.3) + 0.15 * length, 2, 256, 2 * scores * deep, RATES[t.groups], brought)
