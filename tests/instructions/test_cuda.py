"""nvcc takes every statement, operator, dtype and conversion; the text is what a person would write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emmy.instructions.arithmetic import at_least, constant, spell, spelled
from emmy.instructions.resources import resources
from emmy.ir import dtype as dt
from emmy.ir.dtype import DTYPES, DType
from emmy.ir.kernel_ir import Apply, Block, Convert, Element, Expr, Kernel, SharedBuffer, Thread, Var, const
from emmy.lower.kernel_to_cuda import emit, emit_module
from emmy.runtime.build import build
from tests import kernels

F, G, N, B = Var("f", dt.f32), Var("g", dt.f32), Var("n", dt.i32), Var("b", dt.u8)


def big_tiles() -> Kernel:
    """More shared memory than a kernel may declare."""
    k = kernels.block_reduction(1000)
    return k.replace(name="big_tiles", shared=(*k.shared, SharedBuffer("more", dt.bf16, 30_001)))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_everything(tmp_path: Path) -> None:
    every = (*kernels.EVERY, *map(kernels.every_operator, DTYPES.values()), big_tiles())
    built = build(emit_module(every), "sm_90a", cache=tmp_path)
    assert set(built.functions) == {k.name for k in every}
    assert all(r.spill_bytes == 0 and r.stack_bytes == 0 for name, r in built.functions.items() if not name.startswith("every_"))
    matmul = kernels.matmul(37, 129, 37)
    assert built.functions["matmul"].shared_bytes == matmul.shared_bytes == 4096
    assert built.functions["matmul"].registers >= 32
    assert built.functions["big_tiles"].shared_bytes == 0


def test_an_expression_may_be_deeper_than_the_stack_and_is_spelled_once() -> None:
    deep: Expr = F
    for k in range(2000):
        deep = deep + const(dt.f32, float(k))
    assert spell(deep).count("+") == spelled(deep)[0].count("+") == at_least(deep, 14).count("+") == 2000
    chosen: Expr = F
    for _ in range(60):
        chosen = Apply("abs", (Apply("neg", (chosen,)),))
    assert spell(chosen).count("fabsf") == 60


@pytest.mark.parametrize(("e", "text"), [
    ((N + 1) * 2, "(n + 1) * 2"), (N + N * 2, "n + n * 2"), (N - (N - 1), "n - (n - 1)"), (N * (N // 2), "n * (n / 2)"),
    (N // 4 % 8, "n / 4 % 8"), ((N < 3) & (N == 4) | (Thread() <= 1), "n < 3 && n == 4 || thread <= 1"),
    ((N < 3) & ((N == 4) | (N < 1)), "n < 3 && (n == 4 || n < 1)"), (Block(1) * 64 + Thread(), "block_y * 64 + thread"),
    (Apply("neg", (Apply("neg", (F,)),)), "-(-f)"), (Apply("neg", (F + G,)), "-(f + g)"), (F - const(dt.f32, -1.5), "f - -1.5f"),
    (Apply("max", (F, G)), "emmy_max(f, g)"), (Apply("max", (N, N)), "max(n, n)"), (Apply("exp", (Apply("neg", (F,)),)), "expf(-f)"),
    (Apply("recip", (F + G,)), "1.0f / (f + g)"), (Apply("select", (N < 3, F, G)), "n < 3 ? f : g"),
    (Apply("rsqrt", (Var("d", dt.f64),)), "rsqrt(d)"), (Apply("fma", (F, G, F)), "__fmaf_rn(f, g, f)"),
    (Convert(dt.f32, N + 1), "(float)(n + 1)"), (Convert(dt.bf16, F + G), "__float2bfloat16_rn(f + g)"),
    (Convert(dt.bool_, F), "f != 0.0f"), (Convert(dt.i8, F * G), "(signed char)(long long)(f * g)"),
    (Convert(dt.u8, N + 1), "(unsigned char)(n + 1)"),
    (B & 15, "b & 15"), ((B & 15) + 1, "(unsigned char)((b & 15) + 1)"), (Apply("not", (N,)), "~n"),
    (Apply("not", (B,)), "(unsigned char)~b"),
    (Apply("or", (N & 3, N)) ^ 1, "(n & 3 | n) ^ 1"), (Apply("eq", (N & 3, N)), "(n & 3) == n"),
    (Apply("shr", (B, const(dt.u8, 4))), "emmy_shr<unsigned char>(b, 4)"),
    (Apply("shl", (N, N)), "emmy_shl(n, n)"), (Apply("floordiv", (B, B)), "(unsigned char)emmy_floordiv<unsigned char>(b, b)"),
    (Apply("max", (B, B)), "max(b, b)"), (Convert(dt.f32, B), "(float)b"),
    (Convert(dt.f32, Convert(dt.f16, F)), "__half2float(__float2half_rn(f))"), (Element("a", dt.f32, N * 4), "a[n * 4]"),
])
def test_expressions(e: Expr, text: str) -> None:
    assert spell(e) == text


@pytest.mark.parametrize(("element", "value", "text"), [
    (dt.f32, 0.1, "0.1f"), (dt.f32, -0.0, "-0.0f"), (dt.f32, 1, "1.0f"), (dt.f32, 1e30, "1e+30f"), (dt.f32, float("inf"), "INFINITY"),
    (dt.f32, float("nan"), "__int_as_float(0x7fc00000)"), (dt.f64, 0.1, "0.1"),
    (dt.f64, float("-inf"), "__longlong_as_double(0xfff0000000000000LL)"),
    (dt.i32, -(2**31), "(-2147483647 - 1)"),
    (dt.i8, -128, "(-127 - 1)"), (dt.u8, -1, "255"), (dt.i64, 5, "5LL"), (dt.bool_, True, "true"),
    (dt.bf16, 1, "__ushort_as_bfloat16(0x3f80)"),
])
def test_constants(element: DType, value: float, text: str) -> None:
    assert constant(element, dt.bits(element, value))[0] == text


def test_text_of_a_kernel() -> None:
    assert emit(kernels.vector_map(1000, dt.bf16)) == """\
#include <cuda_bf16.h>

extern "C" __global__ void __launch_bounds__(128) vector_map(const __nv_bfloat16* __restrict__ src, __nv_bfloat16* __restrict__ dst) {
  const int thread = threadIdx.x;
  const int block_x = blockIdx.x;
  const int i = block_x * 128 + thread;
  const float x = i < 1000 ? __bfloat162float(src[i]) : 1.0f;
  if (i < 1000) dst[i] = __float2bfloat16_rn(expf(-x));
}
"""


def test_dynamic_shared_memory() -> None:
    k = big_tiles()
    assert k.dynamic_shared_bytes == 256 * 4 + 60_016
    assert "__nv_bfloat16* const more = reinterpret_cast<__nv_bfloat16*>(shared_memory + 1024);" in emit(k)
    assert "float part[" not in emit(k)


def test_resources() -> None:
    k = kernels.matmul(64, 64, 64)
    counted = resources(k)
    assert counted.flops == 2 * 64**3
    assert counted.shared_bytes == 4096
    assert counted.global_bytes == 3 * 64 * 64 * 4
    assert 24 <= counted.registers_estimate <= 64
    assert resources(kernels.vector_map(1024, dt.bf16)).global_bytes == 2 * 2 * 1024
