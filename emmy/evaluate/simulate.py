"""Runs a kernel on the CPU thread by thread, and fails where a GPU would be wrong or hang.

Clusters run one after another (a block that is in none is one), the warps of a cluster until each has to wait.  Blocks that hand each other
words run a few at a time, in an order that is drawn: a GPU promises no order, nor that a block begins before another ends.  Where they wait
for signals all run.  Each value has the precision of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import product
from math import prod
from random import Random

import numpy as np

from emmy.evaluate.asynchronous import Engine, Wait
from emmy.evaluate.machine import Machine
from emmy.evaluate.memory import Memory
from emmy.evaluate.warp import EPOCHS, Fault, Warp
from emmy.ir.kernel_ir import Kernel, Stmt, verify, walk
from emmy.ir.kernel_text import print_statement
from emmy.stage import deep


class SimulationError(Exception):
    """A kernel that must not run.  `kind` is one of

    argument       a buffer that the kernel does not take as given
    bounds         an element outside its buffer, or a vector that is not aligned
    uninitialised  a read of what nobody wrote
    race           two threads at one element, one of them writing, with no barrier between; so are copies, stores and products under way,
                   and buffers that kernels launched before may be at
    barrier        a barrier that not all threads reach, or more than it counts
    shuffle        a shuffle of a warp whose lanes are not all active
    fence          the copy engine or a product meets what was set or written and not fenced for it
    bytes          copies of other sizes than the barrier they complete on expects
    alignment      a tile that does not begin where its swizzle does
    warpgroup      four warps that do not do together what a warpgroup does
    registers      more registers than there are, or a move in the wrong direction
    cluster        something is sent to a block of the cluster that is not there, or has ended
    signal         a signal that is given twice, or by several threads at once, or that nobody has awaited in the end
    unfinished     a warp that ends while its products run or its stores are read, a block while something is on its way to it
    deadlock       warps that wait for what never comes
    steps          a loop that does not end
    unwritten      an element of the output that no thread wrote
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


RESIDENT = 4            # blocks under way at once, where they hand each other something


@deep()
def simulate(kernel: Kernel, buffers: Mapping[str, np.ndarray], *, poison: bool = True, limit: int = 10_000_000, seed: int = 0) -> None:
    """Runs `kernel` on flat arrays in their stored dtypes; those with access "write" are overwritten in place, and its own are not given.

    What a written buffer held before counts as uninitialised.  `poison`: every element of it must have been written at the
    end.  `limit`: loop iterations that a warp may take.  `seed`: of the order of blocks that hand each other something.  Raises IRError for
    a malformed kernel and SimulationError.
    """
    verify(kernel)
    parameters = {p.name: Memory(p.name, np.zeros(p.length, p.element.numpy), written=p.access != "exchange", late=p.late)
                  for p in kernel.parameters if p.own}
    passed = [p for p in kernel.parameters if p.name not in parameters]
    names = {p.name for p in passed}
    if names != set(buffers):
        raise SimulationError("argument", f"kernel {kernel.name} takes {', '.join(sorted(names))}, not {', '.join(sorted(buffers))}")
    for p in passed:
        given = buffers[p.name]
        if given.dtype != p.element.numpy or given.shape != (p.length,):
            raise SimulationError("argument", f"buffer {p.name} of kernel {kernel.name} is "
                f"{p.element.numpy}({p.length},), not {given.dtype}{given.shape}")
    parameters |= {p.name: Memory(p.name, buffers[p.name], written=p.access == "read", late=p.late) for p in passed}
    machine = Machine(kernel, lambda w, fault, s: _explain(kernel, w, fault, s))
    asynchronous = kernel.cluster > 1 or any(s.asynchronous for s in walk(kernel.body))
    epoch = 0

    def block(at: tuple[int, ...], engine: Engine | None) -> list[Warp]:
        shared = engine.shared if engine else {
            b.name: Memory(b.name, np.zeros(b.length, b.element.numpy), written=False) for b in kernel.shared}
        memory, slots = {**parameters, **shared}, len(machine.slots)
        return [Warp(t, kernel.block, at, slots, memory, limit, engine) for t in range(0, kernel.block, 32)]

    def begin(place: tuple[int, ...], first: int) -> Running:
        """The cluster whose first block is at (z, y, x), from epoch `first`."""
        z, y, x = place
        engines = [Engine(kernel, rank) if asynchronous else None for rank in range(kernel.cluster)]
        for engine in filter(None, engines):
            engine.join([e for e in engines if e])
        return _run_cluster(kernel, [block((x + rank, y, z), engine) for rank, engine in enumerate(engines)], machine.main, first)

    places = product(*(range(0, n, step) for n, step in zip(reversed(kernel.grid), (1, 1, kernel.cluster), strict=True)))
    with np.errstate(all="ignore"):
        if any(s.across for s in walk(kernel.body)):
            most = prod(kernel.grid) if any(s.at_once for s in walk(kernel.body)) else RESIDENT
            _run_together(places, begin, Random(seed), most)
        else:
            for place in places:
                epoch = _run_alone(begin(place, epoch))
    for p in kernel.parameters:
        if p.access == "signals" and (left := np.flatnonzero(parameters[p.name].data)).size:
            raise SimulationError("signal", f"kernel {kernel.name} leaves {left.size} of {p.length} signals of {p.name} that nobody has "
                f"awaited, the first {left[0]}: the next launch would find them given")
    for p in passed:
        if poison and p.access == "write" and (missing := np.flatnonzero(parameters[p.name].writer < 0)).size:
            raise SimulationError("unwritten", f"kernel {kernel.name} leaves {missing.size} of {p.length} elements of {p.name} unset, "
                f"the first {missing[0]}")


