"""Exact DAG extraction by CP-SAT: one Boolean a node, one level a class where the e-graph is cyclic."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from extract import greedy_dag, tree
from extract.bottom_up import settle
from extract.graph import Choice, Graph, Node, children_first, dag_cost, reachable

Candidates = dict[int, tuple[Node, ...]]


class Extraction(NamedTuple):
    """A choice, its `dag_cost`, a lower bound of every choice's that is proven, and whether the two meet (to 1e-13 of all costs)."""

    choice: Choice
    cost: float
    bound: float
    proven: bool


def _below(graph: Graph) -> dict[int, float]:
    """What a path from a class down to a leaf costs at least in any term of it, for the classes that have a finite one."""
    return {c: done.price for c, done in settle(
        graph, lambda _, node, below: (node.cost + max((below[d].price for d in node.children), default=0.0), None)).items()}


def _above(graph: Graph, below: Mapping[int, float]) -> dict[int, float]:
    """What a path from a root down to a class costs at least, that class not included (Dijkstra)."""
    found: dict[int, float] = {}
    heap = [(0.0, root) for root in sorted(set(graph.roots))]
    while heap:
        spent, c = heapq.heappop(heap)
        if c not in found:
            found[c] = spent
            for node in graph.classes[c]:
                if below.keys() >= set(node.children):
                    for child in set(node.children) - found.keys():
                        heapq.heappush(heap, (spent + node.cost, child))
    return found


def _reached(roots: Sequence[int], nodes: Mapping[int, Sequence[Node]]) -> Candidates:
    """The classes that a choice among `nodes` can reach, each with its nodes."""
    found: Candidates = {}
    stack = list(roots)
    while stack:
        if (c := stack.pop()) not in found:
            found[c] = tuple(nodes[c])
            stack.extend(child for node in found[c] for child in node.children)
    return found


def _components(nodes: Candidates) -> dict[int, int]:
    """The strongly connected component of every class."""
    index = {c: i for i, c in enumerate(nodes)}
    edges = sorted({(index[c], index[child]) for c, members in nodes.items() for node in members for child in node.children})
    rows, columns = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    adjacency = coo_array((np.ones(len(edges), dtype=np.int8), (rows, columns)), shape=(len(index), len(index)))
    _, labels = connected_components(adjacency.tocsr(), directed=True, connection="strong")
    return {c: int(labels[i]) for c, i in index.items()}


def _candidates(graph: Graph, limit: float) -> Candidates:
    """The nodes that a choice of at most `limit` needs, for the classes that such a choice can reach.

    A node is left out when it contains its own class, when a child has no finite term, when every path from a root through it to a leaf
    costs more than `limit` (its nodes are of different classes, so a choice pays them all), or when another node of its class serves as
    well: it costs no more with the tree-optimal terms of the children that it needs besides, none of which leads back to the class.
    (Replacing the node then closes no cycle, and from the roots down each class is replaced once.)
    """
    below, terms = _below(graph), tree.terms(graph)
    above, most = _above(graph, below), limit * (1 + 1e-9)

    def useful(c: int, node: Node) -> bool:
        return c in above and c not in node.children and below.keys() >= set(node.children) and above[c] + node.cost + max(
            (below[d] for d in node.children), default=0.0) <= most

    nodes = _reached(graph.roots, {c: [node for node in members if useful(c, node)] for c, members in graph.classes.items()})
    component = _components(nodes)
    kept: dict[int, list[Node]] = {}
    for c, members in nodes.items():
        kept[c] = []
        for node in sorted(members, key=lambda n: (n.cost, len(set(n.children)), n.key, n.op)):
            needs = set(node.children)
            others = ((other.cost, set(other.children) - needs) for other in kept[c])
            if not any(cost + sum(terms[d].price for d in more) <= node.cost and all(component[d] != component[c] for d in more)
                       for cost, more in others):
                kept[c].append(node)
    return _reached(graph.roots, kept)


def _levels(choice: Choice, component: Mapping[int, int]) -> dict[int, int]:
    """How many classes of its own component a class of an acyclic choice sits above (a choice may reach classes of none)."""
    level: dict[int, int] = {}
    for c in children_first(choice):
        level[c] = max((level[d] + 1 for d in choice[c].children if component.get(d) == component.get(c)), default=0)
    return level


