"""Features of rows in shared memory (`emmy.lower.tile_to_kernel.staged_rows`, `kept_row` of one a block, `resident` of one a cluster), of
strips in shared memory (`strip`), of scans by blocks (`scan`), and of windows (`window`)."""

from __future__ import annotations

import re
from math import ceil, prod
from typing import TYPE_CHECKING

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.lower.tile_to_kernel.address import by_runs, usual_step
from emmy.lower.tile_to_kernel.cross import meeting
from emmy.lower.tile_to_kernel.scan import scanned
from emmy.lower.tile_to_kernel.staged_rows import HELD, row_tensors
from emmy.lower.tile_to_kernel.strip import strip_loads
from emmy.lower.tile_to_kernel.window import vectors, written_out
from extract.cost import Features

if TYPE_CHECKING:
    from emmy.tune.features import Census


def staged_rows(census: Census, schedule: tile.Schedule) -> Features:
    """What a kernel does whose blocks hold whole rows in shared memory, its softmax folds taken apart."""
    from emmy.tune.features import fold_slots, slots

    census = census.untwisted
    kernel = census.kernel
    rows, lanes = map(int, re.findall(r"\d+", schedule.row.work))
    length = kernel.extents[census.levels[0][0].axis]
    passes, count = ceil(length / lanes), census.size(schedule.rows)
    kept = census.kept(schedule.columns) if passes <= HELD else None
    held = {v for v, _ in row_tensors(kernel, schedule.rows, schedule.columns)}
    bytes_ = sum({v.tensor: v.element.bytes for v in held}.values())
    work = shared = l1 = joins = 0.0
    known: set[loop.Value] = set()
    stages = [[(f.lifts, f.axis) for f in level] for level in census.levels] + [[(kernel.results, a)] for a in schedule.columns]
    for stage in stages:
        found: set[loop.Value] = set()
        for roots, axis in stage:
            for v in census.asked(roots, axis, known):
                n = census.size(census.free[v] | {*schedule.rows, axis})
                work += slots(v) * n
                shared += n if v in held else 0
                l1 += n * census.sectors(v, axis, 1) if isinstance(v, loop.Load) and v not in held else 0
                found.add(census.position(v, axis))
            work += 3 * count * length      # walking the row
        known |= found & kept.stages.keys() if kept else set()
    for level in census.levels:
        joins += len(level) * (0.3 if lanes <= 32 else 1.5)
    for f in kernel.folds:
        work += fold_slots(census, f) + lanes * count * 2 * lanes.bit_length() * len(f.state)
    copied = count * length * bytes_
    written = count * length * sum(t.element.bytes for t in kernel.outputs) if schedule.columns else 0
    work += (copied + written) / 4
    shared += (copied + 2 * written) / 4 + (count * length if schedule.columns else 0)
    registers = 32 + (kept.most * passes if kept else 0)
    walking = 0.04 * passes * len(stages) if kept is None else 0.0      # element after element, each waiting for its own
    dram = census.dram * (1.0 if schedule.columns else 1.05)            # what is read once gains nothing by the detour
    return Features(dram, census.dram, 0, 0, l1 + copied, work, shared, ceil(count / rows), rows * lanes, registers,
                    rows * length * bytes_ + 1024, 1.5 + walking, joins + 1, bytes_ * length / lanes)


