"""Extraction: a frozen e-graph in, a choice out.  A leaf that knows plain classes and nodes, and nothing of the compiler above it."""

from __future__ import annotations

from extract import greedy_dag, tree
from extract.graph import Choice, Graph, Node, children_first, dag_cost, is_acyclic, reachable, read_gym, tree_cost

__all__ = ["Choice", "Graph", "Node", "best", "children_first", "dag_cost", "is_acyclic", "reachable", "read_gym", "tree_cost"]


def best(graph: Graph, exact_below: int = 500, budget: float = 1.0) -> Choice:
    """The cheapest choice by `dag_cost` that is worth finding: the better of tree and greedy-DAG, which `exact` improves on graphs of
    fewer than `exact_below` nodes within `budget` (deterministic time; see `extract.exact`).

    Raises ValueError naming a root that has no finite term.
    """
    choice = min((tree.extract(graph), greedy_dag.extract(graph)), key=lambda candidate: dag_cost(graph, candidate))
    if sum(map(len, graph.classes.values())) < exact_below:
        from extract import exact  # OR-tools takes a while to import

        choice = exact.extract(graph, choice, budget).choice
    return choice
