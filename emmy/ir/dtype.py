"""Element types: how a tensor is stored, and in what its elements are computed.

Arithmetic on half types and on those of a byte, e4m3 and e5m2, happens in fp32 (torch's opmath): `compute` gives the type that a stored
element widens to.
i8 and u8 are integers of a byte, whose arithmetic stays in it: what a result has beyond 8 bits is dropped.
tf32 is what products take of f32: memory holds f32, of whose mantissa they read the upper 10 bits.
A constant is (dtype, bits): the bits of its value as that type stores it, so that 0.0 and -0.0 differ and NaN is itself.
"""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np

from emmy.ir.node import IRError, Node

Kind = Literal["float", "int", "bool"]


class DType(Node):
    """An element type.  `name` as printed, `bytes` of one element in memory."""

    name: str
    bytes: int
    kind: Kind

    @property
    def numpy(self) -> np.dtype[Any]:
        made: np.dtype[Any] = np.dtype(_NUMPY[self.stored.name])
        return made

    @property
    def torch_name(self) -> str:
        """The attribute of `torch` that is this type, such as "bfloat16"."""
        return _TORCH[self.name]

    @property
    def stored(self) -> DType:
        """The type that memory holds it as."""
        return f32 if self is tf32 else self

    @property
    def compute(self) -> DType:
        """The type arithmetic on it happens in."""
        return f32 if self in (bf16, f16, e4m3, e5m2) else self

    def __str__(self) -> str:
        return self.name


bool_ = DType("bool", 1, "bool")
i8 = DType("i8", 1, "int")
u8 = DType("u8", 1, "int")          # from 0 to 255
i32 = DType("i32", 4, "int")
i64 = DType("i64", 8, "int")
f16 = DType("f16", 2, "float")
bf16 = DType("bf16", 2, "float")
f32 = DType("f32", 4, "float")
f64 = DType("f64", 8, "float")

e4m3 = DType("e4m3", 1, "float")      # no infinities: what exceeds 448 is NaN
e5m2 = DType("e5m2", 1, "float")
tf32 = DType("tf32", 4, "float")

DTYPES = {d.name: d for d in (bool_, i8, u8, i32, i64, f16, bf16, f32, f64, e4m3, e5m2)}     # of tensors
OPERANDS = DTYPES | {"tf32": tf32}                                       # and of what products take
_NUMPY = {"bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i32": np.int32, "i64": np.int64, "f16": np.float16,
          "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_TORCH = {"bool": "bool", "i8": "int8", "u8": "uint8", "i32": "int32", "i64": "int64", "f16": "float16", "bf16": "bfloat16",
          "f32": "float32", "f64": "float64", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def named(name: str) -> DType:
    """The type printed as `name`; IRError if there is none."""
    if name not in OPERANDS:
        raise IRError(f"unknown dtype {name!r}; the dtypes are {', '.join(OPERANDS)}")
    return OPERANDS[name]


def bits(dtype: DType, value: float | bool) -> int:
    """The bits of `value` rounded to `dtype`, as an unsigned integer."""
    with np.errstate(all="ignore"):
        return int.from_bytes(converted(np.asarray(value), dtype).tobytes(), "little")


def value(dtype: DType, pattern: int) -> Any:
    """The NumPy scalar whose bits are `pattern`."""
    return np.frombuffer(pattern.to_bytes(dtype.bytes, "little"), dtype.numpy)[0]


def converted(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The values as `dtype`.  A float becomes an integer by dropping its fraction, and one of a byte the low 8 bits of the i64 that this
    gives, as torch defines it; what i64 does not hold is no number in particular."""
    return (x.astype(np.int64) if dtype in (i8, u8) and x.dtype.kind not in "biu" else x).astype(dtype.numpy)


def truncated(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """f32 as products read it: the low 13 bits of the mantissa are dropped, an error below 2**-10 of the value."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def rounded(x: np.ndarray[Any, Any], even: bool = True) -> np.ndarray[Any, Any]:
    """f32 rounded to the nearest tf32, ties to `even` or away from zero: an error of 2**-11 of the value at most.  NaN and inf stay."""
    bits = x.view(np.uint32)
    half = np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) if even else np.uint32(0x1000)
    return np.where(np.isfinite(x), ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32), x)
