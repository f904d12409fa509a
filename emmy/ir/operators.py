"""The scalar operators and the monoids that every IR shares: arity, type rule, meaning on NumPy, cost.

Meanings are torch's: max and min propagate NaN from either side; `mod` follows the divisor's sign and `fmod` the
dividend's; `floordiv` rounds down and `truncdiv` to zero; `round` is half to even; integer arithmetic wraps.  `and`, `or`, `xor` and `not`
are those of each bit.  A shift by as many bits as there are, or by fewer than none, leaves none: `shl` is then 0, and `shr`, which repeats
the sign, 0 or -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from emmy.ir.dtype import DType, bool_, value
from emmy.ir.node import IRError


def _erf(x: Any) -> Any:
    from scipy.special import erf  # the only SciPy function in use; NumPy has none

    return erf(x)


def _floordiv(x: Any, y: Any) -> Any:
    return np.floor_divide(x, np.where(y == 0, np.ones_like(y), y)) if np.issubdtype(np.asarray(x).dtype, np.integer) else np.floor(x / y)


def _truncdiv(x: Any, y: Any) -> Any:
    if np.asarray(x).dtype.kind not in "iu":
        return np.trunc(x / y)
    if np.any(y == 0):
        y = np.where(y == 0, np.ones_like(y), y)
    quotient, below = np.floor_divide(x, y), (x < 0) != (y < 0)
    return quotient + (below & (quotient * y != x)) if np.any(below) else quotient


def _shl(x: Any, y: Any) -> Any:
    inside = (y >= 0) & (y < 8 * np.asarray(x).dtype.itemsize)
    return np.where(inside, np.left_shift(x, np.where(inside, y, np.zeros_like(y))), np.zeros_like(x))


def _shr(x: Any, y: Any) -> Any:
    bits = 8 * np.asarray(x).dtype.itemsize
    inside = (y >= 0) & (y < bits)
    return np.right_shift(x, np.where(inside, y, np.full_like(y, bits - 1))) * (inside | (x < 0))


class Operator(NamedTuple):
    """A scalar operator.  `result`: "same" as its last operand, or "bool".  `kinds`: operand kinds it takes.  `flops`: cost in fp32
    multiply or add slots."""

    name: str
    arity: int
    meaning: Callable[..., Any]
    result: str = "same"
    kinds: tuple[str, ...] = ("float",)
    flops: float = 1


_NUMBER = ("float", "int")
_BITS = ("int", "bool")
_ALL = ("float", "int", "bool")
OPERATORS = {o.name: o for o in (
    Operator("neg", 1, np.negative, kinds=_NUMBER),
    Operator("abs", 1, np.abs, kinds=_NUMBER),
    Operator("sign", 1, np.sign, kinds=_NUMBER, flops=2),
    Operator("exp", 1, np.exp, flops=8),
    Operator("exp2", 1, np.exp2, flops=2),
    Operator("expm1", 1, np.expm1, flops=16),
    Operator("log", 1, np.log, flops=10),
    Operator("log1p", 1, np.log1p, flops=16),
    Operator("sqrt", 1, np.sqrt, flops=8),
    Operator("rsqrt", 1, lambda x: 1 / np.sqrt(x), flops=8),
    Operator("recip", 1, lambda x: 1 / x, flops=8),
    Operator("sin", 1, np.sin, flops=16),
    Operator("cos", 1, np.cos, flops=16),
    Operator("tanh", 1, np.tanh, flops=16),
    Operator("erf", 1, _erf, flops=20),
    Operator("floor", 1, np.floor),
    Operator("ceil", 1, np.ceil),
    Operator("trunc", 1, np.trunc),
    Operator("round", 1, np.rint),
    Operator("isnan", 1, np.isnan, result="bool"),
    Operator("not", 1, np.invert, kinds=_BITS),
    Operator("add", 2, np.add, kinds=_NUMBER),
    Operator("sub", 2, np.subtract, kinds=_NUMBER),
    Operator("mul", 2, np.multiply, kinds=_NUMBER),
    Operator("div", 2, np.true_divide, flops=8),
    Operator("floordiv", 2, _floordiv, kinds=_NUMBER, flops=10),
    Operator("truncdiv", 2, _truncdiv, kinds=_NUMBER, flops=10),
    Operator("mod", 2, np.mod, kinds=_NUMBER, flops=10),
    Operator("fmod", 2, np.fmod, kinds=_NUMBER, flops=10),
    Operator("pow", 2, np.power, flops=20),
    Operator("max", 2, np.maximum, kinds=_ALL),
    Operator("min", 2, np.minimum, kinds=_ALL),
    Operator("and", 2, np.bitwise_and, kinds=_BITS),
    Operator("or", 2, np.bitwise_or, kinds=_BITS),
    Operator("xor", 2, np.bitwise_xor, kinds=_BITS),
    Operator("shl", 2, _shl, kinds=("int",)),
    Operator("shr", 2, _shr, kinds=("int",)),
    Operator("eq", 2, np.equal, result="bool", kinds=_ALL),
    Operator("ne", 2, np.not_equal, result="bool", kinds=_ALL),
    Operator("lt", 2, np.less, result="bool", kinds=_ALL),
    Operator("le", 2, np.less_equal, result="bool", kinds=_ALL),
    Operator("select", 3, np.where, kinds=_ALL),
    Operator("fma", 3, lambda x, y, z: x * y + z),
)}


class Monoid(NamedTuple):
    """An associative operator with a unit, for reductions and scans.  `operator` combines two; `reduce` and `scan` are NumPy's."""

    name: str
    operator: str
    reduce: Callable[..., Any]
    scan: Callable[..., Any]


