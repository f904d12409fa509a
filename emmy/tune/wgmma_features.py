"""What a contraction by groups of warps on Hopper does, as the numbers that `extract.cost` prices."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel import hopper_windows as windows
from emmy.lower.tile_to_kernel.address import by_runs
from emmy.lower.tile_to_kernel.hopper_prologue import RUN
from emmy.lower.tile_to_kernel.hopper_tiling import tiling
from emmy.lower.tile_to_kernel.layered import layered
from emmy.lower.tile_to_kernel.staging import factors, split
from emmy.tune.census import Census, slots
from extract.cost import BULK_SHARE, SLOTS_A_CYCLE, Features

START_US = 1.7      # barriers, maps, the last boxes
FILL_US = 8e-6      # a byte of the first stage
TURN = 2.5          # dependent rounds of loads that the ring takes to turn: from a stage's request to its bytes, and to the next request
STAYING = 0.3       # bytes that are written back for each byte that is read once and stays in the second-level cache, up to this many bytes
STAYS = 70e6
PASSING = 0.1       # how much longer a byte takes that does not stay
SHORT = 1.03        # how much longer bytes take that come 128 at a time from lines of memory, and not 256
EDGE = 6.0          # how much of the rate tiles lose to what they read at their edges
APART = 1.6         # times the rate of halves, if nothing waited, where the sums of a stage are added up apart; and the columns that could
WAIT = 154          # have been multiplied in the while, of which each other group multiplies as many
# of sums that a cluster shares: the blocks meet and wait for each other's last, and a byte sent goes through the network of multiprocessors
# while nothing is multiplied; and how much longer blocks take that begin together, whose stages come from as many places
MEETING_US = 0.6
SENT_US = {2: 40e-6, 4: 50e-6}
TOGETHER = 1.3
# of blocks whose tiles lie one above the other, which ask less of the second-level cache and wait for each other: large products took 0.99
# to 1.05 times as long as without
STACKED = 1.02
# of the last tiles, whose stages blocks share out: a signal; what each block writes and reads of a tile's sums, as if all did so at once at
# 5.5 TB/s of the second-level cache, while nothing is multiplied; and how much longer stages take that neighbours do not read at one time:
# measured rows took 1.08 to 1.39 times as long as the best that share nothing
SIGNAL_US = 2.1
PARTIAL_US = 48e-6      # a byte of a tile's sums
APART_IN_TIME = 1.3
# of operands that are computed: slots of an element besides its value (its address, its way from shared memory, widening, rounding, handing
# on); the share of them that products wait for; how four warps, one for each scheduler, fall short of the latency that 16 hide; and cycles
# of each stage between its products and those of the next
A_VALUE = 2.0
WAITED = 0.3
HIDDEN = 0.5
BETWEEN = 100
# of results: slots of an element besides its value (rounded, to shared memory, and stored), where groups do not take turns; and the share
# of it all that products wait for
A_RESULT = 15.0
EXPOSED = 0.5
ALONE = 1.3         # how much longer it takes the warps of one group, for their latency
AT_ONCE = 2048      # products of two halves that a multiprocessor's tensor cores make in a cycle


@lru_cache(maxsize=256)
def channels(kernel: tile.Kernel, nest: windows.Nest, element: DType, rows: tuple[int, ...], columns: tuple[int, ...],
             batch: tuple[int, ...]) -> int:
    """The axis of a sum of products whose elements fill stages."""
    if len(nest) == 1:
        return nest[0].axis
    free, parts = tile.free_axes(nest[0].lifts), factors(nest[0].lifts[0])
    left, right = sorted(parts, key=lambda x: free[x].isdisjoint(rows))
    found = windows.summed(kernel, nest, element, (left, right), (rows, columns), batch)
    assert found is not None
    return found.axis


def wgmma_features(census: Census, schedule: tile.Schedule) -> Features:
    """The features of the census' contraction under a row of warpgroups."""
    kernel, t = census.kernel, tiling(schedule.row)
    m, n, batch = (census.size(a) for a in (schedule.rows, schedule.columns, schedule.batch))
    down = ceil(m / (t.height * t.stack)) * t.stack
    if found := layered(kernel) if schedule.form == "layered" else None:
        # as if rows came in the order of their layers: of each the last tile is half full, or there is but one
        census, kernel = Census(found.kernel), found.kernel
        down = max(ceil(m / t.height + min(found.layers, m) / 2), min(found.layers, m))
    tiles = down * ceil(n / t.width) * batch
    summed = windows.nests(kernel)
    axes = [channels(kernel, nest, t.element, schedule.rows, schedule.columns, schedule.batch) for nest in summed]
    each = [prod(kernel.extents[f.axis] for f in nest if f.axis != a) * ceil(kernel.extents[a] / t.depth)
            for nest, a in zip(summed, axes, strict=True)]
    folds, rounds = (1, sum(each)) if schedule.form == "join" else (len(summed), each[0])
    rounds = ceil(rounds / t.cluster)       # of a block
    blocks, strip, k = tiles * t.cluster, t.width // t.cluster, rounds * t.depth
    sides = {v: not census.free[v].isdisjoint(schedule.rows) for f in kernel.folds for v in census.loads(f.lifts)
             if (schedule.form != "join" or f is kernel.folds[0]) and not census.free[v].isdisjoint((*schedule.rows, *schedule.columns))
             and any(a in census.free[v] and not by_runs(kernel, (v,), a, RUN) for a in axes)}
    left, right = (sum(v.element.bytes for v, on_rows in sides.items() if on_rows is side) for side in (True, False))
    item = t.element.bytes
    stage = t.depth * (min(t.height, m) * left + min(t.width, n) * right)      # bytes that arrive
    shared = t.stages * t.depth * (t.height * left + t.width * right) + 16384 * t.groups
    registers = 168 if t.groups == 2 else 128 if t.groups > 2 else 72 + folds * t.rows * t.width // 2
    share = BULK_SHARE * max(0.2, 1 - EDGE * (1 / t.height + 1 / t.width))
    if t.apart:
        share = APART * (1 - 1 / t.height - 1 / t.width) * t.wide / (t.wide + WAIT / t.groups)
    work, products = 2 * census.slots(kernel.results, *kernel.outer), folds * blocks * t.height * t.width * k
    after = ALONE * work if t.turns else work + A_RESULT * m * n * batch * len(kernel.results)
    share /= 1 + EXPOSED * after / SLOTS_A_CYCLE / (products / AT_ONCE)
    if values := computed(census, schedule, t.element):
        value = sum(A_VALUE + x for x in values) * blocks * t.height * k / min(1.0, (t.groups / 4) ** HIDDEN)
        work += value
        share /= 1 + (WAITED * value / SLOTS_A_CYCLE + blocks * rounds * BETWEEN) / (products / AT_ONCE)
    dram = census.dram
    if t.depth * t.element.bytes <= 128 and any(census.stride(v, a) == 1 for v in sides for a in axes):
        dram *= SHORT
    if schedule.row.stage.endswith("-once"):
        touched = census.touched()
        once = sum(touched[v.tensor] for v in sides if census.free[v].isdisjoint(schedule.rows))
        dram += PASSING * once - STAYING * min(once, STAYS)
    start = START_US + FILL_US * stage
    if t.cluster > 1:
        sent = 4 * folds * (t.cluster - 1) * t.height * strip       # bytes that a block sends, and as many that it is sent
        start, shared = start + MEETING_US + SENT_US[min(t.cluster, max(SENT_US))] * sent, shared + sent
        dram, share = TOGETHER * dram, share / TOGETHER
    if t.stack > 1:
        dram, share = STACKED * dram, share / STACKED
    brought, turns = blocks * rounds * stage, 1.0       # turns: tiles of each block that `blocks` counts
    if t.stream:
        parts = ceil(t.blocks / min(tiles, t.blocks))   # of a tile that are read, at most
        start += SIGNAL_US + PARTIAL_US * 4 * folds * t.height * t.width * parts
        dram, share, blocks, turns = APART_IN_TIME * dram, share / APART_IN_TIME, t.blocks, tiles / t.blocks
    # neighbours in memory that are rows of a product leave one by one, in halves of sectors
    apart = census.written if kernel.outer and kernel.outer[-1] in schedule.rows else 0
    work += 2 * apart
    return Features(dram, dram + apart, 0, 0, census.dram, work, 0, blocks, t.threads, registers, shared, turns * TURN * rounds / t.stages,
                    turns * (1 + t.rows * strip / 128), 256, item * products, share, brought, start)


def computed(census: Census, schedule: tile.Schedule, element: DType) -> list[float]:
    """Slots of an element of each different left operand that is computed."""
    found: dict[Value, float] = {}
    for f in census.kernel.folds if schedule.form == "contraction" else ():
        left, _ = split(factors(f.lifts[0]), census.free, schedule.rows, schedule.columns) or (None, None)
        if left is not None and loop.load_of(left, element.stored) is None:
            found[left] = sum(slots(v) for v in loop.walk((left,)) if f.axis in census.free.get(v, {f.axis}))
    return list(found.values())
