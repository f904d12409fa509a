"""Random partition problems of up to eight tensors, and their optima by brute force."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import combinations

from extract.kernels import Kernels, leads
from extract.problem import Kernel, Member, Problem

Body = dict[int, Member]
Price = Callable[[Kernel], float]


def problem(seed: int, tensors: int) -> Problem:
    """Tensors computed from recent values (chains, diamonds, shared ones), some in several ways, with inner values between them.

    A way may lead back to its own class; keys of parts may be shared, as the passes of a twist are; some tensors are solid."""
    draw = random.Random(seed)
    members: dict[int, tuple[Member, ...]] = {}
    inputs = [f"x{k}" for k in range(draw.randint(1, 2))]
    for k, name in enumerate(inputs):
        members[k] = (Member(f"load {name}", (), ((f"load {name}", float(draw.randint(0, 4)), "memory"),), name),)
    pool = list(members)

    def way(kids: list[int]) -> Member:
        c = len(members)
        key = f"class {c}" if draw.random() < 0.8 else f"carrier {draw.randint(0, 2)}"
        parts = [(key, float(draw.randint(0, 9)), "work")]
        if draw.random() < 0.2:
            parts.append((f"weight {draw.randint(0, 2)}", 3.0, "work"))
        return Member(f"way {draw.randint(0, 999)} of {c} from {kids}", tuple(kids), tuple(parts))

    home, traffic, solid = {}, {}, set()
    for t in range(tensors):
        for _ in range(draw.randint(0, 2)):
            members[len(members)] = (way(draw.choices(pool[-5:], k=draw.randint(1, 2))),)
            pool.append(len(members) - 1)
        ways = [way(draw.choices(pool[-4:], k=draw.randint(1, 2)))]
        while draw.random() < 0.4:
            ways.append(way(draw.choices([*pool, len(members)], k=draw.randint(1, 2))))
        name, c = f"t{t}", len(members)
        home[name], traffic[name] = c, float(draw.randint(0, 6))
        members[c] = (*ways, Member(f"load {name}", (), ((f"load {name}", traffic[name] + draw.randint(0, 1), "memory"),), name))
        pool.append(c)
        if draw.random() < 0.3:
            solid.add(name)
    outputs = tuple(dict.fromkeys([f"t{tensors - 1}", *(f"t{draw.randrange(tensors)}" for _ in range(draw.randint(0, 1)))]))
    named = tuple(t for t in home if draw.random() < 0.7 or t in outputs)
    rent = float(draw.randint(0, 3)), float(draw.randint(0, 1))
    return Problem(members, home, traffic, named, outputs, frozenset(inputs), frozenset(solid), float(draw.randint(0, 5)), rent)


def shaped(seed: int, tensors: int) -> Problem:
    """A problem of several results whose tensors are of two shapes: kernels of one may be merged."""
    made, draw = problem(seed, tensors), random.Random(seed)
    results = tuple(t for t in made.home if t in made.outputs or draw.random() < 0.5)
    return made._replace(outputs=results, named=tuple(made.home), shapes={t: (draw.choice((1, 1, 2)),) for t in made.home})


def scheduled(kernel: Kernel) -> float:
    """A price that no two bodies share, up to half more than the floor: what the rows of a kernel make of it."""
    return kernel.floor * (1 + zlib.crc32(repr((kernel.writes, kernel.body)).encode()) / 2**33)


def added(problem: Problem) -> Price:
    """A price that the best body of a kernel minimises: the sum of its parts."""
    def price(kernel: Kernel) -> float:
        parts = {part for _, m in kernel.body for part in m.parts}
        return sum(seconds for _, seconds, _ in parts) + sum(problem.traffic[w] for w in kernel.writes) + problem.launch
    return price


def subsets(problem: Problem) -> Iterator[frozenset[str]]:
    return (frozenset(some) for n in range(len(problem.home) + 1) for some in combinations(sorted(problem.home), n))


def over_sets(problem: Problem, step: Callable[[str, frozenset[str]], tuple[float, frozenset[str]] | None]) -> dict[frozenset[str], float]:
    """The least cost of writing each set in any order; `step` costs a tensor after a set was written, and says what it reads.  Sets are
    left out whose cheapest kernels do not read all of it, outputs aside."""
    cost: dict[frozenset[str], float] = {frozenset(): 0.0}
    read: dict[frozenset[str], frozenset[str]] = {frozenset(): frozenset(problem.outputs)}
    for written in subsets(problem):
        steps = ((w, made) for w in written if written - {w} in cost and (made := step(w, written - {w})) is not None)
        ways = [(cost[written - {w}] + seconds, sorted(reads | read[written - {w}])) for w, (seconds, reads) in steps]
        if ways:
            cost[written], reads = min(ways)
            read[written] = frozenset(reads)
    return {s: c for s, c in cost.items() if s.issuperset(problem.outputs) and s <= read[s]}


def over_kernels(problem: Problem, price: Price) -> dict[frozenset[str], float]:
    """`over_sets` with the body that extraction finds for each kernel."""
    kernels = Kernels(problem, price, thorough=True)

    def step(w: str, written: frozenset[str]) -> tuple[float, frozenset[str]] | None:
        k = kernels.kernel(w, written)
        return None if k is None else (kernels.priced(k), k.reads)

    return over_sets(problem, step)


def bodies(problem: Problem, writes: str, readable: frozenset[str]) -> Iterator[Body]:
    """Every acyclic body of a kernel that may read `readable` and reads what is solid of it."""
    def usable(c: int) -> list[Member]:
        solid = [m for m in problem.members[c] if m.tensor in problem.solid & readable]
        return solid or [m for m in problem.members[c] if not m.tensor or m.tensor in readable | problem.inputs]

    def grown(body: Body, pending: list[int]) -> Iterator[Body]:
        pending = [c for c in pending if c not in body]
        if not pending:
            yield body
            return
        c = pending[0]
        for m in usable(c):
            if not leads(m.kids, c, body):
                yield from grown({**body, c: m}, [*pending[1:], *m.kids])

    return grown({}, [problem.home[writes]])


def over_bodies(problem: Problem) -> dict[frozenset[str], float]:
    """`over_sets` with every body, each at the sum of its parts."""
    fixed, share = problem.rent

    def step(w: str, written: frozenset[str]) -> tuple[float, frozenset[str]] | None:
        rent = 0.0 if w in problem.outputs else fixed + share * problem.traffic[w]
        parts = ({p for m in body.values() for p in m.parts} for body in bodies(problem, w, written))
        costs = [sum(seconds for _, seconds, _ in p) for p in parts]
        return (min(costs) + problem.traffic[w] + problem.launch + rent, frozenset(problem.home)) if costs else None

    return over_sets(problem, step)
