"""Shuffles up: what each lane receives, its text, and that nvcc takes it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import simulate
from emmy.instructions import LoadGlobal, ShuffleUp, StoreGlobal
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.kernel_ir import GlobalBuffer, Kernel, Thread, Var, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import build


def shifted(delta: int, element: dt.DType = dt.f32, block: int = 64) -> Kernel:
    """dst[lane] = src[lane - delta], or the lane's own where there is none."""
    x, y = Var("x", element), Var("y", element)
    buffers = GlobalBuffer("src", element, block, "read"), GlobalBuffer("dst", element, block, "write")
    body = LoadGlobal(x, "src", Thread()), ShuffleUp(y, x, delta), StoreGlobal("dst", Thread(), y)
    return Kernel("shifted", buffers, (), (1, 1, 1), block, body)


@pytest.mark.parametrize("delta", [1, 5, 31])
@pytest.mark.parametrize("element", [dt.f32, dt.i64, dt.bool_])
def test_lanes_read_those_below(delta: int, element: dt.DType) -> None:
    k = shifted(delta, element)
    src = np.random.default_rng(0).integers(0, 2 if element is dt.bool_ else 99, 64).astype(element.numpy)
    buffers = {"src": src, "dst": np.zeros_like(src)}
    simulate(k, buffers)
    lanes = np.arange(64)
    np.testing.assert_array_equal(buffers["dst"], src[np.where(lanes % 32 < delta, lanes, lanes - delta)])
    assert kernel_parser.parse(kernel_text.show(k)) is k


@pytest.mark.parametrize("delta", [0, 32])
def test_there_are_1_to_31_lanes_below(delta: int) -> None:
    with pytest.raises(IRError, match="1 to 31"):
        verify(shifted(delta))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_it() -> None:
    assert "__shfl_up_sync(0xffffffffu, x, 3)" in emit(shifted(3))
    assert build(emit(shifted(3)), "sm_90a").functions["shifted"].spill_bytes == 0
