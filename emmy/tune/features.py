"""What a kernel does under a schedule, as the plain numbers that `extract.cost` prices."""

from __future__ import annotations

import re
from math import ceil, prod

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.cross import meeting, rounds
from emmy.lower.tile_to_kernel.fold import ahead
from emmy.lower.tile_to_kernel.held import Kept, stages
from emmy.tune.census import SECTOR, Census, Part, element_bytes, fold_slots, in_flight, slots, width_of
from emmy.tune.features_rows import MESSAGES, kept_row, resident, scan, staged_rows, strip, window
from emmy.tune.tensor_features import tensor_contraction
from emmy.tune.twist_features import tensor_twist, warpgroup_twist
from emmy.tune.wgmma_features import wgmma_features
from extract.cost import Features


def features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' kernel under `schedule`; none where its outputs are empty, for it is never launched."""
    if not prod(census.kernel.shape):
        return Features(0, 0, 0, 0, 0, 0, 0, 1, schedule.row.threads, 16, 0, 0, 0, 1)
    if schedule.form == "fold" and schedule.row.stage == "smem":
        if schedule.row.cluster > 1:
            return resident(census, schedule)
        return staged_rows(census, schedule) if "x" in schedule.row.work else kept_row(census, schedule)
    if schedule.form == "cross" and schedule.row.stage == "smem":
        return strip(census, schedule)
    forms = {"map": _map, "window": window, "transpose": _transpose, "fold": _fold, "cross": _cross, "scan": scan,
             "contraction": _contraction, "convolution": wgmma_features, "join": wgmma_features,
             "layered": wgmma_features, "twist": _twist}
    return forms[schedule.form](census.seen_by(schedule), schedule)


def _map(census: Census, schedule: tile.Schedule) -> Features:
    kernel, width = census.kernel, width_of(schedule.row)
    outer = kernel.outer
    elements = census.size(outer)
    outputs = len(kernel.outputs)
    work = census.slots(kernel.results, *outer) + 4 * outputs * elements / width
    loads = [(v, census.size(census.free[v] | set(outer))) for v in census.loads(kernel.results)]
    steps = 1.0
    for f in kernel.folds:
        around = *outer, f.axis, *census.around[f.name]
        each = (16 if f.kind == "twist" else 2) * len(f.lifts)
        work += census.slots(f.lifts, *around) + each * census.size(census.steps(f).union(outer))
        loads += [(v, census.size(census.free[v].union(around))) for v in census.loads(f.lifts)]
        steps += census.size(census.steps(f) - set(outer)) / 4
    lane = outer[-1] if outer else -1
    across = kernel.extents[lane] % width != 0 if outer else False      # runs go on across lines, and each element finds its point
    work += 6 * elements * (len(outer) - 1) if across else 0
    l1 = sum(n * census.sectors(v, lane, width) for v, n in loads)
    blocks = ceil(elements / width / schedule.row.threads)
    strided = sum(n * census.sectors(v, lane, width) for v, n in loads if census.stride(v, lane) not in (0, 1))
    # a run of more than 16 bytes is several accesses, each of half a sector or less: neighbouring threads leave gaps
    dram = census.dram * (1.06 if width * element_bytes(census) > 16 else 1.0)
    return Features(dram, census.dram + strided / 2, 0, 0, l1, work, 0, max(blocks, 1), schedule.row.threads, 16 + 2 * width * outputs, 0,
                    steps, 0, in_flight(census, width) * max(len(loads), 1))


