"""Partition: which tensors are kept in memory, and which body each kernel has.

A program is a set of kernels, one for each kept tensor.  Given the kept set, each kernel's body is extracted greedily
(every class once, shared parts paid once) from the members its class admits, loads of kept tensors among them.  The
kept set is found by descent: drop one, add one, swap two, from both "all that the program names" and "only its results".

A kernel is priced by the caller, who knows what schedules it has; the floor (`max(bytes, work) + launch`) prunes what
could not be better.  Everything is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple


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


class Solution(NamedTuple):
    """Kernels in launch order and the seconds they are priced at."""

    seconds: float
    kernels: tuple[Kernel, ...]


def search(problem: Problem, price: Callable[[Kernel], float]) -> Solution:
    """The best partition that descent finds; ValueError if an output cannot be computed."""
    search_ = _Search(problem, price)
    starts = (frozenset(problem.named) | frozenset(problem.outputs), frozenset(problem.outputs))
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
        self.below = {w: self._below(c) for w, c in problem.home.items()}
        self.kernels: dict[tuple[str, frozenset[str]], Kernel | None] = {}
        self.prices: dict[tuple[str, tuple[tuple[int, Member], ...]], float] = {}
        self.seen: dict[frozenset[str], tuple[float, tuple[Kernel, ...]] | None] = {}

    def _below(self, root: int) -> tuple[frozenset[int], frozenset[str]]:
        """The classes under `root` and the tensors that their members could load."""
        classes, tensors, stack = {root}, set[str](), [root]
        while stack:
            for m in self.problem.members.get(stack.pop(), ()):
                if m.tensor:
                    tensors.add(m.tensor)
                fresh = set(m.kids) - classes
                classes |= fresh
                stack += fresh
        return frozenset(classes), frozenset(tensors)

    # -- one kernel ---------------------------------------------------------------------------------------------
    def kernel(self, writes: str, readable: frozenset[str]) -> Kernel | None:
        """The kernel that writes a tensor and may read `readable`, by greedy extraction; None if it cannot be computed so."""
        classes, tensors = self.below[writes]
        key = writes, readable & tensors - {writes}
        if key not in self.kernels:
            self.kernels[key] = self._extract(writes, classes, key[1] | self.problem.inputs)
        return self.kernels[key]

    def _extract(self, writes: str, classes: frozenset[int], readable: frozenset[str]) -> Kernel | None:
        """Settle classes in the order of their cost (Knuth 1977), each cost a set of parts so that sharing is a union."""
        root = self.problem.home[writes]
        best: dict[int, Member] = {}
        parts: dict[int, dict[str, tuple[float, str]]] = {}
        heap: list[tuple[float, str, int, Member]] = []

        def offer(c: int, m: Member) -> None:
            if m.tensor and m.tensor not in readable:
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
        """The local optimum reached from a kept set."""
        found = self.program(kept, float("inf"))
        while found is not None:
            seconds, kernels = found
            live = frozenset(k.writes for k in kernels)
            better = next((p for move in self.moves(live, kernels, seconds) if (p := self.program(move, seconds * (1 - 1e-6))) is not None), None)
            if better is None:
                return Solution(seconds, kernels)
            found = better
        return None

    def moves(self, live: frozenset[str], kernels: tuple[Kernel, ...], seconds: float) -> Iterator[frozenset[str]]:
        """Kept sets one step away: drop one, add one, swap two."""
        spare = sorted(live - frozenset(self.problem.outputs))
        met = frozenset[str]().union(*(self.below[k.writes][1] for k in kernels)) - live - self.problem.inputs
        worth = sorted(t for t in met if 2 * self.problem.traffic[t] + self.problem.launch < seconds)
        yield from (live - {t} for t in spare)
        yield from (live | {u} for u in worth)
        yield from (live - {t} | {u} for t in spare for u in worth)
