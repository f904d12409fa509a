"""Form "scan": the simulated kernel against NumPy in float64, and what nvcc says of it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import emmy
from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda
from emmy.lower.tile_to_kernel import scan
from emmy.runtime import execute
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors

ROWS = 3


def scans(n: int, monoid: str = "add", element: dt.DType = dt.f32) -> tile.Kernel:
    """2 * (x up to here) + y, along the last axis."""
    t = tensors(element, x=(ROWS, n), y=(ROWS, n))
    upto = loop.Scan(monoid, 1, Ax(2), load(t, "x", 0, 1))
    return kernel(op("add", op("mul", upto, number(2)), load(t, "y", 0, 2)), (0, 2), {0: ROWS, 1: n, 2: n}, t)


@pytest.mark.parametrize("threads, width, n", [(32, 1, 5), (64, 1, 131), (64, 4, 256), (64, 4, 1000), (128, 8, 2048), (256, 2, 4)])
def test_sums_and_maxima_up_to_a_point(threads: int, width: int, n: int) -> None:
    for monoid, right in (("add", np.add), ("max", np.maximum)):
        k = scans(n, monoid)
        x, y = (v.astype(np.float64) for v in random(k).values())
        made = scan.lower(k, schedule("scan", f"WORK=t{threads},TILE=v{width},REDUCE=scan", (0,), (2,)))
        np.testing.assert_allclose(run(k, made, random(k)), 2 * right.accumulate(x, 1) + y, rtol=1e-4, atol=1e-4)


def test_infinity_stays() -> None:
    k = scans(300)
    inputs = random(k)
    inputs["x"][:] = np.inf
    made = scan.lower(k, schedule("scan", "WORK=t64,TILE=v2,REDUCE=scan", (0,), (2,)))
    assert np.isposinf(run(k, made, inputs)).all()


def test_a_scan_along_an_axis_that_is_not_the_last() -> None:
    t = tensors(x=(64, ROWS))
    k = kernel(loop.Scan("add", 1, Ax(2), load(t, "x", 1, 0)), (2, 0), {0: ROWS, 1: 64, 2: 64}, t)
    made = scan.lower(k, schedule("scan", "WORK=t32,REDUCE=scan", (0,), (2,)))
    np.testing.assert_allclose(run(k, made, random(k)), random(k)["x"].astype(np.float64).cumsum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", ["WORK=t48,REDUCE=scan", "WORK=t64,TILE=v4,REDUCE=scan", "WORK=t64,REDUCE=coop"])
def test_a_row_that_does_not_fit(row: str) -> None:
    with pytest.raises(IRError, match="a scan is spelled"):
        scan.lower(scans(37), schedule("scan", row, (0,), (2,)))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_it_without_spills() -> None:
    made = scan.lower(scans(1000), schedule("scan", "WORK=t256,TILE=v4,REDUCE=scan", (0,), (2,)))
    assert all(r.spill_bytes == 0 for r in build(kernel_to_cuda.emit(made), "sm_90a").functions.values())


@pytest.mark.parametrize("threads, width, length, pieces", [(32, 1, 8, 5), (64, 4, 1024, 3), (128, 2, 40, 70)])
def test_pieces_of_a_scan(threads: int, width: int, length: int, pieces: int) -> None:
    """What comes before a piece is the product of the totals of the earlier ones, none before the first."""
    n = length * pieces
    t = tensors(x=(ROWS, n), s=(ROWS, pieces))
    whole = Ax(2)
    begin, place = ix.mul(ix.div(whole, length), length), ix.mod(whole, length)
    earlier = loop.Scan("add", 3, ix.add(ix.div(whole, length), ix.IxConst(-1)), load(t, "s", 0, 3))
    own = loop.Scan("add", 1, place, load(t, "x", 0, ix.add(begin, Ax(1))))
    k = kernel(op("add", earlier, own), (0, 2), {0: ROWS, 1: length, 2: n, 3: pieces}, t)
    inputs = random(k)
    inputs["s"] = inputs["x"].reshape(ROWS, pieces, length).sum(2)
    wanted = inputs["x"].astype(np.float64).cumsum(1)
    made = scan.lower(k, schedule("scan", f"WORK=t{threads},TILE=v{width},REDUCE=scan", (0,), (2,)))
    np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(evaluate_kernel(k, inputs)[0], wanted, rtol=1e-4, atol=1e-3)


def test_a_fold_that_varies_within_a_piece() -> None:
    t = tensors(x=(ROWS, 64), y=(ROWS, 64))
    k = kernel(op("add", loop.Scan("add", 1, Ax(2), load(t, "x", 0, 1)), loop.Scan("add", 3, Ax(2), load(t, "y", 0, 3))), (0, 2),
               {0: ROWS, 1: 64, 2: 64, 3: 64}, t)
    with pytest.raises(IRError, match="folds that depend on the piece"):
        scan.lower(k, schedule("scan", "WORK=t64,REDUCE=scan", (0,), (2,)))


def test_a_scan_goes_as_far_as_a_tensor_says() -> None:
    """One whose name is no parameter's."""
    program = emmy.compile_snippet("x = torch.randn(3, 7); x.flip(1).cumsum(1).flip(1).index_select(1, torch.tensor([6, 0, 3]))")
    arrays = execute.arguments(program)
    assert "x1" in program.captured.inputs
    for made, wanted in zip(execute.on_simulator(program, arrays).values(), execute.on_numpy(program, arrays).values(), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
