"""Index terms: where a tensor is read.  Non-negative integers, affine but for floor-division and remainder.

`Pos(k)` is the k-th coordinate of the tensor being described (a template's parameter), `Ax(a)` an iteration axis.
`a // n` and `a % n` only divide by positive constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def upper(x: Ix, extent: Callable[[Ix], int]) -> int:
    """The largest value `x` can take when every leaf runs from 0 to `extent(leaf) - 1`; -1 where a leaf is empty."""
    match x:
        case IxAdd(a, b): return upper(a, extent) + upper(b, extent)
        case IxMul(a, n): return upper(a, extent) * n
        case IxDiv(a, n): return upper(a, extent) // n
        case IxMod(a, n): return min(upper(a, extent), n - 1)
        case IxConst(n): return n
    return extent(x) - 1


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
