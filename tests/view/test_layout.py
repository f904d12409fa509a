"""The layered layout: an order that chosen members follow, and cards that do not overlap."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from emmy.view.layout import Edge, heights, order, place

Kids = dict[int, list[tuple[int, ...]]]
SIZES = 80.0, 4.0, 20.0, 30.0       # of a card's and a lane's width, what is between two of a layer, and between layers


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Kids, Kids]:
    """Up to twelve classes with members over any of them, cycles included; and a choice of one member for some of them."""
    n = draw(st.integers(0, 12))
    member = st.lists(st.integers(0, max(n - 1, 0)), max_size=3).map(tuple)
    kids = {c: draw(st.lists(member, min_size=1, max_size=3)) for c in range(n)}
    chosen = {c: [draw(st.sampled_from(ms))] for c, ms in kids.items() if draw(st.booleans())}
    return kids, chosen


def is_acyclic(kids: Kids) -> bool:
    try:
        list(TopologicalSorter({c: {k for m in ms for k in m} for c, ms in kids.items()}).static_order())
    except CycleError:
        return False
    return True


@given(graphs())
def test_the_order_has_every_class_and_edges_lead_forward_as_far_as_cycles_admit(graph: tuple[Kids, Kids]) -> None:
    kids, chosen = graph
    found = order(kids, chosen)
    rank = {c: n for n, c in enumerate(found)}
    assert sorted(found) == sorted(kids)
    if is_acyclic(kids):
        assert all(rank[c] < rank[k] for c, ms in kids.items() for m in ms for k in m)
    elif is_acyclic(chosen):
        assert all(rank[c] < rank[k] for c, ms in chosen.items() for m in ms for k in m)


def test_heights_are_of_the_chosen_member_and_elsewhere_of_the_lowest_term() -> None:
    kids = {0: [(1,), (2,)], 1: [(2,)], 2: [()], 3: [(0,), (4,)], 4: [(3,)], 5: [(1,), (2,)]}
    assert heights(kids, {}) == {0: 1, 1: 1, 2: 0, 3: 2, 4: 3, 5: 1}
    assert heights(kids, {0: [(1,)], 1: [(2,)], 2: [()]})[0] == 2
    assert heights({0: [(0,)]}, {}) == {}, "a class that only leads back to itself has no finite term"


def test_the_members_of_a_cycle_are_ordered_by_what_was_chosen() -> None:
    kids = {0: [(1,), ()], 1: [(0,), ()]}
    assert order(kids, {0: [(1,)], 1: [()]}) == [0, 1]
    assert order(kids, {1: [(0,)], 0: [()]}) == [1, 0]


@given(graphs(), st.lists(st.integers(20, 90), min_size=12, max_size=12), st.lists(st.sampled_from((1.0, 4.0)), min_size=150, max_size=150))
def test_cards_and_lanes_do_not_overlap_and_children_lie_below(graph: tuple[Kids, Kids], tall: list[int], weights: list[float]) -> None:
    kids, chosen = graph
    rank = {c: n for n, c in enumerate(order(kids, chosen))}
    ends = [(c, k) for c, ms in kids.items() for k in dict.fromkeys(k for m in ms for k in m)]
    edges = [Edge(c, k, weight) for (c, k), weight in zip(ends, weights, strict=False)]
    height = {c: float(tall[c]) for c in rank}
    found = place(height, edges, rank, *SIZES)
    assert found == place(height, edges, rank, *SIZES) and found.corners.keys() == kids.keys()
    rows: dict[float, list[tuple[float, float]]] = {}
    for x, y in found.corners.values():
        rows.setdefault(y, []).append((x, x + 80))
    for middle, top, bottom in found.lanes.values():
        rows.setdefault(top, []).append((middle - 2, middle + 2))
        assert bottom - top == max(height[c] for c, (_, y) in found.corners.items() if y == top)
    assert all(b[0] - a[1] >= 20 - 1e-6 for row in rows.values() for a, b in pairwise(sorted(row)))
    for source, target, weight in edges:
        by = found.between(source, target)
        if rank[source] < rank[target]:
            top = found.corners[source][1]
            steps = [(top, top + height[source]), *(lane[1:] for lane in by), found.corners[target][1:]]
            assert all(b[0] >= a[-1] + 30 - 1e-6 for a, b in pairwise(steps))
            passed = found.layer[target] - found.layer[source] - 1
            assert len(by) == passed if weight > 1 else len(by) in (0, passed)


def test_a_chain_is_straight_and_a_parent_stands_over_the_middle_of_its_children() -> None:
    rank = {c: c for c in range(4)}
    chain = place(dict.fromkeys(range(3), 10.0), [Edge(0, 1, 1.0), Edge(1, 2, 1.0)], rank, *SIZES).corners
    assert {x for x, _ in chain.values()} == {-40.0} and [y for _, y in chain.values()] == [0.0, 40.0, 80.0]
    fork = place(dict.fromkeys(range(3), 10.0), [Edge(0, 1, 1.0), Edge(0, 2, 1.0)], rank, *SIZES).corners
    assert abs(fork[0][0] - (fork[1][0] + fork[2][0]) / 2) < 1 and abs(fork[2][0] - fork[1][0]) == 100


def test_edges_to_one_class_share_their_lanes() -> None:
    edges = [Edge(0, 1, 4.0), Edge(1, 2, 4.0), Edge(2, 3, 4.0), Edge(0, 3, 4.0), Edge(1, 3, 4.0)]
    found = place(dict.fromkeys(range(4), 10.0), edges, {c: c for c in range(4)}, *SIZES)
    assert found.lanes.keys() == {(3, 1), (3, 2)} and found.between(1, 3) == found.between(0, 3)[1:]
    light = place(dict.fromkeys(range(3), 10.0), [Edge(0, 1, 1.0), Edge(1, 2, 1.0), Edge(0, 2, 1.0)], {c: c for c in range(3)}, *SIZES)
    assert light.between(0, 2) == () and not light.lanes