def kept_row(census: Census, schedule: tile.Schedule) -> Features:
    """What a kernel does whose blocks hold one row each in shared memory, its softmax folds taken apart."""
    from emmy.tune.features import fold_slots, slots

    census = census.untwisted
    kernel, threads, width = census.kernel, schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
    count = census.size(schedule.rows)
    held = {v: census.position(v, a) for v, a in strip_loads(kernel, None, schedule.columns)}
    length, size = kernel.extents[census.levels[0][0].axis], next(iter(held)).element.bytes
    stages = [[(f.lifts, f.axis) for f in level] for level in census.levels] + [[(kernel.results, a)] for a in schedule.columns]
    work = shared = l1 = 0.0
    for stage in stages:
        for roots, axis in stage:
            for v in census.asked(roots, axis, ()):
                n = census.size(census.free[v] | {*schedule.rows, axis})
                alike = isinstance(v, loop.Load) and by_runs(kernel, (v,), axis, width)     # once a run, not once an element
                work += slots(v) * n / (width if alike else 1)
                if v in held:
                    shared += n * size / 4
                elif isinstance(v, loop.Load):
                    l1 += n / width * v.element.bytes if alike else n * census.sectors(v, axis, width)
            work += count * length * 6 / width
    for f in kernel.folds:
        work += fold_slots(census, f) + threads * count * 2 * (5 + (threads // 32).bit_length()) * len(f.state)
    copied = count * length * size * len(set(held.values()))
    joins, passes = sum(1.5 * len(level) for level in census.levels), ceil(length / (threads * width))
    walking = 0.05 * passes * len(stages)
    return Features(census.dram, census.dram, 0, 0, l1 + copied, work + copied / 4, shared + copied / 4, count, threads, 40,
                    length * size * len(set(held.values())) + 1024, 2.0 + walking, joins, 16 * min(passes, 8))


def window(census: Census, schedule: tile.Schedule) -> Features:
    """What a map over windows does: a thread computes each value of its run once, and reads most of a line as vectors."""
    from emmy.tune.features import SECTOR, slots

    kernel, threads, width = census.kernel, schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
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
    from emmy.tune.features import fold_slots, slots

    census = census.untwisted
    kernel = census.kernel
    down, across, width = map(int, re.findall(r"\d+", f"{schedule.row.work.partition('/')[0]} {schedule.row.tile}"))
    (lane,), (column,), cluster = schedule.rows, schedule.columns, schedule.row.cluster
    lanes, length = census.size((*schedule.batch, lane)), kernel.extents[column]
    held = {v: census.position(v, a) for v, a in strip_loads(kernel, lane, schedule.columns)}
    size = next(iter(held)).element.bytes
    stages = [[(f.lifts, f.axis) for f in level] for level in census.levels] + [[(kernel.results, column)]]
    work = shared = l1 = 0.0
    for roots, axis in (root for stage in stages for root in stage):
        for v in census.asked(roots, axis, ()):
            n = census.size(census.free[v] | {*schedule.batch, lane, axis})
            work += slots(v) * n
            if v in held:
                shared += n * size / 4
            elif isinstance(v, loop.Load):
                l1 += n * census.sectors(v, lane, width)
        work += lanes * length * 6 / width
    parts, blocks = meeting(down, across), ceil(lanes / (across * width)) * cluster
    states = sum(x.bytes for level in census.levels for f in level for x in f.state)
    for f in kernel.folds:
        exchanges = 2 * (32 // across).bit_length() if parts < down else 0
        # threads of a lane join by themselves; of a cluster one does for them
        joining = parts if cluster == 1 else (parts + cluster) / down + 1
        work += fold_slots(census, f) + blocks * down * across * width * len(f.state) * (exchanges + joining)
        shared += blocks * down * across * width * len(f.state) * joining
    elements = lanes * length
    copied, written = elements * size * len(set(held.values())), elements * sum(t.element.bytes for t in kernel.outputs)
    strip_bytes = ceil(length / cluster) * across * width * size * len(set(held.values()))
    shared_bytes = strip_bytes + states * across * width * (parts * (parts > 1) if cluster == 1 else parts + cluster + 1)
    shared_bytes += 16 * ceil(len(census.levels) / 2) * (cluster > 1)
    line = 1 + (30 / (across * width * size)) ** 3          # lines of a sector and less take the time of longer ones
    # nothing moves while the only block of a multiprocessor folds
    alone = 1.0 if 2 * (shared_bytes + 1024) <= 233472 else max(1.0, 0.85 + 0.11 * work / census.dram)
    steps, joins = (2.0, 3) if cluster == 1 else (3.5, 8)
    return Features(census.dram * line * alone, (copied + written) * line, 0, 0, l1 + copied, work, shared + copied / 4, blocks,
                    down * across, 40 + 6 * width, shared_bytes, steps, joins * len(census.levels),
                    16 * min(ceil(length / cluster / down), 8))


def resident(census: Census, schedule: tile.Schedule) -> Features:
    """What a fold does whose row stays in the shared memory of a block or a cluster."""
    from emmy.tune.features import fold_slots, slots

    row, (column,) = schedule.row, schedule.columns
    census = census.untwisted if row.reduce.endswith("/apart") else census
    kernel, width, cluster = census.kernel, int(row.tile.removeprefix("v")), row.cluster
    rows, length = census.size(schedule.rows), kernel.extents[column]
    held = {v: census.position(v, a) for v, a in strip_loads(kernel, None, schedule.columns)}
    size = next(iter(held)).element.bytes * len(set(held.values()))
    work = shared = l1 = 0.0
    for roots, axis in [*((f.lifts, f.axis) for level in census.levels for f in level), (kernel.results, column)]:
        for v in census.asked(roots, axis, ()):
            n = census.size(census.free[v] | {*schedule.rows, axis})
            work += slots(v) * n
            if v in held:
                shared += n * v.element.bytes / 4
            elif isinstance(v, loop.Load):
                l1 += n * census.sectors(v, axis, width)
        work += 6 * rows * length / width
    blocks, warps = rows * cluster, row.threads // 32 * cluster
    for f in kernel.folds:
        merges = (5 + ceil(warps / 32) + min(warps, 32).bit_length()) * 2 + (20 if f.kind == "twist" else 0)
        work += fold_slots(census, f) + blocks * row.threads * merges * len(f.state)
    copied, written = rows * length * size, rows * length * sum(t.element.bytes for t in kernel.outputs)
    runs = ceil(length / cluster / (row.threads * width))
    walking = 0.5 * runs * (len(census.levels) + 1)        # run after run, each waiting for what it reads
    return Features(census.dram, copied + written, 0, 0, l1 + copied, work, shared + copied / 4, blocks, row.threads, 32 + 3 * width,
                    length // cluster * size + 1024, 2.0 + walking, (2 if cluster == 1 else 6) * len(census.levels), 16 * min(runs, 8))


def scan(census: Census, schedule: tile.Schedule) -> Features:
    """What a scan by the threads of a block does: tile after tile, a barrier each."""
    from emmy.tune.features import in_flight, slots

    kernel, threads, width = census.kernel, schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
    if schedule.row.stage == "lookback":
        return look_back(census, schedule)
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
    from emmy.tune.features import in_flight, slots

    kernel, threads, width = census.kernel, schedule.row.threads, int(schedule.row.tile.removeprefix("v") or 1)
    (column,), (fold, length) = schedule.columns, scanned(kernel, schedule.columns)
    elements, rounds = census.size(kernel.outer), 1024 // threads
    blocks = elements // length * ceil(length / (1024 * width))
    each = sum(slots(v) for v in loop.walk((*fold.lifts, *kernel.results))) + 3 + 4 / width
    work = elements * each + blocks * (threads * rounds * 20 + 32 * 80)
    loads = [*((v, fold.axis) for v in census.loads(fold.lifts)), *((v, column) for v in census.loads(kernel.results))]
    l1 = elements * (sum(census.sectors(v, a, width) for v, a in loads) + sum(t.element.bytes for t in kernel.outputs))
    waiting = 1.3       # tiles wait for those before them, and ask for their words again and again
    return Features(waiting * census.dram, max(census.dram, l1), 0, 0, l1, work, 0, blocks, threads, 32 + rounds * (3 + width), 256, 2.5, 4,
                    in_flight(census, width) * min(rounds, 4))
