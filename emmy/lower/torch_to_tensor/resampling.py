"""Images at other sizes: nearest, linear and cubic interpolation, each along one dimension at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.dtype import DType
from emmy.ir.index import Pos
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import Number, add, apply, cast, constant, convert, gather, mul, position, remap, sub
from emmy.lower.torch_to_tensor.registry import lowers


def _along(x: Tensor, dim: int, n: int) -> tuple[int, ...]:
    return (*x.shape[:dim], n, *x.shape[dim + 1:])


def nearest(x: Tensor, dim: int, n: int, step: float, centre: bool) -> Tensor:
    """`x` with `n` places along `dim`: place p reads floor(p * step), or floor((p + 1/2) * step) by the centres of pixels, which torch
    computes in fp32.  Where that is exact it is an index, else a value."""
    extent, dims = x.shape[dim], _along(x, dim, n)
    half = np.float32(0.5 if centre else 0)
    places = np.minimum(np.floor((np.arange(n, dtype=np.float32) + half) * np.float32(step)).astype(np.int64), extent - 1)
    numerator, denominator = (2 * extent, 2 * n) if centre else (extent, n)
    exact = (np.arange(n) * numerator + (extent if centre else 0)) // denominator
    if (places == exact).all():
        at = ix.div(ix.add(ix.mul(Pos(dim), numerator), ix.IxConst(extent if centre else 0)), denominator)
        return remap(x, dims, [at if k == dim else Pos(k) for k in range(len(dims))])
    value = mul(add(cast(dt.f32, position(dims, dim)), float(half)), step)
    return gather(x, dim, apply("min", cast(dt.i64, apply("floor", value)), extent - 1), Pos)


def _source(dims: Sequence[int], dim: int, step: float, corners: bool, element: DType) -> Tensor:
    """Where the places of a dimension lie among the pixels of the input, in a compute type."""
    place = cast(element, position(dims, dim))
    return mul(place, step) if corners else sub(mul(add(place, 0.5), step), 0.5)


def linear(x: Tensor, dim: int, n: int, step: float, corners: bool) -> Tensor:
    """Between two neighbours, the outermost ones holding beyond."""
    extent, dims = x.shape[dim], _along(x, dim, n)
    source = apply("max", _source(dims, dim, step, corners, x.dtype), 0)
    low = apply("min", cast(dt.i64, apply("floor", source)), extent - 1)
    right = sub(source, cast(source.dtype, low))
    first, second = (gather(x, dim, at, Pos) for at in (low, apply("min", add(low, 1), extent - 1)))
    return add(mul(first, sub(constant(right.dtype, 1), right)), mul(second, right))


def cubic(x: Tensor, dim: int, n: int, step: float, corners: bool) -> Tensor:
    """Keys's convolution with a = -3/4 over four neighbours."""
    extent, dims = x.shape[dim], _along(x, dim, n)
    source, total = _source(dims, dim, step, corners, x.dtype), None
    below = apply("floor", source)
    t, low = sub(source, below), cast(dt.i64, below)
    for k in range(-1, 3):
        distance = apply("abs", sub(t, k))
        near = add(mul(mul(sub(mul(distance, 1.25), 2.25), distance), distance), 1)
        far = add(mul(sub(mul(add(mul(distance, -0.75), 3.75), distance), 6.0), distance), 3.0)
        place = apply("min", apply("max", add(low, k), 0), extent - 1)
        part = mul(gather(x, dim, place, Pos), near if k in (0, 1) else far)
        total = part if total is None else add(total, part)
    assert total is not None
    return total


def steps(extents: Sequence[int], places: Sequence[int], scales: Sequence[float | None], corners: bool) -> list[float]:
    """How far apart places lie in each dimension, in pixels of the input: as the scale that is given says, else the sizes."""
    if corners:
        return [(e - 1) / (n - 1) if n > 1 else 0.0 for e, n in zip(extents, places, strict=True)]
    return [1 / s if s else e / n for e, n, s in zip(extents, places, scales, strict=True)]


_KINDS = [f"aten.{kind}{n}d.{overload}" for n in (1, 2, 3) for kind in ("upsample_nearest", "_upsample_nearest_exact")
          for overload in ("default", "vec")]


@lowers(*_KINDS)
def _nearest(out: Type, x: Tensor, size: Sequence[int] | None, *rest: Number | Sequence[float] | None, op: str, **named: object) -> Tensor:
    """Sizes and one scale a dimension, or a list of scales."""
    n = len(x.shape) - 2
    value = x
    for k, step in enumerate(steps(x.shape[2:], out.shape[2:], _scales(n, rest), False)):
        value = nearest(value, 2 + k, out.shape[2 + k], step, "exact" in op)
    return cast(x.dtype.compute, value)


@lowers(*(f"aten.upsample_{kind}.{overload}" for kind in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
          for overload in ("default", "vec")))
def _smooth(out: Type, x: Tensor, size: Sequence[int] | None, corners: bool, *rest: Number | Sequence[float] | None, op: str,
            **named: object) -> Tensor:
    """The last dimension first, as torch adds."""
    n, along = len(x.shape) - 2, cubic if "cubic" in op else linear
    value = convert(x, out.dtype)
    apart = steps(x.shape[2:], out.shape[2:], _scales(n, rest), corners)
    for k in reversed(range(n)):
        value = along(value, 2 + k, out.shape[2 + k], apart[k], corners)
    return value


def _scales(n: int, rest: Sequence[Number | Sequence[float] | None]) -> Sequence[float | None]:
    """One a dimension, None where the sizes say: given one by one, or as a list."""
    given = rest[0] if rest and isinstance(rest[0], tuple | list) else rest
    flat = [float(v) for v in given if isinstance(v, int | float)]
    return flat if len(flat) == n else [None] * n
