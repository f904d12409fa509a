"""The recipe "softmax" of a twisted fold as scalar code: state (m, s1, …, sn) with sk = sum exp(score - m) * value_k.

Where all scores so far are -inf, m - m is not a number; the weights are then taken against 0, so that they are exp(-inf) = 0
and a row whose scores are all -inf ends with s = 0 (and 0 * 1/0 is the NaN that the written-out softmax has there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.instructions.registers import Assign, Let
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Expr, Var, const
from emmy.lower.tile_to_kernel import lanes as warp

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.scalar import Emitter


def initial(dtypes: tuple[DType, ...]) -> tuple[Expr, ...]:
    """The neutral state: pivot -inf, sums 0."""
    return const(dtypes[0], float("-inf")), *(const(d, 0) for d in dtypes[1:])


def base(scope: Emitter, pivot: Expr) -> Expr:
    """What exponents are taken against: the pivot, or 0 where it is -inf."""
    low = const(pivot.dtype, float("-inf"))
    return scope.let("b", Apply("select", (Apply("eq", (pivot, low)), const(pivot.dtype, 0), pivot)))


def weight(score: Expr, against: Expr) -> Expr:
    return Apply("exp", (Apply("sub", (score, against)),))


def accumulate(scope: Emitter, state: tuple[Var, ...], elements: list[tuple[Expr, ...]]) -> None:
    """Fold elements (score, value, …) in: one rescaling for all of them."""
    top: Expr = state[0]
    for score, *_ in elements:
        top = Apply("max", (top, score))
    top = scope.let("m", top)
    against = base(scope, top)
    scale = scope.let("c", weight(state[0], against))
    weights = [scope.let("w", weight(score, against)) for score, *_ in elements]
    for k, s in enumerate(state[1:]):
        total: Expr = Apply("mul", (s, scale))
        for w, (_, *values) in zip(weights, elements, strict=True):
            total = Apply("add", (total, times(w, values[k])))
        scope.emit(Assign(s, total))
    scope.emit(Assign(state[0], top))


def times(weight: Expr, value: Expr) -> Expr:
    """weight * value, without the multiplication by a constant one."""
    return weight if value is const(value.dtype, 1) else Apply("mul", (weight, value))


def merge(scope: Emitter, state: tuple[Var, ...], other: tuple[Expr, ...]) -> None:
    """Combine another state into this one."""
    top = scope.let("m", Apply("max", (state[0], other[0])))
    against = base(scope, top)
    mine, theirs = scope.let("c", weight(state[0], against)), scope.let("c", weight(other[0], against))
    for s, t in zip(state[1:], other[1:], strict=True):
        scope.emit(Assign(s, Apply("add", (Apply("mul", (s, mine)), Apply("mul", (t, theirs))))))
    scope.emit(Assign(state[0], top))


def join(scope: Emitter, state: tuple[Var, ...], lanes: int) -> None:
    """Every lane ends with the state of its group: pivots first, so that each lane rescales its sums once."""
    own = Var(scope.name("m"), state[0].element)
    scope.emit(Let(own, state[0]))
    warp.butterfly(scope, "max", state[0], lanes)
    scale = scope.let("c", weight(own, base(scope, state[0])))
    scope.emit(*(Assign(s, Apply("mul", (s, scale))) for s in state[1:]))
    for s in state[1:]:
        warp.butterfly(scope, "add", s, lanes)
