"""One row a block in shared memory: the simulated kernel against NumPy in float64, what the rules say of it, and what nvcc says."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda, tile_to_kernel
from emmy.lower.tile_to_kernel import fold
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_staged_rows import layer_norm, layer_norm_of, softmax, softmax_of


def row(threads: int, element: DType) -> str:
    return f"WORK=t{threads},TILE=v{16 // element.bytes},REDUCE=coop,STAGE=smem"


@pytest.mark.parametrize("element", [dt.f32, dt.bf16])
@pytest.mark.parametrize("threads, n", [(32, 520), (64, 1024), (128, 1000)])
def test_rows_that_a_block_keeps(threads: int, n: int, element: DType) -> None:
    tolerance = 1e-5 if element is dt.f32 else 2e-2
    for k, right in ((softmax(element, n), softmax_of), (layer_norm(element, n), layer_norm_of)):
        inputs = random(k)
        made = fold.lower(k, schedule("fold", row(threads, element), (0,), (2,)))
        wanted = right(*(x.astype(np.float64) for x in inputs.values()))
        np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=tolerance, atol=tolerance)


def test_a_row_that_is_folded_twice_and_not_written() -> None:
    t = tensors(dt.bf16, x=(6, 520))
    first, again = load(t, "x", 0, 1), load(t, "x", 0, 2)
    spread = op("sub", again, total(1, first))
    k = kernel(total(2, op("mul", spread, spread)), (0,), {0: 6, 1: 520, 2: 520}, t)
    x = random(k)["x"].astype(np.float64)
    made = fold.lower(k, schedule("fold", row(32, dt.bf16), (0,), ()))
    np.testing.assert_allclose(run(k, made, random(k)), ((x - x.sum(1, keepdims=True)) ** 2).sum(1), rtol=1e-5)
    assert len(made.shared) == 1 and made.shared[0].length == 520


def test_the_rules_admit_it_where_threads_have_two_runs() -> None:
    found = {str(s.row): s for s in schedules(softmax(dt.bf16, 2048), "sm_90a") if s.row.stage == "smem" and "x" not in s.row.work}
    assert list(found) == [row(n, dt.bf16) for n in (128, 64)]
    assert {str(s.row): s for s in schedules(softmax(dt.bf16, 2049), "sm_90a")}.keys().isdisjoint(found)
    k = softmax(dt.bf16, 2048)
    inputs = random(k)
    wanted = softmax_of(inputs["x"].astype(np.float64))
    for s in found.values():
        np.testing.assert_allclose(run(k, tile_to_kernel.lower(k.replace(schedule=s)), inputs), wanted, rtol=2e-2)


@pytest.mark.parametrize("k, columns", [(softmax(dt.bf16, 37), (2,)), (softmax(dt.f32, 1024), (2,))])
def test_a_row_in_other_runs_than_16_bytes(k: object, columns: tuple[int, ...]) -> None:
    with pytest.raises(IRError, match="runs of 16 bytes"):
        fold.lower(k, schedule("fold", row(32, dt.bf16), (0,), columns))  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_nvcc_takes_it_without_spills(target: str) -> None:
    made = [fold.lower(k.replace(name=name), schedule("fold", row(128, dt.bf16), (0,), (2,)))
            for name, k in (("softmax", softmax(dt.bf16, 8192)), ("layer_norm", layer_norm(dt.bf16, 8192)))]
    reports = build(kernel_to_cuda.emit_module(made), target).functions
    assert len(reports) == 2 and not any(r.spill_bytes for r in reports.values())
