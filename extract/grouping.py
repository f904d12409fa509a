"""Launches of several kernels: which of those that do not wait for each other run beside each other, blocks of one grid.

The pair of launches is joined that saves most, again and again, until none saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

Group = frozenset[int]


def grouped(waits: Sequence[Group], price: Callable[[Group], float]) -> tuple[Group, ...]:
    """Kernels 0, 1, … as launches in order.  `waits`: the kernels that each waits for, which have smaller numbers; `price`: the seconds
    of kernels beside each other, of one that is launched alone among them, infinite where they cannot be."""
    groups = [frozenset((n,)) for n in range(len(waits))]
    prices = {g: price(g) for g in groups}

    def priced(group: Group) -> float:
        if group not in prices:
            prices[group] = price(group)
        return prices[group]

    while True:
        after = reached(groups, waits)
        pairs = [(a, b) for a, b in combinations(groups, 2) if not after[a] & b and not after[b] & a]
        saved = {pair: sum(map(priced, pair)) - priced(pair[0] | pair[1]) for pair in pairs}
        best = max(pairs, key=lambda pair: (saved[pair], [-n for n in sorted(pair[0] | pair[1])]), default=None)
        if best is None or saved[best] <= 0:
            return ordered(groups, waits)
        groups = [g for g in groups if g not in best] + [best[0] | best[1]]


def reached(groups: Sequence[Group], waits: Sequence[Group]) -> dict[Group, Group]:
    """All kernels that each launch waits for, through whatever launches are between."""
    home = {n: g for g in groups for n in g}
    found: dict[Group, Group] = {}

    def visit(group: Group) -> Group:
        if group not in found:
            direct = {home[w] for n in group for w in waits[n]} - {group}
            found[group] = frozenset[int]().union(*direct, *map(visit, direct))
        return found[group]

    for group in groups:
        visit(group)
    return found


def ordered(groups: Sequence[Group], waits: Sequence[Group]) -> tuple[Group, ...]:
    """The launches in an order in which none waits for a later one; of those that are ready the one with the first kernel."""
    left, done, order = sorted(groups, key=min), set[int](), []
    while left:
        ready = next(g for g in left if all(waits[n] <= done for n in g))
        left.remove(ready)
        done |= ready
        order.append(ready)
    return tuple(order)
