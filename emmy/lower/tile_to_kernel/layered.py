"""Form "layered": products of rows with whichever matrix of a batch each row asks for, as products of all rows with every matrix.

sum_k x[m, k] w[e(m), k, n] is what sum_k x[m, k] w[g, k, n] is at g = e(m): an axis g of the batch takes the place of the index, and of
its layers a row keeps the one that it asks for.  Nothing is assumed of the values: where rows come in the order of their layers, each layer
has tiles of its rows, and otherwise every layer has tiles of all rows, of which the rows are written that ask for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.loop_ir import IxOf, Load, Value
from emmy.lower.tile_to_kernel.shared_keys import with_operands


class Layered(NamedTuple):
    """The kernel whose products are those of all rows with every matrix, the axis of its layers, and the layer that a point asks for."""

    kernel: tile.Kernel
    axis: int
    asked: Value

    @property
    def layers(self) -> int:
        return self.kernel.extents[self.axis]


@lru_cache(maxsize=1 << 10)
def layered(kernel: tile.Kernel) -> Layered | None:
    """A kernel whose folds read by one index, a value of the output's axes, as such products; None if it is none."""
    shapes = {t.name: t.shape for t in kernel.tensors}
    found = {(x, shapes[v.tensor][k]) for f in kernel.folds for v in loop.walk(f.lifts) if isinstance(v, Load)
             for k, x in enumerate(v.point) if isinstance(x, IxOf)}
    if len(found) != 1:
        return None
    (term, layers), = found
    inside = loop.walk((term.value,))
    if any(isinstance(v, tile.FoldResult) for v in inside) or not tile.free_axes((term.value,))[term.value] <= {*kernel.outer}:
        return None
    axis = max(kernel.extents) + 1
    made: dict[Value, Value] = {}
    for v in loop.walk(tuple(x for f in kernel.folds for x in f.lifts)):
        made[v] = (v.replace(point=tuple(Ax(axis) if x is term else x for x in v.point)) if isinstance(v, Load) else with_operands(v, made))
    folds = tuple(f.replace(lifts=tuple(made[x] for x in f.lifts)) for f in kernel.folds)
    return Layered(kernel.replace(inner=(*kernel.inner, (axis, layers)), folds=folds), axis, term.value)
