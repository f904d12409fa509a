"""Tile IR on NumPy: fused kernels mean what their program means, and run at sizes that are used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from emmy.check.programs import programs
from emmy.egraph.canonical import canonical
from emmy.egraph.saturate import saturate
from emmy.errors import EmmyError
from emmy.evaluate.tile import evaluate_kernel, evaluate_tile, unfold
from emmy.ir import tensor_ir as tir
from emmy.ir.tile_text import parse, parse_kernel
from emmy.lower.tensor_to_loop import lower
from tests.evaluate.lowered import fused
from tests.stopwatch import seconds

ATTENTION = """kernel attention(q: f32[{n}, 64], k: f32[{n}, 64], v: f32[{n}, 64]) -> o: f32[{n}, 64] {{
  over i2 < {n}, i4 < 64
  along r0 < {n}, r1 < 64
    f0[r0, i2] = reduce.add r1 : mul(q[i2, r1], k[r0, r1])
  f1 = twist.softmax r0
    f1.0[i2] : select(le(index(r0), index(i2)), mul(f0, const{{f32}}(0.125)), const{{f32}}(0xff800000))
    f1.1[i2] : const{{f32}}(1.0)
    f1.2[i2, i4] : v[r0, i4]
  store o[i2, i4] = div(f1.2, f1.1)
}}
"""


def test_causal_attention_is_softmax_of_the_scores_times_the_values() -> None:
    n = 48
    kernel = parse_kernel(ATTENTION.format(n=n))
    q, k, v = np.random.default_rng(0).standard_normal((3, n, 64)).astype(np.float32)
    scores = np.where(np.tri(n, dtype=bool), q @ k.T * 0.125, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(evaluate_kernel(kernel, {"q": q, "k": k, "v": v})[0], want, rtol=1e-5, atol=1e-6)


def test_no_array_has_every_axis_of_a_contraction() -> None:
    n = 1024        # with rows, keys and head together 268 MB; a Python loop would take minutes
    kernel = parse_kernel(ATTENTION.format(n=n))
    q, k, v = np.random.default_rng(0).standard_normal((3, n, 64)).astype(np.float32)
    assert seconds(lambda: None, lambda _: evaluate_kernel(kernel, {"q": q, "k": k, "v": v}), 5) < 5


@settings(max_examples=25)
@given(programs())
def test_unfold_gives_back_the_body(program: tir.Program) -> None:
    source = lower(program)
    region = saturate(source)
    bodies = canonical(region)
    kernels = {k.outputs[0].name: k for k in fused(program).kernels}
    for name, kernel in kernels.items():
        assert unfold(kernel) == (bodies[region.home[name]],)


PROGRAM = """tile {
  input x
  kernel first(x: f32[4]) -> t: bf16[4] {
    over i0 < 4
    store t[i0] = round{bf16}(mul(x[i0], const{f32}(1.001)))
  }
  kernel second(t: bf16[4]) -> y: f32[4] {
    over i0 < 4
    along r1 < 4
    f0[i0] = scan.add r1 <= i0 : t[r1]
    store y[i0] = f0
  }
  return y = y, x = x
}
"""


def test_a_kept_tensor_is_rounded_to_its_stored_type() -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    y, same = evaluate_tile(parse(PROGRAM), {"x": x})
    np.testing.assert_array_equal(y, [1, 3, 6, 10])
    np.testing.assert_array_equal(same, x)


def test_errors_name_the_tensor() -> None:
    with pytest.raises(EmmyError, match="no value for 'x'"):
        evaluate_tile(parse(PROGRAM), {})
    with pytest.raises(EmmyError, match=r"'x' is float32\[3\]"):
        evaluate_tile(parse(PROGRAM), {"x": np.zeros(3, np.float32)})