def _shift(costs: Sequence[float]) -> int:
    """The power of two whose product with costs counts as integers: 0 when they are, else what brings their sum to about 2^45."""
    whole = all(cost.is_integer() for cost in costs) and sum(costs) < 2**50
    return 0 if whole else 45 - math.frexp(math.fsum(costs))[1]


class _Model:
    """A Boolean for each class and node, a level for each class on a cycle, and costs as integers."""

    def __init__(self, nodes: Candidates, roots: Iterable[int], hint: Choice):
        component = _components(nodes)
        size = Counter(component.values())
        self.model = model = cp_model.CpModel()
        self.active = active = {c: model.new_bool_var(f"class {c}") for c in nodes}
        self.picked = {(c, i): model.new_bool_var(f"{c}.{i} {node.op}") for c, members in nodes.items() for i, node in enumerate(members)}
        level = {c: model.new_int_var(0, size[component[c]] - 1, f"level {c}") for c in nodes if size[component[c]] > 1}
        holders: dict[tuple[int, int], list[cp_model.IntVar]] = {}
        for (c, i), chosen in self.picked.items():
            for child in sorted(set(nodes[c][i].children)):
                holders.setdefault((c, child), []).append(chosen)
        for root in set(roots):
            model.add(active[root] == 1)
        for c, members in nodes.items():
            model.add(sum(self.picked[c, i] for i in range(len(members))) == active[c])
        for (c, child), held in holders.items():
            # One row for all holders is a tighter relaxation than an implication for each; those of the child that hold the class belong
            # to it, since both together would be a cycle.
            model.add(sum(held) + sum(holders.get((child, c), [])) <= active[child])
            if component[child] == component[c]:
                for chosen in held:
                    model.add(level[c] >= level[child] + 1).only_enforce_if(chosen)
        for c, members in nodes.items():
            model.add_hint(active[c], c in hint)
            for i, node in enumerate(members):
                model.add_hint(self.picked[c, i], hint.get(c) == node)
        for c, above in _levels(hint, component).items():
            if c in level:
                model.add_hint(level[c], above)
        self.shift = _shift([float(node.cost) for members in nodes.values() for node in members])
        model.minimize(sum(round(math.ldexp(nodes[c][i].cost, self.shift)) * chosen for (c, i), chosen in self.picked.items()))

    def bound(self, value: float) -> float:
        """What the solver's bound says of costs: each of a choice's classes may have been rounded by a half."""
        return math.ldexp(value - (len(self.active) / 2 if self.shift else 0), -self.shift)


def extract(graph: Graph, hint: Choice | None = None, budget: float = 10.0, seconds: float = math.inf) -> Extraction:
    """The choice with the least `dag_cost` that the budget finds, with the bound it proves.

    `hint` is where the search starts, by default the better of tree and greedy-DAG; the answer is never dearer.  `budget` is in CP-SAT's
    deterministic time, a unit of which is one to three seconds, so that a search that exhausts it ends alike on every machine; `seconds`
    is wall-clock, after which a search ends wherever it is.  Raises ValueError naming a root that has no finite term.
    """
    hint = (
        reachable(graph, hint)
        if hint
        else min((tree.extract(graph), greedy_dag.extract(graph)), key=lambda choice: dag_cost(graph, choice))
    )
    nodes = _candidates(graph, dag_cost(graph, hint))
    stated = _Model(nodes, graph.roots, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = budget
    if seconds < math.inf:
        solver.parameters.max_time_in_seconds = seconds
    solver.parameters.linearization_level = 2  # the relaxation of these rows is nearly tight, and the search without it proves little
    solver.parameters.add_lp_constraints_lazily = False
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(stated.model)
    choice = hint
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = reachable(graph, {c: nodes[c][i] for (c, i), chosen in stated.picked.items() if solver.boolean_value(chosen)})
        choice = min(hint, found, key=lambda choice: dag_cost(graph, choice))
    cost = dag_cost(graph, choice)
    if status == cp_model.OPTIMAL:
        return Extraction(choice, cost, cost, True)
    below = _below(graph)
    bound = max(stated.bound(solver.best_objective_bound), *(below[root] for root in graph.roots))
    return Extraction(choice, cost, min(cost, bound), False)
