"""The arithmetic of bodies on NumPy: values over axes, without a Python loop over elements.

A value is an array with one dimension for each axis of its `Space`, of length 1 where it does not depend on that axis, so that
operators broadcast.  Sums and products of f32 accumulate in float64 and round once; a sum of products is contracted pair by
pair (as matrix products), so that nothing over all the axes of a contraction is made.  Half types hold widened values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.operators import MONOIDS, apply, unit

Array = np.ndarray[Any, np.dtype[Any]]


class Space:
    """The axes that values run over: dimension k of every array is that of the k-th leaf of `extents`."""

    def __init__(self, extents: Mapping[Ix, int]):
        self.extents = list(extents.values())
        self.dimension = {leaf: k for k, leaf in enumerate(extents)}
        self.rank = max(1, len(extents))        # NumPy turns arrays of rank 0 into scalars

    def full(self, x: Any, k: int = 0) -> Array:
        """A scalar, or a vector along dimension k."""
        return np.reshape(x, [-1 if d == k else 1 for d in range(self.rank)])

    def coordinate(self, leaf: Ix) -> Array:
        k = self.dimension[leaf]
        return self.full(np.arange(self.extents[k]), k)

    def spread(self, x: Array, dims: Sequence[int]) -> Array:
        """`x` repeated along `dims` where it does not depend on them."""
        return np.broadcast_to(x, [self.extents[d] if d in dims else n for d, n in enumerate(x.shape)])

    def load(self, tensor: Array, point: Sequence[Array]) -> Array:
        """The elements of `tensor` at `point`, one array of integers a dimension of the tensor."""
        if not tensor.size:
            return np.zeros(np.broadcast_shapes((1,) * self.rank, *(c.shape for c in point)), tensor.dtype)
        if 0 in self.extents:       # there may be no point, and a coordinate that none has may lie outside
            point = [np.clip(c, 0, n - 1) for c, n in zip(point, tensor.shape, strict=True)]
        varying = [[d for d, n in enumerate(c.shape) if n != 1] for c in point]
        along = [d for own in varying for d in own]
        if len(set(along)) < len(along) or any(len(own) > 1 for own in varying):
            return tensor[tuple(point)]
        for k, c in enumerate(point):        # each coordinate runs along one axis of its own: a view, or a selection a dimension
            at = c.ravel()
            if at.size != tensor.shape[k] or (at != np.arange(at.size)).any():
                tensor = tensor.take(at, axis=k)
        shape = np.broadcast_shapes((1,) * self.rank, *(c.shape for c in point))
        order = sorted(range(len(point)), key=lambda k: varying[k] or [-1])
        return tensor.transpose(order).reshape(shape)

    def reduce(self, monoid: str, dims: Sequence[int], factors: Sequence[Array], element: DType) -> Array:
        """The product by `monoid` over `dims` of the product of `factors`, as `element`."""
        if len(factors) > 1:
            return self.contract(dims, factors).astype(element.numpy)
        x = self.spread(_wide(factors[0], monoid), dims)
        with np.errstate(all="ignore"):
            made = MONOIDS[monoid].reduce(x, axis=tuple(dims), keepdims=True, initial=unit(monoid, element), dtype=x.dtype)
        return np.asarray(made).astype(element.numpy)

    def contract(self, dims: Sequence[int], factors: Sequence[Array]) -> Array:
        """The sum over `dims` of a product of two or more factors, in float64: the pair with the smallest result first."""
        left = [f.astype(np.float64) for f in factors]
        repeats = prod(self.extents[d] for d in dims if all(f.shape[d] == 1 for f in left))
        while len(left) > 1:
            i, j = min(combinations(range(len(left)), 2), key=partial(_size, factors=left, dims=dims))
            left = [_product(left[i], left[j], _closed((i, j), left, dims)), *(f for k, f in enumerate(left) if k not in (i, j))]
        return left[0] * repeats if repeats != 1 else left[0]

    def scan(self, monoid: str, dim: int, at: Array, x: Array, element: DType) -> Array:
        """The product over the axis of `dim` from 0 up to and with `at`; up to -1 it is of nothing."""
        if at.size and at.min() < 0:
            upto = self.scan(monoid, dim, np.maximum(at, 0), x, element)
            return np.where(at < 0, np.asarray(unit(monoid, element)).astype(element.numpy), upto)
        x = self.spread(_wide(x, monoid), (dim,))
        with np.errstate(all="ignore"):
            sums = MONOIDS[monoid].scan(x, axis=dim, dtype=x.dtype).astype(element.numpy)
        along = [d for d, n in enumerate(at.shape) if n != 1]
        if len(along) == 1 and along[0] != dim and sums.shape[along[0]] == 1:
            return sums.take(at.ravel(), axis=dim).swapaxes(dim, along[0])
        where = [self.full(np.arange(n), d) for d, n in enumerate(sums.shape)]
        where[dim] = at
        return sums[tuple(where)]

    def pivot(self, recipe: str, dim: int, score: Array, element: DType) -> Array:
        """The pivot of a twisted reduction: the maximum of the score (recipes "softmax" and "first") or its mean ("moments")."""
        if recipe != "moments":
            return self.reduce("max", (dim,), (score,), element)
        with np.errstate(all="ignore"):
            return (self.reduce("add", (dim,), (_wide(score, "add"),), dt.f64) / self.extents[dim]).astype(element.numpy)

    def channel(self, recipe: str, dim: int, score: Array, factors: Sequence[Array], element: DType) -> Array:
        """The sum over the axis of a weight times the product of `factors`.  The weight is exp(score - pivot) (recipe "softmax"; where the
        pivot is -inf it is taken against 0, so that it is exp(-inf) = 0), or (score - pivot)^2 ("moments").  Recipe "first": the least
        product of `factors` where the score is the pivot, a NaN being the greatest score."""
        if recipe == "first":
            score, (x, *rest) = self.spread(score, (dim,)), factors
            most = self.reduce("max", (dim,), (score,), next(d for d in dt.DTYPES.values() if d.numpy == score.dtype))
            hit = (score == most) | np.isnan(score)
            found = np.where(hit, prod(rest, start=self.spread(x, (dim,))), np.asarray(unit("min", element)).astype(element.numpy))
            return self.reduce("min", (dim,), (found,), element)
        score = _wide(self.spread(score, (dim,)), "add") if recipe == "moments" else self.spread(score, (dim,))
        pivot = self.pivot(recipe, dim, score, dt.f64 if recipe == "moments" else element)
        with np.errstate(all="ignore"):
            if recipe == "moments":
                weight = np.square(score - pivot)
            else:
                weight = np.exp(score - np.where(np.isneginf(pivot), np.zeros_like(pivot), pivot).astype(score.dtype))
        return self.reduce("add", (dim,), (weight, *factors), element)


def _wide(x: Array, monoid: str) -> Array:
    return x.astype(np.float64) if monoid in ("add", "mul") and x.dtype == np.float32 else x


def _closed(pair: tuple[int, int], factors: Sequence[Array], dims: Sequence[int]) -> list[int]:
    """The dimensions that no factor but this pair has: they can be summed with it."""
    return [d for d in dims if all(f.shape[d] == 1 for k, f in enumerate(factors) if k not in pair)]


def _size(pair: tuple[int, int], factors: Sequence[Array], dims: Sequence[int]) -> int:
    """The elements of the pair's product, summed as far as it can be."""
    shape, closed = np.broadcast_shapes(*(factors[k].shape for k in pair)), _closed(pair, factors, dims)
    return prod(n for d, n in enumerate(shape) if d not in closed)


