"""What a kernel does under a schedule, as the plain numbers that `extract.cost` prices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from math import ceil, prod

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.ir.operators import OPERATORS, TWISTS
from emmy.lower.tile_to_kernel.cross import rounds
from emmy.lower.tile_to_kernel.fold import at_position, held_loads, levels
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles
from emmy.lower.tile_to_kernel.scalar import stride
from emmy.tune.wgmma_features import wgmma_features
from emmy.tune.wgmma_twist_features import wgmma_twist_features
from extract.cost import Features

SECTOR = 32       # bytes that one access moves at least


class Census:
    """The values of a kernel: how often each is computed when it is computed once for each setting of the axes in scope."""

    def __init__(self, kernel: tile.Kernel):
        self.kernel = kernel
        self.extents = kernel.extents
        self.tensors = {t.name: t for t in kernel.tensors}
        self.free = tile.free_axes(kernel.roots)
        self.written = sum(prod(t.shape) * t.element.bytes for t in kernel.outputs)
        self.dram = sum(self.touched().values()) + self.written

    def size(self, axes: Iterable[int]) -> int:
        return self.box(frozenset(axes))

    @cache  # noqa: B019  a census lives as long as the choice of one kernel's row
    def box(self, axes: frozenset[int]) -> int:
        return prod(self.extents[a] for a in axes)

    def touched(self) -> dict[str, float]:
        """Bytes of each tensor that are read at all."""
        out: dict[str, float] = {}
        for v in self.free:
            if isinstance(v, loop.Load):
                t = self.tensors[v.tensor]
                out[v.tensor] = max(out.get(v.tensor, 0), min(prod(t.shape), self.size(self.free[v])) * t.element.bytes)
        return out

    @cache  # noqa: B019
    def slots(self, roots: tuple[Value, ...], *always: int) -> float:
        """Instruction slots of all threads for `roots`, each value once for each setting of its axes and of `always`; folds below are
        not entered."""
        return sum(slots(v) * self.size(self.free[v] | set(always)) for v in loop.walk(roots))

    @cache  # noqa: B019
    def loads(self, roots: tuple[Value, ...]) -> list[loop.Load]:
        return [v for v in loop.walk(roots) if isinstance(v, loop.Load)]

    @cache  # noqa: B019
    def stride(self, load: loop.Load, axis: int) -> int | None:
        return stride(self.tensors[load.tensor], load.point, axis)

    def sectors(self, load: loop.Load, lane: int, width: int) -> float:
        """Bytes that one element of a load moves when neighbouring threads are neighbours along axis `lane`."""
        step, size = self.stride(load, lane), self.tensors[load.tensor].element.bytes
        if step == 0:
            return size / 8
        return size if step is not None and abs(step) <= max(width, 1) else min(SECTOR, size * abs(step or SECTOR))

    @cache  # noqa: B019
    def position(self, load: Value, axis: int) -> Value:
        return at_position(load, axis)

    @cache  # noqa: B019
    def held(self, columns: tuple[int, ...]) -> frozenset[Value]:
        """The loads that a row in registers makes once, by position."""
        return frozenset(held_loads(self.kernel, columns))

    @cached_property
    def levels(self) -> list[list[tile.Fold]]:
        return levels(self.kernel)


def slots(v: Value) -> float:
    """Instruction slots of one value."""
    return OPERATORS[v.op].flops if isinstance(v, loop.Apply) else 1 if isinstance(v, loop.Load | loop.Cast | loop.Round) else 0


def features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' kernel under `schedule`; none where its outputs are empty, for it is never launched."""
    if not prod(census.kernel.shape):
        return Features(0, 0, 0, 0, 0, 0, 0, 1, schedule.row.threads, 16, 0, 0, 0, 1)
    forms = {"map": _map, "transpose": _transpose, "fold": _fold, "cross": _cross, "contraction": _contraction, "twist": _twist}
    return forms[schedule.form](census, schedule)


def operations(kernel: tile.Kernel) -> float:
    """Scalar operations of the kernel's form, each value once for each setting of its axes, a multiply-add as two: the work that no
    schedule avoids."""
    census = Census(kernel)
    combining = sum(max(fold_slots(census, f), census.size(f.span | {f.axis})) for f in kernel.folds)
    return census.slots(kernel.results) + sum(census.slots(f.lifts) for f in kernel.folds) + combining


