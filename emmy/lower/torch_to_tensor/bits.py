"""Operators of bits and of truth: and, or, exclusive or, not, and shifts.  A boolean is one bit."""

from __future__ import annotations

from emmy.errors import EmmyError
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import Operand, apply, cast, convert
from emmy.lower.torch_to_tensor.registry import lowers


@lowers("aten.logical_not.default", "aten.bitwise_not.default")
def _not(out: Type, x: Tensor) -> Tensor:
    return apply("not", cast(out.dtype, x))


BITWISE = "and", "or", "xor"
_KINDS = "Tensor", "Scalar", "Scalar_Tensor"


@lowers(*(f"aten.logical_{op}.default" for op in BITWISE), *(f"aten.bitwise_{op}.{kind}" for op in BITWISE for kind in _KINDS),
        *(f"aten.__{op}__.{kind}" for op in BITWISE for kind in _KINDS[:2]))
def _bitwise(out: Type, x: Operand, y: Operand, *, op: str) -> Tensor:
    return apply(op.split(".")[1].strip("_").split("_")[-1], convert(x, out.dtype), convert(y, out.dtype))


SHIFTS = {"left": "shl", "right": "shr", "l": "shl", "r": "shr"}


@lowers(*(f"aten.bitwise_{side}_shift.{kind}" for side in ("left", "right") for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
        *(f"aten.__{side}shift__.{kind}" for side in "lr" for kind in _KINDS[:2]))
def _shift(out: Type, x: Operand, y: Operand, *, op: str) -> Tensor:
    side = op.split(".")[1].strip("_").removeprefix("bitwise_").removesuffix("shift").strip("_")
    if out.dtype.kind != "int":
        raise EmmyError(f"{op} of {out.dtype} is not covered", "multiply by a power of 2")
    return apply(SHIFTS[side], convert(x, out.dtype), convert(y, out.dtype))
