"""The recipe "moments" of a twisted fold as scalar code: state (mean, s, n) with s = sum (x - mean)^2 over the n elements so far, or
(mean, n) where nobody asks for s.

Some w elements, of one run or of several, enter at once, against the mean so far (against their own first where there are none), at the
price of one division: with d_i = x_i - mean and D = sum d_i, the mean moves by D/(n + w) and s grows by sum d_i^2 - D^2/(n + w).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.instructions.registers import Assign
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Expr, Var, const
from emmy.lower.tile_to_kernel import lanes as warp

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.scalar import Emitter


def initial(dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    """The neutral state: no elements, mean 0, sum 0."""
    return *(const(d, 0) for d in dtypes), const(dtypes[0], 0)


def accumulate(scope: Emitter, state: tuple[Var, ...], elements: list[tuple[Expr, ...]]) -> None:
    """Fold elements (x, …) in."""
    mean, *sums, count = state
    none = Apply("eq", (count, const(count.dtype, 0)))
    base = scope.let("b", Apply("select", (none, elements[0][0], mean)))
    deviations = [scope.let("d", Apply("sub", (x, base))) for x, *_ in elements]
    total = scope.let("t", plus(deviations))
    grown = scope.let("n", Apply("add", (count, const(count.dtype, len(elements)))))
    shift = scope.let("h", Apply("div", (total, grown)))
    scope.emit(Assign(mean, Apply("add", (base, shift))))
    for s in sums:
        squares = plus([Apply("mul", (d, d)) for d in deviations])
        scope.emit(Assign(s, Apply("add", (s, Apply("sub", (squares, Apply("mul", (total, shift))))))))
    scope.emit(Assign(count, grown))


def plus(terms: list[Expr]) -> Expr:
    """Their sum, pairwise."""
    half = len(terms) // 2
    return Apply("add", (plus(terms[:half]), plus(terms[half:]))) if half else terms[0]


def merge(scope: Emitter, state: tuple[Var, ...], other: tuple[Expr, ...]) -> None:
    """Combine another state into this one; two empty ones make an empty one."""
    (mean, *sums, count), (theirs, *more, number) = state, other
    both = scope.let("n", Apply("add", (count, number)))
    share = scope.let("p", Apply("div", (number, Apply("max", (both, const(count.dtype, 1))))))
    apart = scope.let("d", Apply("sub", (theirs, mean)))
    shift = scope.let("h", Apply("mul", (apart, share)))
    for s, t in zip(sums, more, strict=True):
        between = Apply("mul", (Apply("mul", (apart, shift)), count))
        scope.emit(Assign(s, Apply("add", (Apply("add", (s, t)), between))))
    scope.emit(Assign(mean, Apply("add", (mean, shift))), Assign(count, both))


def join(scope: Emitter, state: tuple[Var, ...], lanes: int) -> None:
    """Every lane ends with the state of its group."""
    warp.exchange(scope, state, lanes, lambda other: merge(scope, state, other))
