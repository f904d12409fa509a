"""Greedy DAG extraction: every class takes the node whose term is cheapest with each class in it paid once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from extract.bottom_up import Settled, settle
from extract.graph import Choice, Graph, Node, reachable


def _price(c: int, node: Node, settled: Mapping[int, Settled[frozenset[int]]]) -> tuple[float, frozenset[int]]:
    below = frozenset[int]().union(*(settled[child].memo for child in node.children))
    return math.fsum((node.cost, *(settled[d].node.cost for d in below))), below | {c}


def extract(graph: Graph) -> Choice:
    """A choice with a low `dag_cost`.  Raises ValueError naming a root that has no finite term.

    A class looks at its own term alone, so the result can lose even to tree extraction where another part of the program would have
    shared the node that looked dearer.
    """
    return reachable(graph, {c: done.node for c, done in settle(graph, _price).items()})
