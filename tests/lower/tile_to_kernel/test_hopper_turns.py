"""Groups that take turns: simulated kernels against float64, a planted fault for each hand-over, rows, machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from emmy.egraph.schedule import schedules
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import Arrive, Assign, InitBarrier
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.kernel_ir import Stmt
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import random, run
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_shares import changed
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


def test_several_sums() -> None:
    gated(200, 136, TURNS, 1e-5)


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
