"""Decoding: a twist whose score has one row for each point of the batch, as a twist of rows on an axis of one element."""

from __future__ import annotations

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.shared_keys import with_operands
from emmy.lower.tile_to_kernel.staging import factors


def with_row(kernel: tile.Kernel, schedule: tile.Schedule) -> tuple[tile.Kernel, tile.Schedule]:
    """The same kernel and schedule with a row: the factors of the score's products that no key is in, the queries, lie along it."""
    twists = [f for f in kernel.folds if f.kind == "twist"]
    if schedule.form != "twist" or schedule.rows or len(twists) != 1:
        return kernel, schedule
    row, key, free = max(kernel.extents) + 1, twists[0].axis, tile.free_axes(kernel.roots)
    made: dict[Value, Value] = {}

    def rebuilt(root: Value) -> Value:
        for v in loop.walk((root,)):
            if v not in made:
                made[v] = with_operands(v, made)
        return made[root]

    folds = []
    for f in kernel.folds:
        on_row = f is twists[0] or key in f.span
        if on_row and f is not twists[0]:
            for x in factors(f.lifts[0]):
                for v in loop.walk((x,)):
                    if isinstance(v, loop.Load) and key not in free[x] and v.point:
                        made[v] = v.replace(point=(ix.add(v.point[0], Ax(row)), *v.point[1:]))
        needs = tuple(n | {row} for n in f.needs) if on_row else f.needs
        folds.append(f.replace(lifts=tuple(map(rebuilt, f.lifts)), needs=needs))
        made.update((f.result(c), folds[-1].result(c)) for c in range(len(f.lifts)))
    out = kernel.replace(inner=(*kernel.inner, (row, 1)), folds=tuple(folds), results=tuple(map(rebuilt, kernel.results)))
    return out, schedule.replace(rows=(row,))
