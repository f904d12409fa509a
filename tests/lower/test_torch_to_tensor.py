"""Every lowering: texts round-trip, and the Tensor IR's numbers are eager's."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch

from emmy.capture.export import Captured
from emmy.capture.snippet import capture_snippet
from emmy.errors import EmmyError
from emmy.evaluate.reference import evaluate_tensor, evaluate_torch
from emmy.ir import tensor_text, torch_ir
from emmy.ir.tensor_ir import Elementwise, IndexMap, Reduce
from emmy.lower.torch_to_tensor import lower
from tests.lower.ops import OPS, snippet
from tests.programs import PROGRAMS, instances


def to_numpy(t: torch.Tensor) -> np.ndarray:
    t = t.detach()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else t.numpy()


def check(captured: Captured, tolerance: float) -> None:
    program = captured.program
    assert torch_ir.parse(torch_ir.print_program(program)) is program
    lowered = lower(program)
    assert tensor_text.parse(tensor_text.print_program(lowered)) is lowered
    eager = evaluate_torch(program, captured.tensors)
    exact = evaluate_torch(program, captured.tensors, float64=True)
    got = evaluate_tensor(lowered, {k: to_numpy(v) for k, v in captured.tensors.items()})
    for (name, _), plain, want, have in zip(lowered.outputs, eager, exact, got, strict=True):
        assert have.dtype == to_numpy(plain).dtype and have.shape == tuple(plain.shape)
        if not plain.is_floating_point():
            np.testing.assert_array_equal(have, plain.numpy(), name)
            continue
        want64, have64, plain64 = want.numpy().astype(np.float64), have.astype(np.float64), plain.double().numpy()
        # Overflow is the dtype's own, so eager tells of it; but eager's vectorised gelu(inf) is NaN, and float64's is right.
        special = ~np.isfinite(plain64) | ~np.isfinite(have64)
        same = [(have64 == v) | (np.isnan(have64) & np.isnan(v)) for v in (plain64, want64)]
        assert np.all((same[0] | same[1])[special]), (name, have64, plain64, want64)
        have64, want64, plain64 = have64[~special], want64[~special], plain64[~special]
        scale = max(1e-30, float(np.abs(want64).max(initial=0)))
        error, of_eager = (float(np.abs(v - want64).max(initial=0)) for v in (have64, plain64))
        assert error <= max(tolerance * torch.finfo(plain.dtype).eps * scale, 2 * of_eager), (name, error, of_eager, scale)


@pytest.mark.parametrize(("name", "source"), instances((1, 3, 37)), ids=lambda v: v if "-" in v and " " not in v else "")
def test_program(name: str, source: str) -> None:
    check(capture_snippet(source), PROGRAMS[name.split("-")[0]].tolerance)


@pytest.mark.parametrize("family", OPS)
def test_operators(family: str) -> None:
    check(capture_snippet(snippet(*OPS[family])), 16)


def test_linear_matmul_and_einsum_are_the_same_product() -> None:
    forms = [lower(capture_snippet(f"x, w = torch.randn(3, 4), torch.randn(5, 4); {e}").program).outputs[0][1]
             for e in ("F.linear(x, w)", "x @ w.t()", "torch.einsum('ij,kj->ik', x, w)", "torch.mm(x, w.transpose(0, 1))")]
    assert all(f is forms[0] for f in forms)
    match forms[0]:
        case Reduce("add", (2,), Elementwise("mul", (IndexMap(), IndexMap()))): pass
        case other: raise AssertionError(other)


def test_half_types_round_once() -> None:
    source = "nn.RMSNorm(8, dtype=torch.bfloat16)(torch.randn(2, 8, dtype=torch.bfloat16))"
    text = tensor_text.print_program(lower(capture_snippet(source).program))
    assert text.count("round{bf16}") == 1 and text.count("cast{f32}") == 2


SCALED = ("x, w = torch.randn(6, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn); "
          "torch._scaled_mm(x, w.t(), torch.tensor(0.5), torch.tensor(3.0), bias=torch.randn(16).bfloat16(), out_dtype=torch.bfloat16)")


def test_a_scaled_product_is_a_sum_in_fp32() -> None:
    """The operands as torch rounds them, multiplied and added exactly; then scales, bias and one rounding."""
    captured = capture_snippet(SCALED)
    (name, tensor), = lower(captured.program).outputs
    inputs = {k: v.detach() for k, v in captured.tensors.items()}
    got, = evaluate_tensor(lower(captured.program), {k: to_numpy(v) for k, v in inputs.items()})
    x, w = (inputs[k].to(torch.float8_e4m3fn).double() for k in "xw")
    (bias,) = (v.bfloat16().double() for v in inputs.values() if v.shape == (16,))
    want = (x @ w.t() * 1.5 + bias).bfloat16()
    assert str(tensor.dtype) == "bf16" and name
    np.testing.assert_allclose(got.astype(np.float64), want.double().numpy(), rtol=2.0**-8)


@pytest.mark.parametrize("scales, message", [("torch.rand(6, 1), torch.rand(1, 15)", r"scales of shape \[1, 15\]"),
                                             ("scale_result=torch.tensor(1.0)", "a scale of the result")])
def test_scales_that_a_product_does_not_take(scales: str, message: str) -> None:
    call = torch_ir.parse(f"""torch {{
      %x = input("x") : e4m3[6, 32]
      %w = input("w") : e4m3[32, 16]
      %a = input("a") : f32[6, 1]
      %b = input("b") : f32[1, {15 if "15" in scales else 16}]
      %y = aten._scaled_mm.default(%x, %w, %a, %b, None, {"%a" if "result" in scales else "None"}, bf16) : bf16[6, 16]
      return %y
    }}""")
    with pytest.raises(EmmyError, match=message):
        lower(call)


def test_scales_of_rows_and_columns() -> None:
    program = torch_ir.parse("""torch {
      %x = input("x") : e4m3[6, 32]
      %w = input("w") : e4m3[32, 16]
      %a = input("a") : f32[6, 1]
      %b = input("b") : f32[1, 16]
      %y = aten._scaled_mm.default(%x, %w, %a, %b, None, None, f32) : f32[6, 16]
      return %y
    }""")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(n).astype(ml_dtypes.float8_e4m3fn) for n in ((6, 32), (32, 16)))
    a, b = (rng.standard_normal(n).astype(np.float32) for n in ((6, 1), (1, 16)))
    got, = evaluate_tensor(lower(program), {"x": x, "w": w, "a": a, "b": b})
    np.testing.assert_allclose(got, (x.astype(np.float64) @ w.astype(np.float64)) * a * b, rtol=1e-5, atol=1e-5)


def test_views_compose_to_nothing() -> None:
    assert len(lower(capture_snippet("x = torch.randn(4, 6); x.t().reshape(4, 6).reshape(6, 4).t().contiguous()").program).nodes) == 1


def test_uncovered_operator_names_itself_its_line_and_its_neighbours() -> None:
    with pytest.raises(EmmyError, match=r"aten\.\w*erfinv.*<snippet>:1.*\n.*covered") as raised:
        lower(capture_snippet("torch.erfinv(torch.rand(3))").program)
    assert "aten." in raised.value.remedy


def test_malformed_texts_say_where() -> None:
    for line, where in (("%0 = what(%1) : f32[]", "line 2, column 6"), ("%0 = cast{f32}(%1) : f32[]", "line 2, column 16: %1 is")):
        with pytest.raises(ValueError, match=where):
            tensor_text.parse(f"tensor {{\n{line}\n")


def test_constants_keep_their_bits() -> None:
    source = "x = torch.randn(2, dtype=torch.float16); (x * math.inf, x * -0.0, x + math.nan, x + 1e-5)"
    lowered = lower(capture_snippet(source).program)
    assert tensor_text.parse(tensor_text.print_program(lowered)) is lowered
    assert "const{f32}(-0.0)" in tensor_text.print_program(lowered)


def test_a_matrix_product_materialises_nothing_of_all_its_axes() -> None:
    """600**3 doubles would be 1.7 GB."""
    captured = capture_snippet("a, b = torch.randn(1, 600, 600), torch.randn(600, 600); a @ b")
    arrays = {k: to_numpy(v) for k, v in captured.tensors.items()}
    tracemalloc.start()
    (got,) = evaluate_tensor(lower(captured.program), arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(got, arrays["a"].astype(np.float64) @ arrays["b"], rtol=1e-5, atol=1e-4)
    assert peak < 64e6
