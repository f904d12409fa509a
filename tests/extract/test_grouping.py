"""Launches of several kernels: never worse than alone, none waits for itself or for a later one, and the best pair comes first."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from extract.grouping import Group, grouped


def parts_of(items: list[int]) -> list[list[Group]]:
    if not items:
        return [[]]
    first, rest = frozenset(items[:1]), parts_of(items[1:])
    return [[first, *p] for p in rest] + [[*p[:n], first | g, *p[n + 1:]] for p in rest for n, g in enumerate(p)]


def runs(groups: list[Group] | tuple[Group, ...], waits: list[Group]) -> bool:
    """Whether the launches can be ordered so that each waits for earlier ones only."""
    left, done = list(groups), set[int]()
    while ready := [g for g in left if all(waits[n] <= done for n in g)]:
        left = [g for g in left if g not in ready]
        done.update(n for g in ready for n in g)
    return not left


@given(st.integers(0, 10**6), st.integers(1, 6), st.booleans())
def test_launches_are_in_order_and_save(seed: int, count: int, launch_only: bool) -> None:
    draw = random.Random(seed)
    waits = [frozenset(i for i in range(j) if draw.random() < 0.3) for j in range(count)]
    alone = [draw.randint(2, 9) for _ in range(count)]
    threads = [draw.choice((128, 256)) for _ in range(count)]

    def price(group: Group) -> float:
        """One launch of 2 and the kernels' own time, which with others is up to a half longer; only with as many threads."""
        own = sum(alone[n] for n in group)
        if len(group) > 1 and len({threads[n] for n in group}) > 1:
            return float("inf")
        return 2 + own if launch_only or len(group) == 1 else 2 + own * (1 + random.Random(hash(tuple(sorted(group)))).random() / 2)

    found = grouped(waits, price)
    done: set[int] = set()
    for g in found:
        assert all(waits[n] <= done for n in g)
        done |= g
    assert done == set(range(count))
    assert sum(map(price, found)) <= sum(price(frozenset((n,))) for n in range(count))
    best = min(sum(map(price, groups)) for groups in parts_of(list(range(count))) if runs(groups, waits))
    pairs = [[g for g in found if g not in (a, b)] + [a | b] for a in found for b in found if min(a) < min(b)]
    assert all(sum(map(price, p)) >= sum(map(price, found)) for p in pairs if runs(p, waits)), "no pair is left that saves"
    assert sum(map(price, found)) >= best


def test_the_pair_that_saves_most_is_joined_first() -> None:
    costs = {frozenset((0, 1)): 5.0, frozenset((0, 2)): 4.0, frozenset((1, 2)): 5.5}
    none = [frozenset[int]()] * 3
    assert grouped(none, lambda g: 3.0 if len(g) == 1 else costs.get(g, float("inf"))) == (frozenset((0, 2)), frozenset((1,)))
    chain = [frozenset[int](), frozenset((0,)), frozenset((1,))]
    assert grouped(chain, lambda g: 1.0) == (frozenset((0,)), frozenset((1,)), frozenset((2,)))
