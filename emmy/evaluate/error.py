"""How far a result is from its float64 reference: one metric, used wherever numbers are judged.

relative = ||out - ref|| / ||ref|| in the Frobenius norm, with 0/0 = 0, over the elements where both are finite.  A NaN, or an
infinity of one sign, must stand exactly where the reference has it; the reference counts as infinite where it rounds to
infinity in the type of `out`.  NumPy arrays (ml_dtypes included) and torch tensors on any device are taken alike.

A result is right (`judge`) if it is within its type's tolerance of eager computed in float64, or as near as eager itself: no NaN or
infinity where eager has none, and at most twice eager's error.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType

_TOLERANCE = {dt.f64: 1e-12, dt.f32: 1e-5, dt.f16: 2e-3, dt.bf16: 1e-2, dt.e4m3: 5e-2, dt.e5m2: 1e-1}
_TF32 = 2.0**-10


class Error(NamedTuple):
    """`relative` Frobenius error, `max_abs` largest absolute difference, `mismatched_nonfinite` how many NaN or inf stand in one only."""

    relative: float
    max_abs: float
    mismatched_nonfinite: int

    def within(self, tolerance: float) -> bool:
        """Whether the result is right to `tolerance`, its NaN and infinities included."""
        return self.mismatched_nonfinite == 0 and self.relative <= tolerance


class Judged(NamedTuple):
    """A result's `error` against float64, `eager`'s own where eager ran too, and the `tolerance` of its type."""

    error: Error
    eager: Error | None
    tolerance: float
    right: bool


def judge(out: Any, ref: Any, eager: Any | None, dtype: DType, math: str = "fast") -> Judged:
    """A result of type `dtype` against its reference in float64, and against eager's if it is given; all of one shape, on one device;
    `math` as for `tolerance`."""
    found, allowed = compare(out, ref), tolerance(dtype, math)
    if eager is None:
        return Judged(found, None, allowed, found.within(allowed))
    beside = compare(eager, ref)
    as_eager = found.relative <= 2 * beside.relative and compare(out, eager).mismatched_nonfinite == 0
    return Judged(found, beside, allowed, found.within(allowed) or as_eager)


def tolerance(dtype: DType, math: str = "fast") -> float:
    """The relative error that a correct program with outputs of `dtype` stays under; 0 for integers and bool.

    With `math` "tf32" the factors of products are rounded to 11 significant bits, by 2**-11 of each at most, which moves a sum by 2**-10
    of the sum of its products' sizes at most."""
    return max(_TOLERANCE.get(dtype, 0.0), _TF32 if math == "tf32" and dtype is dt.f32 else 0.0)


def compare(out: Any, ref: Any) -> Error:
    """The error of `out` against `ref`, of equal shape (ref in float64 where `out` is floating).  ValueError if the shapes differ."""
    if tuple(out.shape) != tuple(ref.shape):
        raise ValueError(f"a result of shape {tuple(out.shape)} against a reference of shape {tuple(ref.shape)}")
    xp: Any = np if isinstance(out, np.ndarray | np.generic) else importlib.import_module("torch")
    if 0 in ref.shape:
        return Error(0.0, 0.0, 0)
    if all(not _floating(x) for x in (out, ref)):  # integers differ exactly, beyond 2**53 too
        difference = xp.asarray(xp.asarray(out, dtype=xp.int64) - xp.asarray(ref, dtype=xp.int64), dtype=xp.float64)
        ref, mismatched = xp.asarray(ref, dtype=xp.float64), 0
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = xp.asarray(xp.asarray(ref, dtype=out.dtype), dtype=xp.float64)
        out, ref = xp.asarray(out, dtype=xp.float64), xp.asarray(ref, dtype=xp.float64)
        finite = xp.isfinite(out) & xp.isfinite(rounded)
        same = finite | (out == rounded) | (xp.isnan(out) & xp.isnan(rounded))
        mismatched = int((~same).sum())
        zero = xp.zeros_like(ref)
        out, ref = xp.where(finite, out, zero), xp.where(finite, ref, zero)
        difference = out - ref
    return Error(_ratio(_norm(xp, difference), _norm(xp, ref)), float(abs(difference).max()), mismatched)


def _floating(x: Any) -> bool:
    return bool(x.dtype.is_floating_point) if hasattr(x.dtype, "is_floating_point") else x.dtype.kind not in "biu"


def _norm(xp: Any, x: Any) -> float:
    """The Frobenius norm, scaled so that no square overflows or vanishes."""
    largest = float(abs(x).max())
    return largest * float(xp.sqrt(((x / largest) ** 2).sum())) if largest else 0.0


def _ratio(error: float, size: float) -> float:
    return error / size if size else (float("inf") if error else 0.0)
