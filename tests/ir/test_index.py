"""Simplified index terms equal what they came from at every point, and views compose to nothing where they should."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.ir.index import Ix, IxAdd, IxConst, IxDiv, IxMod, IxMul, Pos, bounds, evaluate, flatten, simplify, substitute, unflatten

EXTENTS = (1, 3, 4, 6)
LEAVES = st.one_of(st.builds(Pos, st.integers(0, 3)), st.builds(IxConst, st.integers(0, 7)))
FACTORS = st.sampled_from((1, 2, 3, 4, 6, 12))
TERMS = st.recursive(LEAVES, lambda t: st.one_of(
    st.builds(IxAdd, t, t), st.builds(IxMul, t, st.sampled_from((-1, 2, 3, 4, 12))), st.builds(IxDiv, t, FACTORS),
    st.builds(IxMod, t, FACTORS)), max_leaves=8)


def extent(leaf: Ix) -> int:
    assert isinstance(leaf, Pos)
    return EXTENTS[leaf.k]


@settings(max_examples=400, deadline=None)
@given(TERMS)
def test_simplify_keeps_the_value_and_bounds_hold(term: Ix) -> None:
    simple = simplify(term, extent)
    low, high = bounds(term, extent)
    for point in itertools.product(*map(range, EXTENTS)):
        value = evaluate(term, lambda p, point=point: point[p.k])  # type: ignore[misc]
        assert evaluate(simple, lambda p, point=point: point[p.k]) == value  # type: ignore[misc]
        assert low <= value <= high
    assert simplify(simple, extent) is simple


def test_reshape_there_and_back_is_the_identity() -> None:
    shape, other = (4, 6, 5), (2, 3, 20)
    there = unflatten(flatten([Pos(k) for k in range(3)], other), shape)
    back = unflatten(flatten([Pos(k) for k in range(3)], shape), other)
    both = [substitute(x, lambda p: back[p.k]) for x in there]
    assert [simplify(x, lambda p: shape[p.k]) for x in both] == [Pos(0), Pos(1), Pos(2)]
