"""Index terms: where a tensor is read.  Affine but for floor-division and remainder.

`Pos(k)` is the k-th coordinate of the tensor being described (a template's parameter), `Ax(a)` an iteration axis.
A whole index is non-negative; a part of one may not be (n - 1 - p).  `a // n` and `a % n` round down, as Python's do,
and only divide by positive constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from emmy.ir.node import Node


class Ix(Node):
    """Base of index terms."""

    def __str__(self) -> str:
        match self:
            case Pos(k): return f"p{k}"
            case Ax(a): return f"a{a}"
            case IxConst(n): return str(n)
            case IxAdd(x, y): return f"({x} + {y})"
            case IxMul(x, n): return f"({x} * {n})"
            case IxDiv(x, n): return f"({x} // {n})"
            case IxMod(x, n): return f"({x} % {n})"
        raise AssertionError(type(self))


class Pos(Ix):
    k: int


class Ax(Ix):
    a: int


class IxConst(Ix):
    n: int


class IxAdd(Ix):
    x: Ix
    y: Ix


class IxMul(Ix):
    x: Ix
    n: int


class IxDiv(Ix):
    x: Ix
    n: int


class IxMod(Ix):
    x: Ix
    n: int


def add(x: Ix, y: Ix) -> Ix:
    """x + y, with constants folded."""
    match x, y:
        case IxConst(0), _: return y
        case _, IxConst(0): return x
        case IxConst(m), IxConst(n): return IxConst(m + n)
        case IxConst(_), _: return add(y, x)
        case IxAdd(a, IxConst(m)), IxConst(n): return add(a, IxConst(m + n))
    return IxAdd(x, y)


def mul(x: Ix, n: int) -> Ix:
    """x * n, with constants folded."""
    match x:
        case _ if n == 1: return x
        case _ if n == 0: return IxConst(0)
        case IxConst(m): return IxConst(m * n)
        case IxMul(y, m): return IxMul(y, m * n)
    return IxMul(x, n)


def div(x: Ix, n: int) -> Ix:
    """x // n."""
    match x:
        case _ if n == 1: return x
        case IxConst(m): return IxConst(m // n)
    return IxDiv(x, n)


def mod(x: Ix, n: int) -> Ix:
    """x % n."""
    match x:
        case _ if n == 1: return IxConst(0)
        case IxConst(m): return IxConst(m % n)
    return IxMod(x, n)


def substitute(x: Ix, leaf: Callable[[Ix], Ix]) -> Ix:
    """`x` with every `Pos` and `Ax` replaced by what `leaf` says of it."""
    match x:
        case IxAdd(a, b): return add(substitute(a, leaf), substitute(b, leaf))
        case IxMul(a, n): return mul(substitute(a, leaf), n)
        case IxDiv(a, n): return div(substitute(a, leaf), n)
        case IxMod(a, n): return mod(substitute(a, leaf), n)
        case IxConst(_): return x
    return leaf(x)


def evaluate(x: Ix, leaf: Callable[[Ix], Any]) -> Any:
    """The value of `x` on integers or NumPy arrays, given those of its leaves."""
    match x:
        case IxAdd(a, b): return evaluate(a, leaf) + evaluate(b, leaf)
        case IxMul(a, n): return evaluate(a, leaf) * n
        case IxDiv(a, n): return evaluate(a, leaf) // n
        case IxMod(a, n): return evaluate(a, leaf) % n
        case IxConst(n): return n
    return leaf(x)


def leaves(x: Ix) -> frozenset[Ix]:
    """The `Pos` and `Ax` terms in `x`."""
    match x:
        case IxAdd(a, b): return leaves(a) | leaves(b)
        case IxMul(a, _) | IxDiv(a, _) | IxMod(a, _): return leaves(a)
        case IxConst(_): return frozenset()
    return frozenset((x,))


def bounds(x: Ix, extent: Callable[[Ix], int]) -> tuple[int, int]:
    """The least and largest value `x` can take when every leaf runs from 0 to `extent(leaf) - 1`; an interval that holds them at least."""
    match x:
        case IxAdd(a, b):
            (al, ah), (bl, bh) = bounds(a, extent), bounds(b, extent)
            return al + bl, ah + bh
        case IxMul(a, n):
            low, high = sorted(e * n for e in bounds(a, extent))
            return low, high
        case IxDiv(a, n):
            low, high = bounds(a, extent)
            return low // n, high // n
        case IxMod(a, n):
            low, high = bounds(a, extent)
            return (low % n, high % n) if low // n == high // n else (0, n - 1)
        case IxConst(n): return n, n
    return 0, extent(x) - 1


def upper(x: Ix, extent: Callable[[Ix], int]) -> int:
    """The largest value `x` can take when every leaf runs from 0 to `extent(leaf) - 1`; -1 where a leaf is empty."""
    return bounds(x, extent)[1]


def flatten(point: Sequence[Ix], shape: Sequence[int]) -> Ix:
    """The row-major offset of `point` in a tensor of `shape`."""
    out: Ix = IxConst(0)
    for x, n in zip(point, shape, strict=True):
        out = add(mul(out, n), x)
    return out


def unflatten(offset: Ix, shape: Sequence[int]) -> tuple[Ix, ...]:
    """The point of row-major `offset` in a tensor of `shape`: the inverse of `flatten`."""
    point: list[Ix] = []
    stride = 1
    for k, n in reversed(list(enumerate(shape))):
        point.append(div(offset, stride) if k == 0 else mod(div(offset, stride), max(n, 1)))
        stride *= max(n, 1)
    return tuple(reversed(point))


type _Sum = tuple[dict[Ix, int], int]  # the coefficients of leaves, quotients and remainders; the constant


def simplify(x: Ix, extent: Callable[[Ix], int]) -> Ix:
    """A term equal to `x` wherever every leaf runs from 0 to `extent(leaf) - 1`, in a normal form.

    The form is a sum, largest coefficient first.  With q the part divisible by n and r the rest:
    (q + r) // n = q/n + r // n, and r // n = 0, r % n = r where 0 <= r < n;
    (g*a + r) // (g*m) = a // m and (g*a + r) % (g*m) = g*(a % m) + r where 0 <= r < g;
    a // m // n = a // (m*n); a % (m*n) // n = a // n % m; a % (m*n) % n = a % n; (a // n)*n + a % n = a.
    """
    return _term(_sum(x, extent))


def _term(total: _Sum) -> Ix:
    out: Ix | None = None
    for atom, c in sorted(total[0].items(), key=lambda item: (-item[1], str(item[0]))):
        out = mul(atom, c) if out is None else add(out, mul(atom, c))
    return IxConst(total[1]) if out is None else add(out, IxConst(total[1]))


def _plus(*parts: tuple[_Sum, int]) -> _Sum:
    """The sum of parts, each times a factor."""
    out: dict[Ix, int] = {}
    for (terms, _), factor in parts:
        for atom, c in terms.items():
            out[atom] = out.get(atom, 0) + c * factor
    return {a: c for a, c in out.items() if c}, sum(part[1] * factor for part, factor in parts)


def _sum(x: Ix, extent: Callable[[Ix], int]) -> _Sum:
    match x:
        case IxConst(n): return {}, n
        case IxAdd(a, b): return _join(_plus((_sum(a, extent), 1), (_sum(b, extent), 1)), extent)
        case IxMul(a, n): return _plus((_sum(a, extent), n))
        case IxDiv(a, n): return _divide(_sum(a, extent), n, extent)[0]
        case IxMod(a, n): return _divide(_sum(a, extent), n, extent)[1]
    return ({}, 0) if extent(x) == 1 else ({x: 1}, 0)


def _join(total: _Sum, extent: Callable[[Ix], int]) -> _Sum:
    """(a // n)*n + a % n = a, and (a // n % m)*n + a % n = a % (n*m)."""
    for low, c in total[0].items():
        for high, d in total[0].items():
            match low, high:
                case IxMod(a, n), IxDiv(b, m) if a is b and n == m and d == c * n: whole: Ix = a
                case IxMod(a, n), IxMod(IxDiv(b, m), k) if a is b and n == m and d == c * n: whole = IxMod(a, n * k)
                case _: continue
            rest = {atom: k for atom, k in total[0].items() if atom not in (low, high)}
            return _join(_plus(((rest, total[1]), 1), (_sum(whole, extent), c)), extent)
    return total


def _divide(total: _Sum, n: int, extent: Callable[[Ix], int]) -> tuple[_Sum, _Sum]:
    """Quotient and remainder of a sum by n."""
    terms, const = total
    quotient: _Sum = {a: c // n for a, c in terms.items() if c % n == 0}, const // n
    rest: _Sum = {a: c for a, c in terms.items() if c % n}, const % n
    low, high = bounds(_term(rest), extent)
    if low // n == high // n:
        return _plus((quotient, 1), (({}, low // n), 1)), _plus((rest, 1), (({}, -(low // n) * n), 1))
    for g in sorted({gcd(c, n) for c in rest[0].values()} - {1}, reverse=True):
        small: _Sum = {a: c for a, c in rest[0].items() if c % g}, rest[1] % g
        least, most = bounds(_term(small), extent)
        if 0 <= least and most < g:
            q, r = _divide(({a: c // g for a, c in rest[0].items() if c % g == 0}, rest[1] // g), n // g, extent)
            return _plus((quotient, 1), (q, 1)), _join(_plus((r, g), (small, 1)), extent)
    remainder = _remainder(rest, n, extent)
    match list(rest[0].items()), rest[1]:
        case [(IxDiv(a, m), 1)], 0: q = _divide(_sum(a, extent), m * n, extent)[0]
        case [(IxMod(a, m), 1)], 0 if m % n == 0: q = _divide(_divide(_sum(a, extent), n, extent)[0], m // n, extent)[1]
        case _: q = {IxDiv(_term(rest), n): 1}, 0
    return _plus((quotient, 1), (q, 1)), remainder


def _remainder(rest: _Sum, n: int, extent: Callable[[Ix], int]) -> _Sum:
    for atom, c in rest[0].items():
        match atom:
            case IxMod(a, m) if m % n == 0:
                others = {k: v for k, v in rest[0].items() if k is not atom}
                return _divide(_plus(((others, rest[1]), 1), (_sum(a, extent), c)), n, extent)[1]
    return {IxMod(_term(rest), n): 1}, 0
