"""Extractors against brute force on random cyclic e-graphs, and on the graphs that tell them apart."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import extract
from extract import Choice, Graph, Node, exact, greedy_dag, tree

EXTRACTORS = {"tree": tree.extract, "greedy": greedy_dag.extract, "exact": lambda graph: exact.extract(graph).choice, "best": extract.best}


@st.composite
def graphs(draw: st.DrawFn, whole: bool = True) -> Graph:
    """Up to six classes of up to three nodes each, children anywhere (cycles, self-loops, dead ends), one or two roots."""
    ids = list(range(draw(st.integers(1, 6))))
    children = st.lists(st.sampled_from(ids), max_size=3).map(tuple)
    costs = st.integers(0, 9).map(float) if whole else st.floats(0, 1, width=32)
    node = st.builds(Node, st.sampled_from("fgh"), children, costs, st.sampled_from("xyz"))
    classes = {c: tuple(draw(st.lists(node, min_size=draw(st.sampled_from((0, 1, 1, 1))), max_size=3))) for c in ids}
    return Graph(classes, tuple(draw(st.lists(st.sampled_from(ids), min_size=1, max_size=2))))


def acyclic_choices(graph: Graph) -> list[Choice]:
    """Every acyclic choice, by trying all picks of one node (or none) for every class."""
    picks = [[*nodes, None] for nodes in graph.classes.values()]
    choices = ({c: n for c, n in zip(graph.classes, combo, strict=True) if n is not None} for combo in itertools.product(*picks))
    return [extract.reachable(graph, choice) for choice in choices if extract.is_acyclic(graph, choice)]


def check(graph: Graph, whole: bool) -> None:
    every = acyclic_choices(graph)
    if not every:
        for run in EXTRACTORS.values():
            with pytest.raises(ValueError, match="has no finite term"):
                run(graph)
        return
    found = {name: run(graph) for name, run in EXTRACTORS.items()}
    for name, choice in found.items():
        assert extract.is_acyclic(graph, choice), name
        assert choice == extract.reachable(graph, choice), name
        assert all(node in graph.classes[c] for c, node in choice.items()), name
    least_tree = min(extract.tree_cost(graph, choice) for choice in every)
    least_dag = min(extract.dag_cost(graph, choice) for choice in every)
    tolerance = 0.0 if whole else 1e-9
    assert extract.tree_cost(graph, found["tree"]) == pytest.approx(least_tree, rel=tolerance, abs=tolerance)
    assert extract.dag_cost(graph, found["exact"]) == pytest.approx(least_dag, rel=tolerance, abs=tolerance)
    assert extract.dag_cost(graph, found["best"]) == extract.dag_cost(graph, found["exact"])
    assert exact.extract(graph).proven, "a graph this small is solved within the budget"
    hurried = exact.extract(graph, budget=0.0)
    assert hurried.bound <= least_dag * (1 + tolerance) and hurried.cost >= least_dag * (1 - tolerance)


@given(graphs())
def test_extractors_agree_with_brute_force(graph: Graph) -> None:
    check(graph, whole=True)


@given(graphs(whole=False))
def test_fractional_costs(graph: Graph) -> None:
    check(graph, whole=False)


@given(graphs(), st.randoms(use_true_random=False))
def test_ties_do_not_depend_on_the_order_of_nodes(graph: Graph, random: object) -> None:
    keyed = {c: [Node(n.op, n.children, n.cost, f"{c}.{i}") for i, n in enumerate(nodes)] for c, nodes in graph.classes.items()}
    order = list(keyed)
    random.shuffle(order)  # type: ignore[attr-defined]
    one = Graph({c: tuple(nodes) for c, nodes in keyed.items()}, graph.roots)
    two = Graph({c: tuple(reversed(keyed[c])) for c in order}, graph.roots)
    if acyclic_choices(graph):
        assert tree.extract(one) == tree.extract(two)
        assert greedy_dag.extract(one) == greedy_dag.extract(two)


def leaf(op: str, cost: float) -> Node:
    return Node(op, (), cost)


# f(s, s) pays s once as a DAG (3 + 1 < 5) and twice as a tree (7 > 5).
SHARING = Graph({0: (Node("f", (1, 1), 1.0), leaf("plain", 5.0)), 1: (leaf("s", 3.0),)}, (0,))
# Class 1 alone is cheaper as g(s, s) (9 < 10), but class 2 needs the chain at 10 anyway.
GREEDY_TRAP = Graph({0: (Node("pair", (1, 2), 0.0),), 1: (Node("g", (3, 3), 1.0), Node("chain", (4,), 0.0)),
                     2: (Node("chain", (4,), 0.0),), 3: (leaf("s", 8.0),), 4: (leaf("long", 10.0),)}, (0,))  # fmt: skip


def test_greedy_beats_tree_where_a_term_shares_within_itself() -> None:
    assert {name: extract.dag_cost(SHARING, run(SHARING)) for name, run in EXTRACTORS.items()} == {
        "tree": 5.0, "greedy": 4.0, "exact": 4.0, "best": 4.0}  # fmt: skip


def test_tree_beats_greedy_where_two_terms_share() -> None:
    assert {name: extract.dag_cost(GREEDY_TRAP, run(GREEDY_TRAP)) for name, run in EXTRACTORS.items()} == {
        "tree": 10.0, "greedy": 19.0, "exact": 10.0, "best": 10.0}  # fmt: skip


def test_exact_beats_both() -> None:
    both = {c + 10: tuple(Node(n.op, tuple(d + 10 for d in n.children), n.cost) for n in nodes) for c, nodes in SHARING.classes.items()}
    graph = Graph({**GREEDY_TRAP.classes, **both}, (0, 10))
    assert [extract.dag_cost(graph, run(graph)) for run in EXTRACTORS.values()] == [15.0, 23.0, 14.0, 14.0]


def test_an_unreachable_root_is_named() -> None:
    graph = Graph({3: (leaf("x", 1.0),), 7: (Node("f", (7,), 0.0), Node("g", (8,), 0.0)), 8: ()}, (3, 7))
    for run in EXTRACTORS.values():
        with pytest.raises(ValueError, match="class 7 has no finite term"):
            run(graph)


@pytest.mark.parametrize(("classes", "roots", "message"), [
    ({}, (), "no root"),
    ({0: ()}, (1,), r"root classes \[1\]"),
    ({0: (Node("f", (2,), 1.0),)}, (0,), r"children \[2\]"),
    ({0: (leaf("x", -1.0),)}, (0,), "finite cost"),
    ({0: (leaf("x", math.inf),)}, (0,), "finite cost"),
    ({0: (leaf("x", math.nan),)}, (0,), "finite cost"),
])  # fmt: skip
def test_malformed_graphs_are_refused(classes: dict[int, tuple[Node, ...]], roots: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(classes, roots)


def test_a_hint_may_use_what_exact_leaves_out() -> None:
    dominated = Node("f", (1, 2), 1e-300, "a")
    graph = Graph({0: (dominated, Node("f", (1,), 1e-300, "b")), 1: (leaf("x", 1e-300),), 2: (leaf("free", 0.0),)}, (0,))
    assert tree.extract(graph)[0] is dominated
    found = exact.extract(graph, tree.extract(graph))
    assert found.proven
    assert extract.dag_cost(graph, found.choice) == found.cost == found.bound == 2e-300


def test_one_node_object_may_serve_two_classes() -> None:
    shared = Node("f", (2,), 1.0)
    graph = Graph({0: (shared,), 1: (shared,), 2: (leaf("x", 1.0),)}, (0, 1))
    assert [extract.dag_cost(graph, run(graph)) for run in EXTRACTORS.values()] == [3.0] * 4


def test_deep_graphs_need_no_recursion() -> None:
    n = 3000
    graph = Graph({c: (Node("f", (c + 1, c), 0.0), Node("g", (c + 1,), 1.0)) if c < n else (leaf("x", 1.0),) for c in range(n + 1)}, (0,))
    assert extract.dag_cost(graph, extract.best(graph)) == n + 1 == extract.tree_cost(graph, tree.extract(graph))


def test_reads_extraction_gym_files(tmp_path: object) -> None:
    nodes = {
        "add": {"op": "+", "children": ["one", "cycle"], "eclass": "a", "cost": 2.0},
        "cycle": {"op": "id", "children": ["add"], "eclass": "b", "cost": 0.5},
        "one": {"op": "1", "children": [], "eclass": "b", "cost": 1},
    }
    path = tmp_path / "graph.json"  # type: ignore[operator]
    path.write_text(json.dumps({"nodes": nodes, "root_eclasses": ["a"]}))
    graph = extract.read_gym(path)
    assert graph == Graph({0: (Node("+", (1, 1), 2.0, "add"),), 1: (Node("id", (0,), 0.5, "cycle"), Node("1", (), 1.0, "one"))}, (0,))
    assert extract.dag_cost(graph, extract.best(graph)) == 3.0