MONOIDS = {m.name: m for m in (
    Monoid("add", "add", np.add.reduce, np.add.accumulate),
    Monoid("mul", "mul", np.multiply.reduce, np.multiply.accumulate),
    Monoid("max", "max", np.maximum.reduce, np.maximum.accumulate),
    Monoid("min", "min", np.minimum.reduce, np.minimum.accumulate),
    Monoid("or", "or", np.bitwise_or.reduce, np.bitwise_or.accumulate),
    Monoid("and", "and", np.bitwise_and.reduce, np.bitwise_and.accumulate),
)}


class Twist(NamedTuple):
    """A recipe of twisted reductions.  `pivot`, `weight`: slots an element of its pivot, and of the weight that all channels share;
    `extra`: components of a state besides the pivot and the channels."""

    name: str
    pivot: float
    weight: float
    extra: int = 0


TWISTS = {t.name: t for t in (Twist("softmax", 0.9, 8.9), Twist("moments", 2.0, 2.0, extra=1), Twist("first", 3.0, 3.0))}


def unit(monoid: str, dtype: DType) -> float | int | bool:
    """The neutral element of `monoid` on `dtype`: the value of an empty reduction."""
    if monoid in ("max", "min"):
        if dtype.kind == "float":
            return float("-inf") if monoid == "max" else float("inf")
        if dtype.kind == "bool":
            return monoid == "min"
        info = np.iinfo(dtype.numpy)
        return int(info.min if monoid == "max" else info.max)
    if monoid in ("and", "or"):
        every = value(dtype, 1 if dtype.kind == "bool" else (1 << 8 * dtype.bytes) - 1)
        return (every if monoid == "and" else every ^ every).item()     # type: ignore[no-any-return]
    return {"add": 0, "mul": 1}[monoid]


def result_dtype(name: str, operands: tuple[DType, ...]) -> DType:
    """The dtype of operator `name` on operands of these dtypes; IRError where it does not apply.

    Operands are compute types (no half types) and alike, but for the boolean condition of `select`.
    """
    if name not in OPERATORS:
        raise IRError(f"unknown operator {name!r}")
    op = OPERATORS[name]
    values = operands[1:] if name == "select" else operands
    if len(operands) != op.arity:
        raise IRError(f"{name} takes {op.arity} operands, not {len(operands)}")
    if name == "select" and operands[0] is not bool_:
        raise IRError(f"the condition of select is {operands[0]}, not bool")
    if any(v is not values[0] for v in values) or values[0].compute is not values[0] or values[0].kind not in op.kinds:
        raise IRError(f"{name} does not take operands of {', '.join(map(str, operands))}")
    return bool_ if op.result == "bool" else values[0]


def apply(name: str, *operands: Any) -> Any:
    """The operator on NumPy arrays; the result keeps the operands' dtype (NumPy would widen some)."""
    op = OPERATORS[name]
    with np.errstate(all="ignore"):
        out = op.meaning(*operands)
    return out if op.result == "bool" else np.asarray(out).astype(np.asarray(operands[-1]).dtype, copy=False)
