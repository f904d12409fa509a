"""Contractions on tensor cores: the simulated kernel against NumPy in float64, the rows proposed, and what the compiler makes of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import erf

from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.instructions import CopyAsync
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower, tensor_core
from emmy.runtime.build import TARGETS, build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul

SMALL = "WORK=w1x2,TILE=mma_m16n8k16_bf16_f32/f1x2/k16,STAGE=d2/smem-async"
DEEP = "WORK=w2x1,TILE=mma_m16n8k16_bf16_f32/f2x4/k64,STAGE=d4/smem-async"
ODD = "WORK=w1x3,TILE=mma_m16n8k16_bf16_f32/f3x2/k48,STAGE=d3/smem-async"
LARGE = "WORK=w2x4,TILE=mma_m16n8k16_bf16_f32/f4x4/k32,STAGE=d4/smem-async"
HALF = 2.0**-8


def lowered(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("contraction", row, (0,), (1,))))


def copies(k: kernel_ir.Kernel) -> int:
    """How many buffers arrive by asynchronous copies."""
    return len({s.buffer for s in kernel_ir.walk(k.body) if isinstance(s, CopyAsync)})


def wide(k: tile.Kernel) -> dict[str, np.ndarray]:
    return {n: v.astype(np.float64) for n, v in random(k).items()}


@pytest.mark.parametrize("element", [dt.tf32, dt.e4m3, dt.e5m2])
@pytest.mark.parametrize("sizes", [(1, 8, 16), (37, 29, 48), (40, 72, 144)])
def test_other_types(element: DType, sizes: tuple[int, int, int]) -> None:
    """Words of one tf32, which fragments are rounded to, or of four elements of a byte."""
    k = matmul(*sizes, right=True, element=element.stored)
    k = k.replace(outputs=tuple(t.replace(element=dt.f32) for t in k.outputs), results=(k.folds[0].result(),))
    x = {n: dt.rounded(v, even=False).astype(np.float64) for n, v in random(k).items()} if element is dt.tf32 else wide(k)
    for row in (SMALL, DEEP, ODD):
        deep = int(row.partition("/k")[2].partition(",")[0])
        made = row.replace(f"/k{deep},", f"/k{deep * 2 // element.bytes},").replace("k16_bf16", f"k{32 // element.bytes}_{element}")
        close(run(k, lowered(k, made), random(k)), x["a"] @ x["b"].T, 1e-6)


def test_other_types_lie_along_the_sum() -> None:
    def found(k: tile.Kernel, target: str, math: str) -> set[str]:
        return {s.row.tile.split("_")[2] for s in schedules(k, target, math) if s.row.tile.startswith("mma")}

    assert found(matmul(64, 64, 64, right=True), "sm_80", "tf32") == {"tf32"}
    assert found(matmul(64, 64, 64, right=True), "sm_80", "fast") == found(matmul(64, 64, 64), "sm_80", "tf32") == set()
    with pytest.raises(IRError, match="runs of 16 bytes of e4m3 along the folded axis"):
        lowered(matmul(64, 64, 64, element=dt.e4m3), SMALL.replace("k16_bf16", "k32_e4m3").replace("/k16", "/k32"))


@pytest.mark.parametrize("row", [SMALL, DEEP, ODD])
@pytest.mark.parametrize("left, right", [*itertools.product((False, True), repeat=2)])
def test_layouts(row: str, left: bool, right: bool) -> None:
    for sizes in ((37, 29, 19), (40, 72, 56)):
        k = matmul(*sizes, left, right, dt.bf16)
        x, form = wide(k), lowered(k, row)
        close(run(k, form, random(k)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), HALF)
        assert copies(form) == (2 if sizes == (40, 72, 56) else 0)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 1, 37), (1, 37, 3), (65, 8, 8), (8, 129, 16), (16, 16, 136)])
def test_tails(sizes: tuple[int, int, int]) -> None:
    for row, right in ((SMALL, False), (DEEP, True)):
        k = matmul(*sizes, right=right, element=dt.bf16)
        x = wide(k)
        close(run(k, lowered(k, row), random(k)), x["a"] @ (x["b"].T if right else x["b"]), HALF)


def test_f16() -> None:
    k = matmul(40, 24, 40, element=dt.f16)
    x = wide(k)
    close(run(k, lowered(k, SMALL.replace("bf16", "f16")), random(k)), x["a"] @ x["b"], 2.0**-11)


def test_the_row_of_a_large_matmul() -> None:
    k = matmul(136, 144, 80, element=dt.bf16)
    x = wide(k)
    close(run(k, lowered(k, LARGE), random(k)), x["a"] @ x["b"], HALF)


def test_fp32_results_of_halves_are_as_exact_as_fp32_sums() -> None:
    t = tensors(dt.bf16, a=(24, 40), b=(40, 16))
    made = kernel(total(2, op("mul", loop.Cast(dt.f32, load(t, "a", 0, 2)), load(t, "b", 2, 1))), (0, 1), {0: 24, 1: 16, 2: 40}, t)
    x, form = wide(made), lowered(made, SMALL)
    close(run(made, form, random(made)), x["a"] @ x["b"], 1e-6)
    assert copies(form) == 2


def test_linear_with_bias_and_gelu() -> None:
    m, n, k = 13, 24, 40
    t = tensors(dt.bf16, x=(m, k), w=(n, k), bias=(n,), residual=(m, n))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    gelu = op("mul", op("mul", y, number(0.5)), op("add", number(1), op("erf", op("mul", y, number(2**-0.5)))))
    made = kernel(op("add", gelu, load(t, "residual", 0, 1)), (0, 1), {0: m, 1: n, 2: k}, t)
    x = wide(made)
    z = x["x"] @ x["w"].T + x["bias"]
    close(run(made, lowered(made, SMALL), random(made)), z * 0.5 * (1 + erf(z / 2**0.5)) + x["residual"])


@pytest.mark.parametrize("row", [SMALL, DEEP])
def test_a_computed_operand_is_rounded_to_a_half(row: str) -> None:
    t = tensors(dt.bf16, x=(21, 40), g=(40,), w=(24, 40))
    lift = op("mul", op("mul", load(t, "x", 0, 2), load(t, "g", 2)), load(t, "w", 1, 2))
    made = kernel(total(2, lift), (0, 1), {0: 21, 1: 24, 2: 40}, t)
    x, form = wide(made), lowered(made, row)
    close(run(made, form, random(made)), (x["x"] * x["g"]).astype(dt.bf16.numpy).astype(float) @ x["w"].T, 1e-6)
    assert copies(form) == 1


def gated(n: int, k: int, row: str, tolerance: float) -> kernel_ir.Kernel:
    """The Kernel IR of (x @ w.T) * (x @ v.T), run and compared."""
    t = tensors(dt.bf16, x=(21, k), w=(n, k), v=(n, k))
    gate, up = (total(2, op("mul", load(t, "x", 0, 2), load(t, name, 1, 2))) for name in "wv")
    made = kernel(op("mul", gate, up), (0, 1), {0: 21, 1: n, 2: k}, t)
    x, form = wide(made), lowered(made, row)
    close(run(made, form, random(made)), (x["x"] @ x["w"].T) * (x["x"] @ x["v"].T), tolerance)
    return form


def test_two_products_share_an_operand() -> None:
    form = gated(24, 40, SMALL, 1e-6)
    assert len(form.shared) == 3 and copies(form) == 3


def test_batches_and_several_axes_on_a_side() -> None:
    t = tensors(dt.bf16, a=(3, 16, 24), b=(3, 24, 40))
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 0, 3, 2))), (0, 1, 2), {0: 3, 1: 16, 2: 40, 3: 24}, t)
    x = wide(made)
    close(run(made, tensor_core.lower(made, schedule("contraction", SMALL, (1,), (2,), (0,))), random(made)), x["a"] @ x["b"])
    t = tensors(dt.bf16, x=(2, 5, 24), w=(3, 8, 24))
    made = kernel(total(4, op("mul", load(t, "x", 0, 1, 4), load(t, "w", 2, 3, 4))), (0, 2, 1, 3), {0: 2, 1: 5, 2: 3, 3: 8, 4: 24}, t)
    x = wide(made)
    form = tensor_core.lower(made, schedule("contraction", DEEP, (0, 1), (2, 3)))
    close(run(made, form, random(made)), np.einsum("btk,opk->botp", x["x"], x["w"]))


def test_what_tensor_cores_do_not_add_up() -> None:
    t = tensors(dt.bf16, a=(8, 8), b=(8, 8))
    square = total(2, op("mul", load(t, "a", 0, 2), load(t, "a", 0, 2)))
    beside = kernel(op("mul", square, total(2, op("mul", load(t, "a", 0, 2), load(t, "b", 1, 2)))), (0, 1), {0: 8, 1: 8, 2: 8}, t)
    with pytest.raises(IRError, match="no product of rows and columns"):
        lowered(beside, SMALL)
    for old, new in (("f1x2", "f1x3"), ("k16", "k24"), ("d2", "d1"), ("w1x2", "w8x8"), ("smem-async", "smem")):
        with pytest.raises(IRError, match="row WORK"):
            lowered(matmul(8, 8, 8, element=dt.bf16), SMALL.replace(old, new))


def rows(k: tile.Kernel, math: str = "fast", pins: str = "", target: str = "sm_90a") -> dict[str, tile.Schedule]:
    return {str(s.row): s for s in schedules(k, target, math, pins)}


@pytest.mark.parametrize("element", [dt.bf16, dt.f16])
def test_rows_are_proposed_for_halves(element: DType) -> None:
    k = matmul(256, 256, 256, element=element)
    found = [r for r in rows(k) if "TILE=mma" in r]
    assert f"WORK=w2x4,TILE=mma_m16n8k16_{element}_f32/f4x4/k32,STAGE=d4/smem-async" in found
    assert all(f"mma_m16n8k16_{element}_f32" in r for r in found)
    for spelled, s in rows(k).items():
        assert str(tile.parse_row(spelled)) == spelled and tile.parse_row(spelled) is s.row


def test_rows_are_not_proposed_where_they_would_be_wrong() -> None:
    def tensor_rows(k: tile.Kernel, math: str = "fast") -> bool:
        return any("mma" in r for r in rows(k, math))

    assert not tensor_rows(matmul(256, 256, 256))                              # fp32 operands
    assert not tensor_rows(matmul(256, 256, 256, element=dt.bf16), "exact")    # another order of sums
    t = tensors(dt.bf16, a=(256, 256), b=(256, 256), s=(256,)) | tensors(dt.f16, h=(256, 256)) | tensors(dt.f32, f=(256,))

    def of(left: loop.Value, right: loop.Value) -> tile.Kernel:
        return kernel(total(2, op("mul", left, right)), (0, 1), {0: 256, 1: 256, 2: 256}, t)

    a, b = load(t, "a", 0, 2), load(t, "b", 2, 1)
    assert tensor_rows(of(a, b)) and tensor_rows(of(op("mul", a, load(t, "s", 2)), b)) and tensor_rows(of(op("exp", a), b))
    assert tensor_rows(of(loop.Cast(dt.f32, a), b))
    assert not tensor_rows(of(op("exp", loop.Cast(dt.f32, a)), b))             # the program asks for fp32
    assert not tensor_rows(of(op("mul", a, load(t, "f", 2)), b))
    assert not tensor_rows(of(a, load(t, "h", 2, 1)))                          # two half types
    square = total(2, op("mul", a, a))
    assert not tensor_rows(kernel(op("mul", square, total(2, op("mul", a, b))), (0, 1), {0: 256, 1: 256, 2: 256}, t))


def test_pins() -> None:
    k = matmul(256, 256, 256, element=dt.bf16)
    own = "WORK=w3x2,TILE=mma_m16n8k16_bf16_f32/f1x6/k48,STAGE=d5/smem-async"
    assert [*rows(k, pins=own)] == [own]
    for old, new, reason in (("k48", "k40", "Divides"), ("f1x6", "f1x5", "Divides"), ("d5", "d1", "Divides"), ("d5", "d50", "FitsShared"),
                             ("f1x6", "f8x8", "FitsRegisters"), ("w3x2", "w8x8", "FitsThreads"), ("bf16", "f16", "no rule proposes it")):
        with pytest.raises(EmmyError) as caught:
            rows(k, pins=own.replace(old, new))
        assert reason in caught.value.remedy


@pytest.mark.parametrize("row, stages, depth, high, across", [(SMALL, 2, 16, 16, 32), (LARGE, 4, 32, 128, 128)])
def test_shared_bytes_are_what_the_module_says(row: str, stages: int, depth: int, high: int, across: int) -> None:
    assert lowered(matmul(64, 64, 64, element=dt.bf16), row).shared_bytes == 2 * stages * depth * (high + across)


@pytest.mark.parametrize("target", TARGETS)
def test_the_compiler_keeps_fragments_in_registers(target: str) -> None:
    t = tensors(dt.bf16, x=(1024, 512), g=(512,), w=(1024, 512))
    lift = op("mul", op("mul", load(t, "x", 0, 2), load(t, "g", 2)), load(t, "w", 1, 2))
    made = [matmul(1024, 1024, 1024, element=dt.bf16, name="round_matmul"),
            matmul(1023, 1025, 1021, right=True, element=dt.f16, name="ragged_matmul"),
            kernel(loop.Round(dt.bf16, total(2, lift)), (0, 1), {0: 1024, 1: 1024, 2: 512}, t, dt.bf16, "computed")]
    forms = [lowered(made[0], LARGE), lowered(made[1], LARGE.replace("bf16", "f16")), lowered(made[2], LARGE)]
    for name, report in build(emit_module(forms), target).functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and (report.registers <= 168 or name == "ragged_matmul"), (name, report)
