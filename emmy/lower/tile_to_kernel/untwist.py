"""A softmax fold taken apart, into the maximum of its scores and then sums of weights against it: each weight is computed once, against
the pivot that the result is written against too.  For rows that are in registers anyway, where a second walk over them costs no traffic."""

from __future__ import annotations

from functools import lru_cache

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Apply, Value


@lru_cache(maxsize=1 << 10)
def untwisted(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with each fold of recipe "softmax" as a fold "max" and one fold "add" a channel, sum exp(score - maximum) * value."""
    made: dict[Value, Value] = {}
    folds: list[tile.Fold] = []

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
        folds.append(pivot)
        for k, x in enumerate(values, 1):
            one = isinstance(x, loop.Const) and x.bits == dt.bits(x.element, 1)
            lift = weight if one else Apply("mul", (weight, x))
            folds.append(tile.Fold(f"{f.name}_{k}", "reduce", "add", f.axis, (lift,), None, f.needs[k:k + 1]))
            made[f.result(k)] = folds[-1].result()
    return kernel.replace(folds=tuple(folds), results=tuple(map(convert, kernel.results)))
