"""Kernels of Tile IR on tensors of other names."""

from __future__ import annotations

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower.tensor_to_loop import rename


def renamed(kernel: tile.Kernel, names: dict[str, str]) -> tuple[tuple[tile.Fold, ...], tuple[Value, ...]]:
    """The folds and results of a kernel with tensors renamed, those that say how far a scan goes too."""
    def value(v: Value) -> Value:
        return rename(v, {}, names)

    def fold(f: tile.Fold) -> tile.Fold:
        upto = value(loop.IndexOf(f.upto)) if f.upto is not None else None
        assert upto is None or isinstance(upto, loop.IndexOf)
        return f.replace(lifts=tuple(map(value, f.lifts)), upto=upto.at if upto else None)

    return tuple(map(fold, kernel.folds)), tuple(map(value, kernel.results))
