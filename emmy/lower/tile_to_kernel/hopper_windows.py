"""Operands that are windows of images, as the copy engine sees them, and sums over several axes.

A convolution sums x[n, s*p + d*r - b, ..., c] * w[o, r, ..., c] over places r of a window and channels c, with x taken as 0 outside of its
images.  The axes other than the channels' are taps: one stage of a ring is a tap and some channels.  Positions (n, p, ...) are windows,
which one copy takes in their order across the ends of lines and images; it fills with 0 what lies outside, which is the padding if the
program selects 0 exactly there.  (PTX ISA, "im2col mode"; CUDA driver API, cuTensorMapEncodeIm2col.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from emmy.instructions import CopyWindows
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.kernel_ir import Expr, Stmt, TensorMap, Windows, int32
from emmy.ir.loop_ir import Load, Value, load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.address import affine
from emmy.lower.tile_to_kernel.scalar import Emitter

Nest = tuple[tile.Fold, ...]
Bounds = dict[Ix, tuple[int, int]]      # of sums of axes, by their term: the least value and the one after the largest


def nests(kernel: tile.Kernel) -> list[Nest]:
    """The folds, sums of sums together, innermost first."""
    out: dict[str, Nest] = {}
    for f in kernel.folds:
        under = f.lifts[0].fold if summing(f) and isinstance(f.lifts[0], tile.FoldResult) else ""
        inner = out.pop(under, ())
        out[f.name] = (*inner, f)
    return list(out.values())


def summing(f: tile.Fold) -> bool:
    """Whether it is a sum of fp32."""
    return f.kind == "reduce" and f.recipe == "add" and f.lifts[0].dtype is dt.f32


class Term(NamedTuple):
    """One dimension of a tensor of windows: the axis of positions and how far apart they begin, the axis of taps and how far apart they
    are, where the first window begins."""

    position: int | None
    step: int
    tap: int | None
    dilation: int
    lower: int


class Window(NamedTuple):
    """A tensor [images, ..., channels] of halves as operand of a sum over windows; `terms` of the dimensions between, `counts` of windows
    along them."""

    shape: tuple[int, ...]
    terms: tuple[Term, ...]
    counts: tuple[int, ...]

    @property
    def by_depth(self) -> bool:
        """Neighbours along the channels are neighbours in memory."""
        return True

    @property
    def unit(self) -> int:
        """What a tile's positions are a multiple of: the period of the swizzle."""
        return 8

    @property
    def positions(self) -> int:
        return self.shape[0] * prod(self.counts)

    def box(self, positions: int) -> int:
        """How many windows of a tile one copy takes."""
        return next(n for n in range(min(positions, maps.MOST), 0, -8) if positions % n == 0)

    def filled(self, positions: int) -> int:
        """How many of a tile's positions are copied: all, or those of few windows, in eights."""
        return min(positions, -(-self.positions // 8) * 8)

    def map(self, name: str, tensor: tile.Tensor, deep: int, side: int, element: DType | None = None) -> TensorMap:
        """The map whose tiles have so many channels of so many windows, as those of `element` if it is given."""
        windows = Windows(tuple(t.lower for t in self.terms), self.counts, tuple(t.step for t in self.terms))
        return TensorMap(name, tensor.name, element or tensor.element, self.shape, (side, *(1 for _ in self.terms), deep), windows=windows)

    def copy(self, scope: Emitter, buffer: str, place: Expr, name: str, deep: Expr, side: Expr, barrier: str, slot: Expr,
             once: bool = False, mask: Expr | None = None) -> Stmt:
        """The copy of channels from `deep` on of windows from `side` on, of the scope's tap.  Windows overlap: none is read `once`."""
        at: list[Expr] = []
        for t, n in zip(self.terms[::-1], self.counts[::-1], strict=True):
            at.append(side % n * t.step + t.lower)
            side = side // n
        offsets = tuple(maps.narrow(scope.axes[t.tap]) * t.dilation if t.tap is not None else int32(0) for t in self.terms)
        return CopyWindows(buffer, place, name, (side, *at[::-1], deep), offsets, barrier, slot, mask)


View = maps.View | Window


class Summed(NamedTuple):
    """The axis whose elements fill stages, the other axes of a sum, and its two factors: what they load, and how maps have it."""

    axis: int
    taps: tuple[int, ...]
    operands: tuple[tuple[Load, View], tuple[Load, View]]

    @property
    def right(self) -> tuple[Load, View]:
        return self.operands[1]


def operand(tensors: Mapping[str, tile.Tensor], value: Value, element: DType, folded: int, taps: Iterable[int], side: Iterable[int],
            batch: Iterable[int], extents: Mapping[int, int]) -> tuple[Load, View] | None:
    """A factor of a sum over the axis `folded` and `taps` as an operand, and what it loads; None where no map has it."""
    taps, side, batch = tuple(taps), tuple(side), tuple(batch)
    plain = load_of(value, element.stored)
    view = maps.operand(tensors[plain.tensor], plain.point, folded, side, (*batch, *taps), extents) if plain else None
    if plain and view:
        return plain, view
    found = (plain, Bounds()) if plain else _padded(value, element.stored)
    if found is None or any(extents[a] > 1 for a in batch):
        return None
    load, bounds = found
    window = _window(tensors[load.tensor], load.point, bounds, folded, taps, side, extents)
    return (load, window) if window else None


def summed(kernel: tile.Kernel, nest: Nest, element: DType, factors: Sequence[Value], sides: Iterable[Iterable[int]],
           batch: Iterable[int]) -> Summed | None:
    """A nest over products of two factors, each on a side; None where no map has them."""
    tensors, every = {t.name: t for t in kernel.tensors}, tuple(f.axis for f in nest)
    sides, batch = tuple(map(tuple, sides)), tuple(batch)
    for folded in every:
        taps = tuple(a for a in every if a != folded)
        left, right = (operand(tensors, v, element, folded, taps, side, batch, kernel.extents)
                       for v, side in zip(factors, sides, strict=True))
        if left and right:
            return Summed(folded, taps, (left, right))
    return None


def _padded(value: Value, element: DType) -> tuple[Load, Bounds] | None:
    """A load that counts where all of these bounds hold, and is 0 elsewhere."""
    match value:
        case loop.Apply("select", (condition, x, loop.Const(_, 0))) if load := load_of(x, element):
            bounds: Bounds = {}
            for term, low, high in _bounds(condition):
                if term is None:
                    return None
                least, most = bounds.get(term, (low, high))
                bounds[term] = max(least, low), min(most, high)
            return load, bounds
    return None


def _bounds(condition: Value) -> Iterator[tuple[Ix | None, int, int]]:
    """The parts of a condition, each as bounds of a sum of axes; None for one that is none."""
    far = 1 << 62
    match condition:
        case loop.Apply("and", (p, q)):
            yield from _bounds(p)
            yield from _bounds(q)
        case loop.Apply("le" | "lt" as op, (loop.Const(dt.i64, bits), loop.IndexOf(at))):
            term, constant = _sum(at)
            yield term, int(dt.value(dt.i64, bits)) + (op == "lt") - constant, far
        case loop.Apply("le" | "lt" as op, (loop.IndexOf(at), loop.Const(dt.i64, bits))):
            term, constant = _sum(at)
            yield term, -far, int(dt.value(dt.i64, bits)) + (op == "le") - constant
        case _:
            yield None, 0, 0


def _sum(x: Ix) -> tuple[Ix, int]:
    """An index as a sum of axes in one order, and what is added to it."""
    terms, constant = affine(x)
    total: Ix = ix.IxConst(0)
    for leaf, n in sorted(terms.items(), key=lambda item: str(item[0])):
        total = ix.add(total, ix.mul(leaf, n))
    return total, constant


def _window(tensor: tile.Tensor, point: tuple[Ix, ...], bounds: Bounds, folded: int, taps: tuple[int, ...], side: tuple[int, ...],
            extents: Mapping[int, int]) -> Window | None:
    first, *between, last = ((*point, ix.IxConst(0), ix.IxConst(0)) if len(point) < 2 else point)
    images, channels = tensor.shape[0], tensor.shape[-1]
    laid = [_term(x, n, bounds, taps, side, extents) for x, n in zip(between, tensor.shape[1:-1], strict=False)]
    terms = tuple(t for t in laid if t is not None)
    if len(terms) < len(laid) or last is not Ax(folded) or extents[folded] != channels or channels % 8 or tensor.element.bytes != 2:
        return None
    whole = first is ix.IxConst(0) and images == 1 or isinstance(first, Ax) and first.a in side and extents[first.a] == images
    used = (*(x.a for x in (first,) if isinstance(x, Ax)), *(t.position for t in terms if t.position is not None))
    met = {t.tap for t in terms if t.tap is not None}
    if not whole or bounds.keys() - {_sum(_inner(x))[0] for x in between} or met != {a for a in taps if extents[a] > 1}:
        return None
    view = Window(tensor.shape, terms, tuple(extents[t.position] if t.position is not None else 1 for t in terms))
    if [a for a in used if extents[a] > 1] != [a for a in side if extents[a] > 1]:
        return None
    try:
        made = view.map("view", tensor, maps.LINE, 8)
    except IRError:
        return None
    far = any(t.tap is not None and t.dilation * (extents[t.tap] - 1) >= made.window_offsets for t in terms)
    return None if far else view


def _inner(x: Ix) -> Ix:
    """What a remainder is of."""
    return x.x if isinstance(x, ix.IxMod) else x


def _term(x: Ix, extent: int, bounds: Bounds, taps: tuple[int, ...], side: tuple[int, ...], extents: Mapping[int, int]) -> Term | None:
    """A coordinate of a dimension that is step * position + dilation * tap + lower: wherever its bounds hold, it lies in the dimension, and
    nowhere else.  There a remainder by the extent, which keeps any coordinate inside, is the coordinate itself."""
    whole, constant = _sum(_inner(x))
    terms, _ = affine(whole)
    if not all(isinstance(leaf, Ax) and n > 0 for leaf, n in terms.items()) or isinstance(x, ix.IxMod) and x.n != extent:
        return None
    least, most = ix.bounds(whole, lambda leaf: extents[leaf.a] if isinstance(leaf, Ax) else 1)
    low, high = bounds.get(whole, (least, most + 1))
    low, high = max(low, least), min(high, most + 1)
    lower = constant - (low + constant) // extent * extent if isinstance(x, ix.IxMod) else constant
    if low >= high or low + lower < 0 or high + lower > extent or low > max(least, -lower) or high < min(most + 1, extent - lower):
        return None
    axes = {leaf.a: n for leaf, n in terms.items() if isinstance(leaf, Ax) and extents[leaf.a] > 1}
    positions, offsets = [a for a in axes if a in side], [a for a in axes if a in taps]
    if len(positions) > 1 or len(offsets) > 1 or len(positions) + len(offsets) < len(axes):
        return None
    (position, step), (tap, dilation) = ((of[0], axes[of[0]]) if of else (None, 1) for of in (positions, offsets))
    return Term(position, step, tap, dilation, lower)
