"""Kernels with several outputs, of types of their own, in every form: the simulated kernel against the fold tree on NumPy, and nvcc."""

from __future__ import annotations

import re

import numpy as np
import pytest

from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import tile_ir as tile
from emmy.ir.tile_text import parse_kernel
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import random, runs, schedule

MAP = """kernel form(x: f32[6, 40], r: bf16[6, 40]) -> h: bf16[6, 40], y: f32[6, 40] {
  over i0 < 6, i1 < 40
  store h[i0, i1] = add(x[i0, i1], r[i0, i1])
  store y[i0, i1] = mul(add(x[i0, i1], r[i0, i1]), x[i0, i1])
}
"""
TRANSPOSE = """kernel form(x: f32[40, 70], r: bf16[70, 40]) -> h: bf16[70, 40], y: f32[70, 40] {
  over i0 < 70, i1 < 40
  store h[i0, i1] = add(x[i1, i0], r[i0, i1])
  store y[i0, i1] = mul(add(x[i1, i0], r[i0, i1]), x[i1, i0])
}
"""
NORM = """kernel form(x: f32[6, 96], r: bf16[6, 96]) -> h: bf16[6, 96], y: f32[6, 96] {
  over i0 < 6, i1 < 96
  along r2 < 96
  f0[i0] = reduce.add r2 : mul(add(x[i0, r2], r[i0, r2]), add(x[i0, r2], r[i0, r2]))
  store h[i0, i1] = add(x[i0, i1], r[i0, i1])
  store y[i0, i1] = mul(add(x[i0, i1], r[i0, i1]), rsqrt(f0))
}
"""
MOMENTS = """kernel form(x: f32[AxB]) -> mean: f32[64], top: bf16[64] {
  over i0 < 64
  along r1 < 96
  f0[i0] = reduce.add r1 : x[P]
  f1[i0] = reduce.max r1 : x[P]
  store mean[i0] = mul(f0, const{f32}(0.5))
  store top[i0] = f1
}
"""
ROWS = MOMENTS.replace("AxB", "64, 96").replace("P", "i0, r1")
COLUMNS = MOMENTS.replace("AxB", "96, 64").replace("P", "r1, i0")
PRODUCTS = """kernel form(x: bf16[40, 64], q: bf16[64, 48], k: bf16[64, 48]) -> a: bf16[40, 48], b: f32[40, 48] {
  over i0 < 40, i1 < 48
  along r2 < 64
  f0[i0, i1] = reduce.add r2 : mul(x[i0, r2], q[r2, i1])
  f1[i0, i1] = reduce.add r2 : mul(x[i0, r2], k[r2, i1])
  store a[i0, i1] = f0
  store b[i0, i1] = add(f0, f1)
}
"""
ATTENTION = """kernel form(q: bf16[40, 32], k: bf16[64, 32], v: bf16[64, 24]) -> o: bf16[40, 24], z: f32[40, 24] {
  over i2 < 40, i4 < 24
  along r0 < 64, r1 < 32
    f0[r0, i2] = reduce.add r1 : mul(q[i2, r1], k[r0, r1])
  f1 = twist.softmax r0
    f1.0[i2] : mul(f0, const{f32}(0.25))
    f1.1[i2] : const{f32}(1.0)
    f1.2[i2, i4] : v[r0, i4]
  store o[i2, i4] = div(f1.2, f1.1)
  store z[i2, i4] = mul(div(f1.2, f1.1), f1.0)
}
"""
CASES = [
    ("map", MAP, "WORK=t64", (), ()), ("map", MAP, "WORK=t64,TILE=v4", (), ()), ("map", MAP, "WORK=t32,TILE=v8", (), ()),
    ("transpose", TRANSPOSE, "WORK=t64,TILE=32x32,STAGE=smem", (0,), (1,)),
    ("fold", NORM, "WORK=t64,TILE=v4,REDUCE=coop", (0,), (1,)), ("fold", NORM, "WORK=w2,TILE=v8,REDUCE=warp,STAGE=reg", (0,), (1,)),
    ("fold", NORM, "WORK=t32,REDUCE=coop,STAGE=reg", (0,), (1,)), ("map", NORM, "WORK=t64,TILE=v4", (), ()),
    ("fold", ROWS, "WORK=w1,TILE=v2,REDUCE=warp", (0,), ()), ("fold", ROWS, "WORK=t64,REDUCE=coop", (0,), ()),
    ("cross", COLUMNS, "WORK=t4x16,TILE=v2,REDUCE=cross", (0,), ()), ("cross", COLUMNS, "WORK=t1x64,REDUCE=cross", (0,), ()),
    ("contraction", PRODUCTS, "WORK=t4x8,TILE=fma_f32/f2x4/k8,STAGE=d2/smem", (0,), (1,)),
    ("contraction", PRODUCTS, "WORK=t4x8,TILE=fma_f32/f3x3/k8,STAGE=d1/smem", (0,), (1,)),
    ("contraction", PRODUCTS, "WORK=w1x2,TILE=mma_m16n8k16_bf16_f32/f1x2/k16,STAGE=d2/smem-async", (0,), (1,)),
    ("twist", ATTENTION, "WORK=t4x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem", (2,), (4,)),
    ("twist", ATTENTION, "WORK=w2,TILE=mma_m16n8k16_bf16_f32/f1x4,STAGE=d2/smem-async", (2,), (4,)),
]


def scheduled(form: str, text: str, row: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> tile.Kernel:
    return parse_kernel(text).replace(schedule=schedule(form, row, rows, columns))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_every_form_stores_every_output(case: tuple[str, str, str, tuple[int, ...], tuple[int, ...]]) -> None:
    kernel = scheduled(*case)
    x = random(kernel)
    for output, got, wanted in zip(kernel.outputs, runs(kernel, lower(kernel), x), evaluate_kernel(kernel, x), strict=True):
        close = 2.0**-7 if output.element.bytes == 2 or "mma" in case[2] else 1e-5
        np.testing.assert_allclose(got, wanted.astype(np.float64), rtol=close, atol=close)


def test_a_result_that_another_is_made_of_is_computed_once() -> None:
    text = emit_module([lower(scheduled("map", MAP, "WORK=t64", (), ()))])
    assert len(re.findall(r"x_\d+ \+ x_\d+", text)) == 1


def test_they_compile() -> None:
    kernels = [scheduled(*case).replace(name=f"k_{n}") for n, case in enumerate(CASES)]
    assert len(build(emit_module([lower(k) for k in kernels]), "sm_90a").functions) == len(CASES)
