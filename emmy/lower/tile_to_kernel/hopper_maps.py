"""Operands and results as tensor maps see them: boxes of a strided tensor that one instruction moves to or from shared memory.

A map has up to five dimensions, the first of which is contiguous; the others lie multiples of 16 bytes apart, and so does where the
tensor begins.  A box that reaches beyond a dimension's end is filled with zeros as it is read, and clipped as it is written.
(CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors".)
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix
from emmy.ir.kernel_ir import Expr, int32
from emmy.lower.tile_to_kernel.scalar import Emitter, affine

LINE = 64           # halves of a line of a swizzled box: 128 bytes
BOX_BYTES = 64 * 64 * 2     # of a box that a result is stored in
MOST_ROWS = 256     # of a box along one dimension
MOST_DIMENSIONS = 5


class Dimension(NamedTuple):
    """One dimension of a map: axes that are one in memory, outermost first, how many elements they have together and how far apart."""

    axes: tuple[int, ...]
    extent: int
    stride: int


class View(NamedTuple):
    """An operand's dimensions by what runs along them, innermost first: the folded axis, a side, the batch."""

    folded: Dimension
    side: tuple[Dimension, ...]
    batch: tuple[Dimension, ...]

    @property
    def by_depth(self) -> bool:
        """Whether neighbours along the folded axis are neighbours in memory."""
        return self.folded.stride == 1

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """In the order of the map."""
        pair = (self.folded, *self.side) if self.by_depth else (self.side[0], self.folded, *self.side[1:])
        return (*pair, *self.batch)

    @property
    def unit(self) -> int:
        """What the positions of a tile must be a multiple of: a box holds lines of 64, or at least 8 of them, the period of the swizzle,
        and crosses no inner end of a side of several dimensions."""
        return 8 if self.by_depth and len(self.side) == 1 else LINE

    def box(self, positions: int) -> int:
        """How many of a tile's positions one box holds."""
        if self.unit == LINE:
            return LINE
        return next(n for n in range(min(positions, MOST_ROWS), 0, -8) if positions % n == 0)

    def coordinates(self, scope: Emitter, position: Expr, depth: Expr) -> tuple[Expr, ...]:
        """Where the box begins at a position of the side and an element of the folded axis, at the scope's point of the batch."""
        side, deep = unravel(position, self.side), depth
        pair = (deep, *side) if self.by_depth else (side[0], deep, *side[1:])
        return (*pair, *(batch_coordinate(scope, d) for d in self.batch))


def unravel(position: Expr, dimensions: tuple[Dimension, ...]) -> tuple[Expr, ...]:
    """The coordinates of a row-major position, innermost first; the outermost one may lie beyond its end."""
    out = []
    for d in dimensions[:-1]:
        out.append(position % d.extent)
        position = position // d.extent
    return (*out, position)


def batch_coordinate(scope: Emitter, d: Dimension) -> Expr:
    """The coordinate of the scope's point of the batch."""
    flat: Expr = int32(0)
    for a in d.axes:
        flat = flat * scope.kernel.extents[a] + scope.axes[a]
    return flat


def operand(tensor: tile.Tensor, point: tuple[Ix, ...], folded: int, side: Iterable[int], batch: Iterable[int],
            extents: dict[int, int]) -> View | None:
    """A load of halves as the operand of a product: along the folded axis or along its side it lies contiguous.  None where no map has it."""
    strides = _strides(tensor, point)
    if strides is None or extents[folded] == 1:
        return None
    (deep,), across, batched = (_merged(axes, strides, extents) for axes in ((folded,), side, batch))
    pitch = -(-extents[folded] // 8) * 8
    view = View(deep, across or (Dimension(tuple(side), 1, pitch),), tuple(d for d in batched if d.stride))
    return view if mappable(view.dimensions, tensor) and even(view.side) else None


class Target(NamedTuple):
    """The dimensions of a result of halves, stored in boxes of 64 columns by 64 rows."""

    across: tuple[Dimension, ...]
    down: tuple[Dimension, ...]
    batch: tuple[Dimension, ...]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """In the order of the map."""
        return (self.across[0], *self.down, *self.across[1:], *self.batch)

    def coordinates(self, scope: Emitter, column: Expr, row: Expr) -> tuple[Expr, ...]:
        """Where the box begins at a column and a row, at the scope's point of the batch."""
        across, down = unravel(column, self.across), unravel(row, self.down)
        return (across[0], *down, *across[1:], *(batch_coordinate(scope, d) for d in self.batch))


def result(tensor: tile.Tensor, axes: tuple[int, ...], rows: Iterable[int], columns: Iterable[int], batch: Iterable[int],
           extents: dict[int, int]) -> Target | None:
    """Halves stored at every point of `axes`; None where no map has the tensor, or its columns are not contiguous."""
    strides = _strides(tensor, tuple(map(Ax, axes)))
    if strides is None:
        return None
    across, down, batched = (_merged(group, strides, extents) for group in (columns, rows, batch))
    across = across or (Dimension(tuple(columns), 1, 1),)
    down = down or (Dimension(tuple(rows), 1, -(-across[0].extent // 8) * 8),)
    target = Target(across, down, batched)
    return target if mappable(target.dimensions, tensor) and even(across) and even(down) else None


def even(side: tuple[Dimension, ...]) -> bool:
    """Whether no line of 64 positions crosses an inner end of a side."""
    return all(d.extent % LINE == 0 for d in side[:-1])


def mappable(dimensions: tuple[Dimension, ...], tensor: tile.Tensor) -> bool:
    """Whether a map describes a tensor of halves with these dimensions."""
    first, *others = dimensions
    return (tensor.element.bytes == 2 and first.stride == 1 and len(dimensions) <= MOST_DIMENSIONS
            and all(d.stride > 0 and d.stride % 8 == 0 for d in others) and prod(tensor.shape) < 1 << 32)


def _strides(tensor: tile.Tensor, point: tuple[Ix, ...]) -> dict[int, int] | None:
    """How far apart neighbours along each axis lie; None where a coordinate is not affine in them, or the first element not aligned."""
    terms, constant = affine(ix.flatten(point, tensor.shape))
    if constant or not all(isinstance(leaf, Ax) for leaf in terms):
        return None
    return {leaf.a: n for leaf, n in terms.items() if isinstance(leaf, Ax)}


def _merged(axes: Iterable[int], strides: dict[int, int], extents: dict[int, int]) -> tuple[Dimension, ...]:
    """The axes' dimensions, innermost first; neighbours that are one in memory are one, and an axis of one element is none."""
    out: list[Dimension] = []
    for a in reversed(tuple(axes)):
        n, s = extents[a], strides.get(a, 0)
        if n == 1:
            continue
        if out and s == out[-1].extent * out[-1].stride:
            out[-1] = Dimension((a, *out[-1].axes), n * out[-1].extent, out[-1].stride)
        else:
            out.append(Dimension((a,), n, s))
    return tuple(out)