# a cluster under way: yields None between two barriers, and what it fails with if nobody else goes on where it cannot; the epoch after it
Running = Generator[SimulationError | None, None, int]


def _run_alone(cluster: Running) -> int:
    """Runs a cluster to its end; the epoch that follows its last."""
    while True:
        try:
            stuck = next(cluster)
        except StopIteration as end:
            return int(end.value)
        if stuck is not None:
            raise stuck


def _run_together(places: Iterable[tuple[int, ...]], begin: Callable[[tuple[int, ...], int], Running], random: Random, most: int) -> None:
    """Runs clusters, at most so many at once, in a drawn order, one or another from barrier to barrier; SimulationError where all wait."""
    waiting, running, stuck = list(places), list[Running](), set[Running]()
    random.shuffle(waiting)
    while waiting or running:
        while waiting and len(running) < most:
            running.append(begin(waiting[-1], len(waiting) * EPOCHS))
            waiting.pop()
        block = random.choice(running)
        try:
            failure = next(block)
        except StopIteration:
            running.remove(block)
            failure = None
        stuck = stuck | {block} if failure else set()
        if failure and len(stuck) == len(running):
            raise failure


def _run_cluster(kernel: Kernel, blocks: list[list[Warp]], main: Callable[[Warp], Iterator[object]], first: int) -> Running:
    """Runs the warps of a cluster's blocks from epoch `first`; the epoch that follows their last."""
    every, went_on = [w for warps in blocks for w in warps], False
    running = {w: main(w) for w in every}
    waits: dict[Warp, object] = dict.fromkeys(every)
    for w in every:
        w.enter(first, first)
    while running:
        moved = met = False
        for w, program in list(running.items()):
            wait = waits[w]
            if wait is None or callable(wait) and wait():
                moved = True
                try:
                    waits[w] = next(program)
                except StopIteration:
                    del running[w]
                    _end(kernel, w, next(warps for warps in blocks if w in warps), running)
        for warps in blocks:
            here = [w for w in warps if w in running]
            sites = {waits[w] for w in here}
            if not sites or not all(isinstance(s, int) for s in sites):
                continue
            if len(here) < len(warps) or len(sites) > 1:
                raise SimulationError("barrier", _barrier(kernel, warps, running, waits))
            if warps[0].engine:
                warps[0].engine.meet(warps)
            epoch, moved, met = max(w.clock for w in warps) + 1, True, True
            for w in warps:
                w.enter(epoch, first)
                waits[w] = None
        if met:
            yield None
            went_on = True
        elif running and not moved:
            flying = [w.engine for w, *_ in blocks if w.engine and w.engine.flights]
            for engine in flying:
                _land(kernel, engine)
            if not flying:
                yield None if went_on else _deadlock(kernel, every, running, waits)
                went_on = False
        went_on |= moved
    return max(w.clock for w in every) + 1


def _end(kernel: Kernel, w: Warp, warps: list[Warp], running: Mapping[Warp, object]) -> None:
    """A warp of a block of `warps` has ended, and with the last of them the block."""
    if not (engine := w.engine):
        return
    where = f"kernel {kernel.name}, block {_block(w)}"
    if left := engine.unfinished(w):
        raise SimulationError("unfinished", f"{where}: {_threads(w)} end, and {left}")
    if any(other in running for other in warps):
        return
    if engine.flights:
        raise SimulationError("unfinished", f"{where} ends while copies or arrivals are on their way to it")
    engine.ended = True


def _land(kernel: Kernel, engine: Engine) -> None:
    """All copies and arrivals on their way come, in the order in which they were asked for."""
    flights, engine.flights = engine.flights, []
    for w, s, land in flights:
        try:
            land()
        except Fault as fault:
            raise _explain(kernel, w, fault, s) from None


def _deadlock(kernel: Kernel, warps: list[Warp], running: Mapping[Warp, object], waits: Mapping[Warp, object]) -> SimulationError:
    those = [wait for w in running if isinstance(wait := waits[w], Wait)]
    kinds = {wait.kind for wait in those} - {"deadlock"} if not any(wait.across for wait in those) else set()
    states = [f"{_threads(w)}{f' ({wait.why})' if isinstance(wait := waits[w], Wait) else ''}" for w in running]
    return SimulationError(kinds.pop() if len(kinds) == 1 else "deadlock",
        f"kernel {kernel.name}, block {_block(warps[0])}: no warp can go on; waiting: {', '.join(states)}")


def _explain(kernel: Kernel, w: Warp, fault: Fault, s: Stmt) -> SimulationError:
    shown = ", ".join(map(str, fault.threads[:4])) + (f" and {len(fault.threads) - 4} more" if len(fault.threads) > 4 else "")
    where = f"kernel {kernel.name}, `{print_statement(s)[0]}`, block {_block(w)}, thread{'s' * (len(fault.threads) > 1)} {shown}"
    return SimulationError(fault.kind, f"{where}: {fault.detail}")


def _barrier(kernel: Kernel, warps: list[Warp], running: Mapping[Warp, object], waits: Mapping[Warp, object]) -> str:
    states = [f"{_threads(w)} {f'wait at barrier {waits[w]} of its text' if w in running else 'have ended'}" for w in warps]
    return f"kernel {kernel.name}, `barrier`, block {_block(warps[0])}: {'; '.join(states)}"


def _block(w: Warp) -> str:
    return f"({', '.join(str(int(b)) for b in w.block)})"


def _threads(w: Warp) -> str:
    return f"threads {w.threads[0]} to {min(int(w.threads[-1]), w.size - 1)}"
