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

Scope = tuple[tuple[int, int], ...]     # the axes of the loops around a value, outermost first: as written, and of their own


def distinct(bodies: tuple[Value, ...], axes: tuple[int, ...], extents: dict[int, int]) -> tuple[tuple[Value, ...], dict[int, int]]:
    """`bodies` over `axes` in which no reduction binds an axis inside a loop over it, and the extents of all axes.  A reduction is inside
    of the loops around it up to the innermost that it depends on; the results of a twist are computed together."""
    free = loop.free_axes(bodies)
    if all(free[v] <= set(axes) for v in free if v.binds is not None):
        return bodies, extents
    extents = dict(extents)
    spans = _spans(bodies, free)
    own: dict[tuple[int, int], int] = {}        # of an axis, those that loops inside others over it take
    made: dict[tuple[Value, Scope], Value] = {}

    def bound(axis: int, scope: Scope) -> int:
        taken = {new for _, new in scope}
        for k in count():
            if (new := own.setdefault((axis, k), max(extents) + 1) if k else axis) not in taken:
                extents[new] = extents[axis]
                return new
        raise AssertionError

    def at(x: Ix, scope: Scope) -> Ix:
        names = dict(scope)     # the innermost counts
        return ix.substitute(x, lambda leaf: Ax(names.get(leaf.a, leaf.a)) if isinstance(leaf, Ax) else
                             IxOf(moved(leaf.value, scope)) if isinstance(leaf, IxOf) else leaf)

    def moved(v: Value, around: Scope) -> Value:
        inside = max((k for k, (axis, _) in enumerate(around, 1) if axis in spans[v]), default=0)
        scope = around[:inside]
        if (v, scope) not in made:
            made[v, scope] = build(v, scope) if v.binds is None else reduction(v, scope)
        return made[v, scope]

    def build(v: Value, scope: Scope) -> Value:
        match v:
            case loop.Load(t, element, point): return loop.Load(t, element, tuple(at(x, scope) for x in point))
            case loop.IndexOf(x): return loop.IndexOf(at(x, scope))
            case loop.Apply(op, args): return loop.Apply(op, tuple(moved(x, scope) for x in args))
            case loop.Cast(element, x): return loop.Cast(element, moved(x, scope))
            case loop.Round(element, x): return loop.Round(element, moved(x, scope))
        return v

    def reduction(v: Value, scope: Scope) -> Value:
        assert v.binds is not None
        new = bound(v.binds, scope)
        inner = *scope, (v.binds, new)
        match v:
            case loop.Reduce(monoid, _, x): return loop.Reduce(monoid, new, moved(x, inner))
            case loop.Scan(monoid, _, upto, x): return loop.Scan(monoid, new, at(upto, scope), moved(x, inner))
            case loop.Pivot(recipe, _, s): return loop.Pivot(recipe, new, moved(s, inner))
            case loop.Channel(recipe, _, s, x): return loop.Channel(recipe, new, moved(s, inner), moved(x, inner))
        raise AssertionError(type(v))

    return tuple(moved(b, ()) for b in bodies), extents


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
