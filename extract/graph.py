"""A frozen e-graph as extraction sees it, a choice of one node a class, and what a choice costs."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """An e-node: `children` are class ids, `cost` is its own price (finite, at least 0), `key` breaks ties between equal prices."""

    op: str
    children: tuple[int, ...]
    cost: float
    key: str = ""


@dataclass(frozen=True)
class Graph:
    """The nodes of every class, and the classes that a choice must reach.  Cycles are legal; a class may be empty.

    Raises ValueError for no root, for a child or root that is no class, and for a cost that is negative or not finite.
    """

    classes: Mapping[int, tuple[Node, ...]]
    roots: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.roots:
            raise ValueError("the graph has no root; name the classes to extract")
        if missing := sorted(set(self.roots) - self.classes.keys()):
            raise ValueError(f"root classes {missing} are not in the graph; add them or drop the roots")
        for c, node in self.nodes():
            if not 0 <= node.cost < math.inf:
                raise ValueError(f"class {c}: {node} must have a finite cost of at least 0; leave the node out to forbid it")
            if missing := sorted(set(node.children) - self.classes.keys()):
                raise ValueError(f"class {c}: {node} has children {missing}, which are not in the graph")

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Every node with the class that holds it."""
        return ((c, node) for c, nodes in self.classes.items() for node in nodes)


Choice = dict[int, Node]
"""The node picked for a class, for all classes that the roots reach through picked nodes."""


def reachable(graph: Graph, picked: Mapping[int, Node]) -> Choice:
    """The part of `picked` that the roots reach.  Raises ValueError naming a reached class that has no pick."""
    choice: Choice = {}
    stack = list(graph.roots)
    while stack:
        if (c := stack.pop()) not in choice:
            if c not in picked:
                raise ValueError(f"class {c} has no finite term: each of its nodes leads back to itself or to an empty class")
            choice[c] = picked[c]
            stack.extend(picked[c].children)
    return choice


def children_first(choice: Mapping[int, Node]) -> list[int]:
    """The classes of a choice, each after its children.  Raises ValueError naming the classes of a cycle."""
    try:
        return list(TopologicalSorter({c: node.children for c, node in choice.items()}).static_order())
    except CycleError as error:
        raise ValueError(f"the choice is cyclic through classes {error.args[1]}") from None


def is_acyclic(graph: Graph, choice: Mapping[int, Node]) -> bool:
    """Whether the roots expand to finite terms: everything that they reach is picked and no class reaches itself."""
    try:
        children_first(reachable(graph, choice))
    except ValueError:
        return False
    return True


def dag_cost(graph: Graph, choice: Mapping[int, Node]) -> float:
    """What the roots cost when each class is paid once: the sum over all classes that they reach."""
    return math.fsum(node.cost for node in reachable(graph, choice).values())


def tree_cost(graph: Graph, choice: Mapping[int, Node]) -> float:
    """What the roots cost when nothing is shared: the sum over the nodes of the expanded terms."""
    used = reachable(graph, choice)
    total: dict[int, float] = {}
    for c in children_first(used):
        total[c] = math.fsum((used[c].cost, *(total[child] for child in used[c].children)))
    return math.fsum(total[root] for root in graph.roots)


def read_gym(path: str | Path) -> Graph:
    """Reads extraction-gym JSON: `{"nodes": {id: {"op", "children": [id], "eclass", "cost"}}, "root_eclasses": [eclass]}`, compressed if
    the name ends in .gz.

    Children name nodes and stand for the classes of those.  Classes are numbered in the order of their first node in the file; a
    node's key is its id.
    """
    raw = Path(path).read_bytes()
    data = json.loads(gzip.decompress(raw) if Path(path).suffix == ".gz" else raw)
    nodes: dict[str, dict[str, object]] = data["nodes"]
    number: dict[object, int] = {}
    for entry in nodes.values():
        number.setdefault(entry["eclass"], len(number))
    classes: dict[int, list[Node]] = {c: [] for c in number.values()}
    for name, entry in nodes.items():
        children = tuple(number[nodes[child]["eclass"]] for child in entry["children"])  # type: ignore[attr-defined]
        classes[number[entry["eclass"]]].append(Node(str(entry["op"]), children, float(entry["cost"]), name))  # type: ignore[arg-type]
    return Graph({c: tuple(members) for c, members in classes.items()}, tuple(number[root] for root in data["root_eclasses"]))
