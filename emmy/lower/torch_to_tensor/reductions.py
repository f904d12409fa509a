"""Reductions and scans.  Sums of half types accumulate in f32 and round once; sums of booleans and integers are i64."""

from __future__ import annotations

from collections.abc import Sequence

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Pos
from emmy.ir.tensor_ir import Scan, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    Number,
    add,
    apply,
    axes,
    axis,
    broadcast,
    cast,
    constant,
    convert,
    mean,
    mul,
    position,
    reduce,
    remap,
    reshape,
    select,
    sub,
)
from emmy.lower.torch_to_tensor.registry import lowers

Dims = int | Sequence[int] | None


@lowers("aten.sum.default")
def _sum_all(out: Type, x: Tensor, *, dtype: DType | None = None) -> Tensor:
    return _sum(out, x, dtype=dtype)


@lowers("aten.sum.dim_IntList")
def _sum(out: Type, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    return reduce("add", convert(x, out.dtype), axes(dim, len(x.shape)), keepdim)


@lowers("aten.mean.default")
def _mean_all(out: Type, x: Tensor, *, dtype: DType | None = None) -> Tensor:
    return _mean(out, x)


@lowers("aten.mean.dim")
def _mean(out: Type, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    return mean(convert(x, out.dtype), axes(dim, len(x.shape)), keepdim)


@lowers("aten.prod.default")
def _prod_all(out: Type, x: Tensor, *, dtype: DType | None = None) -> Tensor:
    return reduce("mul", convert(x, out.dtype), axes(None, len(x.shape)))


@lowers("aten.prod.dim_int")
def _prod(out: Type, x: Tensor, dim: int, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    return reduce("mul", convert(x, out.dtype), axes(dim, len(x.shape)), keepdim)


@lowers("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def _extreme(out: Type, x: Tensor, dim: Dims = None, keepdim: bool = False, *, op: str) -> Tensor:
    return reduce("max" if "max" in op else "min", convert(x, out.dtype), axes(dim, len(x.shape)), keepdim)


@lowers("aten.aminmax.default")
def _aminmax(out: tuple[Type, Type], x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    low, high = (reduce(m, convert(x, x.dtype), axes(dim, len(x.shape)), keepdim) for m in ("min", "max"))
    return low, high


def extreme(monoid: str, x: Tensor, along: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The extreme along an axis and its first place; a NaN is the extreme.  Both are of what is read at 0 along other axes of one point."""
    kept = [k for k, n in enumerate(x.shape) if n != 1 or k == along]
    y, axis = reshape(x, [x.shape[k] for k in kept]), kept.index(along)
    best = reduce(monoid, y, (axis,))
    hit = apply("eq", y, broadcast(reduce(monoid, y, (axis,), keepdim=True), y.shape))
    hit = apply("or", hit, apply("isnan", y)) if y.dtype.kind == "float" else hit
    place = reduce("min", select(hit, position(y.shape, axis), y.shape[axis] - 1), (axis,))
    shape = [1 if k == along else n for k, n in enumerate(x.shape) if k != along or keepdim]
    return reshape(best, shape), reshape(place, shape)


@lowers("aten.argmax.default", "aten.argmin.default")
def _argmax(out: Type, x: Tensor, dim: int | None = None, keepdim: bool = False, *, op: str) -> Tensor:
    value = convert(x, x.dtype)
    flat = reshape(value, (value.size,)) if dim is None or not x.shape else value
    _, place = extreme("max" if "argmax" in op else "min", flat, axis(dim or 0, len(flat.shape)), keepdim)
    return reshape(place, out.shape)


@lowers("aten.max.dim", "aten.min.dim")
def _max_dim(out: tuple[Type, Type], x: Tensor, dim: int, keepdim: bool = False, *, op: str) -> tuple[Tensor, Tensor]:
    monoid, value = "max" if ".max" in op else "min", convert(x, x.dtype)
    if not x.shape:
        return value, constant(dt.i64, 0)
    return extreme(monoid, value, axis(dim, len(x.shape)), keepdim)


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims")
def _any(out: Type, x: Tensor, dim: Dims = None, keepdim: bool = False, *, op: str) -> Tensor:
    return reduce("or" if "any" in op else "and", cast(dt.bool_, x), axes(dim, len(x.shape)), keepdim)


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def _count_nonzero(out: Type, x: Tensor, dim: Dims = None) -> Tensor:
    return reduce("add", cast(dt.i64, cast(dt.bool_, x)), axes(dim, len(x.shape)))


def variance(x: Tensor, over: Sequence[int], keepdim: bool, correction: float) -> Tensor:
    """The mean of squares centred on the mean: nothing cancels at a large mean."""
    centred = sub(x, mean(x, over, keepdim=True)) if over else sub(x, x)
    return mean(mul(centred, centred), over, keepdim, correction)


@lowers("aten.var.default", "aten.var.dim", "aten.var.correction", "aten.std.default", "aten.std.dim", "aten.std.correction",
        "aten.var_mean.correction", "aten.std_mean.correction", "aten.var_mean.dim", "aten.std_mean.dim", "aten.var_mean.default",
        "aten.std_mean.default")
def _var(out: Type, x: Tensor, dim: Dims | bool = None, unbiased: bool = True, keepdim: bool = False, *, correction: Number | None = None,
         op: str) -> Tensor | tuple[Tensor, Tensor]:
    dims, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)  # an overload has no dimensions
    degrees = correction if correction is not None else 1 if unbiased else 0
    value, over = convert(x, x.dtype), axes(dims, len(x.shape))
    spread = variance(value, over, keepdim, degrees)
    spread = apply("sqrt", spread) if "std" in op else spread
    return (spread, mean(value, over, keepdim)) if "_mean" in op else spread


@lowers("aten.logsumexp.default", "aten.special_logsumexp.default")
def _logsumexp(out: Type, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """m + log sum exp(x - m) with m the maximum, or m where that is infinite."""
    return reshape(_log_of_sum(convert(x, out.dtype), axes(dim, len(x.shape))), out.shape)


def _log_of_sum(x: Tensor, over: Sequence[int]) -> Tensor:
    most = reduce("max", x, over, keepdim=True)
    total = add(most, apply("log", reduce("add", apply("exp", sub(x, most)), over, keepdim=True)))
    return select(apply("eq", apply("abs", most), float("inf")), most, total)


@lowers("aten.logcumsumexp.default")
def _logcumsumexp(out: Type, x: Tensor, dim: int) -> Tensor:
    """At each place over those up to it, with their own maximum."""
    if not x.shape:
        return convert(x, out.dtype)
    along, rank = axis(dim, len(x.shape)), len(x.shape)
    wide = (*x.shape, x.shape[along])
    each = remap(convert(x, out.dtype), wide, [Pos(rank if k == along else k) for k in range(rank)])
    upto = select(apply("le", position(wide, rank), position(wide, along)), each, float("-inf"))
    return reshape(_log_of_sum(upto, (rank,)), x.shape)


@lowers("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar", "aten.norm.ScalarOpt_dtype")
def _norm(out: Type, x: Tensor, order: Number | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    value, over, p = apply("abs", convert(x, out.dtype)), axes(dim, len(x.shape)), 2 if order is None else order
    if abs(p) == float("inf"):
        return reduce("max" if p > 0 else "min", value, over, keepdim)
    if p == 0:
        return reduce("add", cast(value.dtype, apply("ne", value, 0)), over, keepdim)
    powers = value if p == 1 else mul(value, value) if p == 2 else apply("pow", value, p)
    total = reduce("add", powers, over, keepdim)
    return total if p == 1 else apply("sqrt", total) if p == 2 else apply("pow", total, 1 / p)


@lowers("aten.cdist.default")
def _cdist(out: Type, x: Tensor, y: Tensor, p: Number = 2, _: int | None = None) -> Tensor:
    """The norm of the difference of each two rows."""
    rows = reshape(x, (*x.shape[:-1], 1, x.shape[-1])), reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return _norm(out, sub(*(convert(t, out.dtype) for t in rows)), p, -1)


@lowers("aten.cumsum.default", "aten.cumprod.default")
def _cumulate(out: Type, x: Tensor, dim: int, *, dtype: DType | None = None, op: str) -> Tensor:
    value = convert(x, out.dtype)
    return Scan("add" if op == "aten.cumsum.default" else "mul", axis(dim, len(x.shape)), value) if x.shape else value
