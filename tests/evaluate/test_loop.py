"""Loop IR means on NumPy what the Tensor IR it was lowered from means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from emmy.capture.snippet import capture_snippet
from emmy.check.programs import arrays, programs
from emmy.errors import EmmyError
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.reference import evaluate_tensor
from emmy.evaluate.values import Space
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tir
from emmy.ir.index import Ax, Pos
from emmy.ir.loop_text import parse
from emmy.lower import torch_to_tensor
from emmy.lower.tensor_to_loop import lower


@settings(max_examples=60)
@given(programs())
def test_agrees_with_tensor_ir(program: tir.Program) -> None:
    given = arrays(program)
    for have, want in zip(evaluate_loop(lower(program), given), evaluate_tensor(program, given), strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        # sums of products round once here and twice there, and what cancels or rounds to bf16 magnifies that
        np.testing.assert_allclose(have, want, rtol=0.02, atol=0.02 * np.abs(want[np.isfinite(want)]).max(initial=1))


def run(text: str, **given: np.ndarray) -> np.ndarray:
    return evaluate_loop(parse(text), given)[0]


def test_a_pivot_of_minus_infinity_weighs_nothing() -> None:
    text = """loop {
      input s : f32[3, 4]
      axis a0 < 4
      y[p0] : f32[3] = channel.softmax{a0}(s[p0, a0], const{f32}(1.0))
      return y = y
    }"""
    inf = np.inf
    s = np.array([[-inf] * 4, [0, -inf, 0, -inf], [np.nan, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(run(text, s=s), np.array([0, 2, np.nan], np.float32))


def test_an_empty_reduction_is_the_unit_of_its_monoid() -> None:
    text = """loop {{
      input x : {0}[2, 0]
      axis a0 < 0
      y[p0] : {0}[2] = reduce.{1}{{a0}}(x[p0, a0])
      return y = y
    }}"""
    most = np.iinfo(np.int64).max
    units = (("add", dt.f32, 0), ("mul", dt.i32, 1), ("max", dt.f64, -np.inf), ("min", dt.i64, most), ("and", dt.bool_, True))
    for monoid, element, unit in units:
        made = run(text.format(element, monoid), x=np.empty((2, 0), element.numpy))
        np.testing.assert_array_equal(made, np.full(2, unit, element.numpy))
        assert made.dtype == element.numpy


def test_half_types_are_computed_in_f32_and_stored_rounded() -> None:
    text = """loop {
      input x : bf16[2]
      y[p0] : bf16[2] = round{bf16}(add(x[p0], const{f32}(0.001953125)))
      z[p0] : f32[2] = add(x[p0], const{f32}(0.001953125))
      return y = y, z = z
    }"""
    y, z = evaluate_loop(parse(text), {"x": np.array([1, 2], dt.bf16.numpy)})
    assert (y.dtype, z.dtype) == (dt.bf16.numpy, np.float32)
    np.testing.assert_array_equal(y.astype(np.float32), [1, 2])
    np.testing.assert_array_equal(z, np.array([1.001953125, 2.001953125], np.float32))


def test_sums_accumulate_in_float64() -> None:
    text = """loop {
      input x : f32[100001]
      axis a0 < 100001
      y[] : f32[] = reduce.add{a0}(x[a0])
      return y = y
    }"""
    x = np.full(100001, 1e-4, np.float32)
    x[0] = 1e4
    assert run(text, x=x) == np.float32(1e4 + 100000 * float(x[1]))


CONTRACTIONS = [("ik", "kj"), ("bik", "bkj", "i", "j", "k"), ("ik", "kl", "lj"), ("i", "k", "k", "j"), ("ij",), ("k", "k")]


@pytest.mark.parametrize("factors", CONTRACTIONS)
def test_a_contraction_is_einsum_whatever_the_factors(factors: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    letters = {x: 2 + k for k, x in enumerate("bikjl")}
    space = Space({Ax(k): n for k, n in enumerate(letters.values())})
    values = [rng.standard_normal([letters[x] for x in f]) for f in factors]
    wide = [v.transpose([f.index(x) for x in letters if x in f]).reshape([n if x in f else 1 for x, n in letters.items()])
            for v, f in zip(values, factors, strict=True)]
    out = "".join(x for x in letters if x in set("".join(factors)) - set("kl"))
    repeat = np.prod([letters[x] for x in "kl" if x not in "".join(factors)])
    made = space.reduce("add", [2, 4], wide, dt.f64)
    want = np.einsum(f"{','.join(factors)}->{out}", *values) * repeat
    np.testing.assert_allclose(made.ravel(), want.ravel(), rtol=1e-12)


def test_a_scan_at_a_gathered_point() -> None:
    i = loop.Load("i", dt.i64, (Pos(0),))
    x = loop.Scan("add", 0, loop.IxOf(i), loop.Load("x", dt.f32, (Ax(0),)))
    inputs = tir.Input("x", (5,), dt.f32), tir.Input("i", (3,), dt.i64)
    program = loop.Program(inputs, ((0, 5),), (loop.Definition("y", (3,), dt.f32, x),), (("y", "y"),))
    loop.verify(program)
    made = evaluate_loop(program, {"x": np.arange(5, dtype=np.float32), "i": np.array([4, 0, 2])})
    np.testing.assert_array_equal(made[0], [10, 0, 3])


def test_errors_name_the_input() -> None:
    text = "loop {\n  input x : f32[2]\n  y[p0] : f32[2] = neg(x[p0])\n  return y = y\n}\n"
    with pytest.raises(EmmyError, match=r"no value for 'x'"):
        run(text)
    with pytest.raises(EmmyError, match=r"'x' is float64\[2\]"):
        run(text, x=np.zeros(2))


def test_a_result_of_no_elements_reads_nothing() -> None:
    """Its coordinates may be constants that lie outside of what it would read."""
    captured = capture_snippet("x = torch.randn(3, 5); (x[:, 10:], x.diagonal(-7), x[1:1] + x[:1, 4:4].sum(), x.sum())")
    lowered, given = torch_to_tensor.lower(captured.program), {name: x.detach().numpy() for name, x in captured.tensors.items()}
    for made, want in zip(evaluate_loop(lower(lowered), given), evaluate_tensor(lowered, given), strict=True):
        assert made.shape == want.shape
        np.testing.assert_allclose(made, want, rtol=1e-6)
