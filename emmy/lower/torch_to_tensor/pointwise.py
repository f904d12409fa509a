"""Elementwise operators: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.tensor_ir import Cast, Round, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    FROM_TORCH,
    Number,
    Operand,
    add,
    apply,
    broadcast,
    cast,
    constant,
    convert,
    div,
    mul,
    reshape,
    select,
    sigmoid,
    sub,
)
from emmy.lower.torch_to_tensor.registry import lowers


def common(x: Operand, y: Operand) -> DType:
    """torch's promoted type of two operands."""
    def stand_in(v: Operand) -> Any:
        return torch.empty((1,) * len(v.shape), dtype=getattr(torch, v.dtype.torch_name), device="meta") if isinstance(v, Tensor) else v

    return FROM_TORCH[torch.result_type(stand_in(x), stand_in(y))]


UNARY = {"abs": "abs", "neg": "neg", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt",
         "reciprocal": "recip", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "special_erf": "erf"}
ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc", "round": "round"}


def _unary(op: str) -> Callable[..., Tensor]:
    return lambda out, x: apply(op, convert(x, out.dtype))


for _name, _op in UNARY.items():
    lowers(f"aten.{_name}.default")(_unary(_op))
for _name, _op in ROUNDING.items():
    lowers(f"aten.{_name}.default")(lambda out, x, _op=_op: x if out.dtype.kind == "int" else apply(_op, convert(x, out.dtype)))


@lowers("aten.sign.default", "aten.sgn.default")
def _sign(out: Type, x: Tensor) -> Tensor:
    """Of a NaN torch says 0: it is neither above nor below."""
    value = convert(x, out.dtype)
    return apply("sign", value if out.dtype.kind != "float" else select(apply("isnan", value), 0, value))


@lowers("aten.sigmoid.default", "aten.special_expit.default")
def _sigmoid(out: Type, x: Tensor) -> Tensor:
    return sigmoid(convert(x, out.dtype))


@lowers("aten.tan.default")
def _tan(out: Type, x: Tensor) -> Tensor:
    return div(apply("sin", convert(x, out.dtype)), apply("cos", convert(x, out.dtype)))


@lowers("aten.log2.default", "aten.log10.default", "aten.exp2.default")
def _other_base(out: Type, x: Tensor, *, op: str) -> Tensor:
    value = convert(x, out.dtype)
    if op == "aten.exp2.default":
        return apply("pow", constant(value.dtype, 2), value)
    return mul(apply("log", value), 1 / math.log(2 if op == "aten.log2.default" else 10))


@lowers("aten.square.default")
def _square(out: Type, x: Tensor) -> Tensor:
    return mul(convert(x, out.dtype), convert(x, out.dtype))


