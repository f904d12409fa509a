"""Pooling: a reduction over windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from math import prod

from emmy.ir import index as ix
from emmy.ir.index import Pos
from emmy.ir.tensor_ir import IndexValue, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    add,
    apply,
    cast,
    convert,
    div,
    mean,
    mul,
    position,
    reduce,
    remap,
    reshape,
    select,
    sub,
)
from emmy.lower.torch_to_tensor.linear_algebra import spatial, tuple_of
from emmy.lower.torch_to_tensor.registry import lowers
from emmy.lower.torch_to_tensor.views import pad

Sizes = int | Sequence[int]


def _windows(out: Type, x: Tensor, n: int, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, value: float) -> Tensor:
    sizes = tuple_of(kernel, n)
    steps = tuple_of(stride, n) if stride not in ((), []) else sizes
    return spatial(convert(x, out.dtype), sizes, steps, tuple_of(padding, n), tuple_of(dilation, n), out.shape[len(out.shape) - n:], value)


@lowers("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")
def _max_pool(out: Type, x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False, *,
              op: str) -> Tensor:
    n = int(op.removeprefix("aten.max_pool")[0])
    windows = _windows(out, x, n, kernel, stride, padding, dilation, float("-inf"))
    return reduce("max", windows, range(len(out.shape), len(windows.shape)))


@lowers("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _avg_pool(out: Type, x: Tensor, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
              count_include_pad: bool = True, divisor_override: int | None = None, *, op: str) -> Tensor:
    n = int(op.removeprefix("aten.avg_pool")[0])
    windows = _windows(out, x, n, kernel, stride, padding, 1, 0)
    total = reduce("add", windows, range(len(out.shape), len(windows.shape)))
    sizes, pads = tuple_of(kernel, n), tuple_of(padding, n)
    if divisor_override or not ceil_mode and (count_include_pad or not any(pads)):
        return mul(total, 1 / (divisor_override or prod(sizes)))
    steps, first = tuple_of(stride, n) if stride not in ((), []) else sizes, len(out.shape) - n
    extents = x.shape[len(x.shape) - n:]
    counts = [_count(out, first + d, sizes[d], steps[d], pads[d], extents[d], count_include_pad) for d in range(n)]
    return div(total, cast(total.dtype, fold(mul, counts)))


def _count(out: Type, along: int, size: int, step: int, pad: int, extent: int, counts_pad: bool) -> Tensor:
    """How many places of a dimension each window takes, i64: up to the end of the padding if it counts, inside the input otherwise."""
    start = sub(mul(position(out.shape, along), step), pad)
    end = apply("min", add(start, size), extent + pad if counts_pad else extent)
    return sub(end, start if counts_pad else apply("max", start, 0))


@lowers("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default")
def _adaptive_avg_pool(out: Type, x: Tensor, size: Sizes, *, op: str) -> Tensor:
    n = int(op.removeprefix("aten.adaptive_avg_pool")[0])
    lead, places = x.shape[:len(x.shape) - n], out.shape[len(out.shape) - n:]
    value = convert(x, out.dtype)
    if any(e % p for e, p in zip(x.shape[len(lead):], places, strict=True)):
        for d in range(len(lead), len(x.shape)):
            value = _adaptive(value, d, out.shape[d])
        return value
    pieces = [v for e, p in zip(x.shape[len(lead):], places, strict=True) for v in (p, e // p)]
    return mean(reshape(value, (*lead, *pieces)), range(len(lead) + 1, len(lead) + 2 * n, 2))


def _adaptive(x: Tensor, dim: int, places: int) -> Tensor:
    """The means of windows along a dimension: of place p from floor(p n / places) up to ceil((p + 1) n / places)."""
    n, rank = x.shape[dim], len(x.shape)
    firsts = [p * n // places for p in range(places)]
    longest = max(-(-(p + 1) * n // places) - first for p, first in enumerate(firsts))
    dims = (*(places if k == dim else m for k, m in enumerate(x.shape)), longest)
    place = ix.add(ix.div(ix.mul(Pos(dim), n), places), Pos(rank))
    held = pad(x, [0] * rank, tuple(m + longest if k == dim else m for k, m in enumerate(x.shape)), 0)
    windows = remap(held, dims, [place if k == dim else Pos(k) for k in range(rank)])
    end = add(mul(position(dims, dim), n), n + places - 1)
    inside = apply("lt", add(position(dims, rank), IndexValue(dims, ix.div(ix.mul(Pos(dim), n), places))), apply("floordiv", end, places))
    return div(reduce("add", select(inside, windows, 0), (rank,)), reduce("add", cast(x.dtype, inside), (rank,)))
