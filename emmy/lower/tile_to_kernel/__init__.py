"""Tile IR to Kernel IR: a fold tree and its schedule to statements, one module a form."""

from __future__ import annotations

from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError


def lower(kernel: tile.Kernel) -> kernel_ir.Kernel:
    """The Kernel IR of a scheduled kernel; IRError if it has no schedule."""
    from emmy.lower.tile_to_kernel import contraction, elementwise, fold, twist_tile

    if kernel.schedule is None:
        raise IRError(f"kernel {kernel.name} has no schedule")
    forms = {"map": elementwise.lower, "fold": fold.lower, "contraction": contraction.lower, "twist": twist_tile.lower}
    return forms[kernel.schedule.form](kernel, kernel.schedule)
