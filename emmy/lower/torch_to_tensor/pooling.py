"""Pooling: a reduction over windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from emmy.errors import EmmyError
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import convert, mean, mul, reduce, reshape
from emmy.lower.torch_to_tensor.linear_algebra import spatial, tuple_of
from emmy.lower.torch_to_tensor.registry import lowers

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
    padded = any(tuple_of(padding, n))
    if ceil_mode or (padded and not count_include_pad):
        raise EmmyError("an average pool with ceil_mode, or that does not count its padding, is not covered", "pad the input explicitly")
    windows = _windows(out, x, n, kernel, stride, padding, 1, 0)
    count = divisor_override or prod(tuple_of(kernel, n))
    return mul(reduce("add", windows, range(len(out.shape), len(windows.shape))), 1 / count)


@lowers("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default")
def _adaptive_avg_pool(out: Type, x: Tensor, size: Sizes, *, op: str) -> Tensor:
    n = int(op.removeprefix("aten.adaptive_avg_pool")[0])
    lead, places = x.shape[:len(x.shape) - n], out.shape[len(out.shape) - n:]
    if any(e % p for e, p in zip(x.shape[len(lead):], places, strict=True)):
        raise EmmyError("an adaptive pool whose windows differ in size is not covered", "choose an output size that divides the input size")
    pieces = [v for e, p in zip(x.shape[len(lead):], places, strict=True) for v in (p, e // p)]
    split = reshape(convert(x, out.dtype), (*lead, *pieces))
    return mean(split, range(len(lead) + 1, len(lead) + 2 * n, 2))
