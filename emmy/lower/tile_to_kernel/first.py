"""The recipe "first" of a twisted fold as scalar code: state (m, x1, …, xn) with m the greatest score, a NaN above all, and xk the least
value of channel k among the elements with that score: where the values are places, the first place of the maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.instructions.registers import Assign
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Expr, Var, const
from emmy.ir.operators import unit
from emmy.lower.tile_to_kernel import lanes as warp

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.scalar import Emitter


def initial(dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    """The neutral state: below every score, and above every value."""
    return const(dtypes[0], unit("max", dtypes[0])), *(const(d, unit("min", d)) for d in dtypes[1:])


def accumulate(scope: Emitter, state: tuple[Var, ...], elements: list[tuple[Expr, ...]]) -> None:
    """Fold elements (score, value, …) in, one after the other."""
    for element in elements:
        merge(scope, state, element)


def merge(scope: Emitter, state: tuple[Var, ...], other: tuple[Expr, ...]) -> None:
    """Combine another state into this one."""
    (best, *values), (score, *theirs) = state, other
    score = scope.let("x", score)
    number = Apply("eq", (best, best))
    above = scope.let("p", Apply("and", (Apply("not", (Apply("le", (score, best)),)), number)))
    neither = Apply("not", (Apply("or", (number, Apply("eq", (score, score)))),))
    level = scope.let("q", Apply("or", (Apply("eq", (score, best)), neither)))
    for v, t in zip(values, theirs, strict=True):
        taken = Apply("or", (above, Apply("and", (level, Apply("lt", (t, v))))))
        scope.emit(Assign(v, Apply("select", (taken, t, v))))
    scope.emit(Assign(best, Apply("select", (above, score, best))))


def join(scope: Emitter, state: tuple[Var, ...], lanes: int) -> None:
    """Every lane ends with the state of its group."""
    warp.exchange(scope, state, lanes, lambda other: merge(scope, state, other))
