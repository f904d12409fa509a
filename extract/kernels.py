"""The kernels of a partition problem: what each sees of the program, its body, its price; each found once.

Where a class can load a solid tensor that is kept, a kernel does so: nothing below is looked at.  So extraction is local, its
results serve every kept set that looks alike from the kernel, and a search over kept sets is about linear in the size of the program.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from extract.problem import Kernel, Key, Member, Problem

STEPS = 2000    # members that the search for the best body of a kernel tries


class View(NamedTuple):
    """What a kernel sees: the members it considers, the tensors they could load, and those of them that it may."""

    members: dict[int, tuple[Member, ...]]
    met: frozenset[str]
    readable: frozenset[str]


class Kernels:
    """Bodies are extracted greedily (every class once, shared parts paid once); if `thorough`, the best body of a kernel with few
    choices is then searched for."""

    def __init__(self, problem: Problem, price: Callable[[Kernel], float], thorough: bool = False):
        self.problem, self.price, self.thorough = problem, price, thorough
        every = sorted({p for ms in problem.members.values() for m in ms for p in m.parts})
        bit = {p: 1 << n for n, p in enumerate(every)}
        self.seconds = {b: s for (_, s, _), b in bit.items()}
        self.memory = sum(b for (_, _, kind), b in bit.items() if kind == "memory")
        self.mask = {m.parts: sum(bit[p] for p in set(m.parts)) for ms in problem.members.values() for m in ms}
        fixed, share = problem.rent
        self.rent = {w: 0.0 if w in problem.outputs else fixed + share * problem.traffic[w] for w in problem.home}
        self.least = {w: problem.launch + problem.traffic[w] + self.rent[w] for w in problem.home}     # of the kernel that writes it
        self.below = {w: self._reach(w, frozenset())[1] for w in problem.home}
        self.views: dict[tuple[str, frozenset[str]], View] = {}
        self.found: dict[tuple[str, frozenset[str]], Kernel | None] = {}
        self.prices: dict[Key, float] = {}

    def sum(self, parts: int) -> float:
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

    def view(self, writes: str, readable: frozenset[str]) -> View:
        """What the kernel that writes a tensor sees of the program where it may read `readable`."""
        key = writes, readable & self.below[writes]
        if key not in self.views:
            members, met = self._reach(writes, key[1])
            self.views[key] = View(members, met, key[1] & met)
        return self.views[key]

    def kernel(self, writes: str, readable: frozenset[str]) -> Kernel | None:
        """The kernel that writes a tensor and may read `readable`; None if it cannot be computed so."""
        view = self.view(writes, readable)
        key = writes, view.readable
        if key not in self.found:
            self.found[key] = self._extract(writes, view)
        return self.found[key]

    def laid_out(self) -> frozenset[str]:
        """The tensors that the least work for the outputs passes through, whatever is paid to keep them: every solid one that a class in
        the bodies of least cost could load, and the outputs."""
        found = {c for o in self.problem.outputs if (k := self.kernel(o, frozenset())) is not None for c, _ in k.body}
        loaded = frozenset(m.tensor for c in found for m in self.problem.members[c])
        return frozenset(self.problem.outputs) | loaded & self.problem.solid

    def _extract(self, writes: str, view: View) -> Kernel | None:
        readable, root = view.readable | self.problem.inputs, self.problem.home[writes]
        usable = {c: [m for m in view.members[c] if not m.tensor or m.tensor in readable] for c in sorted(view.members)}
        settled = self._settle(root, usable)
        if root not in settled:
            return None
        body = self._improved(root, usable, settled) if self.thorough else reached(root, settled)
        parts = 0
        for m in body.values():
            parts |= self.mask[m.parts]
        memory, work = self.sum(parts & self.memory) + self.problem.traffic[writes], self.sum(parts & ~self.memory)
        reads = frozenset(m.tensor for m in body.values() if m.tensor) - self.problem.inputs
        return Kernel((writes,), (root,), tuple(sorted(body.items())), reads, max(memory, work) + self.problem.launch + self.rent[writes])

    def _settle(self, root: int, usable: dict[int, list[Member]]) -> dict[int, Member]:
        """Settle classes in the order of their cost (Knuth 1977), each cost a set of parts, the bits of a number: sharing is a union."""
        best: dict[int, Member] = {}
        parts: dict[int, int] = {}
        cost: dict[int, float] = {}
        heap: list[tuple[float, str, int, int, Member]] = []

        def offer(c: int, m: Member) -> None:
            first = max(m.kids, key=cost.__getitem__, default=None)
            merged, seconds = (parts[first], cost[first]) if first is not None else (0, 0.0)
            for more in (*(parts[k] for k in m.kids), self.mask[m.parts]):
                seconds += self.sum(more & ~merged)
                merged |= more
            heapq.heappush(heap, (seconds, m.spelling, c, merged, m))

        users: dict[int, list[tuple[int, Member]]] = {}
        for c, members in usable.items():
            for m in members:
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
        return best

    def _improved(self, root: int, usable: dict[int, list[Member]], settled: dict[int, Member]) -> dict[int, Member]:
        """The body of least sum of parts: branch and bound from the greedy one down, over at most `STEPS` members."""
        best = reached(root, settled)
        parts = 0
        for m in best.values():
            parts |= self.mask[m.parts]
        limit, steps = self.sum(parts), STEPS

        def visit(open_: frozenset[int], body: dict[int, Member], merged: int, seconds: float) -> None:
            nonlocal best, limit, steps
            if not open_:
                best, limit = body, seconds
                return
            c = min(open_, key=lambda c: (len(usable[c]), c))
            offers = sorted((seconds + self.sum(self.mask[m.parts] & ~merged), m.spelling, m) for m in usable[c])
            for total, _, m in offers:
                if total >= limit * (1 - 1e-9) or not steps:
                    return
                steps -= 1
                if not leads(m.kids, c, body):
                    visit(open_.union(k for k in m.kids if k not in body) - {c}, {**body, c: m}, merged | self.mask[m.parts], total)

        visit(frozenset((root,)), {}, 0, 0.0)
        return best

    def priced(self, kernel: Kernel) -> float:
        """What a kernel costs, asked of the caller once a body."""
        if kernel.key not in self.prices:
            self.prices[kernel.key] = max(self.price(kernel) + sum(self.rent[w] for w in kernel.writes), kernel.floor)
        return self.prices[kernel.key]

    def known(self, kernel: Kernel) -> bool:
        """Whether its price has been asked."""
        return kernel.key in self.prices

    def estimate(self, kernel: Kernel) -> float:
        """Its price if it has been asked, else its floor."""
        return self.prices.get(kernel.key, kernel.floor)


def reached(root: int, settled: dict[int, Member]) -> dict[int, Member]:
    """The part of a choice of members that a class reaches."""
    body: dict[int, Member] = {}
    stack = [root]
    while stack:
        c = stack.pop()
        if c not in body:
            body[c] = settled[c]
            stack += settled[c].kids
    return body


def leads(kids: tuple[int, ...], to: int, body: dict[int, Member]) -> bool:
    """Whether classes lead to another through a body's members."""
    seen, stack = set[int](), list(kids)
    while stack:
        c = stack.pop()
        if c == to:
            return True
        if c not in seen and c in body:
            seen.add(c)
            stack += body[c].kids
    return False
