"""Views and rearrangements: each is one index map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from emmy.ir import index as ix
from emmy.ir.index import Ix, IxConst, Pos
from emmy.ir.tensor_ir import Shape, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import Number, apply, axis, broadcast, cast, constant, permute, position, remap, reshape, select
from emmy.lower.torch_to_tensor.registry import lowers


@lowers(*(f"aten.{op}.default" for op in ("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "_reshape_copy", "ravel", "view_as",
                                           "reshape_as", "atleast_1d", "atleast_2d", "view_copy", "squeeze_copy", "unsqueeze_copy")),
        "aten.flatten.using_ints", "aten.unflatten.int", "aten.squeeze.dim", "aten.squeeze.dims")
def _reshape(out: Type, x: Tensor, *_: object) -> Tensor:
    return reshape(x, out.shape)


@lowers("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default", "aten.expand_copy.default")
def _expand(out: Type, x: Tensor, *_: object, implicit: bool = False) -> Tensor:
    return broadcast(x, out.shape)


@lowers("aten.broadcast_tensors.default")
def _broadcast_tensors(out: tuple[Type, ...], xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(broadcast(x, t.shape) for x, t in zip(xs, out, strict=True))


@lowers("aten.meshgrid.default", "aten.meshgrid.indexing")
def _meshgrid(out: tuple[Type, ...], xs: Sequence[Tensor], *, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vector k along dimension k; by "xy" the first two change places."""
    along = [1, 0, *range(2, len(xs))] if indexing == "xy" and len(xs) > 1 else range(len(xs))
    return tuple(remap(reshape(x, (x.size,)), t.shape, [Pos(k)]) for x, t, k in zip(xs, out, along, strict=True))


@lowers("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default", "aten.transpose_copy.int")
def _transpose(out: Type, x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(len(x.shape)))
    if order:
        i, j = axis(a, len(order)), axis(b, len(order))
        order[i], order[j] = j, i
    return permute(x, order)


@lowers("aten.t.default", "aten.numpy_T.default")
def _reverse(out: Type, x: Tensor) -> Tensor:
    return permute(x, range(len(x.shape))[::-1])


@lowers("aten.mT.default", "aten.adjoint.default", "aten.mH.default", "aten.matrix_H.default")
def _matrix_transpose(out: Type, x: Tensor) -> Tensor:
    return _transpose(out, x, -2, -1) if len(x.shape) > 1 else x


@lowers("aten.permute.default", "aten.permute_copy.default")
def _permute(out: Type, x: Tensor, dims: Sequence[int]) -> Tensor:
    return permute(x, [axis(d, len(x.shape)) for d in dims])


