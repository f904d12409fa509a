from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from emmy.evaluate.error import compare, judge, tolerance
from emmy.ir import dtype as dt

INF, NAN = math.inf, math.nan


@pytest.fixture(params=["numpy", "torch"])
def array(request):
    """Builds float32 values (or another NumPy type) for either library."""
    def make(values, dtype=np.float32):
        x = np.asarray(values, dtype)
        return x if request.param == "numpy" else torch.from_numpy(x)
    return make


def test_relative_frobenius(array):
    error = compare(array([3.0, 4.0, 1.0]), array([3.0, 4.0, 0.0], np.float64))
    assert error == (0.2, 1.0, 0)
    assert error.within(0.2) and not error.within(0.19)


@pytest.mark.parametrize(("out", "ref", "relative"), [([0.0], [0.0], 0.0), ([1.0], [0.0], INF), ([], [], 0.0)])
def test_zero_references(array, out, ref, relative):
    assert compare(array(out), array(ref, np.float64)).relative == relative


@pytest.mark.parametrize(("out", "ref", "mismatched"), [
    ([NAN, 1.0], [NAN, 1.0], 0), ([INF, 1.0], [INF, 1.0], 0), ([-INF, 1.0], [INF, 1.0], 1), ([NAN, 1.0], [0.0, 1.0], 1),
    ([0.0, 1.0], [NAN, 1.0], 1), ([INF, 1.0], [NAN, 1.0], 1), ([INF, 1.0], [1e39, 1.0], 0), ([3e38, 1.0], [1e39, 1.0], 1),
])
def test_nonfinite_values_must_match_in_place_and_sign(array, out, ref, mismatched):
    error = compare(array(out), array(ref, np.float64))
    assert error == (0.0, 0.0, mismatched)
    assert error.within(1.0) == (mismatched == 0)


def test_no_square_overflows_or_vanishes(array):
    for scale in (1e300, 1e-300):
        assert compare(array([1.5 * scale], np.float64), array([scale], np.float64)).relative == pytest.approx(0.5)


def test_integers_differ_exactly(array):
    assert compare(array([2**60 + 1], np.int64), array([2**60], np.int64)).max_abs == 1.0
    assert not compare(array([True, False], np.bool_), array([True, True], np.bool_)).within(tolerance(dt.bool_))


def test_half_types_are_widened():
    x = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    assert compare(x, np.array([1.0, 2.0])).within(0.0)
    assert compare(torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.0], dtype=torch.float64)).within(0.0)
    assert compare(np.array([INF], ml_dtypes.bfloat16), np.array([1e39])).mismatched_nonfinite == 0


def test_shapes_must_agree(array):
    with pytest.raises(ValueError, match="shape"):
        compare(array([1.0]), array([[1.0]], np.float64))


def test_tolerances_follow_precision():
    assert 0 == tolerance(dt.i64) < tolerance(dt.f64) < tolerance(dt.f32) < tolerance(dt.f16) < tolerance(dt.bf16)


def test_right_is_within_the_tolerance_or_as_near_as_eager():
    ref = torch.tensor([1.0, 2.0, float("nan")], dtype=torch.float64)
    near, far, further = (torch.tensor([1.0 + d, 2.0, float("nan")]) for d in (1e-6, 1e-3, 1.9e-3))
    assert judge(near, ref, None, dt.f32).right and not judge(far, ref, None, dt.f32).right
    assert judge(further, ref, far, dt.f32).right and not judge(further, ref, near, dt.f32).right
    judged = judge(far, ref, near, dt.f32)
    assert judged.tolerance == 1e-5 and judged.eager.relative < 1e-5 < judged.error.relative


def test_a_nan_is_right_only_where_float64_or_eager_has_it():
    ref, out = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, float("nan")])
    assert not judge(out, ref, None, dt.f32).right
    assert judge(out, ref, out.clone(), dt.f32).right, "eager overflows where float64 does not"
    assert not judge(out, ref, torch.tensor([float("nan"), 2.0]), dt.f32).right
    assert not judge(out, ref, torch.tensor([9.0, 2.0]), dt.f32).right, "a far eager does not excuse a NaN"


def test_tf32_has_a_bound_of_its_own():
    assert tolerance(dt.f32) < tolerance(dt.f32, "tf32") == 2.0**-10
    assert tolerance(dt.f64, "tf32") == tolerance(dt.f64) and tolerance(dt.i32, "tf32") == 0


def test_tf32_is_the_nearest_of_eleven_bits():
    """As an H200's copy engine has it: ties to even.  Instructions take ties away from zero, and products drop what is unread."""
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-11), 1 + 2.0**-11 - 2.0**-20, np.inf, np.nan], np.float32)
    up = np.float32(1 + 2.0**-10)
    np.testing.assert_array_equal(dt.rounded(x), np.array([1, 1 + 2.0**-9, -1, 1, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(dt.rounded(x, even=False), np.array([up, 1 + 2.0**-9, -up, 1, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(dt.truncated(x[:4]), np.array([1, up, -1, 1], np.float32))
