"""Partition against brute force on random problems, and the cases that its search is built for."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extract import columns
from extract.descent import Descent
from extract.kernels import Kernels
from extract.partition import Kernel, Member, Problem, Solution, ranked, search
from tests.extract import problems

Search = Callable[[Problem, Callable[[Kernel], float]], Solution]


def descend(problem: Problem, price: Callable[[Kernel], float]) -> Solution:
    """What `search` does with more tensors than it searches exhaustively."""
    return Descent(Kernels(problem, price)).ranked((frozenset(problem.named), frozenset(problem.outputs)))[0]


both = pytest.mark.parametrize("search", [search, descend])
graphs = st.builds(problems.problem, st.integers(0, 2**32), st.integers(1, 8))
few = st.builds(problems.problem, st.integers(0, 2**32), st.integers(1, 5))


def chain(work: list[float], traffic: float, launch: float, reuse: float = 1.0) -> Problem:
    """x -> t0 -> t1 -> … -> out, where a kernel that computes a step inside another pays its work `reuse` times."""
    members: dict[int, tuple[Member, ...]] = {-1: (Member("x", (), (("load x", 1.0, "memory"),), "x"),)}
    names = [f"t{k}" for k in range(len(work) - 1)] + ["out"]
    for k, seconds in enumerate(work):
        load = Member(f"load {names[k]}", (), ((f"load {names[k]}", traffic, "memory"),), names[k])
        members[k] = Member(f"step {k}", (k - 1,), ((f"step {k}", seconds * reuse ** (k < len(work) - 1), "work"),)), load
    return Problem(
        members,
        {n: k for k, n in enumerate(names)},
        dict.fromkeys(names, traffic),
        tuple(names),
        ("out",),
        frozenset(("x",)),
        frozenset(),
        launch,
    )


def total(problem: Problem, kernels: tuple[Kernel, ...]) -> float:
    """What the kernels cost, recomputed from their bodies."""
    seconds = 0.0
    for k in kernels:
        parts = {part for _, m in k.body for part in m.parts}
        kinds = {kind: sum(s for _, s, which in parts if which == kind) for kind in ("memory", "work")}
        seconds += max(kinds["memory"] + sum(problem.traffic[w] for w in k.writes), kinds["work"]) + problem.launch
    return seconds


@both
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_a_chain_is_cut_where_brute_force_cuts_it(search: Search, work: list[int], traffic: int, launch: int) -> None:
    problem = chain([float(w) for w in work], float(traffic), float(launch))
    found = search(problem, lambda k: k.floor)
    assert abs(found.seconds - total(problem, found.kernels)) < 1e-9

    def cost(cuts: tuple[int, ...]) -> float:
        ends = [*cuts, len(work) - 1]
        starts = [0, *(c + 1 for c in cuts)]
        reads = [1.0, *(float(traffic) for _ in cuts)]
        return sum(max(read + traffic, sum(work[a : b + 1])) + launch for a, b, read in zip(starts, ends, reads, strict=True))

    every = [cuts for n in range(len(work)) for cuts in combinations(range(len(work) - 1), n)]
    assert abs(found.seconds - min(map(cost, every))) < 1e-9


@both
def test_kernels_come_in_launch_order_and_read_what_was_written(search: Search) -> None:
    found = search(chain([50.0, 50.0, 50.0], 1.0, 0.5), lambda k: k.floor)
    written: set[str] = set()
    for k in found.kernels:
        assert k.reads <= written
        written |= set(k.writes)
    assert found.kernels[-1].writes == ("out",)


def diamond(solid: bool) -> Problem:
    """out = f(t) + g(t), where t is cheap to read and dear to compute; a named score may be kept."""
    members = {
        0: (Member("x", (), (("load x", 1.0, "memory"),), "x"),),
        1: (Member("t", (0,), (("t", 40.0, "work"),)), Member("load t", (), (("load t", 1.0, "memory"),), "t")),
        2: (Member("f", (1,), (("f", 1.0, "work"),)),),
        3: (Member("g", (1,), (("g", 1.0, "work"),)),),
        4: (Member("add", (2, 3), (("add", 1.0, "work"),)),),
    }
    return Problem(
        members,
        {"t": 1, "out": 4},
        {"t": 1.0, "out": 1.0},
        ("t", "out"),
        ("out",),
        frozenset(("x",)),
        frozenset(("t",) if solid else ()),
        2.0,
    )


@both
def test_a_shared_value_is_paid_once(search: Search) -> None:
    for solid in (False, True):
        found = search(diamond(solid), lambda k: k.floor)
        (kernel,) = found.kernels
        assert kernel.reads == frozenset() and found.seconds == 45.0  # t, f, g, add and one launch


@both
def test_rent_discourages_intermediates(search: Search) -> None:
    problem = chain([10.0, 10.0], 1.0, 0.0)
    balanced = search(problem, lambda k: k.floor + (15.0 if len(k.body) > 2 else 0.0))
    assert [k.writes for k in balanced.kernels] == [("t0",), ("out",)]
    rented = search(problem._replace(rent=(100.0, 0.0)), lambda k: k.floor + (15.0 if len(k.body) > 2 else 0.0))
    assert [k.writes for k in rented.kernels] == [("out",)]


# -- all graphs of up to eight tensors ------------------------------------------------------------------------------
def written_in_order(problem: Problem, found: Solution) -> bool:
    """Whether each kernel reads what was written before it, and all of it is read or an output."""
    before: set[str] = set()
    for k in found.kernels:
        if not k.reads <= before or set(k.writes) & before:
            return False
        before |= set(k.writes)
    return before == set(problem.outputs).union(*(k.reads for k in found.kernels)) >= set(problem.outputs)


@pytest.mark.parametrize("price", [problems.scheduled, lambda k: k.floor], ids=["scheduled", "floor"])
@given(problem=graphs)
def test_partition_is_the_best_over_all_kept_sets_and_orders(problem: Problem, price: Callable[[Kernel], float]) -> None:
    found = search(problem, price)
    assert written_in_order(problem, found)
    assert found.seconds == pytest.approx(min(problems.over_kernels(problem, price).values()), rel=1e-9)


@given(few)
def test_partition_is_the_best_over_all_bodies(problem: Problem) -> None:
    found = search(problem, problems.added(problem))
    assert found.seconds == pytest.approx(min(problems.over_bodies(problem).values()), rel=1e-9)


@given(graphs)
def test_the_best_partitions_come_in_order(problem: Problem) -> None:
    found = ranked(problem, problems.scheduled, 5)
    best = sorted(problems.over_kernels(problem, problems.scheduled).values())[:5]
    assert [s.seconds for s in found] == pytest.approx(best, rel=1e-9)
    assert len({s.kept for s in found}) == len(found) and all(written_in_order(problem, s) for s in found)
    assert found[0] == search(problem, problems.scheduled)


@settings(max_examples=30)
@given(graphs)
def test_descent_meets_partitions_that_hold_and_are_no_better_than_the_best(problem: Problem) -> None:
    price = problems.added(problem)
    starts = frozenset(problem.named), frozenset(problem.outputs)
    found = Descent(Kernels(problem, price), 4).ranked(starts)
    assert found[0] == descend(problem, price), "what else is wanted does not change the best"
    assert [s.seconds for s in found[1:]] == sorted(s.seconds for s in found[1:])
    assert len({s.kept for s in found}) == len(found) and all(written_in_order(problem, s) for s in found)
    assert min(s.seconds for s in found) >= search(problem, price).seconds * (1 - 1e-9)


@settings(max_examples=40)
@given(graphs)
def test_kernels_as_columns_prove_the_best_partition(problem: Problem) -> None:
    price = problems.added(problem)
    kernels = Kernels(problem, price, thorough=True)
    columns.widen(kernels, float("inf"), 10**6)
    found = columns.solve(kernels, descend(problem, price), 60.0)
    assert found.proven and found.bound == found.solution.seconds == pytest.approx(search(problem, price).seconds, rel=1e-9)
    assert written_in_order(problem, found.solution)


def test_what_cannot_be_computed_is_named() -> None:
    problem = chain([1.0], 1.0, 1.0)._replace(inputs=frozenset())
    with pytest.raises(ValueError, match="no kernels compute out"):
        search(problem, lambda k: k.floor)


def test_kernels_are_priced_only_where_that_decides() -> None:
    problem, priced = problems.problem(3, 8), list[Kernel]()
    search(problem, lambda k: priced.append(k) or k.floor)
    everything = Kernels(problem, lambda k: k.floor, thorough=True)
    for written in problems.subsets(problem):
        for w in problem.home.keys() - written:
            everything.kernel(w, written)
    assert 0 < len(priced) < len({(k.writes, k.body) for k in everything.found.values() if k}) / 4


@settings(max_examples=60)
@given(graphs, st.randoms(use_true_random=False), st.booleans())
def test_what_is_known_of_classes_changes_no_kernel(problem: Problem, draw: random.Random, thorough: bool) -> None:
    asked = Kernels(problem, lambda k: k.floor, thorough)
    for _ in range(20):
        w, readable = draw.choice(sorted(problem.home)), frozenset(t for t in problem.home if draw.random() < 0.5)
        assert asked.kernel(w, readable) == Kernels(problem, lambda k: k.floor, thorough).kernel(w, readable)


def test_a_loop_inside_another_is_run_at_every_point_of_the_outer_ones() -> None:
    """(a @ b) @ c in one kernel: a 2 by 3, b 3 by 5, c 5 by 7."""
    load = {k: (Member(f"load {n}", (), ((f"load {n}", 1.0, "memory"),), n),) for k, n in enumerate("abc")}
    members = load | {
        3: (Member("sum ab", (0, 1), (("ab", 30.0, "work"),), loop=1), Member("load t", (), (("load t", 1.0, "memory"),), "t")),
        4: (Member("sum tc", (3, 2), (("tc", 70.0, "work"),), loop=2),),
    }
    problem = Problem(members, {"t": 3, "out": 4}, {"t": 1.0, "out": 1.0}, ("t", "out"), ("out",), frozenset("abc"), frozenset("t"), 1.0,
                      axes={3: frozenset((0, 2)), 4: frozenset((0, 3))}, extents={0: 2, 1: 3, 2: 5, 3: 7}, step=1.0)
    one, two = (Kernels(problem, lambda k: k.floor).kernel("out", kept) for kept in (frozenset[str](), frozenset("t")))
    assert one is not None and two is not None
    assert one.floor == 1 + 100 + (2 * 5 * 7 - 2 * 5) * 3 and two.floor == 71
    holds = problem._replace(members=members | {4: (members[4][0]._replace(loop=None, holds=True),)})
    held = Kernels(holds, lambda k: k.floor).kernel("out", frozenset())
    assert held is not None and held.floor == 101


# -- what runs once -----------------------------------------------------------------------------------------------------
@both
def test_a_kernel_of_what_lasts_is_paid_for_in_several_calls(search: Search) -> None:
    """t0 of the weight alone: a cut that costs more than it saves at every call is taken where it runs once for many."""
    problem = chain([10.0, 10.0], 5.0, 2.0)
    dear = problem._replace(rent=(20.0, 0.0))
    assert [k.writes for k in search(dear, lambda k: k.floor).kernels] == [("out",)]
    found = search(dear._replace(lasting=frozenset(("x", "t0")), calls=8), lambda k: k.floor)
    assert [k.writes for k in found.kernels] == [("t0",), ("out",)] and found.seconds == (10.0 + 2.0 + 20.0) / 8 + 10.0 + 2.0
    for lasting in (("x",), ("t0",)):
        assert len(search(dear._replace(lasting=frozenset(lasting), calls=8), lambda k: k.floor).kernels) == 1


@given(graphs, st.integers(0, 2**32))
def test_what_lasts_is_searched_like_brute_force(problem: Problem, seed: int) -> None:
    draw = random.Random(seed)
    lasting = frozenset(t for t in sorted(problem.inputs | problem.home.keys() - set(problem.outputs)) if draw.random() < 0.7)
    problem = problem._replace(lasting=lasting, calls=8)
    found = search(problem, problems.scheduled)
    assert written_in_order(problem, found)
    assert found.seconds == pytest.approx(min(problems.over_kernels(problem, problems.scheduled).values()), rel=1e-9)
