"""Writing at indices that are values, as reading: each element of the result looks which of the sources were written to its place.

Sources are few where programs scatter, as the tokens that a cache takes in or the experts of a token; the work is the size of the result
times the number of indices along the dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.index import Pos
from emmy.ir.operators import unit
from emmy.ir.tensor_ir import Scan, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    Number,
    Operand,
    add,
    apply,
    axis,
    broadcast,
    cast,
    constant,
    convert,
    div,
    gather,
    mul,
    permute,
    position,
    reduce,
    remap,
    reshape,
    select,
    sub,
    widen,
)
from emmy.lower.torch_to_tensor.indexing import merged, take, wrapped
from emmy.lower.torch_to_tensor.registry import lowers


class Writes:
    """Sources written along dimension `along` of a tensor of shape `dims`, to the places that `index` names: source k, with the other
    coordinates of the place, to index[..., k, ...] (i64).  `index` has the rank of the tensor; another dimension of it is as long as the
    tensor's, or shorter: then no source is written to places beyond; or 1 if `spread`: then it holds for all of them."""

    def __init__(self, dims: Sequence[int], along: int, index: Tensor, spread: bool = False):
        self.dims, self.along, self.count, self.spread = tuple(dims), along, index.shape[along], spread
        self.extents = index.shape
        wide = (*self.dims, self.count)
        self.hits = apply("eq", self.per_source(index), position(wide, along))
        for k, (n, m) in enumerate(zip(index.shape, dims, strict=True)):
            if k != along and n < m and not spread:
                self.hits = apply("and", self.hits, apply("lt", position(wide, k), n))

    def per_source(self, x: Tensor) -> Tensor:
        """What has a source's value for each place and source: [*dims, count]."""
        at = [Pos(len(self.dims)) if k == self.along else self.inside(k, n) for k, n in enumerate(x.shape)]
        return remap(x, (*self.dims, self.count), at)

    def inside(self, k: int, extent: int) -> ix.Ix:
        """Coordinate k of a place, brought inside the sources."""
        n = min(extent, self.extents[k]) if not self.spread else extent
        return Pos(k) if n >= self.dims[k] else ix.mod(Pos(k), max(n, 1))

    @property
    def written(self) -> Tensor:
        """Whether any source is written to a place."""
        return reduce("or", self.hits, (len(self.dims),))

    def last(self, x: Tensor, source: Operand) -> Tensor:
        """`x` with the last of the sources written to a place there.  `source`: a number, or a tensor of the rank of x in its type."""
        if not self.count:
            return x
        if not isinstance(source, Tensor):
            return select(self.written, source, x)
        k = reduce("max", select(self.hits, position((*self.dims, self.count), len(self.dims)), -1), (len(self.dims),))
        found = gather(source, self.along, apply("max", k, 0), lambda d: self.inside(d, source.shape[d]))
        return select(apply("le", constant(k.dtype, 0), k), found, x)

    def fold(self, monoid: str, source: Tensor) -> Tensor:
        """The product by `monoid` of the sources written to each place, its unit of none."""
        return reduce(monoid, select(self.hits, self.per_source(source), unit(monoid, source.dtype)), (len(self.dims),))


@lowers("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce")
def _scatter(out: Type, x: Tensor, dim: int, index: Tensor, source: Operand, *, reduce: str | None = None) -> Tensor:
    if reduce is not None:
        raise EmmyError(f"a scatter that reduces by {reduce!r}", "use scatter_add, or scatter_reduce")
    if not x.shape:
        return broadcast(convert(source, out.dtype), ()) if index.size else x
    writes = Writes(x.shape, axis(dim, len(x.shape)), cast(dt.i64, index))
    return writes.last(widen(x), widen(source) if isinstance(source, Tensor) else source)


