"""The search that tree and greedy-DAG extraction share: settle classes from the cheapest upward."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from extract.graph import Graph, Node


class Settled[T](NamedTuple):
    """A class's final node, the price that made it win, and what the pricing wants to remember of it."""

    price: float
    node: Node
    memo: T


def settle[T](graph: Graph, price: Callable[[int, Node, Mapping[int, Settled[T]]], tuple[float, T]]) -> dict[int, Settled[T]]:
    """Settles every class that has a finite term; children come before parents, so the picked nodes are acyclic.

    Knuth's generalisation of Dijkstra: `price(class, node, settled)` is asked once all children of the node are settled and must be at
    least the price of each, so the cheapest priced node of an open class is final.  Ties go to the smaller key, then operator.
    """
    entries = list(graph.nodes())
    missing = [len(set(node.children)) for _, node in entries]
    parents: dict[int, list[int]] = {c: [] for c in graph.classes}
    for i, (_, node) in enumerate(entries):
        for child in set(node.children):
            parents[child].append(i)
    settled: dict[int, Settled[T]] = {}
    heap: list[tuple[float, str, str, int, int, T]] = []
    serial = itertools.count()

    def offer(i: int) -> None:
        c, node = entries[i]
        if c not in settled:
            cost, memo = price(c, node, settled)
            heapq.heappush(heap, (cost, node.key, node.op, next(serial), i, memo))

    for i, count in enumerate(missing):
        if not count:
            offer(i)
    while heap:
        cost, _, _, _, i, memo = heapq.heappop(heap)
        c, node = entries[i]
        if c in settled:
            continue
        settled[c] = Settled(cost, node, memo)
        for parent in parents[c]:
            missing[parent] -= 1
            if not missing[parent]:
                offer(parent)
    return settled
