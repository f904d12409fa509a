"""Contractions by warpgroups: the simulated kernel against NumPy in float64, the rows proposed, and what the compiler makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import erf

from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.instructions import StoreMatrices, StoreTile
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.node import IRError
from emmy.lower import loop_to_tile
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, runs, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_tensor_core import HALF, gated, lowered, wide

SMALL = "WORK=g1x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
NARROW = "WORK=g1x1/ws,TILE=wgmma_m64n16k16_bf16_f32/f1x2/k128,STAGE=d2/smem-tma,RASTER=gm1/p2"
PAIR = "WORK=g2x1/ws,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k64,STAGE=d3/smem-tma,RASTER=gm2/p3"
TALL = "WORK=g2x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f2x2/k128,STAGE=d2/smem-tma,RASTER=gm8/p1"
THREE = "WORK=g3x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p2"
LARGE = "WORK=g2x1/ws,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132"


def boxes(k: kernel_ir.Kernel) -> bool:
    """Whether results leave in boxes that maps have; else, if they are halves, line by line."""
    return any(isinstance(s, StoreTile) for s in kernel_ir.walk(k.body))


def lines(k: kernel_ir.Kernel) -> bool:
    return any(isinstance(s, StoreMatrices) for s in kernel_ir.walk(k.body)) and not boxes(k)


@pytest.mark.parametrize("row", [SMALL, PAIR, TALL])
@pytest.mark.parametrize("left, right", [*itertools.product((False, True), repeat=2)])
def test_layouts(row: str, left: bool, right: bool) -> None:
    k = matmul(136, 152, 200, left, right, dt.bf16)
    x, form = wide(k), lowered(k, row)
    close(run(k, form, random(k)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), HALF)
    assert boxes(form)


@pytest.mark.parametrize("sizes", [(1, 8, 8), (3, 24, 40), (65, 8, 136), (8, 129, 16), (64, 64, 64), (129, 72, 72), (1, 1, 64)])
def test_tails(sizes: tuple[int, int, int]) -> None:
    for row in (SMALL, NARROW, THREE):
        k = matmul(*sizes, right=True, element=dt.bf16)
        x, form = wide(k), lowered(k, row)
        close(run(k, form, random(k)), x["a"] @ x["b"].T, HALF)
        assert boxes(form) == (sizes[1] % 8 == 0) and lines(form) == (sizes[1] % 8 > 0)


@pytest.mark.parametrize("row", [SMALL, NARROW, PAIR, TALL, THREE, SMALL.replace("n64", "n24"), PAIR.replace("n128", "n112")])
def test_tiles_in_groups_of_rows(row: str) -> None:
    """More tiles than blocks, and a last group of fewer rows."""
    k = matmul(328, 200, 72, right=True, element=dt.bf16)
    x = wide(k)
    close(run(k, lowered(k, row), random(k)), x["a"] @ x["b"].T, HALF)


def test_f16() -> None:
    k = matmul(40, 24, 40, element=dt.f16)
    x = wide(k)
    close(run(k, lowered(k, SMALL.replace("bf16", "f16")), random(k)), x["a"] @ x["b"], 2.0**-11)


@pytest.mark.parametrize("sizes", [(1, 8, 8), (3, 24, 40), (65, 7, 136), (129, 72, 72), (136, 152, 200)])
def test_tf32(sizes: tuple[int, int, int]) -> None:
    """Copies round fp32 to tf32, whose products are exact; in registers it stays fp32."""
    k = matmul(*sizes, right=True)
    x = {name: dt.rounded(v).astype(np.float64) for name, v in random(k).items()}
    for row in (SMALL.replace("k64", "k32"), NARROW.replace("k128", "k64"), TALL.replace("k128", "k64")):
        form = lowered(k, row.replace("k16_bf16", "k8_tf32"))
        close(run(k, form, random(k)), x["a"] @ x["b"].T, 1e-6)
        assert {m.element for m in form.maps} == {dt.tf32}


@pytest.mark.parametrize("element", [dt.e4m3, dt.e5m2])
@pytest.mark.parametrize("sizes", [(1, 8, 16), (3, 24, 48), (65, 7, 144), (129, 72, 80), (136, 200, 400)])
def test_types_of_a_byte(element: DType, sizes: tuple[int, int, int]) -> None:
    """Stages of 128 products are added up in fp32; results are halves, here, or of a byte themselves."""
    for out in (dt.bf16, element):
        k = matmul(*sizes, right=True, element=element)
        k = k.replace(outputs=tuple(t.replace(element=out) for t in k.outputs), results=(loop.Cast(out, k.folds[0].result()),))
        x = wide(k)
        for row in (SMALL.replace("k64", "k128"), NARROW, PAIR.replace("k64", "k128").replace("n128", "n192")):
            close(run(k, lowered(k, row.replace("k16_bf16", f"k32_{element}")), random(k)), x["a"] @ x["b"].T,
                  HALF if out is dt.bf16 else 2.0**-4 if element is dt.e4m3 else 2.0**-3)


def test_tf32_is_a_class_of_its_own_and_has_its_rows_along_the_sum() -> None:
    linear, product = matmul(256, 256, 256, right=True), matmul(256, 256, 256)

    def found(k: tile.Kernel, math: str) -> set[str]:
        return {s.row.tile.split("_")[2] for s in schedules(k, "sm_90a", math) if s.row.tile.startswith("wgmma")}

    assert found(linear, "tf32") == {"tf32"}
    assert found(linear, "fast") == found(linear, "exact") == found(product, "tf32") == set()
    with pytest.raises(IRError, match="as deep as 32 bytes"):
        lowered(linear, SMALL.replace("bf16", "tf32"))


@pytest.mark.parametrize("row", [SMALL, PAIR])
@pytest.mark.parametrize("sizes", [(128, 128), (77, 72), (66, 99)])
def test_what_follows_a_product(row: str, sizes: tuple[int, int]) -> None:
    """Bias, activation, a value a row and a residual, where they lie whole and where they have tails; stored as halves or as fp32."""
    (m, n), k = sizes, 72
    t = tensors(dt.bf16, x=(m, k), w=(n, k), bias=(n,), residual=(m, n)) | tensors(dt.f32, scale=(m,), factor=(n,), one=(1,))
    y = op("add", op("mul", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "scale", 0)), load(t, "bias", 1))
    gelu = op("mul", op("mul", y, number(0.5)), op("add", number(1), op("erf", op("mul", y, number(2**-0.5)))))
    body = op("mul", op("add", gelu, load(t, "residual", 0, 1)), load(t, "factor", 1))
    for element, tolerance in ((dt.bf16, HALF), (dt.f32, 1e-5)):
        made = kernel(body if element is dt.f32 else loop.Round(element, body), (0, 1), {0: m, 1: n, 2: k}, t, element)
        x, form = wide(made), lowered(made, row)
        z = x["x"] @ x["w"].T * x["scale"][:, None] + x["bias"]
        close(run(made, form, random(made)), (z * 0.5 * (1 + erf(z / 2**0.5)) + x["residual"]) * x["factor"], tolerance)
        assert boxes(form) == (element is dt.bf16 and n % 8 == 0)


def test_two_products_share_an_operand() -> None:
    assert len(gated(72, 72, SMALL, 1e-5).maps) == 3


@pytest.mark.parametrize("elements", [(dt.bf16, dt.bf16), (dt.f32, dt.bf16), (dt.f32, dt.f32)])
def test_several_results(elements: tuple[DType, DType]) -> None:
    t = tensors(dt.bf16, x=(70, 72), w=(72, 72), bias=(72,))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    outputs = tuple(tile.Tensor(name, (70, 72), e) for name, e in zip("yz", elements, strict=True))
    bodies = tuple(v if e is dt.f32 else loop.Round(e, v) for v, e in zip((y, op("tanh", y)), elements, strict=True))
    made = loop_to_tile.kernel("form", bodies, outputs, (0, 1), {0: 70, 1: 72, 2: 72}, t)
    x, form = wide(made), lowered(made, SMALL)
    z = x["x"] @ x["w"].T + x["bias"]
    for got, wanted, e in zip(runs(made, form, random(made)), (z, np.tanh(z)), elements, strict=True):
        close(got, wanted, HALF if e is dt.bf16 else 1e-5)


def test_batches_and_several_axes_on_a_side() -> None:
    t = tensors(dt.bf16, a=(3, 16, 24), b=(3, 24, 72))
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 0, 3, 2))), (0, 1, 2), {0: 3, 1: 16, 2: 72, 3: 24}, t)
    x = wide(made)
    form = lower(made.replace(schedule=schedule("contraction", SMALL, (1,), (2,), (0,))))
    close(run(made, form, random(made)), x["a"] @ x["b"])
    t = tensors(dt.bf16, a=(3, 16, 24), b=(24, 72))     # one operand is the same for every point of the batch
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 3, 2))), (0, 1, 2), {0: 3, 1: 16, 2: 72, 3: 24}, t)
    x = wide(made)
    form = lower(made.replace(schedule=schedule("contraction", PAIR, (1,), (2,), (0,))))
    close(run(made, form, random(made)), x["a"] @ x["b"])
    t = tensors(dt.bf16, x=(2, 5, 24), w=(2, 64, 24))       # columns (head, place), stored head by head
    body = loop.Round(dt.bf16, total(4, op("mul", load(t, "x", 0, 1, 4), load(t, "w", 2, 3, 4))))
    made = kernel(body, (2, 0, 1, 3), {0: 2, 1: 5, 2: 2, 3: 64, 4: 24}, t, dt.bf16)
    x = wide(made)
    form = lower(made.replace(schedule=schedule("contraction", PAIR, (0, 1), (2, 3))))
    close(run(made, form, random(made)), np.einsum("btk,opk->obtp", x["x"], x["w"]), HALF)
    assert boxes(form)


def test_parts_of_tensors() -> None:
    """Operands that begin inside a tensor, lie in lines longer than they are, or share a tensor."""
    t = tensors(dt.bf16, x=(40, 3, 72), w=(2 * 72, 80))
    gate, up = (total(2, op("mul", load(t, "x", 0, ix.IxConst(1), 2), load(t, "w", ix.IxAdd(Ax(1), ix.IxConst(n)), 2))) for n in (0, 72))
    made = kernel(op("mul", gate, up), (0, 1), {0: 40, 1: 72, 2: 68}, t)
    x, form = wide(made), lowered(made, SMALL)
    y = x["x"][:, 1, :68] @ x["w"][:, :68].T
    close(run(made, form, random(made)), y[:, :72] * y[:, 72:], 1e-5)
    assert {(m.start, m.pitches) for m in form.maps} == {(72, (216, 1)), (0, (80, 1)), (72 * 80, (80, 1))}
    assert rows(made) and kernel_parser.parse(kernel_text.show(form)) is form
    off = kernel(total(2, op("mul", load(t, "x", 0, ix.IxConst(1), ix.IxAdd(Ax(2), ix.IxConst(4))), load(t, "w", 1, 2))), (0, 1),
                 {0: 40, 1: 72, 2: 68}, t)
    assert not rows(off)        # it begins at 8 bytes


def test_what_no_map_has_is_an_error() -> None:
    for sizes in ((8, 8, 12), (8, 8, 1)):       # lines that are no multiples of 16 bytes; nothing to fold
        with pytest.raises(IRError, match="no operands that tensor maps have"):
            lowered(matmul(*sizes, right=True, element=dt.bf16), SMALL)
    wrong = ("n64k", "n60k"), ("k64", "k32"), ("d2", "d1"), ("g1x1", "g4x1"), ("g1x1", "g1x2"), ("smem-tma", "smem"), ("gm8", "m8")
    for old, new in wrong:
        with pytest.raises(IRError, match="row WORK"):
            lowered(matmul(8, 8, 8, element=dt.bf16), SMALL.replace(old, new))


def rows(k: tile.Kernel, math: str = "fast", pins: str = "", target: str = "sm_90a") -> dict[str, tile.Schedule]:
    return {str(s.row): s for s in schedules(k, target, math, pins) if s.row.tile.startswith("wgmma")}


@pytest.mark.parametrize("element", [dt.bf16, dt.f16])
def test_rows_are_proposed_for_halves(element: DType) -> None:
    k = matmul(256, 256, 256, element=element)
    found = rows(k)
    assert LARGE.replace("bf16", element.name) in found and all(f"_{element}_f32" in r for r in found)
    for spelled, s in found.items():
        assert str(tile.parse_row(spelled)) == spelled and tile.parse_row(spelled) is s.row
        lower(k.replace(schedule=s))


def test_rows_are_not_proposed_where_they_would_be_wrong() -> None:
    assert not rows(matmul(256, 256, 256))                                              # fp32 operands
    assert not rows(matmul(256, 256, 256, element=dt.bf16), "exact")                    # another order of sums
    assert not rows(matmul(256, 256, 256, element=dt.bf16), target="sm_80")             # another machine
    assert not rows(matmul(256, 256, 252, right=True, element=dt.bf16))                 # lines that are not multiples of 16 bytes
    assert rows(matmul(255, 256, 256, element=dt.bf16)) and rows(matmul(255, 253, 256, right=True, element=dt.bf16))
    t = tensors(dt.bf16, a=(256, 256), b=(256, 256))

    def of(left: loop.Value, right: loop.Value) -> tile.Kernel:
        return kernel(total(2, op("mul", left, right)), (0, 1), {0: 256, 1: 256, 2: 256}, t)

    a, b = load(t, "a", 0, 2), load(t, "b", 2, 1)
    assert rows(of(a, b)) and rows(of(loop.Cast(dt.f32, a), b))
    assert not rows(of(op("exp", a), op("exp", b)))                                     # two computed operands


def test_pins() -> None:
    k = matmul(256, 256, 256, right=True, element=dt.bf16)
    own = "WORK=g1x1/ws,TILE=wgmma_m64n40k16_bf16_f32/f2x3/k128,STAGE=d3/smem-tma,RASTER=gm3/p5"
    assert [*rows(k, pins=own)] == [own]
    for old, new, reason in (("k128", "k96", "Divides"), ("n40", "n36", "Divides"), ("d3", "d1", "Divides"), ("d3", "d50", "FitsShared"),
                             ("f2x3", "f8x8", "FitsRegisters"), ("bf16", "f16", "no rule proposes it")):
        with pytest.raises(EmmyError) as caught:
            rows(k, pins=own.replace(old, new))
        assert reason in caught.value.remedy


@pytest.mark.parametrize("row", [SMALL, PAIR, TALL, LARGE])
def test_shared_bytes_are_what_the_rules_say(row: str) -> None:
    k = matmul(256, 256, 256, right=True, element=dt.bf16)
    stage = {SMALL: 2 * 64 * 128, PAIR: 3 * 64 * 256, TALL: 2 * 128 * 384, LARGE: 4 * 64 * 384}[row]
    groups, stages = (1, 2) if row == SMALL else (2, {PAIR: 3, TALL: 2, LARGE: 4}[row])
    assert lowered(k, row).shared_bytes == 2 * stage + groups * 16384 + 16 * stages


def test_golden(golden: Callable[[str, str], None]) -> None:
    """One kernel whole: a linear with bias and activation, in tiles that do not divide it."""
    t = tensors(dt.bf16, x=(1000, 256), w=(776, 256), bias=(776,))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    made = kernel(loop.Round(dt.bf16, op("tanh", y)), (0, 1), {0: 1000, 1: 776, 2: 256}, t, dt.bf16, "linear_bias_tanh")
    form = lowered(made, LARGE.replace("p132", "p8"))
    golden("hopper/linear-kernel.txt", kernel_text.show(form))
    golden("hopper/linear-cuda.txt", emit_module([form]))


def test_the_compiler_keeps_sums_in_registers() -> None:
    """No spills, and ptxas serialises no product: it says so, with a number C75xx, if it does."""
    t = tensors(dt.bf16, x=(1024, 512), w=(1024, 512), v=(1024, 512), bias=(1024,), residual=(1024, 1024))
    gate, up = (total(2, op("mul", load(t, "x", 0, 2), load(t, name, 1, 2))) for name in "wv")
    after = op("add", op("tanh", op("add", gate, load(t, "bias", 1))), load(t, "residual", 0, 1))
    extents = {0: 1024, 1: 1024, 2: 512}
    forms = [lowered(matmul(1024, 1024, 1024, element=dt.bf16, name="round_matmul"), LARGE),
             lowered(matmul(1023, 1032, 1032, right=True, element=dt.bf16, name="ragged_matmul"), LARGE),
             lowered(matmul(1023, 1025, 1024, right=True, element=dt.bf16, name="odd_matmul"), LARGE),
             lowered(matmul(1024, 1024, 1024, True, False, dt.bf16, "tall"), LARGE.replace("n256", "n128").replace("f1x1", "f2x1")),
             lowered(matmul(64, 1024, 1024, False, True, dt.bf16, "single"), LARGE.replace("g2", "g1")),
             lowered(kernel(loop.Round(dt.bf16, after), (0, 1), extents, t, dt.bf16, "after"), LARGE),
             lowered(kernel(after, (0, 1), extents, t, dt.f32, "written"), LARGE),
             lowered(kernel(loop.Round(dt.bf16, op("mul", gate, up)), (0, 1), extents, t, dt.bf16, "gate"), LARGE.replace("n256", "n128"))]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= (255 if name == "single" else 168), (name, report)
