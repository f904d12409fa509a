"""The work that no schedule avoids."""

from __future__ import annotations

from math import prod

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.tune.census import Census, fold_slots, slots


def operations(kernel: tile.Kernel) -> float:
    """Scalar operations of the kernel's form, each value once for each setting of its axes, a multiply-add as two; a scan
    takes each element in once."""
    census = Census(kernel)
    scans = sum(census.size(f.span) * sum(map(slots, (*loop.walk(f.lifts), *f.lifts))) for f in kernel.folds if f.kind == "scan")
    others = [f for f in kernel.folds if f.kind != "scan"]
    combining = sum(max(fold_slots(census, f), census.size(f.span | {f.axis})) for f in others)

    def times(v: Value) -> int:     # what an index chooses among is no more than there is
        most = prod(census.tensors[v.tensor].shape) if isinstance(v, loop.Load) else None
        return census.size(census.free[v]) if most is None else min(census.size(census.free[v]), most)

    return scans + combining + sum(slots(v) * times(v) for roots in (kernel.results, *(f.lifts for f in others)) for v in loop.walk(roots))
