"""Partition: which tensors are kept in memory, and which body each kernel has.

A program is a set of kernels, one for each kept tensor.  Given the kept set, each kernel's body is extracted greedily
(every class once, shared parts paid once) from the members its class admits, loads of kept tensors among them.  The
kept set is found by descent: drop one, drop a few that one kernel reads, add one, swap two, from "all that the program names" and
(if they are few) from "only its results".

Where a class can load a solid tensor that is kept, a kernel does so: nothing below is looked at.  So extraction is local, its
results serve every kept set that looks alike from the kernel, and the search is about linear in the size of the program.

A kernel is priced by the caller, who knows what schedules it has; the floor (`max(bytes, work) + launch`) prunes what
could not be better.  Everything is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

SMALL = 12      # tensors that a program names, for the search to start from its results alone as well


class Member(NamedTuple):
    """One way to compute a class.

    `parts` are the costs it adds, each by a key under which it is paid once a kernel: (key, seconds, "memory" | "work").
    `tensor` is what it loads if it is a load; `spelling` orders equal members.
    """

    spelling: str
    kids: tuple[int, ...]
    parts: tuple[tuple[str, float, str], ...]
    tensor: str = ""


class Problem(NamedTuple):
    """`home`: the class a tensor's kernel computes; `traffic`: seconds to write a tensor; `named`: tensors of the program;
    `outputs`: those that must be kept; `inputs`: those that always can be read; `solid`: those that cost more to compute again than to
    read; `launch`: seconds a kernel costs at least; `rent`: what keeping a tensor between kernels costs besides the kernels, as (seconds,
    times its traffic): one launch more for the host, and the room it takes from other data in caches and memory."""

    members: dict[int, tuple[Member, ...]]
    home: dict[str, int]
    traffic: dict[str, float]
    named: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: frozenset[str]
    solid: frozenset[str]
    launch: float
    rent: tuple[float, float] = (0.0, 0.0)


class Kernel(NamedTuple):
    """A kernel that writes one tensor: its body (one member a class, from the root down), what it reads, its least seconds."""

    writes: str
    root: int
    body: tuple[tuple[int, Member], ...]
    reads: frozenset[str]
    floor: float


class Solution(NamedTuple):
    """Kernels in launch order and the seconds they are priced at."""

    seconds: float
    kernels: tuple[Kernel, ...]


def search(problem: Problem, price: Callable[[Kernel], float]) -> Solution:
    """The best partition that descent finds; ValueError if an output cannot be computed."""
    search_ = _Search(problem, price)
    starts = (frozenset(problem.named) | frozenset(problem.outputs), frozenset(problem.outputs))
    found = [s for s in map(search_.descend, starts if len(problem.named) <= SMALL else starts[:1]) if s is not None]
    if not found:
        raise ValueError(f"no kernels compute {', '.join(problem.outputs)}")
    return min(found, key=lambda s: s.seconds)


class _View(NamedTuple):
    """What a kernel sees: the members it considers, the tensors they could load, and those of them that are kept."""

    members: dict[int, tuple[Member, ...]]
    met: frozenset[str]
    readable: frozenset[str]


class _Search:
    def __init__(self, problem: Problem, price: Callable[[Kernel], float]):
        self.problem, self.price = problem, price
        every = sorted({p for ms in problem.members.values() for m in ms for p in m.parts})
        bit = {p: 1 << n for n, p in enumerate(every)}
        self.seconds = {b: s for (_, s, _), b in bit.items()}
        self.memory = sum(b for (_, _, kind), b in bit.items() if kind == "memory")
        self.mask = {m.parts: sum(bit[p] for p in set(m.parts)) for ms in problem.members.values() for m in ms}
        fixed, share = problem.rent
        self.rent = {w: 0.0 if w in problem.outputs else fixed + share * problem.traffic[w] for w in problem.home}
        self.least = {w: problem.launch + problem.traffic[w] + self.rent[w] for w in problem.home}     # of the kernel that writes it
        self.below = {w: self._reach(w, frozenset())[1] for w in problem.home}
        self.views: dict[tuple[str, frozenset[str]], _View] = {}
        self.kernels: dict[tuple[str, frozenset[str]], Kernel | None] = {}
        self.prices: dict[tuple[str, tuple[tuple[int, Member], ...]], float] = {}
        self.seen: dict[frozenset[str], tuple[float, tuple[float, tuple[Kernel, ...]] | None]] = {}

    def _sum(self, parts: int) -> float:
        """Seconds of a set of parts."""
        total = 0.0
        while parts:
            last = parts & -parts
            total += self.seconds[last]
            parts ^= last
        return total

    def _reach(self, writes: str, readable: frozenset[str]) -> tuple[dict[int, tuple[Member, ...]], frozenset[str]]:
        """The members that a kernel which may read `readable` considers, and the tensors other than inputs that they load."""
        solid, root = readable & self.problem.solid, self.problem.home[writes]
        members: dict[int, tuple[Member, ...]] = {}
        met, stack = set[str](), [root]
        while stack:
            c = stack.pop()
            if c in members:
                continue
            all_ = self.problem.members.get(c, ())
            members[c] = tuple(m for m in all_ if m.tensor in solid) or all_
            met |= {m.tensor for m in members[c] if m.tensor}
            stack += (k for m in members[c] for k in m.kids)
        return members, frozenset(met) - self.problem.inputs - {writes}

    def view(self, writes: str, readable: frozenset[str]) -> _View:
        """What the kernel that writes a tensor sees of the program where it may read `readable`."""
        key = writes, readable & self.below[writes]
        if key not in self.views:
            members, met = self._reach(writes, key[1])
            self.views[key] = _View(members, met, key[1] & met)
        return self.views[key]

    # -- one kernel ---------------------------------------------------------------------------------------------
    def kernel(self, writes: str, readable: frozenset[str]) -> Kernel | None:
        """The kernel that writes a tensor and may read `readable`, by greedy extraction; None if it cannot be computed so."""
        view = self.view(writes, readable)
        key = writes, view.readable
        if key not in self.kernels:
            self.kernels[key] = self._extract(writes, view.members, view.readable | self.problem.inputs)
        return self.kernels[key]

    def _extract(self, writes: str, members: dict[int, tuple[Member, ...]], readable: frozenset[str]) -> Kernel | None:
        """Settle classes in the order of their cost (Knuth 1977), each cost a set of parts (the bits of a number) so that sharing is a
        union."""
        root = self.problem.home[writes]
        best: dict[int, Member] = {}
        parts: dict[int, int] = {}
        cost: dict[int, float] = {}
        heap: list[tuple[float, str, int, int, Member]] = []

        def offer(c: int, m: Member) -> None:
            if m.tensor and m.tensor not in readable:
                return
            first = max(m.kids, key=cost.__getitem__, default=None)
            merged, seconds = (parts[first], cost[first]) if first is not None else (0, 0.0)
            for more in (*(parts[k] for k in m.kids), self.mask[m.parts]):
                seconds += self._sum(more & ~merged)
                merged |= more
            heapq.heappush(heap, (seconds, m.spelling, c, merged, m))

        users: dict[int, list[tuple[int, Member]]] = {}
        for c in sorted(members):
            for m in members[c]:
                for k in set(m.kids):
                    users.setdefault(k, []).append((c, m))
                if not m.kids:
                    offer(c, m)
        while heap and root not in best:
            seconds, _, c, merged, m = heapq.heappop(heap)
            if c in best:
                continue
            best[c], parts[c], cost[c] = m, merged, seconds
            for user, other in users.get(c, ()):
                if user not in best and all(k in best for k in other.kids):
                    offer(user, other)
        if root not in best:
            return None
        body: dict[int, Member] = {}
        stack = [root]
        while stack:
            c = stack.pop()
            if c not in body:
                body[c] = best[c]
                stack += best[c].kids
        memory = self._sum(parts[root] & self.memory) + self.problem.traffic[writes]
        work = self._sum(parts[root] & ~self.memory)
        reads = frozenset(m.tensor for m in body.values() if m.tensor) - self.problem.inputs
        return Kernel(writes, root, tuple(sorted(body.items())), reads, max(memory, work) + self.problem.launch + self.rent[writes])

    def priced(self, kernel: Kernel) -> float:
        key = kernel.writes, kernel.body
        if key not in self.prices:
            self.prices[key] = max(self.price(kernel) + self.rent[kernel.writes], kernel.floor)
        return self.prices[key]

    # -- one partition ------------------------------------------------------------------------------------------
    def program(self, kept: frozenset[str], limit: float) -> tuple[float, tuple[Kernel, ...]] | None:
        """The kernels for a kept set, in order; None if they cannot cost less than `limit`."""
        tried, found = self.seen.get(kept, (-1.0, None))
        if found is None and limit > tried:
            found = self._program(kept, limit)
            self.seen[kept] = limit, found
        return found if found is not None and found[0] < limit else None

    def _program(self, kept: frozenset[str], limit: float) -> tuple[float, tuple[Kernel, ...]] | None:
        """`program` without memory.  A kernel may not read what waits for it."""
        order: dict[str, Kernel] = {}

        def visit(w: str, waiting: frozenset[str]) -> bool:
            if w in order:
                return True
            k = self.kernel(w, kept - waiting - {w})
            if k is None or not all(visit(r, waiting | {w}) for r in sorted(k.reads)):
                return False
            order[w] = k
            return True

        if not all(visit(o, frozenset()) for o in self.problem.outputs) or sum(k.floor for k in order.values()) >= limit:
            return None
        floors, total = sum(k.floor for k in order.values()), 0.0
        for k in order.values():
            floors -= k.floor
            total += self.priced(k)
            if total + floors >= limit:
                return None
        return total, tuple(order.values())

    def descend(self, kept: frozenset[str]) -> Solution | None:
        """The local optimum reached from a kept set: passes over the moves, each taken at once where it helps, until a pass finds none."""
        best = self.program(kept, float("inf"))
        while best is not None:
            before = best
            live = frozenset(k.writes for k in best[1])
            for drop, add in self.moves(live, best[1]):
                if drop <= live and not add & live:
                    better = self.program((live - drop) | add, best[0] * (1 - 1e-6))
                    if better is not None:
                        best, live = better, frozenset(k.writes for k in better[1])
            if best is before:
                return Solution(*best)
        return None

    def moves(self, live: frozenset[str], kernels: tuple[Kernel, ...]) -> list[tuple[frozenset[str], frozenset[str]]]:
        """(dropped, added): drop one, drop two or three that one kernel reads, add one, swap one for another that its writer or its
        readers can load."""
        spare = sorted(live - frozenset(self.problem.outputs))
        writer = {k.writes: k for k in kernels}
        gain = {w: self.priced(k) - self.least[w] for w, k in writer.items()}   # the most that a better body saves

        def worth(kept: frozenset[str], writers: Iterable[str], saved: float) -> list[str]:
            """Tensors that some of `writers` could load and whose own kernel may cost less than what it saves."""
            saves: dict[str, float] = {}
            for w in writers:
                for t in self.view(w, kept - {w}).met - live:
                    saves[t] = saves.get(t, saved) + gain[w]
            return sorted(t for t, most in saves.items() if self.least[t] < most)

        none = frozenset[str]()
        out = [(frozenset((t,)), none) for t in spare]
        read = [sorted(k.reads & set(spare)) for k in kernels]
        out += dict.fromkeys((frozenset(few), none) for r in read for n in (2, 3) for few in combinations(r, n))
        out += [(none, frozenset((u,))) for u in worth(live, live, 0.0)]
        for t in spare:
            readers = [k.writes for k in kernels if t in k.reads]
            out += [(frozenset((t,)), frozenset((u,))) for u in worth(live - {t}, [t, *readers], self.priced(writer[t]))]
        return out
