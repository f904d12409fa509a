"""Form "window": the simulated kernel against NumPy in float64, how much it reads, what the rules say of it, and what nvcc says."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, IxConst
from emmy.ir.kernel_ir import walk
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower import kernel_to_cuda, tile_to_kernel
from emmy.lower.tile_to_kernel import window
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors

N, LINE, COLUMN, R, S = range(5)        # image, line and column of the output; line and column of a window


def inside(x: ix.Ix, n: int) -> Value:
    """Whether a place of the padded tensor, one further on each side, is one of the tensor's."""
    def integer(k: int) -> Value:
        return loop.Const(dt.i64, dt.bits(dt.i64, k))

    return op("and", op("lt", loop.IndexOf(x), integer(n + 1)), op("le", integer(1), loop.IndexOf(x)))


def pooled(element: DType, size: int, n: int, stride: int = 2, monoid: str = "max") -> tile.Kernel:
    """A pooling of n by n images by windows of `size`, padded by one on each side."""
    out = (n + 2 - size) // stride + 1
    line, column = (ix.add(Ax(r), ix.mul(Ax(i), stride)) for r, i in ((R, LINE), (S, COLUMN)))
    t = tensors(element, x=(2, n, n))
    there = load(t, "x", N, *(ix.mod(ix.add(x, IxConst(n - 1)), n) for x in (line, column)))
    value = op("select", op("and", inside(line, n), inside(column, n)), there, number(float("-inf") if monoid == "max" else 0.0))
    body = loop.Reduce(monoid, R, loop.Reduce(monoid, S, value))
    return kernel(body, (N, LINE, COLUMN), {N: 2, LINE: out, COLUMN: out, R: size, S: size}, t, element)


def pooled_of(x: np.ndarray, size: int, stride: int, monoid: str) -> np.ndarray:
    x = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf if monoid == "max" else 0)
    parts = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride]
    return parts.max((3, 4)) if monoid == "max" else parts.sum((3, 4))


@pytest.mark.parametrize("monoid", ["max", "add"])
@pytest.mark.parametrize("element", [dt.f32, dt.bf16])
@pytest.mark.parametrize("size, n, stride, width", [(3, 16, 2, 4), (3, 16, 2, 8), (5, 26, 2, 2), (3, 8, 1, 4), (2, 7, 1, 4)])
def test_pooling(size: int, n: int, stride: int, width: int, element: DType, monoid: str) -> None:
    k = pooled(element, size, n, stride, monoid)
    made = window.lower(k, schedule("window", f"WORK=t32,TILE=v{width},REDUCE=window", (), ()))
    inputs = random(k)
    wanted = pooled_of(inputs["x"], size, stride, monoid)
    np.testing.assert_allclose(run(k, made, inputs), wanted, rtol=1e-5 if element is dt.f32 else 1e-2, atol=1e-5)


def test_a_line_is_read_as_vectors_but_for_the_element_before_it() -> None:
    made = window.lower(pooled(dt.bf16, 3, 112), schedule("window", "WORK=t128,TILE=v4,REDUCE=window", (), ()))
    statements = list(walk(made.body))
    assert sum(isinstance(s, LoadGlobalVector) for s in statements) == sum(isinstance(s, LoadGlobal) for s in statements) == 3


def test_weights_beside_a_window() -> None:
    """A sum of products: the window's loads are shared, the weights' are each their own."""
    t = tensors(x=(6, 18), w=(3,), b=(16,))
    body = op("add", loop.Reduce("add", S, op("mul", load(t, "x", LINE, ix.add(Ax(COLUMN), Ax(S))), load(t, "w", S))), load(t, "b", COLUMN))
    k = kernel(body, (LINE, COLUMN), {LINE: 6, COLUMN: 16, S: 3}, t)
    x, w, b = (random(k)[n].astype(np.float64) for n in "xwb")
    made = window.lower(k, schedule("window", "WORK=t32,TILE=v4,REDUCE=window", (), ()))
    np.testing.assert_allclose(run(k, made, random(k)), sum(x[:, s:s + 16] * w[s] for s in range(3)) + b, rtol=1e-5, atol=1e-5)


def test_the_rules_admit_it() -> None:
    k = pooled(dt.f32, 3, 16)
    rows = [s for s in schedules(k, "sm_90a") if s.form == "window"]
    assert {s.row.tile for s in rows} == {"v2", "v4", "v8"}
    wanted = pooled_of(random(k)["x"], 3, 2, "max")
    for s in rows[::4]:
        np.testing.assert_allclose(run(k, tile_to_kernel.lower(k.replace(schedule=s)), random(k)), wanted, rtol=1e-5)
    assert not any(s.form == "window" for s in schedules(pooled(dt.f32, 2, 16), "sm_90a"))


@pytest.mark.parametrize("row", ["WORK=t32,TILE=v3,REDUCE=window", "WORK=t32,TILE=v4"])
def test_a_row_that_does_not_fit(row: str) -> None:
    with pytest.raises(IRError, match="spelled"):
        window.lower(pooled(dt.f32, 3, 16), schedule("window", row, (), ()))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_nvcc_takes_it_without_spills(target: str) -> None:
    rows = {n: schedule("window", f"WORK=t128,TILE=v{width},REDUCE=window", (), ()) for n, width in ((112, 8), (64, 4))}
    made = [window.lower(pooled(dt.bf16, 3, n).replace(name=f"pool_{n}"), row) for n, row in rows.items()]
    reports = build(kernel_to_cuda.emit_module(made), target).functions
    assert len(reports) == 2 and not any(r.spill_bytes for r in reports.values())
