"""Form "fold" with a row a cluster: the threads of its blocks fold the row together, and write it.

The warps of all blocks join by the fold's merge, each warp reading the states of all.  The threads share out the row as those of one
block do, and keep in registers what they read again (STAGE=reg) or nothing.  With STAGE=smem each block has one of as many parts of the row
as its cluster has blocks; its threads copy the runs that they will read themselves (`strip`), fold them, and write the results of the same
runs.  With REDUCE=coop/apart softmax folds are taken apart (`untwist`).

Row: WORK=t<threads>/c<blocks>,TILE=v<width>,REDUCE=coop or REDUCE=coop/apart, each with STAGE=reg, smem or, of coop, none.  With smem a run
is a copy of 16 bytes, and the row of each block a multiple of it.
Shared bytes: 4 or 8 for each component of a fold and each warp of the cluster; with smem, (extent of a part) * (bytes of an element of each
load that stays).
"""

from __future__ import annotations

import re
from math import prod

from emmy.instructions.control import If
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Block, Kernel, SharedBuffer, Thread, Var, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.cluster import Exchange, left_here
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.fold import Team, by_extent, join_lanes, partial, write
from emmy.lower.tile_to_kernel.held import Held, levels
from emmy.lower.tile_to_kernel.lanes import WARP
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter
from emmy.lower.tile_to_kernel.strip import Share, part_of, stage, strip_loads
from emmy.lower.tile_to_kernel.untwist import untwisted

States = dict[tile.Fold, tuple[Var, ...]]


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of rows that stay in shared memory; IRError where the row does not fit the kernel."""
    row = schedule.row
    kernel = untwisted(kernel) if row.reduce.endswith("/apart") else kernel
    threads, cluster, width = shape(kernel, schedule)
    rows = prod(kernel.extents[a] for a in schedule.rows)
    outer = Emitter(kernel)
    shared: list[SharedBuffer] = []
    order = levels(kernel)
    exchange = Exchange(outer, cluster, order, threads // WARP, shared)
    if row.stage == "smem":
        team = Team(Thread(), threads, width, None, part_of(outer, kernel.extents[schedule.columns[0]], cluster))
    else:
        held = Held(kernel, schedule.columns) if row.stage == "reg" else None
        team = Team(outer.let("lane", exchange.rank * threads + Thread()), threads * cluster, width, held)
    outer.place(schedule.rows, outer.whole(Block(0) // cluster))
    if team.part is not None:
        shared += stage(outer, None, schedule.columns, team.part, Share(Thread() * width, threads * width, width, 1, int32(0)))
    scope = outer.child()
    for number, level in enumerate(order):
        states: States = {}
        for group in by_extent(kernel, level):
            states.update(zip(group, partial(scope, group, team), strict=True))
        for f, state in join_row(scope, states, threads // WARP, exchange, number).items():
            scope.finish(f, state)
    write(scope, schedule.columns, team)
    outer.emit(*scope.body)
    return finish(kernel, outer, (rows * cluster, 1, 1), threads, tuple(shared), cluster=cluster)


def shape(kernel: tile.Kernel, schedule: tile.Schedule) -> tuple[int, int, int]:
    """Threads of a block, blocks of a cluster, elements of a run."""
    row = schedule.row
    work, run = re.fullmatch(r"t(\d+)/c\d+", row.work), re.fullmatch(r"v(\d+)|", row.tile)
    if not work or not run or row.reduce not in ("coop", "coop/apart") or row.stage not in ("", "reg", "smem"):
        raise IRError(f"{kernel.name}: row {row}: a row a cluster is spelled WORK=t512/c4,TILE=v8,REDUCE=coop,STAGE=smem")
    threads, cluster, width = int(work[1]), row.cluster, int(run[1] or 1)
    if threads % WARP or cluster * threads & (cluster * threads - 1) or any(f.kind == "scan" for f in kernel.folds):
        raise IRError(f"{kernel.name}: row {row}: warps of a cluster are a power of two, and fold no scan")
    if row.stage == "smem":
        loads = strip_loads(kernel, None, schedule.columns)
        if not loads or any(width * v.element.bytes != VECTOR_BYTES for v, _ in loads):
            raise IRError(f"{kernel.name}: row {row}: nothing is read twice in runs of {VECTOR_BYTES} bytes")
        if len(schedule.columns) != 1 or kernel.extents[schedule.columns[0]] % (width * cluster):
            raise IRError(f"{kernel.name}: row {row}: whole runs of {width} for each block")
    return threads, cluster, width


def join_row(scope: Emitter, states: States, warps: int, exchange: Exchange, level: int) -> States:
    """Every warp of a row, of all its blocks, ends with the state of them all."""
    lane, warp = Thread() % WARP, Thread() // WARP
    for f, state in states.items():
        join_lanes(scope, f, state)
    body = scope.child()
    exchange.start(scope)
    for f, state in states.items():     # a warp's lanes send its state, each to a block
        exchange.send(body, f, state, warp, lane)
    scope.emit(If(lane < exchange.blocks, tuple(body.body)))
    exchange.wait(scope, level)
    count, joined = warps * exchange.blocks, dict[tile.Fold, tuple[Var, ...]]()
    for f in states:
        for first in range(0, count, WARP):
            at = scope.let("n", Thread() % min(WARP, count) + first)
            loaded = tuple(left_here(scope, s.dtype, b, at) for b, s in zip(exchange.inboxes[f], states[f], strict=True))
            if first == 0:
                joined[f] = tuple(scope.declare("s", o) for o in loaded)
            else:
                scope.merge(f, joined[f], loaded)
        join_lanes(scope, f, joined[f], min(WARP, count))
    return joined
