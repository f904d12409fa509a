"""What a contraction by warps on tensor cores does, as the numbers that `extract.cost` prices."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.address import repeats, stride
from emmy.lower.tile_to_kernel.staging import WIDEST, factors
from extract.cost import Features

if TYPE_CHECKING:
    from emmy.tune.features import Census


STAGED = 16.0       # slots of an element that is computed on its way to shared memory
SCATTERED = 100     # slots of an element whose neighbours are not read with it: where it lies, if it is there, and its way to shared memory


@lru_cache(maxsize=256)
def scattered(kernel: tile.Kernel, side: tuple[int, ...]) -> int:
    """In how many folds' products the factors of a side pass registers element by element: none of their loads lies in runs along the axis
    on which a stage has its neighbours."""
    sizes, free = {t.name: prod(t.shape) for t in kernel.tensors}, tile.free_axes(kernel.roots)
    found = 0

    def in_runs(v: loop.Load, axis: int, width: int) -> bool:
        return kernel.extents[axis] % width == 0 and repeats(kernel, v, axis, width) > 0

    for f in kernel.folds:
        loads = [v for x in factors(f.lifts[0]) if not free[x].isdisjoint(side) for v in loop.walk((x,)) if isinstance(v, loop.Load)]
        weight = {a: sum(sizes[v.tensor] for v in loads if stride(kernel, v, a) == 1 or repeats(kernel, v, a, WIDEST))
                  for a in (f.axis, side[-1])}
        along = f.axis if weight[f.axis] > weight[side[-1]] else side[-1]
        found += bool(loads) and not any(in_runs(v, along, 2) or in_runs(v, along, WIDEST) for v in loads)
    return found


def plain(census: Census, columns: tuple[int, ...]) -> bool:
    """Whether every fold is of products of two loads, one of which alone varies along the columns."""
    def two_sided(x: Value) -> bool:
        if not (isinstance(x, loop.Apply) and x.op == "mul" and all(isinstance(y, loop.Load) for y in x.args)):
            return False
        return sum(not census.free[y].isdisjoint(columns) for y in x.args) == 1

    return all(two_sided(x) for f in census.kernel.folds for x in f.lifts)


def tensor_contraction(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' contraction under a row of warps that multiply."""
    from emmy.tune.features import tiled

    kernel = census.kernel
    p, q, fm, fn, depth, stages = tiled(schedule.row)
    high, wide = 16 * p * fm, 8 * q * fn
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    blocks = ceil(m / high) * ceil(n / wide) * batch
    folds, rounds = len(kernel.folds), ceil(kernel.extents[kernel.folds[0].axis] / depth)
    k = rounds * depth
    item = dt.named(schedule.row.tile.split("_")[2]).bytes
    staged = blocks * (high + wide) * k * folds                     # elements that blocks bring to shared memory
    read = blocks * p * q * (16 * fm + 8 * fn) * k * folds          # elements that warps read there
    products = blocks * high * wide * k * folds
    # an operand that is computed goes through registers into shared memory, and its products wait for it
    staging = staged * (item / 2 if plain(census, schedule.columns) else STAGED) + (read if item == 4 else 0)     # which tf32 rounds
    for extent, side in ((high, schedule.rows), (wide, schedule.columns)):
        staging += SCATTERED * blocks * extent * k * scattered(kernel, side)
    work = 16 * products * item / 4096 + staging + 2 * census.slots(kernel.results, *kernel.outer)
    flight = item * (stages - 1) * depth * (high + wide) * folds / (32 * p * q)
    # a block's place is free when its results are written
    leaving = (2 + 0.3 * folds * fm * fn) * min(1.0, blocks / 256)
    moved = item * staged
    return Features(census.dram, max(census.dram, moved), 0, 0, moved, work, item * read / 4 + moved / 4, blocks, 32 * p * q,
                    48 + folds * 4 * fm * fn + 4 * fm + 2 * fn, folds * item * stages * depth * (high + wide),
                    leaving + 0.6 * rounds / (stages - 1), rounds * 0.1, flight, item * products)
