"""Groups that take turns: simulated kernels against float64, a planted fault for each hand-over, rows, machine code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import Arrive, Assign, InitBarrier
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Stmt
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_shares import changed
from tests.lower.tile_to_kernel.test_hopper_windows import Conv
from tests.lower.tile_to_kernel.test_joined import joined, reference, sums
from tests.lower.tile_to_kernel.test_tensor_core import HALF, gated, lowered, wide

TURNS = "WORK=g2x1/ws-turns,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d3/smem-tma,RASTER=gm8/p2"
TALL = "WORK=g2x1/ws-turns,TILE=wgmma_m64n64k16_bf16_f32/f2x1/k64,STAGE=d2/smem-tma,RASTER=gm1/p1"
LARGE = "WORK=g2x1/ws-turns,TILE=wgmma_m64n128k16_bf16_f32/f2x1/k64,STAGE=d6/smem-tma,RASTER=gm8/p132"


@pytest.mark.parametrize("row", [TURNS, TALL])
@pytest.mark.parametrize("left, right", [(False, True), (True, False)])
@pytest.mark.parametrize("k", [40, 200, 264])
def test_each_has_every_other_tile(row: str, left: bool, right: bool, k: int) -> None:
    """Fewer stages to a tile than the ring has, as many again and one more; an odd number of tiles; tiles that do not divide the result."""
    made = matmul(136, 168, k, left, right, dt.bf16)
    x, form = wide(made), lowered(made, row)
    close(run(made, form, random(made)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), HALF)
    assert kernel_parser.parse(kernel_text.show(form)) is form


def test_a_block_with_one_tile() -> None:
    """The second group has none."""
    k = matmul(8, 64, 128, right=True, element=dt.bf16)
    x = wide(k)
    close(run(k, lowered(k, TURNS), random(k)), x["a"] @ x["b"].T, HALF)


@pytest.mark.parametrize("element, deep, tolerance", [(dt.f16, "k16_f16_f32/f1x1/k64", 2.0**-11), (dt.tf32, "k8_tf32_f32/f1x1/k32", 1e-6),
                                                      (dt.e4m3, "k32_e4m3_f32/f1x1/k128", 2.0**-3)])
def test_types(element: DType, deep: str, tolerance: float) -> None:
    k = matmul(200, 80, 272, right=True, element=dt.f32 if element is dt.tf32 else element)
    x = {name: dt.rounded(v).astype(np.float64) for name, v in random(k).items()} if element is dt.tf32 else wide(k)
    close(run(k, lowered(k, TURNS.replace("k16_bf16_f32/f1x1/k64", deep)), random(k)), x["a"] @ x["b"].T, tolerance)


def test_what_follows_the_sums() -> None:
    """Values of rows, of columns, and of both, each of the tile of its group."""
    m, n, k = 200, 136, 72
    t = tensors(dt.bf16, x=(m, k), w=(n, k), bias=(n,), residual=(m, n)) | tensors(dt.f32, scale=(m,))
    y = op("add", op("mul", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "scale", 0)), load(t, "bias", 1))
    body = op("add", op("tanh", y), load(t, "residual", 0, 1))
    for element, tolerance in ((dt.bf16, HALF), (dt.f32, 1e-5)):
        made = kernel(body if element is dt.f32 else loop.Round(element, body), (0, 1), {0: m, 1: n, 2: k}, t, element)
        x, form = wide(made), lowered(made, TURNS)
        z = x["x"] @ x["w"].T * x["scale"][:, None] + x["bias"]
        close(run(made, form, random(made)), np.tanh(z) + x["residual"], tolerance)


def test_several_sums() -> None:
    gated(200, 136, TURNS, 1e-5)


def test_a_batch() -> None:
    t = tensors(dt.bf16, a=(3, 80, 136), b=(3, 72, 136))
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 0, 2, 3))), (0, 1, 2), {0: 3, 1: 80, 2: 72, 3: 136}, t)
    x, form = wide(made), lower(made.replace(schedule=schedule("contraction", TURNS, (1,), (2,), (0,))))
    close(run(made, form, random(made)), np.einsum("bmk,bnk->bmn", x["a"], x["b"]))


def test_sums_that_are_one() -> None:
    k = sums(150, 72, (200, 16), bias=True)
    close(run(k, joined(k, TURNS), random(k)), reference(k, False), HALF)


def test_a_computed_operand() -> None:
    t = tensors(dt.bf16, x=(150, 136), w=(136, 136))
    body = op("mul", loop.Round(dt.bf16, op("tanh", load(t, "x", 0, 2))), load(t, "w", 1, 2))
    made = kernel(total(2, body), (0, 1), {0: 150, 1: 136, 2: 136}, t)
    x, form = wide(made), lowered(made, TURNS)
    close(run(made, form, random(made)), np.tanh(x["x"]) @ x["w"].T, HALF)


def test_windows() -> None:
    of = Conv((2, 9, 10, 64), (72, 3, 3), pad=(1, 1))
    k = of.kernel()
    (s,) = (s for s in schedules(k, "sm_90a", pins=TURNS) if s.form == "convolution")
    x = wide(k)
    close(run(k, lower(k.replace(schedule=s)), random(k)), of.wanted(x["x"], x["w"]), 1e-5)


def turn(s: Stmt) -> bool:
    return getattr(s, "barrier", "").startswith("turn")


FAULTS: dict[str, tuple[Callable[[Stmt], tuple[Stmt, ...]], str]] = {
    "no turn is handed on": (lambda s: () if isinstance(s, Arrive) and turn(s) else (s,), "deadlock"),
    "a warp hands the turn on": (lambda s: (s.replace(count=1),) if isinstance(s, InitBarrier) and turn(s) else (s,), ""),
    "a stage waits for both groups": (lambda s: (s.replace(count=8),) if isinstance(s, InitBarrier) and not turn(s) and s.count == 4
                                      else (s,), "deadlock"),
    "all stages are this group's": (lambda s: () if isinstance(s, Assign) and s.var.name.startswith("slot") and (
        " - " in kernel_text.show_expr(s.value)) else (s,), ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    change, kind = FAULTS[fault]
    k = matmul(200, 136, 200, right=True, element=dt.bf16)
    form, x = lowered(k, TURNS), wide(k)
    broken = changed(form, change)
    assert broken is not form
    with pytest.raises((SimulationError, AssertionError)) as error:
        close(run(k, broken, random(k)), x["a"] @ x["b"].T, HALF)
    assert not kind or getattr(error.value, "kind", "") == kind


def test_rows() -> None:
    k = matmul(200, 136, 200, right=True, element=dt.bf16)
    for row in (TURNS.replace("g2", "g3"), TURNS.replace("/p2", "")):
        with pytest.raises(IRError, match="two groups take turns, in blocks that stay"):
            lowered(k, row)
    found = [s for s in schedules(matmul(2048, 3072, 768, right=True, element=dt.bf16), "sm_90a") if "turns" in s.row.work]
    assert LARGE in {str(s.row) for s in found}


def test_machine_code() -> None:
    k = matmul(2048, 3072, 768, right=True, element=dt.bf16)
    made = build(emit_module([lowered(k, LARGE)]), "sm_90a")
    (report,) = made.functions.values()
    assert not report.spill_bytes