def fold_slots(census: Census, f: tile.Fold) -> float:
    """Slots of combining: one an element for a reduce (none where a product precedes a sum: they are one multiply-add), more for a
    twist."""
    n = census.size(f.span | {f.axis})
    if f.kind == "twist":
        score = census.size(census.free[f.lifts[0]] | {f.axis})
        each, values = TWISTS[f.recipe].pivot + TWISTS[f.recipe].weight + 4.2, f.lifts[1:]
        return each * score + sum(census.size(census.free[x] | census.free[f.lifts[0]] | {f.axis}) for x in values)
    fused = f.recipe == "add" and isinstance(f.lifts[0], loop.Apply) and f.lifts[0].op == "mul"
    return 0 if fused else n


def _width(row: tile.Row) -> int:
    return int(row.tile.removeprefix("v") or 1) if not row.tile or row.tile.startswith("v") else 1


def _map(census: Census, schedule: tile.Schedule) -> Features:
    kernel, width = census.kernel, _width(schedule.row)
    outer = kernel.outer
    elements = census.size(outer)
    outputs = len(kernel.outputs)
    work = census.slots(kernel.results, *outer) + 4 * outputs * elements / width
    loads = [(v, census.size(census.free[v] | set(outer))) for v in census.loads(kernel.results)]
    steps = 1.0
    for f in kernel.folds:
        scope = set(outer) | f.span | {f.axis}
        work += census.slots(f.lifts, *outer, f.axis) + (16 if f.kind == "twist" else 2) * len(f.lifts) * census.size(scope)
        loads += [(v, census.size(census.free[v] | set(outer) | {f.axis})) for v in census.loads(f.lifts)]
        steps += census.size((f.span | {f.axis}) - set(outer)) / 4
    lane = outer[-1] if outer else -1
    l1 = sum(n * census.sectors(v, lane, width) for v, n in loads)
    blocks = ceil(elements / width / schedule.row.threads)
    strided = sum(n * census.sectors(v, lane, width) for v, n in loads if census.stride(v, lane) not in (0, 1))
    # a run of more than 16 bytes is several accesses, each of half a sector or less: neighbouring threads leave gaps
    dram = census.dram * (1.06 if width * element_bytes(census) > 16 else 1.0)
    return Features(dram, census.dram + strided / 2, 0, 0, l1, work, 0, max(blocks, 1), schedule.row.threads, 16 + 2 * width * outputs, 0,
                    steps, 0, in_flight(census, width) * max(len(loads), 1))


def element_bytes(census: Census) -> int:
    """Bytes of the smallest element that the kernel touches."""
    return min((t.element.bytes for t in (*census.kernel.tensors, *census.kernel.outputs)), default=4)


def in_flight(census: Census, width: int) -> float:
    """Bytes of one access of a thread that count as under way: one of more than 16 bytes is several, each of half a sector or less."""
    size = width * element_bytes(census)
    return size if size <= 16 else 8


