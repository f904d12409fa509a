"""What goes on in a block besides its warps: phases of barriers, copies on their way, warps that meet in part.

Time is a clock for each thread, as tags (see `emmy.evaluate.memory`).  A warp of a kernel with such statements keeps, for each lane, the
latest tag of every thread that it has seen: `seen[lane, thread]`, its own present one included.  Whoever releases hands on its row and
begins a new moment; whoever acquires takes the largest of both rows.  Then an access happened before iff its tag is no later than the one
seen of its thread.  Each barrier in shared memory counts as a thread too, which makes the copies that complete on it: their tags are
numbered by phase, and lie beyond those of threads.

Who arrives at another block's barrier hands on less: that its reads are over, and those of copies that it waited for (`over`).  Copies to
places that were read need no more, and no other access may rely on it.

Copies, and arrivals at other blocks, come as late as they may: when no warp can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.evaluate.async_memory import AsyncMemory
from emmy.evaluate.warp import Fault
from emmy.ir import dtype as dt

if TYPE_CHECKING:
    from emmy.evaluate.warp import Array, Mask, Warp
    from emmy.ir.kernel_ir import Kernel, Stmt

LANDED = 1 << 40        # the epoch of the first phase of a barrier's copies
REGISTERS = 65536       # 32-bit registers of a multiprocessor


class Wait:
    """What a warp waits for, `across` from another block: goes on when `ready()`; `kind` and `why` tell what is wrong if that never
    comes."""

    def __init__(self, ready: Callable[[], bool], why: object, kind: str = "deadlock", across: bool = False) -> None:
        self.ready, self.why, self.kind, self.across = ready, why, kind, across

    def __call__(self) -> bool:
        return self.ready()


class Phases:
    """A barrier in shared memory, which the warp `maker` made: `pending` arrivals and `bytes` that its phase waits for, `flying` bytes of
    copies bound to it."""

    def __init__(self, name: str, count: int, agent: int, span: int, maker: int) -> None:
        self.name, self.count, self.agent, self.span, self.maker = name, count, agent, span, maker
        self.pending, self.bytes, self.flying, self.phase, self.fenced = count, 0, 0, 0, False
        self.gathered, self.released, self.ending, self.over = (np.full(span, -1, np.int64) for _ in range(4))

    @property
    def tag(self) -> int:
        """The tag of copies that complete in this phase."""
        return (LANDED + self.phase) * self.span + self.agent

    def arrive(self, rows: Array, threads: Array, relaxed: bool = False) -> None:
        """Threads arrive that have seen these rows; if `relaxed`, they tell of what is over alone."""
        if len(rows) > self.pending:
            raise Fault("barrier", f"{self.name} counts {self.count} arrivals a phase, and more arrive", threads)
        told = self.ending if relaxed else self.gathered
        np.maximum(told, rows.max(axis=0), out=told)
        self.pending -= len(rows)
        self.settle(threads)

    def land(self, size: int, threads: Array) -> None:
        """A copy of `size` bytes has arrived."""
        self.flying -= size
        self.bytes -= size
        if self.bytes < 0 and not self.pending:
            raise Fault("bytes", f"{-self.bytes} bytes more arrive at {self.name} than its phase expects", threads)
        self.settle(threads)

    def settle(self, threads: Array) -> None:
        """Ends the phase if all have arrived."""
        if self.pending or self.bytes:
            return
        if self.flying:
            raise Fault("bytes", f"the phase of {self.name} ends while {self.flying} bytes, which it does not expect, are on their way",
                        threads)
        self.gathered[self.agent] = self.tag
        np.maximum(self.released, self.gathered, out=self.released)
        np.maximum(self.over, self.ending, out=self.over)
        self.phase, self.pending = self.phase + 1, self.count

    def __str__(self) -> str:
        return f"{self.name} in phase {self.phase} lacks {self.pending} of {self.count} arrivals and {self.bytes} bytes"


class Meeting:
    """Warps that wait for each other: those there, and how often they met."""

    def __init__(self) -> None:
        self.there: list[Warp] = []
        self.what: object = None
        self.rounds = 0

    def join(self, w: Warp, what: object, number: int, kind: str, why: str, act: Callable[[list[Warp]], None]) -> Iterator[object]:
        """`w` comes for `what`; the last of `number` warps acts for all."""
        if self.there and what != self.what:
            raise Fault(kind, f"{why}, and other warps of the group are elsewhere", w.active(w.mask))
        self.there.append(w)
        self.what, now = what, self.rounds
        if len(self.there) == number:
            present, self.there, self.rounds = self.there, [], now + 1
            act(present)
        else:
            yield Wait(lambda: self.rounds != now, why, kind)


class Gathering:
    """The barrier of a cluster's `warps`: in which phase each arrived that has not gone on, and which barriers in shared memory, made and
    fenced by one that has, those know who go on."""

    def __init__(self, warps: int) -> None:
        self.warps, self.phase, self.pending = warps, 0, warps
        self.arrived: dict[Warp, int] = {}
        self.gathered, self.released = set[Phases](), frozenset[Phases]()

    def arrive(self, w: Warp) -> None:
        if w in self.arrived:
            raise Fault("barrier", "arrives a second time, with no cluster_wait between", w.threads)
        self.gathered |= {phases for phases in w.engine.phases.values() if phases.fenced and phases.maker == w.number}
        self.arrived[w], self.pending = self.phase, self.pending - 1
        if not self.pending:
            self.released, self.phase, self.pending = frozenset(self.gathered), self.phase + 1, self.warps

    def wait(self, w: Warp) -> Iterator[object]:
        if w not in self.arrived:
            raise Fault("barrier", "waits for its cluster, and has not arrived there", w.threads)
        phase = self.arrived.pop(w)
        if self.phase == phase:
            yield Wait(lambda: self.phase != phase, "its cluster")
        w.known |= self.released


class Engine:
    """A block's asynchronous work.  `rank`: which block of its cluster it is; `peers` holds the engines of them all."""

    def __init__(self, kernel: Kernel, rank: int = 0) -> None:
        self.threads, self.rank, self.blocks = -(-kernel.block // 32) * 32, rank, kernel.cluster
        self.first, self.crowd = rank * self.threads, self.threads * kernel.cluster     # the first of its threads, and all of the cluster
        self.shared = {b.name: AsyncMemory(b.name, np.zeros(b.length, b.element.numpy), self.crowd // 32) for b in kernel.shared}
        self._agents: dict[tuple[str, int], int] = {}
        for b in kernel.shared:
            for k in range(b.length if b.element is dt.i64 else 0):
                self._agents[b.name, k] = self.crowd + len(self._agents)
        self._agents = {key: agent + rank * len(self._agents) for key, agent in self._agents.items()}
        self.span = self.crowd + len(self._agents) * kernel.cluster
        self.peers, self.gathering, self.ended = [self], Gathering(self.crowd // 32), False
        self.phases: dict[tuple[str, int], Phases] = {}
        self.flights: list[tuple[Warp, Stmt, Callable[[], None]]] = []
        self.groups = [Meeting() for _ in range(0, self.threads, 128)]
        self.named: dict[int, Meeting] = {}
        per_thread = min(REGISTERS // self.threads // 8 * 8, 256)
        self.registers = [per_thread] * (self.threads // 32)

    def who(self, agent: int) -> str:
        """A thread, or a copy that completes on a barrier, by its number among those of the cluster."""
        if agent >= self.crowd:
            return "a copy whose barrier it did not wait for"
        return f"thread {agent % self.threads}{f' of block {agent // self.threads} of its cluster' * (self.blocks > 1)}"

    def warp(self, number: int) -> str:
        first, block = number * 32 % self.threads, number * 32 // self.threads
        return f"warp {first // 32} (threads {first} to {first + 31}){f' of block {block} of its cluster' * (self.blocks > 1)}"

    # ---- the cluster

    def peer(self, w: Warp, rank: int) -> Engine:
        """The block of that rank, whose shared memory the warp writes."""
        if not 0 <= rank < self.blocks:
            raise Fault("cluster", f"block {rank} of a cluster of {self.blocks}", w.active(w.mask))
        if self.peers[rank].ended:
            raise Fault("cluster", f"block {rank} of the cluster is sent something, and has ended", w.active(w.mask))
        return self.peers[rank]

    def join(self, peers: list[Engine]) -> None:
        """The block is one of these, in the order of their ranks."""
        self.peers, self.gathering = peers, peers[0].gathering

    # ---- time

    def release(self, w: Warp, lanes: Mask) -> Array:
        """The rows of the active lanes, as they hand them on; a new moment begins for the warp."""
        rows: Array = w.seen.copy() if lanes is None else w.seen[lanes]
        w.advance()
        return rows

    @staticmethod
    def acquire(w: Warp, lanes: Mask, row: Array) -> None:
        """The active lanes have seen what `row` tells."""
        if lanes is None:
            np.maximum(w.seen, row, out=w.seen)
        else:
            w.seen[lanes] = np.maximum(w.seen[lanes], row)

    def meet(self, warps: list[Warp]) -> None:
        """All lanes of these warps have seen what any of them has."""
        row = np.max([w.seen.max(axis=0) for w in warps], axis=0)
        told = [{block: rows.max(axis=0) for block, rows in w.heard.items()} for w in warps]
        for w in warps:
            w.seen[:] = row
            for lane, rows in product(range(32), told):
                w.hear(lane, rows)
            w.advance()

    # ---- barriers in shared memory

    def make(self, w: Warp, name: str, at: int, count: int) -> None:
        if (name, at) in self.phases:
            raise Fault("barrier", f"{name}[{at}] is made a second time", w.active(w.mask))
        self.phases[name, at] = Phases(f"{name}[{at}]", count, self._agents[name, at], self.span, w.number)

    def barrier(self, w: Warp, name: str, at: Any, lanes: Mask, *, by_engine: bool = False) -> Phases:
        """The one barrier that the active lanes use; it was made where all of them see it."""
        at = w.uniform(at)
        if np.ndim(at):
            raise Fault("barrier", f"lanes of a warp use different barriers of {name} in one statement", w.active(lanes))
        found = self.phases.get((name, int(at)))
        if found not in w.known:
            self.shared[name].check_made(w, at, lanes)
        if found is None:
            raise Fault("barrier", f"{name}[{at}] is no barrier: nothing made it one", w.active(lanes))
        if by_engine and not found.fenced:
            raise Fault("fence", f"a copy completes on {name}[{at}], which no fence_barriers followed", w.active(lanes))
        return found

    def arrive(self, w: Warp, name: str, at: Any, size: int = 0) -> None:
        """Each active lane arrives at its barrier, and expects `size` bytes there."""
        places = w.spread(at)[w.active_of(True)]
        threads = w.active(w.mask)
        made = [self.barrier(w, name, one, w.mask) for one in np.unique(places)]
        rows = self.release(w, w.mask)
        for one, phases in zip(np.unique(places), made, strict=True):
            phases.bytes += size * int((places == one).sum())
            phases.arrive(rows[places == one], threads[places == one])

    def wait(self, w: Warp, name: str, at: Any, parity: Any) -> Iterator[object]:
        """Until the phase of that parity has ended."""
        phases, wanted = self.barrier(w, name, at, w.mask), w.uniform(parity)
        if np.ndim(wanted) or int(wanted) not in (0, 1):
            raise Fault("barrier", f"parity {wanted}; it is 0 or 1, and one for all lanes", w.active(w.mask))
        if phases.phase & 1 == wanted:
            yield Wait(lambda: phases.phase & 1 != wanted, phases)
        self.acquire(w, w.mask, phases.released)
        if (phases.over >= 0).any():
            lanes = w.active_of(True)
            w.over[lanes] = np.maximum(w.over[lanes], phases.over)

    # ---- copies

    def fly(self, w: Warp, s: Stmt, phases: Phases, size: int, land: Callable[[int], None]) -> None:
        """A copy of `size` bytes begins; it calls `land` with its tag when it arrives."""
        phases.flying += size
        tag, thread = phases.tag, w.active(w.mask)

        def arrive() -> None:
            land(tag)
            phases.land(size, thread)
        self.flights.append((w, s, arrive))

    def call(self, w: Warp, s: Stmt, phases: Phases, lane: int) -> None:
        """The thread of a lane of another block, alone active, arrives at a barrier of this one."""
        row, threads = self.release(w, w.mask), w.threads[lane:lane + 1]
        self.flights.append((w, s, lambda: phases.arrive(row, threads, relaxed=True)))

    # ---- parts of the block

    def group(self, w: Warp) -> Meeting:
        """Where the warps of a warpgroup meet; Fault if the block has no whole one there."""
        if (w.number // 4 + 1) * 128 > w.size:
            raise Fault("warpgroup", "is no part of four whole warps", w.active(w.mask))
        return self.groups[w.number // 4]

    def named_barrier(self, w: Warp, number: Any, threads: int) -> Iterator[object]:
        if np.ndim(number) or not 1 <= number <= 15:
            raise Fault("barrier", f"barrier {number}; named ones are 1 to 15, and one for all lanes", w.active(w.mask))
        meeting = self.named.setdefault(int(number), Meeting())
        yield from meeting.join(w, threads, threads // 32, "barrier", f"barrier {number} of {threads} threads", self.meet)

    def set_registers(self, warps: list[Warp], count: int, grow: bool) -> None:
        for w in warps:
            before = self.registers[w.number]
            if count < before if grow else count > before:
                raise Fault("registers", f"{count} registers are {'less' if grow else 'more'} than the {before} it has", w.threads)
            self.registers[w.number] = count

    def room(self, w: Warp, count: int) -> bool:
        """Whether this warp's warpgroup may hold `count` registers a thread beside what others hold."""
        others = sum(held for k, held in enumerate(self.registers) if k // 4 != w.number // 4)
        return 32 * (others + 4 * count) <= REGISTERS

    def unfinished(self, w: Warp) -> str | None:
        """What is under way that a warp must not leave behind."""
        if len(w.products) > 1 or w.products[0]:
            return "products are under way"
        if any(group for groups in w.stores.values() for group in groups):
            return "stores are still read from shared memory"
        return None