@lowers("aten.scatter_add.default")
def _scatter_add(out: Type, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter_reduce(out, x, dim, index, source, "sum")


@lowers("aten.scatter_reduce.two")
def _scatter_reduce(out: Type, x: Tensor, dim: int, index: Tensor, source: Tensor, how: str, *, include_self: bool = True) -> Tensor:
    """`how`: sum, prod, amax, amin or mean of a place's sources, and of what stood there if `include_self`."""
    if not x.shape:
        raise EmmyError("a scatter into a tensor of no dimensions", "give it one of length 1")
    writes, start = Writes(x.shape, axis(dim, len(x.shape)), cast(dt.i64, index)), convert(x, out.dtype)
    given = convert(source, out.dtype)
    if how in ("amax", "amin"):
        monoid = how.removeprefix("a")
        best = writes.fold(monoid, given)
        joined = apply(monoid, start, best) if include_self else best
    elif how == "prod":
        joined = writes.fold("mul", given)
        joined = mul(start, joined) if include_self else joined
    else:
        joined = writes.fold("add", given)
        joined = add(start, joined) if include_self else joined
    if how == "mean":
        count = reduce("add", cast(dt.i64, writes.hits), (len(x.shape),))
        count = apply("max", add(count, 1) if include_self else count, 1)
        joined = div(joined, cast(joined.dtype, count)) if out.dtype.kind == "float" else apply("floordiv", joined, cast(out.dtype, count))
    return joined if include_self and how != "mean" else select(writes.written, joined, start)


def slices(dims: Sequence[int], along: int, index: Tensor) -> Writes:
    """Writes of whole slices to the places of a list (i64) along a dimension."""
    flat = reshape(index, [index.size if k == along else 1 for k in range(len(dims))])
    return Writes(dims, along, flat, spread=True)


def along_one(out: Type, dim: int, index: Tensor) -> Writes:
    """Writes of whole slices to what indices name along a dimension, from its end where they are negative."""
    along = axis(dim, len(out.shape))
    return slices(out.shape, along, wrapped(cast(dt.i64, index), out.shape[along]))


@lowers("aten.index_copy.default")
def _index_copy(out: Type, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return along_one(out, dim, index).last(widen(x), widen(source)) if x.shape else widen(reshape(source, ()))


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _index_fill(out: Type, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    if not x.shape or not index.size:
        return x if not index.size else broadcast(convert(value, out.dtype), ())
    return select(along_one(out, dim, index).written, convert(value, out.dtype), widen(x))


@lowers("aten.index_add.default")
def _index_add(out: Type, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    given = convert(source, out.dtype)
    given = given if alpha == 1 else mul(given, alpha)
    return add(convert(x, out.dtype), along_one(out, dim, index).fold("add", given) if x.shape else reshape(given, ()))


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(out: Type, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x with x[i, :, j] = values, or += of all that meet at a place.  A mask takes one value, or one of each slice that it selects."""
    given = [i for i in indices if i is not None]
    if any(i.dtype is dt.bool_ for i in given):
        return _put_where(x, indices, values, accumulate)
    order, first, wide, flat = merged(x, indices)
    inner, shape = wide.shape[:first] + wide.shape[first + 1:], flat.shape
    spread = (*inner[:first], *shape, *inner[first:])
    sources = reshape(broadcast(widen(values), spread), (*inner[:first], prod(shape), *inner[first:]))
    writes = slices(wide.shape, first, flat)
    start = widen(wide)
    made = add(start, writes.fold("add", sources)) if accumulate else writes.last(start, sources)
    return permute(reshape(made, [x.shape[k] for k in order]), sorted(range(len(order)), key=order.__getitem__))


def _put_where(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """x[..., mask, ...] = values that are the same for all that the mask selects."""
    start = next(k for k, i in enumerate(indices) if i is not None)
    mask, *others = [i for i in indices if i is not None]
    after = len(x.shape) - start - len(mask.shape)
    same = len(values.shape) <= after or len(values.shape) == after + 1 and values.shape[0] == 1
    if others or not same or start and len(values.shape) > after:
        raise EmmyError("writing values one by one where a mask is set", "use torch.where, or masked_fill with one value")
    held = broadcast(reshape(mask, (*[1] * start, *mask.shape, *[1] * after)), x.shape)
    wide = widen(x)
    value = broadcast(widen(reshape(values, values.shape[max(len(values.shape) - after, 0):])), x.shape)
    return select(held, add(wide, value) if accumulate else value, wide)


@lowers("aten.masked_scatter.default")
def _masked_scatter(out: Type, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of `source` in their order, where the mask is set."""
    held = broadcast(mask, out.shape)
    if not source.size or not x.size:
        return broadcast(x, out.shape)
    rank = Scan("add", 0, cast(dt.i64, reshape(held, (held.size,))))
    place = apply("min", apply("max", sub(rank, 1), 0), source.size - 1)
    return select(held, reshape(take(widen(reshape(source, (source.size,))), 0, place), out.shape), broadcast(widen(x), out.shape))


@lowers("aten.one_hot.default")
def _one_hot(out: Type, x: Tensor, classes: int = -1) -> Tensor:
    """1 at the class of each element, along a last dimension."""
    return cast(dt.i64, apply("eq", reshape(x, (*x.shape, 1)), position(out.shape, len(x.shape))))