def _product(a: Array, b: Array, dims: Sequence[int]) -> Array:
    """The sum over `dims` of a * b, as batched matrix products [batch, rows, k] @ [batch, k, columns]."""
    def alone(x: Array, other: Array) -> Array:
        own = tuple(d for d in dims if x.shape[d] != 1 and other.shape[d] == 1)
        return x.sum(axis=own, keepdims=True) if own else x

    with np.errstate(all="ignore"):
        a, b = alone(a, b), alone(b, a)
        summed = [d for d in dims if a.shape[d] != 1]
        if not summed:
            return a * b
        batch = [d for d in range(a.ndim) if a.shape[d] != 1 != b.shape[d] and d not in summed]
        rows, columns = ([d for d in range(a.ndim) if x.shape[d] != 1 and d not in (*summed, *batch)] for x in (a, b))

        def matrix(x: Array, *parts: list[int]) -> Array:
            order = [d for part in parts for d in part]
            rest = [d for d in range(x.ndim) if d not in order]
            return x.transpose(*order, *rest).reshape([prod(x.shape[d] for d in part) for part in parts])

        made = matrix(a, batch, rows, summed) @ matrix(b, batch, summed, columns)
    order = [*batch, *rows, *columns]
    shape = [1 if d in summed else n for d, n in enumerate(np.broadcast_shapes(a.shape, b.shape))]
    ranked = made.reshape([shape[d] for d in order]).transpose([order.index(d) for d in sorted(order)])
    return ranked.reshape(shape)


