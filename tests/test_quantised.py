"""Layers of integers of 8 and 4 bits: right on NumPy, and by every kind of row in the simulator; which rows are chosen; what nvcc says."""

from __future__ import annotations

import shutil

import pytest
import torch

from emmy.egraph.schedule import schedules
from emmy.evaluate.error import compare
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.pipeline import Program, compile
from emmy.runtime.build import build
from emmy.tune.census import Census
from emmy.tune.features import features
from tests.corners import Corner
from tests.quantised import LAYERS
from tests.test_corners import assert_right_by_all_kinds

WIDE = 4096


def large(name: str, rows: int) -> Program:
    """A layer between sizes of 4096, its weights in groups of 128."""
    return compile(LAYERS[name].fn, *LAYERS[name].tensors(rows, WIDE, WIDE, 128, empty=True), target="sm_90a")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_right_on_numpy(name: str, dtype: torch.dtype) -> None:
    tensors = LAYERS[name].tensors(5, 48, 192, 32, dtype)
    program = compile(LAYERS[name].fn, *tensors)
    (exact,) = evaluate_torch(program.torch, program.captured.tensors, float64=True)
    assert compare(program(*tensors), exact).within(2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("name", LAYERS)
def test_right_by_every_kind_of_row(name: str, rows: int) -> None:
    assert_right_by_all_kinds(Corner(LAYERS[name].fn, LAYERS[name].tensors(rows, 32, 64, 32)))


@pytest.mark.parametrize("name", LAYERS)
def test_one_token_reads_each_byte_of_the_weights_once(name: str) -> None:
    (kernel,) = large(name, 1).tile.kernels
    assert kernel.schedule is not None and kernel.schedule.form == "fold"
    weights, scales, activations = WIDE * WIDE // (2 if LAYERS[name].packed else 1), WIDE * (32 if LAYERS[name].grouped else 1), WIDE
    found, once = features(Census(kernel), kernel.schedule), weights + 2 * (scales + activations + WIDE)
    assert found.reread_bytes == 0 and once <= found.dram_bytes <= 1.06 * once, "short lines take a little longer"


@pytest.mark.parametrize("name", LAYERS)
def test_some_tokens_widen_weights_on_their_way_to_tensor_cores(name: str) -> None:
    """By warps on their own two to a byte, which no operand of a group of warps is computed of."""
    kernel, *_ = large(name, 64).tile.kernels
    atom = "mma_m16n8k16_bf16_f32" if LAYERS[name].packed else "wgmma_m64"
    assert kernel.schedule is not None and kernel.schedule.row.tile.startswith(atom)
    assert any(t.element.bytes == 1 for t in kernel.tensors)


@pytest.mark.parametrize("name", LAYERS)
def test_many_tokens_have_weights_widened_once(name: str) -> None:
    """Each of 4096 tokens' tiles would widen them anew, which is predicted to take thrice as long."""
    program = large(name, 4096)
    widening, product = program.tile.kernels
    assert widening.schedule is not None and widening.schedule.row.tile == "v16"
    assert [(t.element, t.shape) for t in widening.outputs] == [(dt.bf16, (WIDE, WIDE))]
    assert product.schedule is not None and product.schedule.row.tile.startswith("wgmma")
    if not LAYERS[name].grouped:        # the scale of an output multiplies the sum
        assert "s" in {t.name for t in product.tensors}


def test_casts_of_octets_round_nothing() -> None:
    (kernel,) = large("by output", 1).tile.kernels
    assert not [v for v in loop.walk(kernel.folds[0].lifts) if isinstance(v, loop.Conversion) and v.element.bytes == 2]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_them() -> None:
    kernels = {k.name: k for name in LAYERS for rows in (1, 16, 4096) for k in large(name, rows).kernels}
    built = build(emit_module(tuple(kernels.values())), "sm_90a")
    assert all(f.spill_bytes == 0 and f.stack_bytes == 0 for f in built.functions.values())


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_sums_that_are_rounded_as_they_are() -> None:
    """ptxas would serialise the products of a loop of known length, whose sums are converted behind it (C7514)."""
    (name,) = (name for name, layer in LAYERS.items() if layer.grouped and not layer.packed)
    (kernel,) = large(name, 16).tile.kernels
    row = "WORK=g1x1/ws,TILE=wgmma_m64n32k16_bf16_f32/f1x1/k128,STAGE=d8/smem-tma,RASTER=gm8/p132"
    (s,) = schedules(kernel.replace(schedule=None), "sm_90a", pins=row)
    assert build(emit_module((lower(kernel.replace(schedule=s)),)), "sm_90a").functions
