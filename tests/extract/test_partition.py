"""Partition against brute force on random problems, and the cases that its search is built for."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from extract.partition import Kernel, Member, Problem, search


def chain(work: list[float], traffic: float, launch: float, reuse: float = 1.0) -> Problem:
    """x -> t0 -> t1 -> … -> out, where a kernel that computes a step inside another pays its work `reuse` times."""
    members: dict[int, tuple[Member, ...]] = {-1: (Member("x", (), (("load x", 1.0, "memory"),), "x"),)}
    names = [f"t{k}" for k in range(len(work) - 1)] + ["out"]
    for k, seconds in enumerate(work):
        load = Member(f"load {names[k]}", (), ((f"load {names[k]}", traffic, "memory"),), names[k])
        members[k] = Member(f"step {k}", (k - 1,), ((f"step {k}", seconds * reuse ** (k < len(work) - 1), "work"),)), load
    home, bytes_ = {n: k for k, n in enumerate(names)}, dict.fromkeys(names, traffic)
    return Problem(members, home, bytes_, tuple(names), ("out",), frozenset(("x",)), frozenset(), launch)


def total(problem: Problem, kernels: tuple[Kernel, ...]) -> float:
    """What the kernels cost, recomputed from their bodies."""
    seconds = 0.0
    for k in kernels:
        parts = {part for _, m in k.body for part in m.parts}
        kinds = {kind: sum(s for _, s, which in parts if which == kind) for kind in ("memory", "work")}
        seconds += max(kinds["memory"] + problem.traffic[k.writes], kinds["work"]) + problem.launch
    return seconds


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_a_chain_is_cut_where_brute_force_cuts_it(work: list[int], traffic: int, launch: int) -> None:
    problem = chain([float(w) for w in work], float(traffic), float(launch))
    found = search(problem, lambda k: k.floor)
    assert abs(found.seconds - total(problem, found.kernels)) < 1e-9

    def cost(cuts: tuple[int, ...]) -> float:
        ends = [*cuts, len(work) - 1]
        starts = [0, *(c + 1 for c in cuts)]
        reads = [1.0, *(float(traffic) for _ in cuts)]
        return sum(max(read + traffic, sum(work[a:b + 1])) + launch for a, b, read in zip(starts, ends, reads, strict=True))

    every = [cuts for n in range(len(work)) for cuts in combinations(range(len(work) - 1), n)]
    assert abs(found.seconds - min(map(cost, every))) < 1e-9


def test_kernels_come_in_launch_order_and_read_what_was_written() -> None:
    found = search(chain([50.0, 50.0, 50.0], 1.0, 0.5), lambda k: k.floor)
    written: set[str] = set()
    for k in found.kernels:
        assert k.reads <= written
        written.add(k.writes)
    assert found.kernels[-1].writes == "out"


def diamond(solid: bool) -> Problem:
    """out = f(t) + g(t), where t is cheap to read and dear to compute; a named score may be kept."""
    members = {0: (Member("x", (), (("load x", 1.0, "memory"),), "x"),),
               1: (Member("t", (0,), (("t", 40.0, "work"),)), Member("load t", (), (("load t", 1.0, "memory"),), "t")),
               2: (Member("f", (1,), (("f", 1.0, "work"),)),), 3: (Member("g", (1,), (("g", 1.0, "work"),)),),
               4: (Member("add", (2, 3), (("add", 1.0, "work"),)),)}
    return Problem(members, {"t": 1, "out": 4}, {"t": 1.0, "out": 1.0}, ("t", "out"), ("out",), frozenset(("x",)),
                   frozenset(("t",) if solid else ()), 2.0)


def test_a_shared_value_is_paid_once() -> None:
    for solid in (False, True):
        found = search(diamond(solid), lambda k: k.floor)
        (kernel,) = found.kernels
        assert kernel.reads == frozenset() and found.seconds == 45.0    # t, f, g, add and one launch


def test_rent_discourages_intermediates() -> None:
    problem = chain([10.0, 10.0], 1.0, 0.0)
    balanced = search(problem, lambda k: k.floor + (15.0 if len(k.body) > 2 else 0.0))
    assert [k.writes for k in balanced.kernels] == ["t0", "out"]
    rented = search(problem._replace(rent=(100.0, 0.0)), lambda k: k.floor + (15.0 if len(k.body) > 2 else 0.0))
    assert [k.writes for k in rented.kernels] == ["out"]
