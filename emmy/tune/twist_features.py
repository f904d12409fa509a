"""What twists on tensor cores do, by warps and by groups of warps on Hopper, as the numbers that `extract.cost` prices."""

from __future__ import annotations

import re
from math import ceil

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.operators import OPERATORS
from emmy.lower.tile_to_kernel.hopper_softmax import scaled
from emmy.lower.tile_to_kernel.hopper_twist import order, tiling
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles
from emmy.tune.census import Census, slots
from extract.cost import Features

# slots, by groups that multiply: maximum, exponent (an eighth of the rate), sum, half a rounding.  A group alone has nothing to compute
# while it waits for its products, 4 slots a score where queries are 64 deep, nor do its four warps hide the latency of its maxima
A_SCORE = {1: 19.0, 2: 13.6, 3: 11.4}
A_LOAD = 11.0                           # slots of a load for each score
RATES = {1: 0.7, 2: 1.0, 3: 1.0}        # of tensor cores, by groups that multiply
AROUND = {1: 0.4, 2: 0.2}               # what a tile of rows takes besides its keys, in tiles of 128 keys, by tiles of queries
START_US = 1.7      # before the first product of a block and after its last, however many tiles it has: barriers, maps, the last boxes,
FILL_US = 31e-6     # and a byte of the first tile of keys, at a multiprocessor's share of the memory's bandwidth
BEGIN_US = 0.8      # the same of warps on their own, their first tile among it
UNKNOWN = 0.9                           # share of tiles of keys that values of rows leave: not known before, and never more than all
TILT = 0.25                             # by how much the last rows are thought to have more of them than the mean, and the first less
CACHE = 30 << 20                        # bytes of keys and values that stay in the second-level cache


def warpgroup_twist(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' twist under a row of warpgroups: every block counts as the one that has most to do."""
    kernel, t = census.kernel, tiling(schedule.row)
    twist = next(f for f in kernel.folds if f.kind == "twist")
    steps = KeyTiles(kernel, twist, schedule.rows, t.height, t.keys, t.live)
    batch, columns = census.size(schedule.batch), 16 * ceil(census.size(schedule.columns) / 16)
    depth = 16 * ceil(sum(kernel.extents[f.axis] for f in kernel.folds if f is not twist) / 16)
    wide = sum(1 for v in twist.lifts[1:] if not census.free[v].isdisjoint(schedule.columns))
    o, deep = order(t, steps, batch), depth + wide * columns
    around = AROUND[min(t.queries, 2)] * 128 / t.keys
    counts = expected(steps)
    passes = max(o.loads([count + around for count in counts])) * o.blocks * (1.0 if t.turns else 1.01)     # of rows by keys
    scores = passes * t.height * t.keys
    of_keys = [v for v in loop.walk((scaled(steps.whole)[1],)) if twist.axis in census.free.get(v, ())]
    score = sum(OPERATORS[v.op].flops for v in of_keys if isinstance(v, loop.Apply))
    score += A_LOAD * sum(isinstance(v, loop.Load) and not census.free[v].isdisjoint(schedule.rows) for v in of_keys)
    work = scores * (A_SCORE[t.groups] + score + wide * columns / t.keys)
    shared = 2 * (t.queries * t.height * depth + t.stages * t.keys * deep) + 16384 * t.groups
    brought = sum(counts) * batch * t.keys * deep * 2
    kept = 2 * kernel.extents[twist.axis] * deep * o.layers <= CACHE
    l2 = census.dram if kept else max(census.dram, brought * min(1.0, o.layers / o.blocks))
    return Features(census.dram, l2, 0, 0, census.dram, work + 2 * census.slots(kernel.results, *kernel.outer), 0, o.blocks, t.threads, 168,
                    shared, 2.0, 1.0, 256, 2 * scores * deep, RATES[t.groups] * (1.0 if t.keys > 64 else 0.93), brought,
                    START_US + FILL_US * 2 * t.keys * depth)


def expected(steps: KeyTiles) -> list[float]:
    """How many tiles of keys each tile of rows is thought to go through.  What values of rows rule out is not known: little, so that
    a row that leaves it out is taken and hardly anything else is priced otherwise; but documents are long and short, so that an order
    is taken in which each block has rows from everywhere."""
    share, tilt = UNKNOWN if steps.read else 1.0, TILT if steps.read and steps.read.vary else 0.0
    return [count * share * (1 + tilt * (2 * row + 1 - steps.tiles) / steps.tiles) for row, count in enumerate(steps.counts)]


def tensor_twist(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' twist under a row of warps that multiply on their own."""
    kernel = census.kernel
    p, fm, fn, stages = map(int, re.findall(r"w(\d+).*/f(\d+)x(\d+).*d(\d+)", str(schedule.row))[0])
    m, c, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    outer = next(f for f in kernel.folds if f.kind == "twist")
    d = 16 * ceil(sum(kernel.extents[f.axis] for f in kernel.folds if f is not outer) / 16) + 16 * ceil(c / 16)     # both products
    high, keys = 16 * p * fm, 8 * fn
    tiles = KeyTiles(kernel, outer, schedule.rows, high, keys, schedule.row.raster == "live")
    blocks, rounds = tiles.tiles * batch, sum(expected(tiles)) / tiles.tiles
    scores = blocks * high * rounds * keys
    staged = blocks * (rounds * keys * d + high * d)                # halves that blocks bring to shared memory
    read = scores * d / (16 * fm) * (1 + fm * 2 / fn)               # halves that warps read there
    work = scores * (28 + sum(map(slots, loop.walk(outer.lifts[:1])))) + 16 * scores * d / 2048 + staged + blocks * high * rounds * c
    flight = 2 * (stages - 1) * keys * d / (32 * p)
    return Features(census.dram, max(census.dram, 2 * staged), 0, 0, 2 * staged, work, read / 2 + staged / 2, blocks, 32 * p,
                    48 + 6 * fm * fn + fm * c // 2 + c // 4, 2 * (high * d // 2 + stages * keys * d),
                    0.6 * rounds / (stages - 1), rounds * 0.2, flight, 2 * scores * d, start_us=BEGIN_US)
