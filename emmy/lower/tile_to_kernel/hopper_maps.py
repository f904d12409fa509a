"""Operands and results as tensor maps see them: boxes of a tensor that one instruction moves to or from shared memory.

A map has up to five dimensions; the innermost is contiguous, the others are multiples of 16 bytes apart, and so is where it begins.  A box
that reaches beyond a dimension's end is filled with zeros as it is read, and clipped as it is written.
(CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors".)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from emmy.instructions import CopyTile
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.kernel_ir import Convert, Expr, Stmt, TensorMap, int32
from emmy.ir.loop_ir import axes_of
from emmy.lower.tile_to_kernel.address import affine
from emmy.lower.tile_to_kernel.scalar import Emitter

LINE, BYTES = 64, 128       # halves of a line of a swizzled box, and its bytes
MOST = 256                  # positions of a box along one dimension


class Dimension(NamedTuple):
    """One dimension of a map: axes that are one in memory, outermost first, how many elements they have together and how far apart;
    or, of the batch, a quotient or remainder of its axes, such as the head of keys that several heads of queries share."""

    axes: tuple[int, ...]
    extent: int
    stride: int
    term: Ix | None = None


class View(NamedTuple):
    """A tensor, from element `start` on, as its dimensions: two sides that boxes run along, innermost ones first, and a batch.

    Of an operand `deep` is the folded axis and `side` its rows or columns; of a result they are its columns and its rows."""

    deep: tuple[Dimension, ...]
    side: tuple[Dimension, ...]
    batch: tuple[Dimension, ...]
    start: int = 0

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """In the order of memory, outermost first."""
        return tuple(sorted((*self.deep, *self.side, *self.batch), key=lambda d: (-d.stride, d.extent == 1)))

    @property
    def by_depth(self) -> bool:
        """Whether neighbours along `deep` are neighbours in memory."""
        return self.deep[0].stride == 1

    @property
    def unit(self) -> int:
        """What a tile's positions along `side` are a multiple of: a box holds lines of 64, or at least 8 of them, the period of the
        swizzle, and crosses no inner end of a side of several dimensions."""
        return 8 if self.by_depth and len(self.side) == 1 else LINE

    def box(self, positions: int) -> int:
        """How many of a tile's positions along `side` one box holds."""
        return LINE if self.unit == LINE else next(n for n in range(min(positions, MOST), 0, -8) if positions % n == 0)

    def filled(self, positions: int) -> int:
        """How many of a tile's positions are copied: all, or those of a side that ends before, in whole lines or eights."""
        if len(self.side) > 1:
            return positions
        unit = 8 if self.by_depth else LINE
        return min(positions, -(-self.side[0].extent // unit) * unit)

    def map(self, name: str, tensor: tile.Tensor, deep: int, side: int, swizzle: int = 128, element: DType | None = None) -> TensorMap:
        """The map whose boxes have so many elements along `deep` and `side`, as those of `element` if it is given."""
        boxes, shape = {self.deep[0]: deep, self.side[0]: side}, tuple(d.extent for d in self.dimensions)
        pitches, dense = tuple(d.stride for d in self.dimensions), tuple(prod(shape[k + 1:]) for k in range(len(shape)))
        box = tuple(boxes.get(d, 1) for d in self.dimensions)
        return TensorMap(name, tensor.name, element or tensor.element, shape, box, swizzle, self.start,
                         () if pitches == dense else pitches)

    def copy(self, scope: Emitter, buffer: str, place: Expr, name: str, deep: Expr, side: Expr, barrier: str, slot: Expr,
             once: bool = False, mask: Expr | None = None) -> Stmt:
        """The copy of the box of the map `name` at an element of `deep` and a position of `side`, read `once` or by several blocks; to
        those of a `mask`."""
        return CopyTile(buffer, place, name, self.coordinates(scope, deep, side), barrier, slot, once, mask)

    def coordinates(self, scope: Emitter, deep: Expr, side: Expr) -> tuple[Expr, ...]:
        """Where the box begins at an element of `deep` and a position of `side`, at the scope's point of the batch."""
        at = unravel(self.deep, deep) | unravel(self.side, side)
        for d in self.batch:
            flat: Expr = narrow(scope.index(d.term)) if d.term is not None else int32(0)
            for a in d.axes:
                flat = flat * scope.kernel.extents[a] + narrow(scope.axes[a])
            at[d] = flat
        return tuple(at[d] for d in self.dimensions)


def unravel(dimensions: tuple[Dimension, ...], position: Expr) -> dict[Dimension, Expr]:
    """The coordinates of a row-major position along dimensions, innermost first; the outermost one may lie beyond its end."""
    out = {}
    for d in dimensions[:-1]:
        out[d] = position % d.extent
        position = position // d.extent
    return out | {dimensions[-1]: position}


def operand(tensor: tile.Tensor, point: tuple[Ix, ...], folded: int, side: Iterable[int], batch: Iterable[int],
            extents: Mapping[int, int]) -> View | None:
    """A load as an operand: along the folded axis it lies contiguous or, of halves, along its side.  None where no map has it."""
    view = _view(tensor, point, (folded,), side, batch, extents)
    return view if view is not None and (view.by_depth or tensor.element.bytes == 2) else None


def result(tensor: tile.Tensor, axes: tuple[int, ...], rows: Iterable[int], columns: Iterable[int], batch: Iterable[int],
           extents: Mapping[int, int]) -> View | None:
    """Halves stored at every point of `axes`, neighbours of `columns` next to each other.  None where no map has the tensor."""
    written = tensor.replace(shape=tuple(extents[a] for a in axes))    # over the axes, whatever dimensions its readers give it
    view = _view(written, tuple(map(Ax, axes)), columns, rows, batch, extents) if tensor.element.bytes == 2 else None
    return view if view is not None and view.by_depth and even(view.deep) else None


def in_lines(tensor: tile.Tensor, axes: tuple[int, ...], columns: Iterable[int], extents: Mapping[int, int]) -> bool:
    """Whether halves stored at every point of `axes` have neighbours of `columns` next to each other."""
    terms, _ = affine(ix.flatten(tuple(map(Ax, axes)), [extents[a] for a in axes]))
    side = _merged(tuple(columns), {leaf.a: n for leaf, n in terms.items() if isinstance(leaf, Ax)}, extents)
    return tensor.element.bytes == 2 and (not side or side[0].stride == 1)


def even(side: tuple[Dimension, ...]) -> bool:
    """Whether no line of 64 positions crosses an inner end."""
    return all(d.extent % LINE == 0 for d in side[:-1])


def _view(tensor: tile.Tensor, point: tuple[Ix, ...], deep: Iterable[int], side: Iterable[int], batch: Iterable[int],
          extents: Mapping[int, int]) -> View | None:
    terms, constant = affine(ix.flatten(point, tensor.shape))
    shared = [leaf for leaf in terms if not isinstance(leaf, Ax)]
    known = all(isinstance(leaf, ix.IxDiv | ix.IxMod) and axes_of(leaf) <= {*batch} for leaf in shared)
    piece = 16 // tensor.element.bytes      # elements that where a line begins is a multiple of
    if constant % piece or not known:
        return None
    strides = {leaf.a: n for leaf, n in terms.items() if isinstance(leaf, Ax)}
    first, second, third = (_merged(tuple(group), strides, extents) for group in (deep, side, batch))
    if not first or any(d.stride == 0 for d in (*first, *second)):
        return None
    second = second or (Dimension(tuple(side), 1, -(-first[-1].extent * first[-1].stride // piece) * piece),)
    third += tuple(Dimension((), ix.upper(x, lambda leaf: extents[leaf.a] if isinstance(leaf, Ax) else 1) + 1, terms[x], x) for x in shared)
    view = View(first, second, tuple(d for d in third if d.stride), constant)
    *others, innermost = view.dimensions
    aligned = innermost.stride == 1 and all(d.stride > 0 and d.stride % piece == 0 for d in others)
    return view if aligned and len(others) < 5 and even(second) else None


def _merged(axes: tuple[int, ...], strides: Mapping[int, int], extents: Mapping[int, int]) -> tuple[Dimension, ...]:
    """The axes' dimensions, innermost first; neighbours that are one in memory are one, and an axis of one element is none."""
    out: list[Dimension] = []
    for a in reversed(axes):
        n, s = extents[a], strides.get(a, 0)
        if n > 1 and out and s == out[-1].extent * out[-1].stride:
            out[-1] = Dimension((a, *out[-1].axes), n * out[-1].extent, out[-1].stride)
        elif n > 1:
            out.append(Dimension((a,), n, s))
    return tuple(out)


def narrow(e: Expr) -> Expr:
    """A small index as i32."""
    return e if e.dtype is dt.i32 else Convert(dt.i32, e)
