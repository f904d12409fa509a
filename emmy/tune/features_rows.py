"""Features of rows in shared memory (`emmy.lower.tile_to_kernel.staged_rows`, `kept_row` of one a block, `resident` of one a cluster), of
strips in shared memory (`strip`), of scans by blocks (`scan`), and of windows (`window`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from math import ceil, prod

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.address import by_runs, usual_step
from emmy.lower.tile_to_kernel.cross import meeting
from emmy.lower.tile_to_kernel.look_back import shape
from emmy.lower.tile_to_kernel.scan import scanned
from emmy.lower.tile_to_kernel.staged_rows import HELD, pitch, row_tensors
from emmy.lower.tile_to_kernel.strip import strip_loads
from emmy.lower.tile_to_kernel.window import vectors, written_out
from emmy.tune.census import SECTOR, Census, fold_slots, in_flight, slots, width_of
from extract.cost import Features

AT_A_TIME = 132     # tiles of one sequence that looks back, from which on it is what they wait for that counts
MESSAGES = 6        # meetings of the warps of a block that an exchange between the blocks of a cluster takes as long as


def walked(census: Census, columns: tuple[int, ...], scope: Iterable[int], held: Mapping[loop.Load, float], each: float, width: int,
           lane: int | None = None, runs: bool = False, kept: Container[Value] = ()) -> tuple[float, float, float]:
    """Slots, words of shared memory, and bytes that all threads ask of the first-level cache, in walking the stages for each point of
    `scope`.

    An element of a load takes so many words of shared memory if it is `held`; others are read by neighbours along `lane`, or along the
    axis that is walked.  To walk an element takes `each` slots.  With `runs`, what is alike along a run of `width` is read once.
    """
    work = shared = l1 = 0.0
    stages = [*([census.nested] if census.nested else ()), *census.stages(columns)]
    for _, part, v, n in census.walk(stages, scope, kept):
        alike = runs and isinstance(v, loop.Load) and by_runs(census.kernel, (v,), part.axis, width)
        work += slots(v) * n / (width if alike else 1)
        if isinstance(v, loop.Load) and v in held:
            shared += n * held[v]
        elif isinstance(v, loop.Load):
            l1 += n / width * v.element.bytes if alike else n * census.sectors(v, part.axis if lane is None else lane, width)
    elements = sum(census.size({*scope, *part.over}) for stage in stages for part in stage)
    return work + each * elements, shared, l1


def held_loads(census: Census, lane: int | None, columns: tuple[int, ...]) -> tuple[dict[loop.Load, float], int]:
    """The words of shared memory that each load takes of those that stay there, and the bytes of all at one position."""
    found = strip_loads(census.kernel, lane, columns)
    size = found[0][0].element.bytes
    return {v: size / 4 for v, _ in found}, size * len({census.position(v, a) for v, a in found})


def staged_rows(census: Census, schedule: tile.Schedule) -> Features:
    """What a kernel does whose blocks hold whole rows in shared memory, its softmax folds taken apart."""
    census = census.untwisted
    kernel = census.kernel
    rows, lanes = map(int, re.findall(r"\d+", schedule.row.work))
    length = kernel.extents[census.levels[0][0].axis]
    passes, count = ceil(length / lanes), census.size(schedule.rows)
    kept = census.kept(schedule.columns) if passes <= HELD else None
    places = [v for v, _ in row_tensors(kernel, schedule.rows, schedule.columns)]
    results = [t.element for t in kernel.outputs] if schedule.columns else []
    apart = pitch(length, [*(v.element for v in places), *results])
    held = {v: float(conflicts(apart, lanes, v.element.bytes)) for v in places}
    bytes_ = sum({v.tensor: v.element.bytes for v in held}.values())
    work, shared, l1 = walked(census, schedule.columns, schedule.rows, held, 3, 1, kept=kept.stages if kept else ())
    joins = sum(len(level) * (0.3 if lanes <= 32 else 1.5) for level in census.levels)
    for f in kernel.folds:
        work += fold_slots(census, f) + lanes * count * 2 * lanes.bit_length() * len(f.state)
    copied = count * length * bytes_
    written = count * length * sum(e.bytes for e in results)
    work += (copied + written) / 4
    shared += (copied + 2 * written) / 4 + count * length * sum(conflicts(apart, lanes, e.bytes) for e in results)
    registers = 32 + (kept.most * passes if kept else 0)
    stages = len(census.levels) + len(schedule.columns)
    walking = 0.04 * passes * stages if kept is None else 0.0           # element after element, each waiting for its own
    dram = census.dram * (1.0 if schedule.columns else 1.05)            # what is read once gains nothing by the detour
    return Features(dram, census.dram, 0, 0, l1 + copied, work, shared, ceil(count / rows), rows * lanes, registers,
                    rows * apart * bytes_ + 1024, 1.5 + walking + census.nested_steps, joins + 1, bytes_ * length / lanes)


def conflicts(apart: int, lanes: int, size: int) -> int:
    """The words that one bank of shared memory gives, one after the other, where each row of a warp has `lanes` that read neighbouring
    elements of `size` bytes, and rows begin `apart` elements from each other."""
    words = {(row * apart + lane) * size // 4 for row in range(max(1, 32 // lanes)) for lane in range(min(lanes, 32))}
    return max(Counter(word % 32 for word in words).values())


def kept_row(census: Census, schedule: tile.Schedule) -> Features:
    """What a kernel does whose blocks hold one row each in shared memory, its softmax folds taken apart."""
    census = census.untwisted
    kernel, threads, width, columns = census.kernel, schedule.row.threads, width_of(schedule.row), schedule.columns
    count, length = census.size(schedule.rows), kernel.extents[census.levels[0][0].axis]
    held, size = held_loads(census, None, columns)
    work, shared, l1 = walked(census, columns, schedule.rows, held, 6 / width, width, runs=True)
    for f in kernel.folds:
        work += fold_slots(census, f) + threads * count * 2 * (5 + (threads // 32).bit_length()) * len(f.state)
    copied = count * length * size
    joins, passes = sum(1.5 * len(level) for level in census.levels), ceil(length / (threads * width))
    walking = 0.05 * passes * (len(census.levels) + len(columns))
    return Features(census.dram, census.dram, 0, 0, l1 + copied, work + copied / 4, shared + copied / 4, count, threads, 40,
                    length * size + 1024, 2.0 + walking + census.nested_steps, joins, 16 * min(passes, 8))


def window(census: Census, schedule: tile.Schedule) -> Features:
    """What a map over windows does: a thread computes each value of its run once, and reads most of a line as vectors."""
    kernel, threads, width = census.kernel, schedule.row.threads, width_of(schedule.row)
    flat = written_out(kernel, width)
    runs, together = prod(flat.shape), vectors(flat)
    inside = {load for v in together for load, _ in v.places}
    values = loop.walk(flat.results)
    alone = [v for v in values if isinstance(v, loop.Load) and v not in inside]
    wide = [v.width * v.places[0][0].element.bytes for v in together]
    each = sum(wide) + sum(min(SECTOR, v.element.bytes * max(1, abs(usual_step(flat, v, flat.outer[-1])))) for v in alone)
    work = sum(map(slots, values)) + 4 * len(kernel.outputs) + 2 * width + 6 * len(flat.outer)
    flight = min(sum(wide), 64) or kernel.outputs[0].element.bytes
    apart = max((abs(usual_step(flat, load, flat.outer[-1])) * load.element.bytes for load in inside), default=0)
    dram = census.dram * (1.06 if apart > 16 else 1.0)      # an access leaves gaps between threads
    return Features(dram, 1.1 * census.dram, 0, 0, runs * each, runs * work, 0, ceil(runs / threads), threads, 24 + 8 * width, 0,
                    1, 0, flight)


def strip(census: Census, schedule: tile.Schedule) -> Features:
    """What a fold across lanes does whose blocks or clusters hold all of the folded axis in shared memory, softmax folds taken apart."""
    census = census.untwisted
    kernel = census.kernel
    down, across, width = map(int, re.findall(r"\d+", f"{schedule.row.work.partition('/')[0]} {schedule.row.tile}"))
    (lane,), (column,), cluster = schedule.rows, schedule.columns, schedule.row.cluster
    lanes, length = census.size((*schedule.batch, lane)), kernel.extents[column]
    held, size = held_loads(census, lane, schedule.columns)
    work, shared, l1 = walked(census, schedule.columns, (*schedule.batch, lane), held, 6 / width, width, lane)
    parts, blocks = meeting(down, across), ceil(lanes / (across * width)) * cluster
    states = sum(x.bytes for level in census.levels for f in level for x in f.state)
    for f in kernel.folds:
        exchanges = 2 * (32 // across).bit_length() if parts < down else 0
        # threads of a lane join by themselves; of a cluster one does for them
        joining = parts if cluster == 1 else (parts + cluster) / down + 1
        work += fold_slots(census, f) + blocks * down * across * width * len(f.state) * (exchanges + joining)
        shared += blocks * down * across * width * len(f.state) * joining
    elements = lanes * length
    copied, written = elements * size, elements * sum(t.element.bytes for t in kernel.outputs)
    strip_bytes = ceil(length / cluster) * across * width * size
    shared_bytes = strip_bytes + states * across * width * (parts * (parts > 1) if cluster == 1 else parts + cluster + 1)
    shared_bytes += 16 * ceil(len(census.levels) / 2) * (cluster > 1)
    # lines of a sector and less take the time of longer ones
    line = 1 + (30 / (across * width * next(iter(held)).element.bytes)) ** 3
    # nothing moves while the only block of a multiprocessor folds
    alone = 1.0 if 2 * (shared_bytes + 1024) <= 233472 else max(1.0, 0.85 + 0.11 * work / census.dram)
    steps, joins = (2.0, 3) if cluster == 1 else (3.5, 8)
    return Features(census.dram * line * alone, (copied + written) * line, 0, 0, l1 + copied, work, shared + copied / 4, blocks,
                    down * across, 40 + 6 * width, shared_bytes, steps + census.nested_steps, joins * len(census.levels),
                    16 * min(ceil(length / cluster / down), 8))


def resident(census: Census, schedule: tile.Schedule) -> Features:
    """What a fold does whose row stays in the shared memory of a block or a cluster."""
    row, (column,) = schedule.row, schedule.columns
    census = census.untwisted if row.reduce.endswith("/apart") else census
    kernel, width, cluster = census.kernel, width_of(row), row.cluster
    rows, length = census.size(schedule.rows), kernel.extents[column]
    held, size = held_loads(census, None, schedule.columns)
    work, shared, l1 = walked(census, schedule.columns, schedule.rows, held, 6 / width, width)
    blocks, warps = rows * cluster, row.threads // 32 * cluster
    for f in kernel.folds:
        merges = (5 + ceil(warps / 32) + min(warps, 32).bit_length()) * 2 + (20 if f.kind == "twist" else 0)
        work += fold_slots(census, f) + blocks * row.threads * merges * len(f.state)
    copied, written = rows * length * size, rows * length * sum(t.element.bytes for t in kernel.outputs)
    runs = ceil(length / cluster / (row.threads * width))
    walking = 0.5 * runs * (len(census.levels) + 1)        # run after run, each waiting for what it reads
    steps, joins = 2.0 + walking + census.nested_steps, (2 if cluster == 1 else MESSAGES) * len(census.levels)
    return Features(census.dram, copied + written, 0, 0, l1 + copied, work, shared + copied / 4, blocks, row.threads, 32 + 3 * width,
                    length // cluster * size + 1024, steps, joins, 16 * min(runs, 8))


def scan(census: Census, schedule: tile.Schedule) -> Features:
    """What a scan by the threads of a block does: tile after tile, a barrier each."""
    if schedule.row.stage.startswith("lookback"):
        return look_back(census, schedule)
    kernel, threads, width = census.kernel, schedule.row.threads, width_of(schedule.row)
    (column,), (fold, length) = schedule.columns, scanned(kernel, schedule.columns)
    elements = census.size(kernel.outer)
    tiles, blocks = ceil(length / (threads * width)), elements // length
    each = sum(slots(v) for v in loop.walk((*fold.lifts, *kernel.results))) + 3 + 4 / width
    work = elements * each + blocks * tiles * threads * (30 + 3 * threads / 32)
    loads = [*((v, fold.axis) for v in census.loads(fold.lifts)), *((v, column) for v in census.loads(kernel.results))]
    l1 = elements * (sum(census.sectors(v, a, width) for v, a in loads) + sum(t.element.bytes for t in kernel.outputs))
    steps = joins = float(tiles)
    for f in kernel.folds:
        if f is not fold:       # of half of the pieces, on average
            work += blocks * kernel.extents[f.axis]
            l1 += blocks * kernel.extents[f.axis] / 2 * sum(census.sectors(v, f.axis, 1) for v in census.loads(f.lifts))
            steps, joins = steps + ceil(kernel.extents[f.axis] / threads / 2), joins + 2
    return Features(census.dram, max(census.dram, l1), 0, 0, l1, work, 0, blocks, threads, 40 + 2 * width, 8 * threads // 32, steps, joins,
                    in_flight(census, width))


def look_back(census: Census, schedule: tile.Schedule) -> Features:
    """What a scan does whose tiles have a block each: one read and one write, a look at the tiles before, and three barriers."""
    kernel, threads, (width, rounds) = census.kernel, schedule.row.threads, shape(schedule.row)
    (column,), (fold, length) = schedule.columns, scanned(kernel, schedule.columns)
    elements, size = census.size(kernel.outer), threads * width * rounds
    blocks = elements // length * ceil(length / size)
    each = sum(slots(v) for v in loop.walk((*fold.lifts, *kernel.results))) + 3 + 4 / width
    work = elements * each + blocks * (threads * rounds * 20 + 32 * 80)
    loads = [*((v, fold.axis) for v in census.loads(fold.lifts)), *((v, column) for v in census.loads(kernel.results))]
    l1 = elements * (sum(census.sectors(v, a, width) for v, a in loads) + sum(t.element.bytes for t in kernel.outputs))
    # tiles wait for those before them, each for the slowest of all that are on their way at one time, and a block that waits reads nothing:
    # less so small ones, of which more have room.  Where many sequences are on their way it is what a tile does besides that counts
    alone = ceil(length / size) > AT_A_TIME
    waiting = 1.27 + max(threads, 128) / 1600 + 200 / size if alone else 1.03 + 1000 / size
    waiting += 0.01 if schedule.row.stage.endswith("/all") else 0.0
    gaps = 1.06 if width * max(t.element.bytes for t in (*kernel.tensors, *kernel.outputs)) > 16 else 1.0
    return Features(gaps * waiting * census.dram, max(census.dram, l1), 0, 0, l1, work, 0, blocks, threads, 24 + rounds * (1 + width),
                    threads * rounds // 8 + threads // 2 + 32, 2.5, 4, in_flight(census, width) * min(rounds, 4))
