"""Partition: which tensors are kept in memory, and which body each kernel has.

A program is a set of kernels, one for each kept tensor.  Given the kept set, each kernel's body is extracted greedily
(every class once, shared parts paid once) from the members its class admits, loads of kept tensors among them.  The
kept set is found by descent: drop one, add one, swap two, from both "all that the program names" and "only its results".

A kernel is priced by the caller, who knows what schedules it has; the floor (`max(bytes, work) + launch`) prunes what
could not be better.  Everything is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


PROGRAMS = 3000     # partitions that one descent tries at most


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
    `outputs`: those that must be kept; `inputs`: those that always can be read; `launch`: seconds a kernel costs at least;
    `rent`: what keeping a tensor between kernels costs besides the kernels, as (seconds, times its traffic): one launch more for the
    host, and the room it takes from other data in caches and memory."""

    members: dict[int, tuple[Member, ...]]
    home: dict[str, int]
    traffic: dict[str, float]
    named: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: frozenset[str]
    launch: float
    rent: tuple[float, float] = (0.0, 0.0)


class Kernel(NamedTuple):
    """A kernel that writes one tensor: its body (one member a class, from the root down), what it reads, its floor in seconds."""

    writes: str
    root: int
    body: tuple[tuple[int, Member], ...]
    reads: frozenset[str]
    floor: float


class Reach(NamedTuple):
    """What a kernel may compute (`classes`), the tensors it meets, and those of them it may read."""

    classes: frozenset[int]
    tensors: frozenset[str]
    readable: frozenset[str]


class Solution(NamedTuple):
    """Kernels in launch order and the seconds they are priced at; `settled` unless the budget ended the descent."""

    seconds: float
    kernels: tuple[Kernel, ...]
    settled: bool


def search(problem: Problem, price: Callable[[Kernel], float]) -> Solution:
    """The best partition that descent finds; ValueError if an output cannot be computed."""
    search_ = _Search(problem, price)
    starts = (frozenset(problem.named) | frozenset(problem.outputs), frozenset(problem.outputs))
    first = search_.program(starts[0], float("inf"))
    if first is not None:      # a member that alone costs more than a whole program is in no better one
        members = {c: tuple(m for m in ms if all(s <= first[0] for _, s, _ in m.parts)) for c, ms in problem.members.items()}
        search_ = _Search(problem._replace(members=members), price)
    found = [s for s in (search_.descend(start) for start in starts) if s is not None]
    if not found:
        raise ValueError(f"no kernels compute {', '.join(problem.outputs)}")
    return min(found, key=lambda s: s.seconds)


