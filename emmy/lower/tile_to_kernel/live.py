"""Which keys of a twist count for a tile of rows: where its score is not -inf, the weight of which is zero.

A mask is a `select` between a score and -inf on comparisons of indices, or such a term in a sum.  A comparison is linear in the key
j and the rows i, with j by itself: for rows of an interval it holds for some of them, or for all of them, where j is below or above
what is linear in the interval's ends.  Hence two intervals of keys for a tile of rows: outside the first every score is -inf, and
inside the second the conditions are known, so that the score needs no `select`.

A comparison of the key with any other value that is one number for all keys, such as where a row's document begins, bounds them as well:
by the least and the largest of that value over the tile's rows, which the kernel finds when it runs (`read_bounds`).

Both are right for any values of the scores but +inf and NaN, which a sum with -inf would keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from math import prod
from typing import NamedTuple

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxConst, Pos
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.address import affine

TILE = Pos(0)       # the number of a tile of rows


class Span(NamedTuple):
    """The keys from every one of `lows` on and below every one of `highs`, terms in `TILE`; and, for some row or for all rows of the
    tile, from every one of `starts` on and below every one of `ends`: values of rows, i32 from 0 to as many as there are keys."""

    lows: frozenset[Ix] = frozenset()
    highs: frozenset[Ix] = frozenset()
    starts: frozenset[Value] = frozenset()
    ends: frozenset[Value] = frozenset()

    def __and__(self, other: Span) -> Span:
        return Span(self.lows | other.lows, self.highs | other.highs, self.starts | other.starts, self.ends | other.ends)

    def varies(self, rows: Iterable[int]) -> bool:
        """Whether values tell keys that are not the same for all of a tile of rows."""
        values = tuple(self.starts | self.ends)
        free = tile.free_axes(values)
        return not frozenset[int]().union(*(free[v] for v in values)).isdisjoint(rows)

    @property
    def indices(self) -> Span:
        """What indices alone tell."""
        return Span(self.lows, self.highs)


ALL = Span()


class Live(NamedTuple):
    """For a tile of rows: the keys that may count (`some`), those where the conditions hold for all its rows (`whole`), the score there,
    and the score of any key, its comparisons with values of rows in i32."""

    some: Span
    whole: Span
    score: Value
    masked: Value


NEAR = 1 << 20      # factors and constants beside a value are less, so that a sum of them with what is clamped to FAR does not wrap
FAR = 1 << 54


class Comparison(NamedTuple):
    """Whether sign * j + the sum of the terms, with the value times its sign if there is one, is 0 or less."""

    sign: int
    terms: tuple[tuple[int, int], ...]      # axis, factor
    constant: int
    value: tuple[int, Value] | None = None

    @property
    def negated(self) -> Comparison:
        value = self.value and (-self.value[0], self.value[1])
        return Comparison(-self.sign, tuple((a, -c) for a, c in self.terms), 1 - self.constant, value)

    def bound(self, keys: int) -> Value:
        """The key below which, or for a negative sign from which on, it holds, by its value: i32 from 0 to `keys`, as many as there are."""
        assert self.value is not None
        (sign, value), turn = self.value, -self.sign
        x = value if value.dtype is dt.i64 else loop.Cast(dt.i64, value)
        constant = turn * self.constant + (self.sign > 0)
        if self.terms or constant or sign != turn:
            x = within(x, -FAR, FAR) if sign == turn else loop.Apply("neg", (within(x, -FAR, FAR),))
            terms = [loop.Apply("mul", (whole(turn * c), loop.IndexOf(Ax(a)))) for a, c in self.terms]
            x = reduce(lambda y, term: loop.Apply("add", (y, term)), [*terms, *[whole(constant)] * (constant != 0)], x)
        return loop.Cast(dt.i32, within(x, 0, keys))

    def told(self, key: int, keys: int) -> Value:
        """The comparison with its bound, in i32: the same for each of so many keys."""
        j, bound = loop.Cast(dt.i32, loop.IndexOf(Ax(key))), self.bound(keys)
        return loop.Apply("lt", (j, bound)) if self.sign > 0 else loop.Apply("le", (bound, j))


def whole(n: int) -> Value:
    return loop.Const(dt.i64, dt.bits(dt.i64, n))


def within(x: Value, low: int, high: int) -> Value:
    """The nearest to a value of i64 from `low` to `high`."""
    return loop.Apply("max", (loop.Apply("min", (x, whole(high))), whole(low)))


class Rows(NamedTuple):
    """A tile of `height` rows: row-major positions over `axes`."""

    axes: tuple[int, ...]
    height: int
    extents: Mapping[int, int]

    def interval(self, axis: int) -> tuple[Ix, Ix]:
        """The least and the largest coordinate along an axis of the positions of a tile; of another axis, all that it has."""
        n = self.extents[axis]
        if axis not in self.axes or n == 1:
            return IxConst(0), IxConst(n - 1)
        at = self.axes.index(axis)
        inner = prod(self.extents[a] for a in self.axes[at + 1:])
        first = ix.mul(TILE, self.height)
        if inner == 1 and (at == 0 or n % self.height == 0):
            low = first if at == 0 else ix.mod(first, n)
            return low, ix.add(low, IxConst(self.height - 1))
        if inner % self.height == 0:
            at_all = ix.div(first, inner)
            low = at_all if at == 0 else ix.mod(at_all, n)
            return low, low
        return IxConst(0), IxConst(n - 1)

    def keys(self, c: Comparison, key: int, every: bool) -> Span:
        """Where a comparison holds for every row of a tile, or else for some."""
        if c.value is not None:
            bound = frozenset([c.bound(self.extents[key])])
            return Span(ends=bound) if c.sign > 0 else Span(starts=bound)
        rest: Ix = IxConst(c.constant)
        for axis, factor in c.terms:
            low, high = self.interval(axis)
            rest = ix.add(rest, ix.mul(high if (factor > 0) == every else low, factor))
        rest = self.normal(rest)
        if c.sign > 0:
            return Span(highs=frozenset([self.normal(ix.add(ix.mul(rest, -1), IxConst(1)))]))
        return Span(lows=frozenset([rest]))

    def all_keys(self, comparisons: list[Comparison], key: int, every: bool) -> Span:
        """Where all of some comparisons do."""
        return reduce(Span.__and__, (self.keys(c, key, every) for c in comparisons), ALL)

    def normal(self, x: Ix) -> Ix:
        return normal(x, -(-prod(self.extents[a] for a in self.axes) // self.height))


def normal(x: Ix, tiles: int) -> Ix:
    """A term in `TILE`, the number of one of so many tiles, in its normal form."""
    return ix.simplify(x, lambda leaf: tiles)


def live(kernel: tile.Kernel, fold: tile.Fold, rows: tuple[int, ...], height: int) -> Live:
    """The keys of a twist that count for tiles of `height` rows."""
    of, score, keys = Rows(rows, height, kernel.extents), fold.lifts[0], kernel.extents[fold.axis]
    condition = counts(score)
    known: dict[Value, Value] = {}
    everywhere = ALL
    for leaf, holds in conjuncts(condition):
        found = comparisons(leaf, holds, fold.axis)
        if found is not None:
            everywhere &= of.all_keys(found, fold.axis, True)
            known[leaf] = boolean(holds)
    told = {v: c.told(fold.axis, keys) for v in loop.walk((score,)) for c in comparisons(v, True, fold.axis) or () if c.value is not None}
    return Live(possible(condition, True, fold.axis, of), everywhere, simplified(score, told | known), simplified(score, told))


# -- conditions -----------------------------------------------------------------------------------------------------
def boolean(value: bool) -> loop.Const:
    return loop.Const(dt.bool_, int(value))


TRUE, FALSE = boolean(True), boolean(False)


def both(op: str, x: Value, y: Value) -> Value:
    """x and y, or x or y, without constants."""
    neutral, other = (TRUE, FALSE) if op == "and" else (FALSE, TRUE)
    if x is other or y is other:
        return other
    return y if x is neutral else x if y is neutral else loop.Apply(op, (x, y))


def negation(x: Value) -> Value:
    match x:
        case loop.Const(): return FALSE if x is TRUE else TRUE
        case loop.Apply("not", (y,)): return y
    return loop.Apply("not", (x,))


def counts(score: Value) -> Value:
    """When a score is not -inf, as far as its form tells."""
    match score:
        case loop.Const(element, bits):
            return boolean(float(dt.value(element, bits)) != float("-inf"))
        case loop.Apply("select", (c, x, y)):
            return both("or", both("and", c, counts(x)), both("and", negation(c), counts(y)))
        case loop.Apply("add", (x, y)):
            return both("and", counts(x), counts(y))
        case loop.Apply("mul", (loop.Const(element, bits), x)) | loop.Apply("mul", (x, loop.Const(element, bits))):
            return counts(x) if float(dt.value(element, bits)) > 0 else TRUE
        case loop.Cast(element, x) | loop.Round(element, x) if x.dtype.kind == element.kind == "float":
            return counts(x)
    return TRUE


def conjuncts(condition: Value) -> list[tuple[Value, bool]]:
    """What must hold, or must not, for a condition to hold."""
    match condition:
        case loop.Apply("and", (x, y)): return conjuncts(x) + conjuncts(y)
        case loop.Apply("not", (loop.Apply("or", (x, y)),)): return conjuncts(negation(x)) + conjuncts(negation(y))
        case loop.Apply("not", (x,)): return [(x, False)]
    return [(condition, True)]


def possible(condition: Value, holds: bool, key: int, rows: Rows) -> Span:
    """Keys outside of which the condition is not `holds` for any row of a tile."""
    match condition:
        case loop.Apply("and" | "or" as op, (x, y)):
            one, two = possible(x, holds, key, rows), possible(y, holds, key, rows)
            return one & two if (op == "and") == holds else one if one == two else ALL
        case loop.Apply("not", (x,)):
            return possible(x, not holds, key, rows)
    found = comparisons(condition, holds, key)
    return ALL if found is None else rows.all_keys(found, key, False)


def comparisons(value: Value, holds: bool, key: int) -> list[Comparison] | None:
    """The comparisons that all hold where a condition does, or does not: of whole numbers linear in indices, in which the key stands by
    itself, or of one such with a value that does not depend on the key; None for any other condition.  |x| <= y is x <= y and -x <= y."""
    match value:
        case loop.Apply("lt" | "le" as op, (x, y)) if x.dtype.kind == "int":
            size = x if holds else y        # where a magnitude makes two conditions that both hold
            sides: tuple[Value, ...] = (size,)
            if isinstance(size, loop.Apply) and size.op == "abs":
                sides = size.args[0], loop.Apply("neg", (size.args[0],))
            found = [comparison(op, s, y, key) if holds else comparison(op, x, s, key) for s in sides]
            known = [c if holds else c.negated for c in found if c is not None]
            return known if len(known) == len(found) else None
    return None


def comparison(op: str, x: Value, y: Value, key: int) -> Comparison | None:
    left, right, value = linear(x), linear(y), None
    if left is None and right is not None and same_for_all(x, key):
        left, value = ({}, 0), (1, x)
    elif right is None and left is not None and same_for_all(y, key):
        right, value = ({}, 0), (-1, y)
    if left is None or right is None:
        return None
    factors = {a: left[0].get(a, 0) - right[0].get(a, 0) for a in sorted({*left[0], *right[0]})}
    sign = factors.pop(key, 0)
    constant = left[1] - right[1] + (op == "lt")
    if abs(sign) != 1 or value and max(map(abs, (constant, *factors.values()))) >= NEAR:
        return None
    return Comparison(sign, tuple((a, c) for a, c in factors.items() if c), constant, value)


def same_for_all(value: Value, key: int) -> bool:
    """Whether a value, which no fold is part of, is one number for all keys."""
    return key not in tile.free_axes((value,))[value] and not any(isinstance(v, tile.FoldResult) for v in loop.walk((value,)))


def linear(value: Value) -> tuple[dict[int, int], int] | None:
    """A whole number as (factor of each axis, constant); None where it is not linear in indices, or may wrap."""
    match value:
        case loop.Const(element, bits) if element.kind == "int":
            return {}, int(dt.value(element, bits))
        case loop.IndexOf(at):
            terms, constant = affine(at)
            plain = {leaf.a: c for leaf, c in terms.items() if isinstance(leaf, Ax)}
            return (plain, constant) if len(plain) == len(terms) else None
        case loop.Cast(dt.i64, x):
            return linear(x) if x.dtype.kind == "int" else None
        case loop.Apply("add" | "sub" as op, (x, y)) if value.dtype is dt.i64:
            left, right, sign = linear(x), linear(y), 1 if op == "add" else -1
            if left is None or right is None:
                return None
            return {a: left[0].get(a, 0) + sign * right[0].get(a, 0) for a in {*left[0], *right[0]}}, left[1] + sign * right[1]
        case loop.Apply("neg", (x,)) if value.dtype is dt.i64:
            of = linear(x)
            return None if of is None else ({a: -c for a, c in of[0].items()}, -of[1])
        case loop.Apply("mul", (loop.Const(element, bits), x)) | loop.Apply("mul", (x, loop.Const(element, bits))) if value.dtype is dt.i64:
            of, n = linear(x), int(dt.value(element, bits))
            return None if of is None else ({a: n * c for a, c in of[0].items()}, n * of[1])
    return None


def simplified(value: Value, known: Mapping[Value, Value]) -> Value:
    """`value` with conditions as they are known."""
    done: dict[Value, Value] = {}
    for v in loop.walk((value,)):
        args = tuple(done[x] for x in v.operands)
        match v:
            case _ if v in known: made: Value = known[v]
            case loop.Apply("select", _) if isinstance(args[0], loop.Const): made = args[1] if args[0] is TRUE else args[2]
            case loop.Apply("and" | "or" as op, _): made = both(op, *args)
            case loop.Apply("not", _): made = negation(args[0])
            case loop.Apply(op, _): made = loop.Apply(op, args)
            case loop.Cast(element, _) | loop.Round(element, _): made = type(v)(element, args[0])   # type: ignore[call-arg]
            case _: made = v
        done[v] = made
    return done[value]