@lowers("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def _movedim(out: Type, x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    rank = len(x.shape)
    froms = [axis(d, rank) for d in ([source] if isinstance(source, int) else source)]
    tos = [axis(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    order = [d for d in range(rank) if d not in froms]
    for to, d in sorted(zip(tos, froms, strict=True)):
        order.insert(to, d)
    return permute(x, order)


def window(x: Tensor, dim: int, start: int, length: int, step: int = 1) -> Tensor:
    """`length` places along `dim` from `start`, `step` apart (negative: backwards)."""
    dims = [length if k == dim else n for k, n in enumerate(x.shape)]
    return remap(x, dims, [ix.add(ix.mul(Pos(k), step), IxConst(start)) if k == dim else Pos(k) for k in range(len(dims))])


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _slice(out: Type, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    d = axis(dim, len(x.shape))
    return window(x, d, slice(start, end, step).indices(x.shape[d])[0], out.shape[d], step)


@lowers("aten.narrow.default")
def _narrow(out: Type, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    d = axis(dim, len(x.shape))
    return window(x, d, start % max(x.shape[d], 1) if start < 0 else start, length)


@lowers("aten.select.int", "aten.select_copy.int")
def _select(out: Type, x: Tensor, dim: int, index: int) -> Tensor:
    d = axis(dim, len(x.shape))
    return remap(x, out.shape, [IxConst(index % x.shape[d]) if k == d else Pos(k - (k > d)) for k in range(len(x.shape))])


@lowers("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default", "aten.tensor_split.sections",
        "aten.unsafe_split.Tensor", "aten.tensor_split.indices", "aten.unsafe_chunk.default")
def _split(out: tuple[Type, ...], x: Tensor, _: object, dim: int = 0) -> tuple[Tensor, ...]:
    d, start, pieces = axis(dim, len(x.shape)), 0, []
    for piece in out:
        pieces.append(window(x, d, start, piece.shape[d]))
        start += piece.shape[d]
    return tuple(pieces)


@lowers("aten.unbind.int")
def _unbind(out: tuple[Type, ...], x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(_select(piece, x, dim, k) for k, piece in enumerate(out))


@lowers("operator.getitem")
def _getitem(out: Type, xs: Sequence[Tensor], index: int) -> Tensor:
    return xs[index]


@lowers("aten.flip.default")
def _flip(out: Type, x: Tensor, dims: Sequence[int]) -> Tensor:
    for d in {axis(d, len(x.shape)) for d in dims}:
        x = window(x, d, max(x.shape[d] - 1, 0), x.shape[d], -1)
    return x


@lowers("aten.roll.default")
def _roll(out: Type, x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Tensor:
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    over = [dims] if isinstance(dims, int) else list(dims)
    if not over:
        return reshape(_roll(out, reshape(x, (x.size,)), by, [0]), x.shape)
    for shift, dim in zip(by, over, strict=True):
        d = axis(dim, len(x.shape))
        n = max(x.shape[d], 1)
        x = remap(x, x.shape, [ix.mod(ix.add(Pos(k), IxConst(-shift % n)), n) if k == d else Pos(k) for k in range(len(x.shape))])
    return x


@lowers("aten.repeat.default", "aten.tile.default")
def _repeat(out: Type, x: Tensor, *_: object) -> Tensor:
    lead = len(out.shape) - len(x.shape)
    return remap(x, out.shape, [ix.mod(Pos(lead + k), max(n, 1)) for k, n in enumerate(x.shape)])


@lowers("aten.repeat_interleave.self_int")
def _repeat_interleave(out: Type, x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    if dim is None:
        x, dim = reshape(x, (x.size,)), 0
    d = axis(dim, len(x.shape))
    return remap(x, out.shape, [ix.div(Pos(k), repeats) if k == d else Pos(k) for k in range(len(x.shape))])


@lowers("aten.unfold.default")
def _unfold(out: Type, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    d = axis(dim, len(x.shape))
    return remap(x, out.shape, [ix.add(ix.mul(Pos(k), step), Pos(len(x.shape))) if k == d else Pos(k) for k in range(len(x.shape))])


@lowers("aten.diagonal.default")
def _diagonal(out: Type, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    rank = len(x.shape)
    a, b, along = axis(dim1, rank), axis(dim2, rank), Pos(rank - 2)
    rest = iter(range(rank))
    shift = {a: max(-offset, 0), b: max(offset, 0)}
    return remap(x, out.shape, [ix.add(along, IxConst(shift[k])) if k in shift else Pos(next(rest)) for k in range(rank)])


def concatenate(xs: Sequence[Tensor], dim: int) -> Tensor:
    """Along `dim`: a choice by coordinate.  Each piece is read at a place taken modulo its length, so that no read leaves it."""
    xs = [x for x in xs if x.shape[dim]] or list(xs[:1])
    dims = list(xs[0].shape)
    dims[dim] = sum(x.shape[dim] for x in xs)
    out: Tensor | None = None
    start = dims[dim]
    for x in reversed(xs):
        n = x.shape[dim]
        start -= n
        at: list[Ix] = [Pos(k) for k in range(len(dims))]
        at[dim] = ix.mod(ix.add(Pos(dim), IxConst(-start % max(n, 1))), max(n, 1))
        piece = remap(x, dims, at)
        out = piece if out is None else select(apply("lt", position(dims, dim), start + n), piece, out)
    assert out is not None
    return out


@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default", "aten.hstack.default", "aten.vstack.default")
def _cat(out: Type, xs: Sequence[Tensor], dim: int = 0, *, op: str) -> Tensor:
    """Half types widen for the choice, exactly; the driver rounds back.  torch lets an empty 1-d tensor pass among others."""
    kept = [cast(out.dtype.compute, cast(out.dtype, x)) for x in xs if len(x.shape) == len(out.shape)]
    return concatenate(kept, axis(1 if op == "aten.hstack.default" and len(out.shape) > 1 else dim, len(out.shape)))


@lowers("aten.stack.default")
def _stack(out: Type, xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = axis(dim, len(out.shape))
    dims = [1 if k == d else n for k, n in enumerate(out.shape)]
    return concatenate([cast(out.dtype.compute, cast(out.dtype, reshape(x, dims))) for x in xs], d)


def pad(x: Tensor, before: Sequence[int], shape: Shape, value: Number) -> Tensor:
    """`x` inside a tensor of `shape` of `value`, its corner at `before` (a negative entry crops)."""
    both = partial(reduce, partial(apply, "and"))
    inside: list[Tensor] = []       # a condition of each dimension
    at: list[Ix] = []
    for k, (n, low) in enumerate(zip(x.shape, before, strict=True)):
        at.append(ix.mod(ix.add(Pos(k), IxConst(-low % max(n, 1))), max(n, 1)))
        place = position(shape, k)
        bounds = [apply("le", constant(place.dtype, low), place)] if low > 0 else []
        bounds += [apply("lt", place, low + n)] if low + n < shape[k] else []
        inside += [both(bounds)] if bounds else []
    if x.size == 0:
        return broadcast(constant(x.dtype, value), shape)
    moved = remap(x, shape, at)
    return select(both(inside), moved, constant(x.dtype, value)) if inside else moved


def _with_edges(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """`x` longer by what it has at its ends along `dim`: mirrored at the outermost elements ("reflect"), these again ("replicate"), or what
    it has at the other end ("circular").  A negative width crops."""
    low, high = max(before, 0), max(after, 0)
    x = window(x, dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
    n, dims = x.shape[dim], list(x.shape)
    dims[dim] = n + low + high
    if mode == "circular":
        return remap(x, dims, [ix.mod(ix.add(Pos(k), IxConst(-low % n)), n) if k == dim else Pos(k) for k in range(len(dims))])
    if mode == "reflect":
        ends = window(x, dim, low, low, -1) if low else None, window(x, dim, n - 2, high, -1) if high else None
    else:
        ends = window(x, dim, 0, low, 0) if low else None, window(x, dim, n - 1, high, 0) if high else None
    return concatenate([part for part in (ends[0], x, ends[1]) if part is not None], dim)


@lowers("aten.constant_pad_nd.default", "aten.pad.default")
def _pad(out: Type, x: Tensor, widths: Sequence[int], *rest: object) -> Tensor:
    value = next((v for v in rest if isinstance(v, int | float)), 0)
    mode = next((v for v in rest if isinstance(v, str)), "constant")
    if mode != "constant":
        x = cast(x.dtype.compute, x)
        for k in range(len(widths) // 2):
            x = _with_edges(x, len(x.shape) - 1 - k, widths[2 * k], widths[2 * k + 1], mode)
        return x
    before = [0] * len(x.shape)
    for k, low in enumerate(widths[::2]):
        before[len(x.shape) - 1 - k] = low
    return pad(cast(x.dtype.compute, x), before, out.shape, value)


@lowers("aten.slice_scatter.default")
def _slice_scatter(out: Type, x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
                   step: int = 1) -> Tensor:
    """`x` with a slice replaced by `source`."""
    d = axis(dim, len(x.shape))
    first, n, length = slice(start, end, step).indices(x.shape[d])[0], x.shape[d], source.shape[d]
    if not length:
        return x
    at: list[Ix] = [Pos(k) for k in range(len(x.shape))]
    at[d] = ix.mod(ix.div(ix.mod(ix.add(Pos(d), IxConst(-first % n)), n), step), length)
    place, wide = position(x.shape, d), x.dtype.compute
    inside = apply("and", apply("le", constant(place.dtype, first), place), apply("lt", place, first + (length - 1) * step + 1))
    if step > 1:
        inside = apply("and", inside, apply("eq", apply("mod", apply("sub", place, first), step), 0))
    return select(inside, cast(wide, remap(source, x.shape, at)), cast(wide, x))


@lowers("aten.select_scatter.default")
def _select_scatter(out: Type, x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    d, wide = axis(dim, len(x.shape)), x.dtype.compute
    row = reshape(source, [1 if k == d else n for k, n in enumerate(x.shape)])
    return select(apply("eq", position(x.shape, d), index % x.shape[d]), cast(wide, broadcast(row, x.shape)), cast(wide, x))