def _logic_or_arithmetic(out: Type, op: str, x: Operand, y: Operand) -> Tensor:
    """On booleans a sum is `or` and a product `and`."""
    name = {"add": "or", "mul": "and"}.get(op, op) if out.dtype is dt.bool_ else op
    return apply(name, convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.add.Tensor", "aten.add.Scalar")
def _add(out: Type, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return _logic_or_arithmetic(out, "add", x, y if alpha == 1 else mul(convert(y, out.dtype), alpha))


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(out: Type, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return sub(convert(x, out.dtype), convert(y, out.dtype) if alpha == 1 else mul(convert(y, out.dtype), alpha))


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def _rsub(out: Type, x: Operand, y: Operand, alpha: Number = 1) -> Tensor:
    return _sub(out, y, x, alpha)


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def _mul(out: Type, x: Operand, y: Operand) -> Tensor:
    return _logic_or_arithmetic(out, "mul", x, y)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.true_divide.Tensor")
def _div(out: Type, x: Operand, y: Operand, rounding_mode: str | None = None) -> Tensor:
    op = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    a, b = convert(x, out.dtype), convert(y, out.dtype)
    return _floor_of_quotient(a, b) if op == "floordiv" and out.dtype.kind == "float" else apply(op, a, b)


def _floor_of_quotient(a: Tensor, b: Tensor) -> Tensor:
    """The floor of the exact quotient of floats, where that of the rounded one may be 1 above it: 1 // 0.1 is 9.

    a less its remainder is a multiple of b, whose quotient rounds to a whole number or close to one; by 0 it is a / b."""
    rest = apply("fmod", a, b)
    whole = div(sub(a, rest), b)
    other_sign = apply("xor", apply("lt", b, 0), apply("lt", rest, 0))
    whole = select(apply("and", apply("ne", rest, 0), other_sign), sub(whole, 1), whole)
    below = apply("floor", whole)
    nearest = select(apply("lt", constant(a.dtype, 0.5), sub(whole, below)), add(below, 1), below)
    return select(apply("eq", b, 0), div(a, b), nearest)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _floor_divide(out: Type, x: Operand, y: Operand) -> Tensor:
    return _div(out, x, y, "floor")


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def _remainder(out: Type, x: Operand, y: Operand) -> Tensor:
    return apply("mod", convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def _fmod(out: Type, x: Operand, y: Operand) -> Tensor:
    return apply("fmod", convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(out: Type, x: Operand, y: Operand) -> Tensor:
    """A small integer power is a product, by repeated squaring; a half one a square root."""
    base = convert(x, out.dtype)
    most = 8 if out.dtype.kind == "float" else 63
    if not isinstance(y, Tensor) and math.isfinite(y) and y == int(y) and abs(y) <= most and (y >= 0 or out.dtype.kind == "float"):
        power, square, n = None, base, abs(int(y))
        while n:
            if n & 1:
                power = square if power is None else mul(power, square)
            n >>= 1
            square = mul(square, square) if n else square
        whole = power if power is not None else broadcast(constant(base.dtype, 1), out.shape)
        return apply("recip", whole) if y < 0 else whole
    if not isinstance(y, Tensor) and abs(y) == 0.5:
        return apply("sqrt" if y > 0 else "rsqrt", base)
    if out.dtype.kind == "int":
        return _integer_power(base if isinstance(x, Tensor) else broadcast(base, out.shape), convert(y, out.dtype))
    return apply("pow", base, convert(y, out.dtype))


def _integer_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Squared again and again, wrapping as torch does; a negative exponent gives 0, but 1 of 1 and a sign of -1.

    Six bits of the exponent count: an even number to 64 or more has wrapped to 0, and of the odd ones only 1 and -1 have not wrapped."""
    one, power, square, left = constant(base.dtype, 1), None, base, exponent
    for _ in range(6):
        odd = apply("eq", apply("mod", left, 2), 1)
        power = select(odd, square, one) if power is None else mul(power, select(odd, square, one))
        square, left = mul(square, square), apply("floordiv", left, 2)
    sign = select(apply("eq", apply("mod", exponent, 2), 0), one, constant(base.dtype, -1))
    unit = select(apply("eq", base, 1), one, select(apply("eq", base, -1), sign, constant(base.dtype, 0)))
    assert power is not None
    gone = apply("and", apply("lt", constant(exponent.dtype, 63), exponent), apply("eq", apply("mod", base, 2), 0))
    return select(apply("lt", exponent, 0), unit, select(gone, constant(base.dtype, 0), power))


@lowers("aten.maximum.default", "aten.max.other")
def _maximum(out: Type, x: Tensor, y: Tensor) -> Tensor:
    return apply("max", convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.minimum.default", "aten.min.other")
def _minimum(out: Type, x: Tensor, y: Tensor) -> Tensor:
    return apply("min", convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.fmax.default", "aten.fmin.default")
def _fmax(out: Type, x: Tensor, y: Tensor, *, op: str) -> Tensor:
    """Unlike maximum, a NaN loses to a number."""
    a, b = convert(x, out.dtype), convert(y, out.dtype)
    best = apply("max" if op == "aten.fmax.default" else "min", a, b)
    return best if out.dtype.kind != "float" else select(apply("isnan", a), b, select(apply("isnan", b), a, best))


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor", "aten.hardtanh.default")
def _clamp(out: Type, x: Tensor, min: Operand | None = None, max: Operand | None = None, *, op: str) -> Tensor:
    low, high = (-1, 1) if op == "aten.hardtanh.default" and min is None else (min, max)
    value = convert(x, out.dtype)
    value = value if low is None else apply("max", value, convert(low, out.dtype))
    return value if high is None else apply("min", value, convert(high, out.dtype))


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def _clamp_min(out: Type, x: Tensor, low: Operand) -> Tensor:
    return apply("max", convert(x, out.dtype), convert(low, out.dtype))


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def _clamp_max(out: Type, x: Tensor, high: Operand) -> Tensor:
    return apply("min", convert(x, out.dtype), convert(high, out.dtype))


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _where(out: Type, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    return select(cast(dt.bool_, condition), convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(out: Type, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return select(mask, convert(value, out.dtype), convert(x, out.dtype))


COMPARE = {"eq": ("eq", False), "ne": ("ne", False), "lt": ("lt", False), "le": ("le", False), "gt": ("lt", True), "ge": ("le", True)}


def _compare(op: str, swap: bool) -> Callable[..., Tensor]:
    def lower(out: Type, x: Operand, y: Operand) -> Tensor:
        kind = common(x, y)
        a, b = convert(x, kind), convert(y, kind)
        return apply(op, b, a) if swap else apply(op, a, b)

    return lower


for _name, (_op, _swap) in COMPARE.items():
    lowers(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_compare(_op, _swap))


@lowers("aten.isnan.default", "aten.isinf.default", "aten.isfinite.default")
def _classify(out: Type, x: Tensor, *, op: str) -> Tensor:
    if x.dtype.kind != "float":
        return broadcast(constant(dt.bool_, op == "aten.isfinite.default"), out.shape)
    value, infinity = convert(x, x.dtype), float("inf")
    if op == "aten.isnan.default":
        return apply("isnan", value)
    return apply("eq" if op == "aten.isinf.default" else "lt", apply("abs", value), infinity)


@lowers("aten.relu.default")
def _relu(out: Type, x: Tensor) -> Tensor:
    return apply("max", convert(x, out.dtype), 0)


@lowers("aten.relu6.default")
def _relu6(out: Type, x: Tensor) -> Tensor:
    return apply("min", apply("max", convert(x, out.dtype), 0), 6)


@lowers("aten.gelu.default")
def _gelu(out: Type, x: Tensor, approximate: str = "none") -> Tensor:
    v = convert(x, out.dtype)
    if approximate == "tanh":
        inner = mul(add(v, mul(mul(mul(v, v), v), 0.044715)), math.sqrt(2 / math.pi))
        return mul(mul(v, 0.5), add(apply("tanh", inner), 1))
    return mul(mul(v, 0.5), add(apply("erf", mul(v, math.sqrt(0.5))), 1))


@lowers("aten.silu.default")
def _silu(out: Type, x: Tensor) -> Tensor:
    return mul(convert(x, out.dtype), sigmoid(convert(x, out.dtype)))


def _soft(v: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    scaled = v if beta == 1 else mul(v, beta)
    soft = apply("log1p", apply("exp", scaled))
    return select(apply("lt", constant(v.dtype, threshold), scaled), v, soft if beta == 1 else mul(soft, 1 / beta))


@lowers("aten.softplus.default")
def _softplus(out: Type, x: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    return _soft(convert(x, out.dtype), beta, threshold)


@lowers("aten.mish.default")
def _mish(out: Type, x: Tensor) -> Tensor:
    v = convert(x, out.dtype)
    return mul(v, apply("tanh", _soft(v)))


@lowers("aten.log_sigmoid.default")
def _log_sigmoid(out: Type, x: Tensor) -> Tensor:
    v = convert(x, out.dtype)
    return sub(apply("min", v, 0), apply("log1p", apply("exp", apply("neg", apply("abs", v)))))


@lowers("aten.leaky_relu.default", "aten.prelu.default")
def _leaky_relu(out: Type, x: Tensor, slope: Operand = 0.01) -> Tensor:
    v = convert(x, out.dtype)
    if isinstance(slope, Tensor) and slope.size > 1:  # one slope a channel, dimension 1
        channels = [slope.size if k == 1 else 1 for k in range(len(x.shape))]
        slope = reshape(slope, channels)
    return select(apply("lt", constant(v.dtype, 0), v), v, mul(v, convert(slope, out.dtype)))


@lowers("aten.elu.default")
def _elu(out: Type, x: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    v = convert(x, out.dtype)
    below = mul(apply("expm1", v if input_scale == 1 else mul(v, input_scale)), alpha * scale)
    return select(apply("lt", constant(v.dtype, 0), v), v if scale == 1 else mul(v, scale), below)


@lowers("aten.selu.default")
def _selu(out: Type, x: Tensor) -> Tensor:
    return _elu(out, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@lowers("aten.celu.default")
def _celu(out: Type, x: Tensor, alpha: Number = 1) -> Tensor:
    return _elu(out, x, alpha, 1, 1 / alpha)


@lowers("aten.hardsigmoid.default", "aten.hardswish.default")
def _hardsigmoid(out: Type, x: Tensor, *, op: str) -> Tensor:
    v = convert(x, out.dtype)
    gate = mul(apply("min", apply("max", add(v, 3), 0), 6), 1 / 6)
    return gate if op == "aten.hardsigmoid.default" else mul(v, gate)


@lowers("aten.softsign.default")
def _softsign(out: Type, x: Tensor) -> Tensor:
    v = convert(x, out.dtype)
    return div(v, add(apply("abs", v), 1))


@lowers("aten.to.dtype", "aten.to.device", "aten.to.dtype_layout", "aten._to_copy.default", "aten.type_as.default", "aten.to.other",
        "aten.float.default", "aten.copy.default")
def _to(out: Type, x: Tensor, source: object = None, *_: object, op: str, **__: object) -> Tensor:
    """A conversion that the program asks for, to the type of the result; `copy` takes its values from the second operand."""
    value = source if op == "aten.copy.default" and isinstance(source, Tensor) else x
    if value.dtype is not out.dtype and isinstance(value, Round):
        value = Cast(value.dtype, value)     # the program looks at the rounded value: its rounding stays
    return broadcast(cast(out.dtype, value), out.shape)


@lowers("aten.contiguous.default", "aten.clone.default", "aten.detach.default", "aten.detach_.default", "aten.alias.default",
        "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.positive.default", "aten.conj.default",
        "aten.resolve_conj.default", "aten.resolve_neg.default")
def _same(out: Type, x: Tensor, **_: object) -> Tensor:
    return x


@lowers("aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default")
def _dropout(out: Type, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p:
        raise EmmyError("dropout in training mode is not covered", "call .eval() on the module, or F.dropout(..., training=False)")
    return x


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def _lerp(out: Type, x: Tensor, y: Tensor, weight: Operand) -> Tensor:
    a, b = convert(x, out.dtype), convert(y, out.dtype)
    return add(a, mul(convert(weight, out.dtype), sub(b, a)))


@lowers("aten.addcmul.default", "aten.addcdiv.default")
def _addc(out: Type, x: Tensor, y: Tensor, z: Tensor, value: Number = 1, *, op: str) -> Tensor:
    part = (mul if op == "aten.addcmul.default" else div)(convert(y, out.dtype), convert(z, out.dtype))
    return add(convert(x, out.dtype), part if value == 1 else mul(part, value))
