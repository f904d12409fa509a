"""Loops inside loops bind axes of their own.

A reduction that depends on the axis of another is run inside it, at every point.  Where the outer one is over the same axis as it (the
columns' sums of what rows' sums give, of one square matrix), the body names two loops alike, one inside the other: right as an
expression, in which the inner one hides the outer, but what a kernel has computed at the outer one's place holds in the inner loop no more.
"""

from __future__ import annotations

from itertools import count

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import postorder

Scope = tuple[tuple[int, int], ...]     # the axes of the loops around a value, outermost first: as written, and of their own
Placed = tuple[Value, Scope]


def distinct(bodies: tuple[Value, ...], axes: tuple[int, ...], extents: dict[int, int]) -> tuple[tuple[Value, ...], dict[int, int]]:
    """`bodies` over `axes` in which no reduction binds an axis inside a loop over it, and the extents of all axes.  A reduction is inside
    of the loops around it up to the innermost that it depends on; the results of a twist are computed together."""
    free = loop.free_axes(bodies)
    if all(free[v] <= set(axes) for v in free if v.binds is not None):
        return bodies, extents
    extents = dict(extents)
    spans = _spans(bodies, free)
    own: dict[tuple[int, int], int] = {}        # of an axis, those that loops inside others over it take
    made: dict[Placed, Value] = {}

    def placed(v: Value, around: Scope) -> Placed:
        inside = max((k for k, (axis, _) in enumerate(around, 1) if axis in spans[v]), default=0)
        return v, around[:inside]

    def inner(v: Value, scope: Scope) -> Scope:
        """The scope inside the loop of a reduction."""
        assert v.binds is not None
        taken = {new for _, new in scope}
        for k in count():
            new = own.setdefault((v.binds, k), max(extents) + 1) if k else v.binds
            extents.setdefault(new, extents[v.binds])
            if new not in taken:
                return *scope, (v.binds, new)
        raise AssertionError

    def below(place: Placed) -> tuple[Placed, ...]:
        v, scope = place
        if v.binds is None:
            return tuple(placed(x, scope) for x in v.operands)
        within = inner(v, scope)
        return tuple(placed(x, within if x in folded(v) else scope) for x in v.operands)

    def at(x: Ix, scope: Scope) -> Ix:
        names = dict(scope)     # the innermost counts
        return ix.substitute(x, lambda leaf: Ax(names.get(leaf.a, leaf.a)) if isinstance(leaf, Ax) else
                             IxOf(made[placed(leaf.value, scope)]) if isinstance(leaf, IxOf) else leaf)

    def build(v: Value, scope: Scope) -> Value:
        args = tuple(made[place] for place in below((v, scope)))
        match v:
            case loop.Load(t, element, point): return loop.Load(t, element, tuple(at(x, scope) for x in point))
            case loop.IndexOf(index): return loop.IndexOf(at(index, scope))
            case loop.Apply(op, _): return loop.Apply(op, args)
            case loop.Cast(element, _): return loop.Cast(element, *args)
            case loop.Round(element, _): return loop.Round(element, *args)
            case loop.Const(): return v
        _, new = inner(v, scope)[-1]
        first, *others = (made[placed(x, inner(v, scope))] for x in folded(v))
        match v:
            case loop.Reduce(monoid): return loop.Reduce(monoid, new, first)
            case loop.Scan(monoid, _, upto): return loop.Scan(monoid, new, at(upto, scope), first)
            case loop.Pivot(recipe): return loop.Pivot(recipe, new, first)
            case loop.Channel(recipe): return loop.Channel(recipe, new, first, *others)
        raise AssertionError(type(v))

    roots = [placed(b, ()) for b in bodies]
    for place in postorder(roots, below):
        made[place] = build(*place)
    return tuple(made[place] for place in roots), extents


def folded(v: Value) -> tuple[Value, ...]:
    """What the loop of a reduction computes at each of its points."""
    match v:
        case loop.Reduce(_, _, x) | loop.Scan(_, _, _, x): return (x,)
        case loop.Pivot(_, _, score): return (score,)
        case loop.Channel(_, _, score, x): return score, x
    raise AssertionError(type(v))


def _spans(bodies: tuple[Value, ...], free: dict[Value, frozenset[int]]) -> dict[Value, frozenset[int]]:
    """The axes that decide where each value is computed: its own, and those of the results of a twist that are computed with it."""
    together: dict[tuple[str, int, Value], frozenset[int]] = {}
    for v in free:
        if isinstance(v, loop.Pivot | loop.Channel):
            key = v.recipe, v.axis, v.score
            together[key] = together.get(key, frozenset()) | free[v]
    spans: dict[Value, frozenset[int]] = {}
    for v in loop.walk(bodies):
        below = frozenset[int]().union(*(spans[x] for x in v.operands)) - {v.binds}
        spans[v] = free[v] | below
        if isinstance(v, loop.Pivot | loop.Channel):
            spans[v] |= together[v.recipe, v.axis, v.score]
    return spans
