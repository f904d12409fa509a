"""A softmax fold taken apart, into the maximum of its scores and then sums of weights against it: each weight is computed once, against
the pivot that the result is written against too.  For rows that are in registers anyway, where a second walk over them costs no traffic.

Against a pivot of -inf weights are no numbers, and so is what is written along such a row.  Where a row is written as a whole it may be a
piece of one, which counts for nothing: its sums are 0, as those of the twist are."""

from __future__ import annotations

from functools import lru_cache

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Apply, Value


@lru_cache(maxsize=1 << 10)
def untwisted(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with each fold of recipe "softmax" as a fold "max" and one fold "add" a channel, sum exp(score - maximum) * value."""
    made: dict[Value, Value] = {}
    folds: list[tile.Fold] = []
    whole = frozenset(kernel.outer) <= frozenset[int]().union(*(f.span for f in kernel.folds))

    def convert(v: Value) -> Value:
        if v not in made:
            match v:
                case Apply(op, args): made[v] = Apply(op, tuple(map(convert, args)))
                case loop.Cast(element, x): made[v] = loop.Cast(element, convert(x))
                case loop.Round(element, x): made[v] = loop.Round(element, convert(x))
                case _: made[v] = v
        return made[v]

    for f in kernel.folds:
        lifts = tuple(map(convert, f.lifts))
        if f.kind != "twist" or f.recipe != "softmax":
            folds.append(f.replace(lifts=lifts))
            continue
        score, *values = lifts
        pivot = tile.Fold(f.name, "reduce", "max", f.axis, (score,), None, f.needs[:1])
        weight = Apply("exp", (Apply("sub", (score, pivot.result())),))
        empty = Apply("eq", (pivot.result(), constant(pivot.result().dtype, float("-inf"))))
        folds.append(pivot)
        for k, x in enumerate(values, 1):
            one = isinstance(x, loop.Const) and x.bits == dt.bits(x.element, 1)
            lift = weight if one else Apply("mul", (weight, x))
            folds.append(tile.Fold(f"{f.name}_{k}", "reduce", "add", f.axis, (lift,), None, f.needs[k:k + 1]))
            total = folds[-1].result()
            made[f.result(k)] = Apply("select", (empty, constant(total.dtype, 0.0), total)) if whole else total
    return kernel.replace(folds=tuple(folds), results=tuple(map(convert, kernel.results)))


def constant(dtype: DType, x: float) -> Value:
    return loop.Const(dtype, dt.bits(dtype, x))