def factors(x: Value) -> tuple[Value, ...]:
    """The factors of a product."""
    return (*factors(x.args[0]), *factors(x.args[1])) if isinstance(x, loop.Apply) and x.op == "mul" else (x,)


def _summed(v: loop.Reduce) -> tuple[list[int], tuple[Value, ...]]:
    """The axes and factors of nested floating-point sums; for other reductions the axis and the operand."""
    axes, x = [v.axis], v.x
    if v.monoid != "add" or v.dtype.kind != "float":
        return axes, (x,)
    while isinstance(x, loop.Reduce) and x.monoid == "add":
        axes, x = [*axes, x.axis], x.x
    return axes, factors(x)


def evaluate(body: Value, space: Space, tensors: Mapping[str, Array]) -> Array:
    """The value of `body` at every point of `space`, in its compute dtype.  Every axis below the body is a leaf of the space."""
    made: dict[Value, Array] = {}

    def index(x: Ix) -> Array:
        at = ix.evaluate(x, lambda leaf: made[leaf.value] if isinstance(leaf, IxOf) else space.coordinate(leaf))
        return at if isinstance(at, np.ndarray) else space.full(at)

    def needed(v: Value) -> tuple[Value, ...]:
        match v:
            case loop.Reduce(): return _summed(v)[1]
            case loop.Channel(_, _, score, x): return score, *factors(x)
        return v.operands

    def compute(v: Value) -> Array:
        match v:
            case loop.Load(name, _, point):
                return space.load(tensors[name], [index(x) for x in point]).astype(v.dtype.numpy, copy=False)
            case loop.Const(element, bits): return space.full(dt.value(element, bits))
            case loop.IndexOf(at): return index(at).astype(np.int64, copy=False)
            case loop.Apply(op, args): return apply(op, *(made[a] for a in args))
            case loop.Cast(element, x) | loop.Round(element, x): return convert(made[x], element)
            case loop.Reduce(monoid):
                axes, operands = _summed(v)
                return space.reduce(monoid, [space.dimension[ix.Ax(a)] for a in axes], [made[x] for x in operands], v.dtype)
            case loop.Scan(monoid, a, at, x): return space.scan(monoid, space.dimension[ix.Ax(a)], index(at), made[x], v.dtype)
            case loop.Pivot(recipe, a, score): return space.pivot(recipe, space.dimension[ix.Ax(a)], made[score], v.dtype)
            case loop.Channel(recipe, a, score, x):
                return space.channel(recipe, space.dimension[ix.Ax(a)], made[score], [made[f] for f in factors(x)], v.dtype)
        raise AssertionError(type(v))

    stack = [(body, False)]
    while stack:
        v, ready = stack.pop()
        if v in made:
            continue
        if ready:
            made[v] = compute(v)
        else:
            stack += [(v, True), *((x, False) for x in needed(v))]
    return made[body]


def convert(x: Array, element: DType) -> Array:
    """`x` rounded to `element`, widened again if that is a half type."""
    with np.errstate(all="ignore"):
        return dt.converted(x, element).astype(element.compute.numpy)


def stored(x: Array, shape: Sequence[int], element: DType) -> Array:
    """A value over the axes of `shape` (further dimensions have length 1) as a tensor in memory."""
    with np.errstate(all="ignore"):
        kept = x.reshape(x.shape[:len(shape)]) if x.ndim != len(shape) else x
        return np.broadcast_to(kept, shape).astype(element.numpy, order="C")
