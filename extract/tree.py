"""Tree-optimal extraction: the cheapest terms when sharing counts for nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from extract.bottom_up import Settled, settle
from extract.graph import Choice, Graph, Node, reachable


def _price(c: int, node: Node, settled: Mapping[int, Settled[None]]) -> tuple[float, None]:
    return math.fsum((node.cost, *(settled[child].price for child in node.children))), None


def terms(graph: Graph) -> dict[int, Settled[None]]:
    """The tree-optimal node of every class that has a finite term, whether the roots reach it or not, and what its tree costs."""
    return settle(graph, _price)


def extract(graph: Graph) -> Choice:
    """The choice with the least `tree_cost`.  Raises ValueError naming a root that has no finite term."""
    return reachable(graph, {c: done.node for c, done in terms(graph).items()})
