"""Exact DAG extraction by CP-SAT: one Boolean a node, one level a class where the e-graph is cyclic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from ortools.sat.python import cp_model
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from extract import greedy_dag, tree
from extract.graph import Choice, Graph, Node, children_first, dag_cost, reachable


def _candidates(graph: Graph) -> dict[int, tuple[Node, ...]]:
    """The classes that a choice can reach, each with its usable nodes.

    A node is left out when it contains its own class, when a child has no finite term, or when a node of the same class costs no
    more and needs no other children.
    """
    finite = tree.finite_terms(graph).keys()
    found: dict[int, tuple[Node, ...]] = {}
    stack = list(graph.roots)
    while stack:
        if (c := stack.pop()) in found:
            continue
        kept: list[Node] = []
        for node in sorted(graph.classes[c], key=lambda n: (n.cost, len(set(n.children)), n.key, n.op)):
            needs = set(node.children)
            if c not in needs and needs <= finite and not any(needs.issuperset(other.children) for other in kept):
                kept.append(node)
        found[c] = tuple(kept)
        stack.extend(child for node in kept for child in node.children)
    return found


def _components(nodes: Mapping[int, tuple[Node, ...]]) -> dict[int, int]:
    """The strongly connected component of every class."""
    index = {c: i for i, c in enumerate(nodes)}
    edges = sorted({(index[c], index[child]) for c, members in nodes.items() for node in members for child in node.children})
    rows, columns = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    adjacency = coo_array((np.ones(len(edges), dtype=np.int8), (rows, columns)), shape=(len(index), len(index)))
    _, labels = connected_components(adjacency.tocsr(), directed=True, connection="strong")
    return {c: int(labels[i]) for c, i in index.items()}


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


def extract(graph: Graph, hint: Choice | None = None, budget: float = 10.0) -> tuple[Choice, bool]:
    """The choice with the least `dag_cost`, and whether that is proven (costs that are no integers count to 1e-13 of their sum).

    `hint` is where the search starts, by default the better of tree and greedy-DAG; the answer is never dearer.  `budget` is in CP-SAT's
    deterministic time, a unit of which is one to three seconds, so that a search that exhausts it ends alike on every machine.  Raises
    ValueError naming a root that has no finite term.
    """
    hint = (
        reachable(graph, hint)
        if hint
        else min((tree.extract(graph), greedy_dag.extract(graph)), key=lambda choice: dag_cost(graph, choice))
    )
    nodes = _candidates(graph)
    component = _components(nodes)
    size = Counter(component.values())

    model = cp_model.CpModel()
    active = {c: model.new_bool_var(f"class {c}") for c in nodes}
    level = {c: model.new_int_var(0, size[component[c]] - 1, f"level {c}") for c in nodes if size[component[c]] > 1}
    picked = {(c, i): model.new_bool_var(f"{c}.{i} {node.op}") for c, members in nodes.items() for i, node in enumerate(members)}
    for root in set(graph.roots):
        model.add(active[root] == 1)
    for c, members in nodes.items():
        model.add(sum(picked[c, i] for i in range(len(members))) == active[c])
        for child in sorted({child for node in members for child in node.children}):
            holders = [picked[c, i] for i, node in enumerate(members) if child in node.children]
            model.add(sum(holders) <= active[child])  # one row for all holders: a tighter relaxation than one implication each
            if component[child] == component[c]:
                for chosen in holders:
                    model.add(level[c] >= level[child] + 1).only_enforce_if(chosen)
        for i, node in enumerate(members):
            model.add_hint(picked[c, i], hint.get(c) == node)
        model.add_hint(active[c], c in hint)
    for c, above in _levels(hint, component).items():
        if c in level:
            model.add_hint(level[c], above)
    shift = _shift([float(node.cost) for members in nodes.values() for node in members])
    model.minimize(sum(round(math.ldexp(nodes[c][i].cost, shift)) * chosen for (c, i), chosen in picked.items()))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = budget
    solver.parameters.linearization_level = 2  # the relaxation of these rows is nearly tight, and the search without it proves little
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_probing_level = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return hint, False
    found = reachable(graph, {c: nodes[c][i] for (c, i), chosen in picked.items() if solver.boolean_value(chosen)})
    return min(hint, found, key=lambda choice: dag_cost(graph, choice)), status == cp_model.OPTIMAL
