"""The kernels of a partition problem: what each sees of the program, its body, its price; each found once.

Where a class can load a solid tensor that is kept, a kernel does so: nothing below is looked at.  So what a class costs depends on few
of the kept tensors, those that can be met from it.  It is settled once for each of their sets, whichever kernels it is part of, and a
search that moves from one kept set to another pays for the classes above what was moved.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from extract.problem import Body, Kernel, Key, Member, Problem

STEPS = 2000    # members that the search for the best body of a kernel tries


class Way(NamedTuple):
    """A member of class `c` as the search reads it: its classes without repeats, its parts and what it loads as bits."""

    number: int
    c: int
    member: Member
    kids: tuple[int, ...]
    parts: int
    tensor: int


class Usable(NamedTuple):
    """The members of a class that a kernel considers, the tensors that they could load, and those on which that depends."""

    ways: tuple[Way, ...]
    met: int
    seen: int


class Settled:
    """A class with the member that computes it for the least seconds, each of `parts` paid once, and what that member's classes settled
    for.  Equal ones are one object.  `height`: the longest way down."""

    __slots__ = ("c", "height", "kids", "member", "parts", "seconds")

    def __init__(self, c: int, member: Member, kids: tuple[Settled, ...], parts: int, seconds: float, height: int):
        self.c, self.member, self.kids, self.parts, self.seconds, self.height = c, member, kids, parts, seconds, height

    def body(self) -> dict[int, Member]:
        """The members that it reaches."""
        found: dict[int, Member] = {}
        stack = [self]
        while stack:
            s = stack.pop()
            if s.c not in found:
                found[s.c] = s.member
                stack += s.kids
        return found


class View(NamedTuple):
    """What a class settled for where, of the tensors `seen` from it, those in `read` may be read; None: it cannot be computed so."""

    seen: int
    read: int
    settled: Settled | None


class Kernels:
    """Bodies are extracted greedily (every class once, shared parts paid once); if `thorough`, the best body of a kernel with few
    choices is then searched for."""

    def __init__(self, problem: Problem, price: Callable[[Kernel], float], thorough: bool = False):
        self.problem, self.price, self.thorough = problem, price, thorough
        every = sorted({p for ms in problem.members.values() for m in ms for p in m.parts})
        bit = {p: 1 << n for n, p in enumerate(every)}
        self.seconds = {b: s for (_, s, _), b in bit.items()}       # of sets of parts, each summed once
        self.memory = sum(b for (_, _, kind), b in bit.items() if kind == "memory")
        loaded = {m.tensor for ms in problem.members.values() for m in ms if m.tensor}
        self.tensors = sorted((loaded | problem.home.keys()) - problem.inputs)
        self.bits = {t: 1 << n for n, t in enumerate(self.tensors)}
        self.solid = self.mask(problem.solid & self.bits.keys())
        parts = {m.parts: union(bit[p] for p in m.parts) for ms in problem.members.values() for m in ms}
        number = itertools.count()
        self.ways = {c: tuple(Way(next(number), c, m, tuple(dict.fromkeys(m.kids)), parts[m.parts], self.bits.get(m.tensor, 0)) for m in ms)
                     for c, ms in problem.members.items()}
        self.loads = {c: union(w.tensor for w in ways) for c, ways in self.ways.items()}
        fixed, share = problem.rent
        self.rent = {w: 0.0 if w in problem.outputs else fixed + share * problem.traffic[w] for w in problem.home}
        least = {w: problem.launch + problem.traffic[w] + self.rent[w] for w in problem.home}
        self.least = {w: s / problem.calls if w in problem.lasting else s for w, s in least.items()}    # of the kernel that writes it
        self.usables: dict[tuple[int, int], Usable] = {}
        self.views: dict[int, dict[int, dict[int, View]]] = {}      # by what is seen, then by what is read
        self.interned: dict[tuple[int, ...], Settled] = {}
        self.found: dict[tuple[str, int, int], Kernel | None] = {}
        self.joint: dict[tuple[tuple[str, ...], tuple[tuple[int, int], ...]], Kernel | None] = {}
        self.prices: dict[Key, float] = {}

    # -- sets as bits ------------------------------------------------------------------------------------------
    def mask(self, tensors: Iterable[str]) -> int:
        return union(map(self.bits.__getitem__, tensors))

    def names(self, mask: int) -> frozenset[str]:
        return frozenset(self.tensors[b.bit_length() - 1] for b in ones(mask))

    def sum(self, parts: int) -> float:
        """Seconds of a set of parts."""
        if parts not in self.seconds:
            self.seconds[parts] = sum(map(self.seconds.__getitem__, ones(parts)), 0.0)
        return self.seconds[parts]

    # -- what a class sees -------------------------------------------------------------------------------------
    def usable(self, c: int, readable: int) -> Usable:
        """The members of a class that a kernel which may read `readable` considers."""
        loads = self.loads.get(c, 0)
        key = c, readable & loads
        if key not in self.usables:
            if solid := key[1] & self.solid:
                self.usables[key] = Usable(tuple(w for w in self.ways[c] if w.tensor & solid), solid, loads & self.solid)
            else:
                self.usables[key] = Usable(tuple(w for w in self.ways.get(c, ()) if not w.tensor or w.tensor & readable), loads, loads)
        return self.usables[key]

    def classes(self, tensor: str) -> tuple[int, ...]:
        """All that the kernel of a tensor computes."""
        return self.problem.home[tensor], *self.problem.beside.get(tensor, ())

    def met(self, writes: str, readable: frozenset[str]) -> frozenset[str]:
        """The tensors other than inputs and itself that the kernel of a tensor could load where it may read `readable`."""
        may, found, seen = self.mask(readable), 0, set[int]()
        stack = [*self.classes(writes)]
        while stack:
            c = stack.pop()
            if c not in seen:
                seen.add(c)
                usable = self.usable(c, may)
                found |= usable.met
                stack += (k for w in usable.ways for k in w.kids)
        return self.names(found & ~self.bits[writes])

    # -- bodies --------------------------------------------------------------------------------------------------
    def kernel(self, writes: str, readable: frozenset[str]) -> Kernel | None:
        """The kernel that writes a tensor and may read `readable`; None if it cannot be computed so."""
        if writes in self.problem.beside:
            return self.together((writes,), readable)
        may = self.mask(readable) & ~self.bits[writes]
        view = self._view(self.problem.home[writes], may)
        key = writes, view.seen, view.read
        if key not in self.found:
            self.found[key] = None if view.settled is None else self._kernel((writes,), (view.settled,), may)
        return self.found[key]

    def together(self, writes: tuple[str, ...], readable: frozenset[str]) -> Kernel | None:
        """The kernel that writes several tensors and may read `readable`; None if they cannot be computed so."""
        may = self.mask(readable) & ~self.mask(writes)
        views = [self._view(c, may) for w in writes for c in self.classes(w)]
        key = writes, tuple((v.seen, v.read) for v in views)
        if key not in self.joint:
            settled = tuple(v.settled for v in views if v.settled is not None)
            self.joint[key] = self._kernel(writes, settled, may) if len(settled) == len(views) else None
        return self.joint[key]

    def laid_out(self) -> frozenset[str]:
        """The tensors that the least work for the outputs passes through, whatever is paid to keep them: every solid one that a class in
        the bodies of least cost could load, and the outputs."""
        found = {c for o in self.problem.outputs if (k := self.kernel(o, frozenset())) is not None for c, _ in k.body}
        return frozenset(self.problem.outputs) | self.names(union(self.loads[c] for c in found) & self.solid)

    def _kernel(self, writes: tuple[str, ...], settled: tuple[Settled, ...], readable: int) -> Kernel:
        roots = tuple(self.problem.home[w] for w in writes)
        beside = tuple(c for w in writes for c in self.problem.beside.get(w, ()))
        body = {c: m for s in settled for c, m in s.body().items()}
        parts = union(s.parts for s in settled)
        if self.thorough:
            body, parts = self._improved((*roots, *beside), body, parts, readable)
        traffic, rent = (sum(of[w] for w in writes) for of in (self.problem.traffic, self.rent))
        memory = self.sum(parts & self.memory) + traffic
        work = self.sum(parts & ~self.memory) + max(self.again(root, reached(root, body)) for root in roots)
        reads = frozenset(m.tensor for m in body.values() if m.tensor) - self.problem.inputs
        floor = self.a_call(writes, body.values(), max(memory, work) + self.problem.launch + rent)
        return Kernel(writes, roots, Body(sorted(body.items())), reads, floor, beside)

    def a_call(self, writes: tuple[str, ...], members: Iterable[Member], seconds: float) -> float:
        """What a call pays of the seconds of a kernel."""
        return seconds / self.problem.calls if self.problem.once(writes, members) else seconds

    def again(self, root: int, body: dict[int, Member]) -> float:
        """Seconds that loops inside others take besides their parts: such a loop depends on an axis that is not written, and is run anew
        at every point that the outermost loops depend on, unless one of these holds what is inside for many points."""
        axes, size = self.problem.axes, self.problem.size
        loops = [(axes[c], m.loop) for c, m in body.items() if m.loop is not None]
        if any(m.holds for m in body.values()) or all(at <= axes[root] for at, _ in loops):
            return 0.0
        free = axes[root] - {a for _, a in loops}
        rows = frozenset[int]().union(*(at for at, _ in loops if at <= free))
        inside = ((at, a) for at, a in loops if not at <= axes[root])
        return self.problem.step * sum((size(rows | at) - size(at)) * size((a,)) for at, a in inside)

    def _improved(self, roots: tuple[int, ...], body: dict[int, Member], parts: int, readable: int) -> tuple[dict[int, Member], int]:
        """The body of least sum of parts, and these: branch and bound from the greedy one down, over at most `STEPS` members."""
        best, limit, steps = (body, parts), self.sum(parts), STEPS
        pending: list[tuple[frozenset[int], dict[int, Member], int, float, tuple[int, Way] | None]] = [(frozenset(roots), {}, 0, 0.0, None)]
        while pending:
            open_, body, merged, seconds, taken = pending.pop()
            if taken is not None:
                c, w = taken
                if seconds >= limit * (1 - 1e-9) or not steps:
                    continue
                steps -= 1
                if leads(w.kids, c, body):
                    continue
                open_, body, merged = open_.union(k for k in w.kids if k not in body) - {c}, {**body, c: w.member}, merged | w.parts
            if not open_:
                best, limit = (body, merged), seconds
                continue
            c = min(open_, key=lambda c: (len(self.usable(c, readable).ways), c))
            offers = sorted((seconds + self.sum(w.parts & ~merged), w.member.spelling, w) for w in self.usable(c, readable).ways)
            pending += ((open_, body, merged, total, (c, w)) for total, _, w in reversed(offers))
        return best

    def _known(self, c: int, readable: int) -> View | None:
        for seen, views in self.views.get(c, {}).items():
            if (view := views.get(readable & seen)) is not None:
                return view
        return None

    def _view(self, root: int, readable: int) -> View:
        """What a class settles for.  Classes below that are known are taken as they are; the others are settled on the way."""
        if (known := self._known(root, readable)) is not None:
            return known
        region: dict[int, tuple[Way, ...]] = {}
        done: dict[int, Settled] = {}
        seen: dict[int, int] = {}
        stack = [root]
        while stack:
            c = stack.pop()
            if c in seen:
                continue
            if (known := self._known(c, readable)) is not None:
                seen[c] = known.seen
                if known.settled is not None:
                    done[c] = known.settled
            else:
                usable = self.usable(c, readable)
                region[c], seen[c] = usable.ways, usable.seen
                for w in usable.ways:
                    stack += w.kids
        self._settle(region, done)
        order, changed = list(reversed(region)), True
        while changed:
            changed = False
            for c in order:
                before = after = seen[c]
                for w in region[c]:
                    for k in w.kids:
                        after |= seen[k]
                if after != before:
                    seen[c], changed = after, True
        for c in region:
            view = View(seen[c], seen[c] & readable, done.get(c))
            self.views.setdefault(c, {}).setdefault(view.seen, {})[view.read] = view
        return self.views[root][seen[root]][seen[root] & readable]

    def _settle(self, region: dict[int, tuple[Way, ...]], done: dict[int, Settled]) -> None:
        """Settle classes in the order of their cost (Knuth 1977), each cost a set of parts, the bits of a number: sharing is a union.
        Ties go to what is lower, then by spelling, so that what a class settles for does not depend on what else is looked at."""
        heap: list[tuple[float, int, str, int, int, Way]] = []
        offered: dict[int, float] = {}      # the cheapest way to compute a class so far

        def offer(way: Way) -> None:
            merged, seconds, height = 0, 0.0, 0
            c, kids = way.c, [done[k] for k in way.kids]
            for s in kids:
                if s.seconds > seconds:
                    merged, seconds = s.parts, s.seconds
                if s.height >= height:
                    height = s.height + 1
            if seconds > offered.get(c, seconds):
                return
            for s in kids:
                if more := s.parts & ~merged:
                    seconds += self.sum(more)
                    merged |= more
            if more := way.parts & ~merged:
                seconds += self.sum(more)
                merged |= more
            if seconds <= offered.get(c, seconds):
                offered[c] = seconds
            heapq.heappush(heap, (seconds, height, way.member.spelling, c, merged, way))

        users: dict[int, list[Way]] = {}
        waits: dict[int, int] = {}      # how many of a member's classes are not settled
        for ways in region.values():
            for way in ways:
                if open_ := [k for k in way.kids if k not in done]:
                    waits[way.number] = len(open_)
                    for k in open_:
                        users.setdefault(k, []).append(way)
                else:
                    offer(way)
        while heap:
            seconds, height, _, c, parts, way = heapq.heappop(heap)
            if c in done:
                continue
            kids = tuple(done[k] for k in way.kids)
            key = way.number, *map(id, kids)
            if key not in self.interned:
                self.interned[key] = Settled(c, way.member, kids, parts, seconds, height)
            done[c] = self.interned[key]
            for user in users.get(c, ()):
                waits[user.number] -= 1
                if not waits[user.number] and user.c not in done:
                    offer(user)

    # -- prices --------------------------------------------------------------------------------------------------
    def priced(self, kernel: Kernel) -> float:
        """What a kernel costs, asked of the caller once a body."""
        if kernel.key not in self.prices:
            seconds = self.price(kernel) + sum(self.rent[w] for w in kernel.writes)
            self.prices[kernel.key] = max(self.a_call(kernel.writes, (m for _, m in kernel.body), seconds), kernel.floor)
        return self.prices[kernel.key]

    def known(self, kernel: Kernel) -> bool:
        """Whether its price has been asked."""
        return kernel.key in self.prices

    def estimate(self, kernel: Kernel) -> float:
        """Its price if it has been asked, else its floor."""
        return self.prices.get(kernel.key, kernel.floor)


def reached(root: int, body: dict[int, Member]) -> dict[int, Member]:
    """The part of a body that a class reaches."""
    found: dict[int, Member] = {}
    stack = [root]
    while stack:
        c = stack.pop()
        if c not in found:
            found[c] = body[c]
            stack += body[c].kids
    return found


def ones(mask: int) -> Iterator[int]:
    """The bits of a set, one by one."""
    while mask:
        last = mask & -mask
        yield last
        mask ^= last


def union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


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