def _fold(census: Census, schedule: tile.Schedule) -> Features:
    how, _, apart = schedule.row.reduce.partition("/")
    census = census.untwisted if apart else census
    kernel, row, width = census.kernel, schedule.row, width_of(schedule.row)
    team = 32 if how == "warp" else row.threads * row.cluster
    rows = census.size(schedule.rows)
    held = census.kept(schedule.columns) if row.stage == "reg" else Kept({})
    column = schedule.columns[-1] if schedule.columns else -1
    work = census.size(kernel.outer) * 2 * len(kernel.outputs) / width
    l1 = reread = joins = 0.0
    steps = 0.5 * ceil(census.size(schedule.columns) / (team * width)) if not held.stages else 0.0
    runs = max((ceil(kernel.extents[f.axis] / (team * width)) for level in census.levels for f in level), default=1)
    many = 1 if held.stages else ahead(kernel, width, runs)
    order = [census.nested, *census.stages(()), [Part(kernel.results, column, kernel.outer)]]
    first: dict[Value, int] = {}        # the stage that asks for a position first
    for k, part, v, n in census.walk(order, schedule.rows, held.stages):
        work += slots(v) * n / census.alike(v, part.axis, width)
        if isinstance(v, loop.Load):
            along = {part.axis} & set(kernel.extents) if k < len(order) - 1 else set[int]()
            read = census.size(census.free[v] | along.union(schedule.rows))
            moved = read * census.sectors(v, part.axis, width)
            l1 += moved
            work += 0 if held.stages else 2 * read / width      # to ask for it
            reread += moved if first.setdefault(census.position(v, part.axis), k) < k else 0
    for k, level in enumerate(census.levels):
        passes = max(ceil(kernel.extents[f.axis] / (team * width)) for f in level)
        steps += (k == 0) * (1 + 0.01 * passes) if held.stages else passes * (1 / many + 0.02)
        idle = min(max(0.0, team * width / max(kernel.extents[f.axis] for f in level) - 1), 1.0)    # lanes with no run
        joins += len(level) * (0.5 if how == "warp" else 1.5 + idle) if row.cluster == 1 else MESSAGES
    for f in kernel.folds:
        merges = (5 + ceil(team / 1024) - 1 + (min(team // 32, 32) - 1).bit_length()) * 2 + (20 if f.kind == "twist" else 0)
        work += fold_slots(census, f) + team * rows * merges * len(f.state)
    steps += census.nested_steps
    per_block = row.threads // 32 if how == "warp" else 1
    blocks = ceil(rows / per_block) * row.cluster
    registers = 24 + 2 * width * len(kernel.outputs) * bool(schedule.columns) + many * width * (many > 1) + held.most * runs * width
    strided = l1 - census.dram if l1 > 2 * census.dram else 0
    return Features(census.dram, census.dram + strided / 2, reread, reread / blocks, l1, work, 0, blocks, row.threads, registers, 1024,
                    steps, joins, in_flight(census, width) * (min(runs, 4) if held.stages else many))


def _transpose(census: Census, schedule: tile.Schedule) -> Features:
    kernel, row = census.kernel, schedule.row
    m, n = map(int, row.tile.split("x"))
    (p,), (q,) = schedule.rows, schedule.columns
    blocks = ceil(kernel.extents[p] / m) * ceil(kernel.extents[q] / n) * census.size(schedule.batch)
    elements = census.size(kernel.outer)
    staged = [v for v in census.loads(kernel.results) if census.stride(v, p) == 1 and q in census.free[v]]
    direct = [v for v in census.loads(kernel.results) if v not in staged]
    outs = [t.element.bytes for t in kernel.outputs]
    out = max(outs)
    width = min(16 // out, max(1, m * n // row.threads), kernel.extents[q] & -kernel.extents[q])
    # a lane that reads down a column of elements narrower than a word meets others in their bank
    shared = sum(elements * (1 + max(1, 4 // v.element.bytes)) for v in staged)
    down = sum(elements * v.element.bytes for v in staged)
    along = sum(census.size(census.free[v] | {p, q}) * census.sectors(v, q, width) for v in direct)
    # a line of the tile, as short as it is, takes the time of one more sector
    down_l2, out_l2 = (elements * sum(b + SECTOR / side for b in of) for of, side in (([v.element.bytes for v in staged], m), (outs, n)))
    l2 = down_l2 + out_l2 + along * (1 + SECTOR / (n * out))
    work = census.slots(kernel.results, *kernel.outer) + elements * (len(staged) * 4 + 4 * len(outs) / width)
    bytes_ = sum(n * (m * v.element.bytes + max(v.element.bytes, 4)) for v in staged)
    registers = 32 + 3 * m * n // row.threads
    return Features(census.dram, l2, 0, 0, down + along, work, shared, blocks, row.threads, registers, bytes_, 1, 1,
                    m * n / row.threads * out * (len(staged) + len(direct)))


def _cross(census: Census, schedule: tile.Schedule) -> Features:
    kernel, row, width = census.kernel, schedule.row, width_of(schedule.row)
    down, across = map(int, re.findall(r"\d+", row.work))
    lanes, (axis,) = (*schedule.batch, *schedule.rows), schedule.rows
    points, columns = census.size(lanes), census.size(schedule.columns)
    blocks = ceil(points / (across * width))
    work = census.slots(kernel.results, *kernel.outer)
    l1 = sum(census.size(census.free[v] | set(lanes)) * census.sectors(v, axis, width) for v in census.loads(kernel.results))
    parts = meeting(down, across)
    ahead, steps, joins, shared = 1, ceil(columns / down) * 0.25 if schedule.columns else 0.0, 0.0, 0.0
    for level in census.levels:
        for f in level:
            # all threads of a lane merge what they have left, or the first does
            every = schedule.columns or level is not census.levels[-1]
            reads = blocks * across * width * down * (parts if every else 1) * len(f.state) * (parts > 1)
            shared += reads
            work += reads * (12 if f.kind == "twist" else 1)
        ahead = rounds(kernel, width, max(kernel.extents[f.axis] for f in level), down)
        steps += max(ceil(kernel.extents[f.axis] / (down * ahead)) for f in level)
        joins += down > 1
    for f in kernel.folds:
        around = *lanes, f.axis, *census.around[f.name]
        work += census.slots(f.lifts, *around) + fold_slots(census, f)
        l1 += sum(census.size(census.free[v].union(around)) * census.sectors(v, axis, width) for v in census.loads(f.lifts))
    steps += census.nested_steps
    met: set[Value] = set()
    reread = 0.0
    for stage in stages(kernel, schedule.columns[-1:]):
        here = {(census.position(v, a), v, a) for roots, a in stage for v in census.loads(roots) if a in census.free[v]}
        reread += sum(census.size({*lanes, a} & census.free[v]) * census.sectors(v, axis, width) for p, v, a in here if p in met)
        met |= {p for p, _, _ in here}
    states = sum(x.bytes for level in census.levels for f in level for x in f.state)
    registers = min(32 + 8 * width, 65536 // row.threads if row.threads < 1024 else 32)
    l2 = max(census.dram, l1 + census.written)
    return Features(census.dram, l2, reread, reread / blocks, l1, work, shared, blocks, row.threads, registers,
                    states * parts * across * width * (parts > 1), steps, joins, in_flight(census, width) * min(ahead, 4))


def tiled(row: tile.Row) -> tuple[int, int, int, int, int, int]:
    """Threads by rows and by columns, rows and columns of a thread, depth, buffers of a tiled row."""
    p, q = map(int, re.findall(r"\d+", row.work))
    m, n, k = map(int, re.findall(r"/f(\d+)x(\d+)/k(\d+)", row.tile)[0])
    return p, q, m, n, k, int(re.findall(r"d(\d+)", row.stage)[0])


def atom(row: tile.Row) -> int:
    """Instruction slots of one multiply and add."""
    return 1 if row.tile.startswith("fma") else 2


def _contraction(census: Census, schedule: tile.Schedule) -> Features:
    if schedule.row.tile.startswith("wgmma"):
        return wgmma_features(census, schedule)
    if schedule.row.tile.startswith("mma"):
        return tensor_contraction(census, schedule)
    kernel = census.kernel
    p, q, fm, fn, depth, buffers = tiled(schedule.row)
    ring = schedule.row.stage.endswith("async")
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    tiles_m, tiles_n = ceil(m / (p * fm)), ceil(n / (q * fn))
    blocks = tiles_m * tiles_n * batch
    k = kernel.extents[kernel.folds[0].axis]
    covered = blocks * p * fm * q * fn * k
    folds = len(kernel.folds)
    staged = blocks * (p * fm + q * fn) * k * folds
    operand = sum(census.slots(f.lifts) for f in kernel.folds) / max(m * n * batch * k * folds, 1)
    work = covered * folds * atom(schedule.row) + staged * (2.5 if ring else 4 + operand) + census.slots(kernel.results, *kernel.outer)
    shared = covered * (1 / fm + 1 / fn) * folds * 0.5
    bytes_ = max((t.element.bytes for t in kernel.tensors), default=4)
    rounds = ceil(k / depth) * (1.0 if buffers == 1 else 0.4)
    registers = fm * fn + 2 * (fm + fn) + (32 if ring else 14 + ceil(1.2 * depth * (p * fm + q * fn) / (p * q)))
    if ring:        # a step waits for what was asked for steps ago, and a product for what was read one element ago
        return Features(census.dram, max(census.dram, staged * bytes_), 0, 0, staged * bytes_, work, shared, blocks, p * q, registers,
                        4 * folds * buffers * depth * (8 + p * fm + q * fn), 2 + 0.1 * rounds / buffers, rounds * 0.1, 16,
                        independent=min(2.0, fm * fn / 32))
    return Features(census.dram, max(census.dram, staged * bytes_), 0, 0, staged * bytes_, work, shared, blocks, p * q, registers,
                    4 * folds * buffers * depth * (8 + p * fm + q * fn), rounds, ceil(k / depth) * 0.3, 4)


def _twist(census: Census, schedule: tile.Schedule) -> Features:
    if schedule.row.tile.startswith("wgmma"):
        return warpgroup_twist(census, schedule)
    if schedule.row.tile.startswith("mma"):
        return tensor_twist(census, schedule)
    kernel = census.kernel
    p, q, fm, fn, depth, _ = tiled(schedule.row)
    m, c, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    outer = next(f for f in kernel.folds if f.kind == "twist")
    j = kernel.extents[outer.axis]
    inner = [f for f in kernel.folds if f is not outer]
    d = sum(kernel.extents[f.axis] for f in inner)
    blocks = ceil(m / (p * fm)) * batch
    key_tiles = ceil(j / (q * fn))
    scores = blocks * p * fm * key_tiles * q * fn
    columns = ceil(c / q) * q
    brought = d * (p * fm + q * fn) + q * fn * c                    # elements that a block brings to shared memory for a tile of keys
    a_score = (d + columns) * atom(schedule.row) + 14 + sum(map(slots, loop.walk(outer.lifts[:1])))
    work = 0.92 * scores * a_score + blocks * key_tiles * brought * 5
    shared = scores * (d * (1 / fm + 1 / fn) + columns * (1 / fm + 1 / ceil(c / q))) * 0.5
    staged = blocks * key_tiles * brought * max((t.element.bytes for t in kernel.tensors), default=4)
    bytes_ = 4 * (len(inner) * depth * (8 + p * fm + q * fn) + p * fm * (4 + q * fn) + q * fn * (4 + c))
    registers = 50 + fm * fn + fm * ceil(c / q) + 2 * (fm + fn)
    return Features(census.dram, max(census.dram, staged), 0, 0, staged, work, shared, blocks, p * q, registers, bytes_,
                    key_tiles * (ceil(d / depth) + 2.5), key_tiles * 2, 4)


