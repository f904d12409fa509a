"""Grouped products: rows of a matrix packed group after group, as tokens by expert, and a matrix for each group.

`offsets` [groups] say where each group ends.  A position belongs to the group that as many groups end at or before it; what lies behind the
last group's end, which torch leaves as it found it, is 0.
"""

from __future__ import annotations

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import apply, cast, constant, convert, mul, position, reduce, remap, reshape, select, widen
from emmy.lower.torch_to_tensor.indexing import take
from emmy.lower.torch_to_tensor.linear_algebra import contract, matmul
from emmy.lower.torch_to_tensor.registry import lowers


def group(ends: Tensor, positions: int) -> Tensor:
    """The group of each position, that of those behind the last being the last."""
    (count,) = ends.shape
    ended = apply("le", remap(ends, (positions, count), [Pos(1)]), position((positions, count), 0))
    return apply("min", reduce("add", cast(dt.i64, ended), (1,)), count - 1)


def product(x: Tensor, y: Tensor, offsets: Tensor | None) -> Tensor:
    """x [rows, k] by y [groups, k, n], rows being grouped; x [groups, m, k] by y [k, columns]; x [m, k] by y [k, n], the sum being grouped,
    [groups, m, n]; or as many matrices by as many, of no offsets.  Operands in a compute type."""
    if len(x.shape) == len(y.shape) == 3:
        return matmul(x, y)
    if offsets is None:
        raise EmmyError("a grouped product of no offsets", "pass offs, where each group ends")
    ends, (groups,) = cast(dt.i64, offsets), offsets.shape
    if len(x.shape) == len(y.shape):
        dims = groups, x.shape[0], y.shape[1], x.shape[1]
        at = position(dims, 3)
        own = apply("lt", at, remap(ends, dims, [Pos(0)]))
        begin = remap(ends, (groups,), [ix.mod(ix.add(Pos(0), IxConst(groups - 1)), groups)])      # where the one before ends
        begin = select(apply("lt", position((groups,), 0), 1), 0, begin)
        own = apply("and", own, apply("le", remap(begin, dims, [Pos(0)]), at))
        terms = mul(remap(x, dims, [Pos(1), Pos(3)]), remap(y, dims, [Pos(3), Pos(2)]))
        return reduce("add", select(own, terms, constant(terms.dtype, 0)), (3,))
    rows = len(x.shape) == 2
    (m, k), n = x.shape[-2:], y.shape[-1]
    along = m if rows else n
    layers = take(y if rows else x, 0, group(ends, along))
    made = contract((m, n, k), ((x, (0, 2)), (layers, (0, 2, 1))) if rows else ((layers, (1, 0, 2)), (y, (2, 1))), 1)
    last = remap(ends, (m, n), [IxConst(groups - 1)])
    return select(apply("lt", position((m, n), 0 if rows else 1), last), made, constant(made.dtype, 0))


def _without_bias(bias: Tensor | None) -> None:
    if bias is not None:
        raise EmmyError("a bias of a grouped product", "add what each row's group has, such as bias[group], to the product")


@lowers("aten._grouped_mm.default")
def _grouped_mm(out: Type, x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
                out_dtype: object = None) -> Tensor:
    _without_bias(bias)
    return product(convert(x, out.dtype), convert(y, out.dtype), offs)


@lowers("aten._scaled_grouped_mm.default")
def _scaled_grouped_mm(out: Type, x: Tensor, y: Tensor, scale_x: Tensor, scale_y: Tensor, offs: Tensor | None = None,
                       bias: Tensor | None = None, scale_result: Tensor | None = None, out_dtype: object = None,
                       use_fast_accum: bool = False) -> Tensor:
    """The product times a scale of each row and one of each column of its group's.  The sum is in fp32, however fast torch may add."""
    _without_bias(bias)
    if scale_result is not None:
        raise EmmyError("a scale of the result", "scale what _scaled_grouped_mm returns")
    if len(x.shape) != 2 or len(y.shape) != 3 or scale_x.shape != x.shape[:1] or scale_y.shape != (y.shape[0], y.shape[2]):
        raise EmmyError(f"scales of shapes {list(scale_x.shape)} and {list(scale_y.shape)} of operands {list(x.shape)} and {list(y.shape)}",
                        "pass rows [m, k], matrices [groups, k, n] and scales [m] and [groups, n]")
    made = product(widen(x), widen(y), offs)
    assert offs is not None
    columns = take(widen(scale_y), 0, group(cast(dt.i64, offs), x.shape[0]))
    return mul(mul(made, reshape(widen(scale_x), (x.shape[0], 1))), columns)
