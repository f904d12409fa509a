"""Form "layered": products of rows with whichever matrix of a batch each row asks for, as products of all rows with every matrix.

sum_k x[m, k] w[e(m), k, n] is what sum_k x[m, k] w[g, k, n] is at g = e(m): an axis g of the batch takes the place of the index, and of
its layers a row keeps the one that it asks for.  Nothing is assumed of the values: where rows come in the order of their layers, each layer
has tiles of its rows, and otherwise every layer has tiles of all rows, of which the rows are written that ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Load, Value
from emmy.lower.tile_to_kernel.address import affine
from emmy.lower.tile_to_kernel.shared_keys import with_operands


class Layered(NamedTuple):
    """The kernel whose products are those of all rows with every matrix, the axis of its layers, and the layer that a point asks for."""

    kernel: tile.Kernel
    axis: int
    asked: Value

    @property
    def layers(self) -> int:
        return self.kernel.extents[self.axis]


def number(x: Ix, of: IxOf, extent: int, extents: Mapping[int, int]) -> int | None:
    """How many layers a dimension has that is read at x, a multiple of an index and what lies in the layer; None if x is none."""
    terms, constant = affine(x)
    step, rest = terms.get(of, 0), {leaf: n for leaf, n in terms.items() if leaf is not of}
    if constant or not all(isinstance(leaf, Ax) and n > 0 for leaf, n in rest.items()) or step < 1 or extent % step:
        return None
    most = sum(n * (extents[leaf.a] - 1) for leaf, n in rest.items() if isinstance(leaf, Ax))
    return extent // step if most < step else None


@lru_cache(maxsize=1 << 10)
def layered(kernel: tile.Kernel) -> Layered | None:
    """A kernel whose folds read by one index, a value of the output's axes, as such products; None if it is none."""
    shapes, extents = {t.name: t.shape for t in kernel.tensors}, kernel.extents
    found = {(leaf, number(x, leaf, shapes[v.tensor][k], extents)) for f in kernel.folds for v in loop.walk(f.lifts) if isinstance(v, Load)
             for k, x in enumerate(v.point) for leaf in ix.leaves(x) if isinstance(leaf, IxOf)}
    if len(found) != 1 or (first := next(iter(found)))[1] is None:
        return None
    term, layers = first
    inside = loop.walk((term.value,))
    if any(isinstance(v, tile.FoldResult) for v in inside) or not tile.free_axes((term.value,))[term.value] <= {*kernel.outer}:
        return None
    axis = max(kernel.extents) + 1
    made: dict[Value, Value] = {}

    def at(x: Ix) -> Ix:
        return ix.substitute(x, lambda leaf: Ax(axis) if leaf is term else leaf)

    for v in loop.walk(tuple(x for f in kernel.folds for x in f.lifts)):
        made[v] = v.replace(point=tuple(map(at, v.point))) if isinstance(v, Load) else with_operands(v, made)
    folds = tuple(f.replace(lifts=tuple(made[x] for x in f.lifts)) for f in kernel.folds)
    return Layered(kernel.replace(inner=(*kernel.inner, (axis, layers)), folds=folds), axis, term.value)
