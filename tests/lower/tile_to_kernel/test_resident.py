"""Rows that a cluster folds, in its shared memory, its registers or neither: the simulated kernel against NumPy in float64, and what nvcc
says of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError
from emmy.instructions.cluster import ClusterArrive, ClusterWait
from emmy.instructions.cp_async import CopyAsync
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector
from emmy.instructions.mbarrier import WaitBarrier
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Stmt
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda
from emmy.lower.tile_to_kernel import resident
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total

ROWS = 3
WORK = ["t64/c2", "t32/c8", "t512/c4"]      # of the last, 64 warps join a row


def softmax(element: DType, n: int) -> tile.Kernel:
    t = tensors(element, x=(ROWS, n))
    folded, here = load(t, "x", 0, 1), load(t, "x", 0, 2)
    body = op("div", op("exp", op("sub", here, loop.Pivot("softmax", 1, folded))), loop.Channel("softmax", 1, folded, number(1)))
    return kernel(body, (0, 2), {0: ROWS, 1: n, 2: n}, t, element)


def layer_norm(element: DType, n: int) -> tile.Kernel:
    """By moments, with a weight that lies in no row."""
    t = tensors(element, x=(ROWS, n), w=(n,))
    folded, here = load(t, "x", 0, 1), load(t, "x", 0, 2)
    variance = op("mul", loop.Channel("moments", 1, folded, number(1)), number(1 / n))
    scale = op("rsqrt", op("add", variance, number(1e-5)))
    body = op("mul", op("mul", op("sub", here, loop.Pivot("moments", 1, folded)), scale), load(t, "w", 2))
    return kernel(body, (0, 2), {0: ROWS, 1: n, 2: n}, t, element)


def two_passes(element: DType, n: int) -> tile.Kernel:
    """Squared deviations after the mean."""
    t = tensors(element, x=(ROWS, n))
    folded, again, here = (load(t, "x", 0, a) for a in (1, 3, 2))
    apart = op("sub", again, op("mul", total(1, folded), number(1 / n)))
    return kernel(op("add", here, total(3, op("mul", apart, apart))), (0, 2), {0: ROWS, 1: n, 2: n, 3: n}, t, element)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def layer_norm_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w


def lowered(k: tile.Kernel, work: str, element: DType, reduce: str = "coop") -> kernel_ir.Kernel:
    return resident.lower(k, schedule("fold", f"WORK={work},TILE=v{16 // element.bytes},REDUCE={reduce},STAGE=smem", (0,), (2,)))


@pytest.mark.parametrize("element", [dt.f32, dt.bf16])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("n", [64, 320, 8256])
def test_rows_that_stay(work: str, n: int, element: DType) -> None:
    n = n if n * element.bytes % (16 * 8) == 0 else 2 * n
    tolerance = 1e-5 if element is dt.f32 else 2e-2
    cases = [(softmax, softmax_of, "coop"), (softmax, softmax_of, "coop/apart"), (layer_norm, layer_norm_of, "coop")]
    for make, right, reduce in cases if n < 8000 or work == WORK[-1] else cases[:1]:
        k = make(element, n)
        inputs, made = random(k), lowered(k, work, element, reduce)
        assert made.cluster == int(work.partition("/c")[2] or 1) and made.grid == (ROWS * made.cluster, 1, 1)
        wanted = right(*(x.astype(np.float64) for x in inputs.values()))
        np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=tolerance, atol=tolerance)


def first_place(element: DType, n: int) -> tile.Kernel:
    t = tensors(element, x=(ROWS, n))
    return kernel(loop.Channel("first", 1, load(t, "x", 0, 1), loop.IndexOf(Ax(1))), (0,), {0: ROWS, 1: n}, t, dt.i64)


def folded(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    return resident.lower(k, schedule("fold", row, (0,), tuple(k.outer[1:])))


@pytest.mark.parametrize("stage", ["", ",STAGE=reg"])
@pytest.mark.parametrize("work, width, n", [("t32/c2", 1, 61), ("t32/c2", 1, 257), ("t32/c8", 4, 1028), ("t64/c4", 2, 254),
                                            ("t512/c4", 1, 2049)])
def test_rows_of_any_length(work: str, width: int, n: int, stage: str) -> None:
    """Some threads have no run, or fewer than others."""
    row = f"WORK={work}" + f",TILE=v{width}" * (width > 1) + ",REDUCE=coop"
    for make, right, apart in (softmax, softmax_of, ""), (softmax, softmax_of, "/apart"), (layer_norm, layer_norm_of, ""):
        k = make(dt.f32, n)
        inputs, made = random(k), folded(k, row + apart + stage)
        assert made.cluster == int(work.partition("/c")[2]) and made.grid == (ROWS * made.cluster, 1, 1)
        wanted = right(*(x.astype(np.float64) for x in inputs.values()))
        np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=1e-5, atol=1e-5)
    k = first_place(dt.f32, n)
    inputs = {"x": np.round(random(k)["x"], 1)}         # of equal ones the first
    np.testing.assert_array_equal(run(k, folded(k, row + stage), inputs), inputs["x"].argmax(1))


def test_what_registers_hold_is_read_once_from_memory() -> None:
    made = folded(softmax(dt.f32, 64), "WORK=t32/c2,TILE=v4,REDUCE=coop,STAGE=reg")
    assert sum(isinstance(s, LoadGlobal | LoadGlobalVector) for s in kernel_ir.walk(made.body)) == 1


def test_what_is_read_twice_is_read_once_from_memory() -> None:
    made = lowered(two_passes(dt.f32, 64), "t32/c4", dt.f32)
    reads = [s for s in kernel_ir.walk(made.body) if isinstance(s, CopyAsync | LoadGlobal | LoadGlobalVector)]
    assert len(reads) == 1 and isinstance(reads[0], CopyAsync)
    k = two_passes(dt.f32, 64)
    inputs = random(k)
    x = inputs["x"].astype(np.float64)
    np.testing.assert_allclose(run(k, made, inputs), x + 64 * x.var(1, keepdims=True), rtol=1e-5)


def without(made: kernel_ir.Kernel, *left_out: type[Stmt]) -> kernel_ir.Kernel:
    """The kernel without the first statement of each class."""
    body = list(made.body)
    for kind in left_out:
        body.remove(next(s for s in body if isinstance(s, kind)))
    return made.replace(body=tuple(body))


@pytest.mark.parametrize("left_out, kind", [
    ((ClusterArrive, ClusterWait), "uninitialised"),    # sends before the others have made their barriers
    ((ClusterWait,), "uninitialised"),
    ((WaitBarrier,), "uninitialised"),                  # reads what has not come
])
def test_faults_are_found(left_out: tuple[type[Stmt], ...], kind: str) -> None:
    k = softmax(dt.f32, 64)
    for whole in lowered(k, "t32/c2", dt.f32), folded(k, "WORK=t32/c2,REDUCE=coop,STAGE=reg"):
        with pytest.raises(SimulationError) as error:
            run(k, without(whole, *left_out), random(k))
        assert error.value.kind == kind


@pytest.mark.parametrize("work, n, message", [("t32/c3", 96, "a power of two"), ("t32/c8", 48, "whole runs"), ("t32x2", 64, "is spelled"),
                                              ("t48/c2", 64, "warps")])
def test_rows_that_do_not_fit(work: str, n: int, message: str) -> None:
    with pytest.raises(IRError, match=message):
        lowered(softmax(dt.f32, n), work, dt.f32)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_takes_them() -> None:
    made = [lowered(m(dt.bf16, 131072).replace(name=f"{m.__name__}_{w.replace('/', '_')}"), w, dt.bf16)
            for m, w in ((softmax, "t512/c4"), (layer_norm, "t256/c8"), (two_passes, "t1024/c2"))]
    held = ((softmax, dt.f32, 50257, "", "coop,STAGE=reg"), (softmax, dt.f32, 262144, ",TILE=v4", "coop/apart,STAGE=reg"),
            (layer_norm, dt.bf16, 128256, ",TILE=v8", "coop,STAGE=reg"), (first_place, dt.bf16, 128256, ",TILE=v8", "coop,STAGE=reg"),
            (first_place, dt.f32, 50257, "", "coop"))
    made += [folded(m(element, n).replace(name=f"{m.__name__}_{n}"), f"WORK=t1024/c8{tile},REDUCE={how}")
             for m, element, n, tile, how in held]
    for target in ("sm_90a", "sm_120"):
        for name, report in build(kernel_to_cuda.emit_module(made), target).functions.items():
            assert report.spill_bytes == report.stack_bytes == 0, (name, report)
