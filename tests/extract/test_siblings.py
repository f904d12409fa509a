"""Merging kernels: against every grouping of them, and in what order they then come."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from extract import partition, siblings
from extract.kernels import Kernels
from extract.problem import Kernel, Member, Problem, Solution
from tests.extract.problems import Price, added, scheduled, shaped

SEEDS = st.integers(0, 10**6)


def ways(items: list[int]) -> list[list[list[int]]]:
    """All ways to part items into groups."""
    if not items:
        return [[]]
    first, *rest = items
    out = []
    for parts in ways(rest):
        out.append([[first], *parts])
        out += [[*parts[:n], [first, *part], *parts[n + 1:]] for n, part in enumerate(parts)]
    return out


def grouped(kernels: Kernels, solution: Solution, groups: list[list[int]]) -> list[Kernel] | None:
    """The kernels of a grouping by the definition; None if it has none, or they wait for each other in a cycle."""
    problem, every, made = kernels.problem, solution.kernels, []
    for group in groups:
        mine = [every[n] for n in group]
        others = [k for n, k in enumerate(every) if n not in group]
        writes = tuple(w for k in mine for w in k.writes if w in problem.outputs or any(w in k.reads for k in others))
        if len(group) == 1:
            made += mine
            continue
        late = {w for k in mine for w in k.writes}      # what depends on the group
        while more := [w for k in others if k.reads & late for w in k.writes if w not in late]:
            late |= set(more)
        between = late - {w for k in mine for w in k.writes}
        if len(writes) < 2 or len({problem.shapes[w] for w in writes}) > 1 or any(k.reads & between for k in mine):
            return None
        kernel = kernels.together(writes, solution.kept - late)
        if kernel is None:
            return None
        made.append(kernel)
    return made if launched(made) else None


def launched(made: list[Kernel]) -> bool:
    """Whether there is an order in which each kernel reads what was written."""
    written: set[str] = set()
    left = list(made)
    while ready := [k for k in left if k.reads <= written]:
        left = [k for k in left if k not in ready]
        written.update(w for k in ready for w in k.writes)
    return not left


def check(problem: Problem, price: Price) -> tuple[Solution, Solution]:
    """The partition before and after merging, which is one of the same outputs in launch order."""
    kernels = Kernels(problem, price, thorough=True)
    before = partition.explore(kernels, 1)[0]
    after = siblings.merged(kernels, before)
    assert launched(list(after.kernels)) and after.kept >= set(problem.outputs) and after.kept <= before.kept
    assert math.isclose(after.seconds, sum(map(kernels.priced, after.kernels)), abs_tol=1e-9)
    assert after.seconds <= before.seconds
    written: set[str] = set()
    for k in after.kernels:
        assert k.reads <= written and not written & set(k.writes) and len({problem.shapes[w] for w in k.writes}) == 1
        written |= set(k.writes)
    return before, after


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 6), st.sampled_from([scheduled, "added"]))
def test_no_grouping_is_better(seed: int, tensors: int, how: Price | str) -> None:
    problem = shaped(seed, tensors)
    price = added(problem) if how == "added" else scheduled
    before, after = check(problem, price)
    kernels = Kernels(problem, price, thorough=True)
    every = (made for groups in ways(list(range(len(before.kernels)))) if (made := grouped(kernels, before, groups)) is not None)
    best = min(sum(map(kernels.priced, made)) for made in every)
    assert math.isclose(after.seconds, min(best, before.seconds), rel_tol=2e-6, abs_tol=1e-9)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_of_many_kernels_pairs_are_merged(seed: int) -> None:
    problem = shaped(seed, 10)._replace(rent=(0.0, 0.0))
    before, after = check(problem, scheduled)
    assert len(after.kernels) <= len(before.kernels)


def test_shared_inputs_are_read_once_and_a_tensor_that_nothing_else_reads_is_not_written() -> None:
    """h = f(x), which y and z read; merged they compute it in place."""
    load = Member("load h", (), (("load h", 4.0, "memory"),), "h")
    members = {0: (Member("x", (), (("load x", 4.0, "memory"),), "x"),), 1: (Member("f", (0,), (("f", 19.0, "work"),)), load),
               2: (Member("g", (1,), (("g", 1.0, "work"),)),), 3: (Member("e", (1,), (("e", 1.0, "work"),)),)}
    home, every = {"h": 1, "y": 2, "z": 3}, ("h", "y", "z")
    problem = Problem(members, home, dict.fromkeys(every, 1.0), every, ("y", "z"), frozenset("x"), frozenset(), 1.0)
    apart = partition.search(problem, lambda k: k.floor)
    assert {k.writes for k in apart.kernels} == {("h",), ("y",), ("z",)}
    (kernel,) = partition.search(problem._replace(shapes=dict.fromkeys(every, (4,))), lambda k: k.floor).kernels
    assert kernel.writes == ("y", "z") and kernel.reads == frozenset() and kernel.floor == 22.0
    shapes = {"h": (4,), "y": (4,), "z": (2, 2)}
    assert len(partition.search(problem._replace(shapes=shapes), lambda k: k.floor).kernels) > 1, "two shapes are no one kernel"
