"""Sums and products in normal form: whatever their bracketing and order, one spelling.

A sum is a list of terms (coefficient, product), a product a coefficient and a list of (factor, +1 or -1), both flat and sorted.  Like
terms of one sign are added up; nothing is cancelled, for x - x and x / x are not constants.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value

Order = Callable[[Value], Any]       # what values are sorted by


class Product(NamedTuple):
    """coefficient * over[0] * over[1] * … / under[0] / under[1] / …"""

    coefficient: Fraction
    over: tuple[Value, ...] = ()
    under: tuple[Value, ...] = ()


def exactly(v: Value) -> Fraction | None:
    """The number that a constant stands for; None for what is no constant, not finite, no number, or -0, which is not the number 0."""
    if not isinstance(v, loop.Const) or v.element.kind == "bool":
        return None
    x = dt.value(v.element, v.bits)
    if not np.isfinite(x) or x == 0 and v.bits:
        return None
    return Fraction(int(x)) if v.element.kind == "int" else Fraction(float(x))


def nearest(element: DType, number: Fraction) -> loop.Const:
    """The constant of a type that is nearest to a number."""
    return loop.Const(element, dt.bits(element, int(number) if element.kind == "int" else float(number)))


def product(v: Value) -> Product:
    """A value as a product."""
    if (number := exactly(v)) is not None:
        return Product(number)
    match v:
        case loop.Apply("mul", (x, y)):
            (p, over, under), (q, more, less) = product(x), product(y)
            return Product(p * q, over + more, under + less)
        case loop.Apply("div", (x, y)) if product(y).coefficient:
            (p, over, under), (q, more, less) = product(x), product(y)
            return Product(p / q, over + less, under + more)
        case loop.Apply("recip", (x,)) if product(x).coefficient:
            q, more, less = product(x)
            return Product(1 / q, less, more)
        case loop.Apply("rsqrt", (x,)):
            return Product(Fraction(1), (), (loop.Apply("sqrt", (x,)),))
        case loop.Apply("neg", (x,)):
            return product(x)._replace(coefficient=-product(x).coefficient)
    return Product(Fraction(1), (v,))


def summands(v: Value, scale: Fraction = Fraction(1)) -> list[Product]:
    """A value times a number as a sum of products."""
    match v:
        case loop.Apply("add", (x, y)): return summands(x, scale) + summands(y, scale)
        case loop.Apply("sub", (x, y)): return summands(x, scale) + summands(y, -scale)
        case loop.Apply("neg", (x,)): return summands(x, -scale)
    made = product(v)
    if len(made.over) == 1 and not made.under and made.over[0] is not v:
        return summands(made.over[0], scale * made.coefficient)
    return [made._replace(coefficient=scale * made.coefficient)]


def normal(v: Value, order: Order) -> Value:
    """The normal form of a sum or product of a floating-point type whose operands are in normal form; other values as they are."""
    if isinstance(v, loop.Reduce) and v.monoid == "add" and v.dtype.kind == "float":
        return scaled_sum(v, order)
    if not isinstance(v, loop.Apply) or v.op not in ("add", "sub", "neg", "mul", "div", "recip", "rsqrt") or v.dtype.kind != "float":
        return v
    return sum_of(summands(v), v.dtype, order)


def sum_of(parts: list[Product], element: DType, order: Order) -> Value:
    """The sum of products, like terms of one sign added up, sorted, negative ones last."""
    merged: dict[tuple[Value, bool], Fraction] = {}
    for term in parts:
        key = spelled(term._replace(coefficient=Fraction(1)), element, order), term.coefficient < 0
        merged[key] = merged.get(key, Fraction(0)) + abs(term.coefficient)
    terms = [(scaled(base, coefficient), negative) for (base, negative), coefficient in merged.items()]
    terms.sort(key=lambda t: (t[1], order(t[0])))
    (out, negative), *rest = terms
    if negative:            # all are: negative ones come last
        for x, _ in rest:
            out = loop.Apply("add", (out, x))
        return loop.Apply("neg", (out,))
    for x, negative in rest:
        out = loop.Apply("sub" if negative else "add", (out, x))
    return out


def scaled_sum(v: loop.Reduce, order: Order) -> Value:
    """A sum over an axis with the number of its first term outside: sum_a 2x - 4y = 2 sum_a x - 2y."""
    terms = [(term.coefficient, spelled(term._replace(coefficient=Fraction(1)), v.dtype, order)) for term in summands(v.x)]
    first, _ = min(terms, key=lambda t: order(t[1]))
    if first in (0, 1):
        return v
    inner = [Product(coefficient / first, (base,)) for coefficient, base in terms]
    return normal(scaled(v.replace(x=sum_of(inner, v.dtype, order)), first), order)


def scaled(base: Value, coefficient: Fraction) -> Value:
    """base * coefficient."""
    if coefficient == 1:
        return base
    number = nearest(base.dtype, coefficient)
    return number if exactly(base) == 1 else loop.Apply("mul", (base, number))


def spelled(made: Product, element: DType, order: Order) -> Value:
    """A product without its coefficient, factors sorted, those below a line of their own."""
    def chain(factors: tuple[Value, ...]) -> Value | None:
        out: Value | None = None
        for x in sorted(factors, key=order):
            out = x if out is None else loop.Apply("mul", (out, x))
        return out

    over, under = chain(made.over), chain(made.under)
    if under is None:
        return nearest(element, Fraction(1)) if over is None else over
    return loop.Apply("recip", (under,)) if over is None else loop.Apply("div", (over, under))