class _Search:
    def __init__(self, problem: Problem, price: Callable[[Kernel], float]):
        self.problem, self.price = problem, price
        self.users: dict[int, list[tuple[int, Member]]] = {}
        for c, members in problem.members.items():
            for m in members:
                for k in set(m.kids):
                    self.users.setdefault(k, []).append((c, m))
        self.kernels: dict[tuple[str, frozenset[str]], Kernel | None] = {}
        self.prices: dict[tuple[str, tuple[tuple[int, Member], ...]], float] = {}
        self.reaches: dict[str, list[Reach]] = {}

    # -- one kernel ---------------------------------------------------------------------------------------------
    def reach(self, writes: str, kept: frozenset[str]) -> Reach:
        """The classes that the kernel of `writes` may compute and the tensors it comes across: below one it may read, it does not look."""
        known = self.reaches.setdefault(writes, [])
        for reach in known:
            if kept & reach.tensors == reach.readable:
                return reach
        root = self.problem.home[writes]
        readable = kept - {writes}
        classes, tensors, stack = {root}, set[str](), [root]
        while stack:
            c = stack.pop()
            members = self.problem.members.get(c, ())
            loads = {m.tensor for m in members if m.tensor} - {writes}
            tensors |= loads
            found = loads & (readable | self.problem.inputs) if c != root else set()
            for m in members if not found else (m for m in members if m.tensor in found):
                fresh = set(m.kids) - classes
                classes |= fresh
                stack += fresh
        known.append(Reach(frozenset(classes), frozenset(tensors), frozenset(tensors & kept)))
        return known[-1]

    def kernel(self, writes: str, kept: frozenset[str]) -> Kernel | None:
        """The kernel that writes a tensor and may read `kept`, by greedy extraction; None if it cannot be computed so."""
        reach = self.reach(writes, kept - {writes})
        key = writes, reach.readable
        if key not in self.kernels:
            self.kernels[key] = self._extract(writes, reach.classes, reach.readable | self.problem.inputs)
        return self.kernels[key]

    def _extract(self, writes: str, classes: frozenset[int], readable: frozenset[str]) -> Kernel | None:
        """Settle classes in the order of their cost (Knuth 1977), each cost a set of parts so that sharing is a union."""
        root = self.problem.home[writes]
        best: dict[int, Member] = {}
        parts: dict[int, dict[str, tuple[float, str]]] = {}
        heap: list[tuple[float, str, int, Member]] = []

        def offer(c: int, m: Member) -> None:
            if m.tensor and m.tensor not in readable or m.tensor == writes:
                return
            merged = {k: (s, kind) for k, s, kind in m.parts}
            for k in m.kids:
                merged |= parts[k]
            heapq.heappush(heap, (sum(s for s, _ in merged.values()), m.spelling, c, m))

        for c in sorted(classes):
            for m in self.problem.members.get(c, ()):
                if not m.kids:
                    offer(c, m)
        while heap and root not in best:
            _, _, c, m = heapq.heappop(heap)
            if c in best:
                continue
            best[c] = m
            merged: dict[str, tuple[float, str]] = {}
            for k in m.kids:
                merged |= parts[k]
            parts[c] = merged | {k: (s, kind) for k, s, kind in m.parts}
            for user, other in self.users.get(c, ()):
                if user in classes and user not in best and all(k in best for k in other.kids):
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
        seconds = {"memory": self.problem.traffic[writes], "work": 0.0}
        for s, kind in parts[root].values():
            seconds[kind] += s
        reads = frozenset(m.tensor for m in body.values() if m.tensor) - self.problem.inputs
        return Kernel(writes, root, tuple(sorted(body.items())), reads, max(seconds.values()) + self.problem.launch)

    def priced(self, kernel: Kernel) -> float:
        key = kernel.writes, kernel.body
        if key not in self.prices:
            fixed, share = (0.0, 0.0) if kernel.writes in self.problem.outputs else self.problem.rent
            kept = fixed + share * self.problem.traffic[kernel.writes]
            self.prices[key] = max(self.price(kernel), kernel.floor) + kept
        return self.prices[key]

    # -- one partition ------------------------------------------------------------------------------------------
    def program(self, kept: frozenset[str], limit: float) -> tuple[float, tuple[Kernel, ...]] | None:
        """The kernels for a kept set, in order; None if they cannot cost less than `limit`.  A kernel may not read what waits for it."""
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
        """The local optimum reached from a kept set, or what the budget of programs tried has led to."""
        found = self.program(kept, float("inf"))
        tried = 0
        while found is not None:
            seconds, kernels = found
            better = None
            for move in self.moves(kernels):
                tried += 1
                better = self.program(move, seconds * (1 - 1e-6))
                if better is not None or tried == PROGRAMS:
                    break
            if better is None:
                return Solution(seconds, kernels, tried < PROGRAMS)
            found = better
        return None

    def moves(self, kernels: tuple[Kernel, ...]) -> Iterator[frozenset[str]]:
        """Kept sets one step away: drop one, add one that a kernel meets, swap two that meet in one kernel.

        No kernel costs less than its launch and its output's traffic, so what a move can save is bounded by what the kernels it
        touches cost above that; a tensor that costs more to keep is not tried."""
        live = frozenset(k.writes for k in kernels)
        spare = [k for k in kernels if k.writes not in self.problem.outputs]
        above = {k.writes: self.priced(k) - self.problem.launch - self.problem.traffic[k.writes] for k in kernels}
        fixed, share = self.problem.rent
        cost = {t: self.problem.launch + fixed + (2 + share) * traffic for t, traffic in self.problem.traffic.items()}

        def worth(readers: Iterable[Kernel], kept: frozenset[str], saved: float) -> list[str]:
            save: dict[str, float] = {}
            for k in readers:
                for t in self.reach(k.writes, kept).tensors - live - self.problem.inputs:
                    save[t] = save.get(t, saved) + above[k.writes]
            return sorted(t for t, s in save.items() if s > cost[t])

        yield from (live - {k.writes} for k in spare)
        yield from (live | {u} for u in worth(kernels, live, 0.0))
        for k in spare:
            kept = live - {k.writes}
            yield from (kept | {u} for u in worth((r for r in kernels if k.writes in r.reads), kept, self.priced(k)))