def _fold(census: Census, schedule: tile.Schedule) -> Features:
    kernel, row, width = census.kernel, schedule.row, _width(schedule.row)
    team = 32 if row.reduce == "warp" else row.threads
    rows = census.size(schedule.rows)
    held = census.held(schedule.columns) if row.stage == "reg" else frozenset()
    column = schedule.columns[-1] if schedule.columns else -1
    work = census.slots(kernel.results, *kernel.outer) + census.size(kernel.outer) * 2 * len(kernel.outputs) / width
    l1 = reread = 0.0
    for v in census.loads(kernel.results):
        n = census.size(census.free[v] | set(schedule.rows)) * census.sectors(v, column, width)
        if census.position(v, column) not in held:
            l1 += n
            reread += n if census.position(v, column) in census.held(schedule.columns) else 0
    steps = 0.5 * ceil(census.size(schedule.columns) / (team * width)) if not held else 0.0
    joins = 0.0
    seen: set[Value] = set()
    for level in census.levels:
        steps += max(1 if held else ceil(kernel.extents[f.axis] / (team * width)) for f in level)
        idle = min(max(0.0, team * width / max(kernel.extents[f.axis] for f in level) - 1), 1.0) if level else 0.0   # lanes with no run
        joins += len(level) * (0.5 if row.reduce == "warp" else 1.5 + idle)
    for f in kernel.folds:
        nested = not f.span <= set(kernel.outer)
        merges = (5 + (team // 32 - 1).bit_length()) * 2 + (20 if f.kind == "twist" else 0)
        work += census.slots(f.lifts, *schedule.rows, f.axis) + fold_slots(census, f) + team * rows * merges * len(f.state)
        for v in census.loads(f.lifts):
            n = census.size(census.free[v] | set(schedule.rows) | {f.axis}) * census.sectors(v, -1 if nested else f.axis, width)
            again = census.position(v, f.axis) in seen
            seen.add(census.position(v, f.axis))
            l1 += 0 if again and held else n
            reread += n if again and not held else 0
        steps += census.size((f.span | {f.axis}) - set(kernel.outer)) / 4 if nested else 0
    per_block = row.threads // 32 if row.reduce == "warp" else 1
    blocks = ceil(rows / per_block)
    runs = max((ceil(kernel.extents[f.axis] / (team * width)) for level in census.levels for f in level), default=1)
    registers = 24 + 2 * width * len(kernel.outputs) + (len(held) * runs * width if held else 0)
    strided = l1 - census.dram if l1 > 2 * census.dram else 0
    return Features(census.dram, census.dram + strided / 2, reread, reread / blocks, l1, work, 0, blocks, row.threads, registers, 1024,
                    steps, joins, in_flight(census, width) * (min(runs, 4) if held else 1))


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
    kernel, row, width = census.kernel, schedule.row, _width(schedule.row)
    down, across = map(int, re.findall(r"\d+", row.work))
    lanes, (axis,) = (*schedule.batch, *schedule.rows), schedule.rows
    points, columns = census.size(lanes), census.size(schedule.columns)
    blocks = ceil(points / (across * width))
    work = census.slots(kernel.results, *kernel.outer)
    l1 = sum(census.size(census.free[v] | set(lanes)) * census.sectors(v, axis, width) for v in census.loads(kernel.results))
    ahead, steps, joins, shared = 1, ceil(columns / down) * 0.25 if schedule.columns else 0.0, 0.0, 0.0
    for level in census.levels:
        for f in level:
            # all threads of a lane merge what they have left, or the first does
            every = schedule.columns or level is not census.levels[-1]
            reads = blocks * across * width * down * (down if every else 1) * len(f.state) * (down > 1)
            shared += reads
            work += reads * (12 if f.kind == "twist" else 1)
        ahead = rounds(kernel, width, max(kernel.extents[f.axis] for f in level), down)
        steps += max(ceil(kernel.extents[f.axis] / (down * ahead)) for f in level)
        joins += down > 1
    for f in kernel.folds:
        nested = not f.span <= set(kernel.outer)
        work += census.slots(f.lifts, *lanes, f.axis) + fold_slots(census, f)
        l1 += sum(census.size(census.free[v] | set(lanes) | {f.axis}) * census.sectors(v, axis, width) for v in census.loads(f.lifts))
        steps += census.size((f.span | {f.axis}) - set(kernel.outer)) / 4 if nested else 0
    states = sum(x.bytes for level in census.levels for f in level for x in f.state)
    registers = min(32 + 8 * width, 65536 // row.threads if row.threads < 1024 else 32)
    return Features(census.dram, max(census.dram, l1 + census.written), 0, 0, l1, work, shared, blocks, row.threads, registers,
                    states * down * across * width, steps, joins, in_flight(census, width) * min(ahead, 4))


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
        return _tensor_contraction(census, schedule)
    kernel = census.kernel
    p, q, fm, fn, depth, buffers = tiled(schedule.row)
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    tiles_m, tiles_n = ceil(m / (p * fm)), ceil(n / (q * fn))
    blocks = tiles_m * tiles_n * batch
    k = kernel.extents[kernel.folds[0].axis]
    covered = blocks * p * fm * q * fn * k
    folds = len(kernel.folds)
    staged = blocks * (p * fm + q * fn) * k * folds
    operand = sum(census.slots(f.lifts) for f in kernel.folds) / max(m * n * batch * k * folds, 1)
    work = covered * folds * atom(schedule.row) + staged * (4 + operand) + census.slots(kernel.results, *kernel.outer)
    shared = covered * (1 / fm + 1 / fn) * folds * 0.5
    bytes_ = max((t.element.bytes for t in kernel.tensors), default=4)
    rounds = ceil(k / depth) * (1.0 if buffers == 1 else 0.4)
    registers = fm * fn + 2 * (fm + fn) + 14 + ceil(1.2 * depth * (p * fm + q * fn) / (p * q))
    return Features(census.dram, max(census.dram, staged * bytes_), 0, 0, staged * bytes_, work, shared, blocks, p * q, registers,
                    4 * folds * buffers * depth * (8 + p * fm + q * fn), rounds, ceil(k / depth) * 0.3, 4)


def plain(census: Census, columns: tuple[int, ...]) -> bool:
    """Whether every fold is of products of two loads, one of which alone varies along the columns."""
    def two_sided(x: Value) -> bool:
        if not (isinstance(x, loop.Apply) and x.op == "mul" and all(isinstance(y, loop.Load) for y in x.args)):
            return False
        return sum(not census.free[y].isdisjoint(columns) for y in x.args) == 1

    return all(two_sided(x) for f in census.kernel.folds for x in f.lifts)


def _tensor_contraction(census: Census, schedule: tile.Schedule) -> Features:
    kernel = census.kernel
    p, q, fm, fn, depth, stages = tiled(schedule.row)
    high, wide = 16 * p * fm, 8 * q * fn
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    blocks = ceil(m / high) * ceil(n / wide) * batch
    folds, rounds = len(kernel.folds), ceil(kernel.extents[kernel.folds[0].axis] / depth)
    k = rounds * depth
    staged = blocks * (high + wide) * k * folds                     # halves that blocks bring to shared memory
    read = blocks * p * q * (16 * fm + 8 * fn) * k * folds          # halves that warps read there
    products = blocks * high * wide * k * folds
    # an operand that is computed goes through registers into shared memory, and its products wait for it
    staging = staged * (1 if plain(census, schedule.columns) else 10)
    work = 16 * products / 2048 + staging + 2 * census.slots(kernel.results, *kernel.outer)
    flight = 2 * (stages - 1) * depth * (high + wide) * folds / (32 * p * q)
    # a block's place is free when its results are written
    leaving = (2 + 0.3 * folds * fm * fn) * min(1.0, blocks / 256)
    return Features(census.dram, max(census.dram, 2 * staged), 0, 0, 2 * staged, work, read / 2 + staged / 2, blocks, 32 * p * q,
                    48 + folds * 4 * fm * fn + 4 * fm + 2 * fn, folds * 2 * stages * depth * (high + wide),
                    leaving + 0.6 * rounds / (stages - 1), rounds * 0.1, flight, 2 * products)


def _tensor_twist(census: Census, schedule: tile.Schedule) -> Features:
    kernel = census.kernel
    p, fm, fn, stages = map(int, re.findall(r"w(\d+).*/f(\d+)x(\d+).*d(\d+)", str(schedule.row))[0])
    m, c, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    outer = next(f for f in kernel.folds if f.kind == "twist")
    d = 16 * ceil(sum(kernel.extents[f.axis] for f in kernel.folds if f is not outer) / 16) + 16 * ceil(c / 16)     # both products
    high, keys = 16 * p * fm, 8 * fn
    tiles = KeyTiles(kernel, outer, schedule.rows, high, keys, schedule.row.raster == "live")
    blocks, rounds = tiles.tiles * batch, sum(tiles.counts) / tiles.tiles
    scores = blocks * high * rounds * keys
    staged = blocks * (rounds * keys * d + high * d)                # halves that blocks bring to shared memory
    read = scores * d / (16 * fm) * (1 + fm * 2 / fn)               # halves that warps read there
    work = scores * (28 + sum(map(slots, loop.walk(outer.lifts[:1])))) + 16 * scores * d / 2048 + staged + blocks * high * rounds * c
    flight = 2 * (stages - 1) * keys * d / (32 * p)
    return Features(census.dram, max(census.dram, 2 * staged), 0, 0, 2 * staged, work, read / 2 + staged / 2, blocks, 32 * p,
                    48 + 6 * fm * fn + fm * c // 2 + c // 4, 2 * (high * d // 2 + stages * keys * d),
                    0.6 * rounds / (stages - 1), rounds * 0.2, flight, 2 * scores * d)


def _twist(census: Census, schedule: tile.Schedule) -> Features:
    if schedule.row.tile.startswith("wgmma"):
        return wgmma_twist_features(census, schedule)
    if schedule.row.tile.startswith("mma"):
        return _tensor_twist(census, schedule)
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


