"""Tensors made from nothing: constants, ranges, identities; and the triangles, which are masks by coordinate."""

from __future__ import annotations

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import IndexValue, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import Number, add, apply, broadcast, cast, constant, convert, mul, position, select, sub
from emmy.lower.torch_to_tensor.registry import lowers

FILL = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "zero": 0}


for _name, _value in FILL.items():
    lowers(f"aten.{_name}.default")(lambda out, *_, _value=_value, **__: broadcast(constant(out.dtype, _value), out.shape))


@lowers("aten.full.default", "aten.scalar_tensor.default")
def _full(out: Type, *args: object, **_: object) -> Tensor:
    value = args[-1]
    assert isinstance(value, int | float)
    return broadcast(constant(out.dtype, value), out.shape)


@lowers("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor")
def _fill(out: Type, x: Tensor, value: Number | Tensor, **_: object) -> Tensor:
    return broadcast(cast(out.dtype, value) if isinstance(value, Tensor) else constant(out.dtype, value), out.shape)


@lowers("aten.new_full.default")
def _new_full(out: Type, x: Tensor, shape: object, value: Number, **_: object) -> Tensor:
    return broadcast(constant(out.dtype, value), out.shape)


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(out: Type, *args: Number, **_: object) -> Tensor:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    if out.dtype.kind == "int":
        if start >= 0 and step > 0:
            return cast(out.dtype, IndexValue(out.shape, ix.add(ix.mul(Pos(0), int(step)), IxConst(int(start)))))
        return cast(out.dtype, add(mul(position(out.shape, 0), int(step)), int(start)))
    value = cast(out.dtype.compute, position(out.shape, 0))
    value = value if step == 1 else mul(value, step)
    return value if start == 0 else add(value, start)


@lowers("aten.linspace.default")
def _linspace(out: Type, start: Number, end: Number, steps: int, **_: object) -> Tensor:
    """From both ends inward, so that both are exact."""
    step = (end - start) / max(steps - 1, 1)
    place = position(out.shape, 0)
    low = add(mul(cast(out.dtype.compute, place), step), start)
    high = sub(constant(low.dtype, end), mul(cast(low.dtype, sub(constant(dt.i64, steps - 1), place)), step))
    return select(apply("lt", place, steps // 2), low, high) if steps > 1 else low


@lowers("aten.eye.default", "aten.eye.m")
def _eye(out: Type, *_: object, **__: object) -> Tensor:
    return cast(out.dtype.compute, apply("eq", position(out.shape, 0), position(out.shape, 1)))


@lowers("aten.triu.default", "aten.tril.default")
def _triangle(out: Type, x: Tensor, diagonal: int = 0, *, op: str) -> Tensor:
    row, column = position(x.shape, len(x.shape) - 2), position(x.shape, len(x.shape) - 1)
    edge = add(row, diagonal) if diagonal else row
    keep = apply("le", edge, column) if op == "aten.triu.default" else apply("le", column, edge)
    return select(keep, convert(x, out.dtype), 0)
