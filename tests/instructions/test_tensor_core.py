"""Asynchronous copies, fragments and products of tensor cores: what they compute, and planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import CommitCopies, CopyAsync, DeclareArray, If, LoadMatrix, MultiplyMatrices, StoreShared, WaitCopies
from emmy.instructions.resources import resources
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, GlobalBuffer, Kernel, SharedBuffer, Stmt, Thread, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import TARGETS, build
from tests.kernels import tensor_product

T = Thread()


def product(kernel: Kernel, element: DType = dt.bf16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b (its last 8 elements zeros) and what the kernel stores, in float64."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(n).astype(np.float32).astype(element.numpy) for n in (256, 120))
    out = np.zeros(256, np.float32)
    simulate(kernel, {"a": a, "b": b, "dst": out})
    return a.astype(float).reshape(16, 16), np.append(b.astype(float), np.zeros(8)), out.astype(float).reshape(2, 16, 8)


@pytest.mark.parametrize("element", [dt.bf16, dt.f16])
@pytest.mark.parametrize("by_column", [True, False])
def test_product(element: DType, by_column: bool) -> None:
    a, b, out = product(tensor_product(element, by_column), element)
    wanted = a @ (b.reshape(8, 16).T if by_column else b.reshape(16, 8))
    np.testing.assert_allclose(out, [wanted, wanted], rtol=1e-6, atol=1e-6)


def test_the_wrong_layout_is_another_product() -> None:
    a, b, out = product(tensor_product(by_column=False, transposed=False))
    assert np.abs(out - a @ b.reshape(16, 8)).max() > 0.5


@pytest.mark.parametrize("missing, detail", [("wait", "whose copy is under way"), ("barrier", "no barrier between")])
def test_copies_that_are_not_waited_for(missing: str, detail: str) -> None:
    with pytest.raises(SimulationError, match=f"race.*load_matrix.*{detail}"):
        product(tensor_product(**{missing: False}))


def kernel(*body: Stmt) -> Kernel:
    return Kernel("faulty", (GlobalBuffer("a", dt.bf16, 512, "read"),), (SharedBuffer("tile", dt.bf16, 512),), (1, 1, 1), 64, body)


def fault(*body: Stmt) -> SimulationError:
    with pytest.raises(SimulationError) as caught:
        simulate(kernel(*body), {"a": np.ones(512, dt.bf16.numpy)})
    return caught.value


COPY = CopyAsync("tile", T * 8, 8, "a", T * 8)


def test_writing_where_a_copy_goes_is_a_race() -> None:
    assert fault(COPY, StoreShared("tile", T * 8, const(dt.bf16, 1))).kind == "race"
    assert fault(COPY, CopyAsync("tile", T * 8, 8, "a", T * 8)).kind == "race"
    assert fault(COPY, CommitCopies(), COPY, CommitCopies(), WaitCopies(0)).kind == "race"


def test_a_wait_covers_all_but_the_youngest_groups() -> None:
    x = DeclareArray("x", dt.bf16, 2)
    copies = (CopyAsync("tile", T * 8, 8, "a", T * 8), CommitCopies(), CopyAsync("tile", T * 8 + 256, 8, "a", T * 8), CommitCopies())

    def read(row: Expr) -> None:
        made = kernel(*copies, WaitCopies(1), x, LoadMatrix("x", int32(0), 2, "tile", row)).replace(block=32)
        simulate(made, {"a": np.ones(512, dt.bf16.numpy)})

    read(T * 8)
    with pytest.raises(SimulationError, match="no barrier between"):
        read((T + 1) % 32 * 8)      # a row that another lane copied
    with pytest.raises(SimulationError, match="under way"):
        read(T * 8 + 256)


def test_copies_stay_inside_and_aligned() -> None:
    assert fault(CopyAsync("tile", T * 8 + 64, 8, "a", T * 8)).kind == "bounds"
    assert fault(CopyAsync("tile", T * 8, 8, "a", T * 8 + 4)).kind == "bounds"


def test_parts_of_a_warp() -> None:
    assert fault(If(T % 2 == 0, (CommitCopies(),))).kind == "barrier"
    assert fault(If(T % 2 == 0, (WaitCopies(0),))).kind == "barrier"
    assert fault(DeclareArray("x", dt.bf16, 2), If(T % 2 == 0, (LoadMatrix("x", int32(0), 2, "tile", T % 8 * 8),))).kind == "shuffle"
    assert fault(DeclareArray("x", dt.bf16, 2), LoadMatrix("x", int32(0), 2, "tile", T % 8 * 8)).kind == "uninitialised"


@pytest.mark.parametrize("body, message", [
    ((CopyAsync("tile", T * 4, 1, "a", T * 4),), "4, 8 or 16 bytes of one dtype"),
    ((CopyAsync("tile", int32(4), 8, "a", int32(0)),), "index 4 of a vector of 8"),
    ((WaitCopies(-1),), "-1 pending"),
    ((DeclareArray("x", dt.bf16, 8), LoadMatrix("x", int32(4), 8, "tile", T * 8)), "elements 4 to 11 of x"),
    ((DeclareArray("x", dt.f32, 8), LoadMatrix("x", int32(0), 8, "tile", T * 8)), "x is of f32, not bf16"),
    ((DeclareArray("x", dt.bf16, 8), LoadMatrix("x", int32(0), 3, "tile", T * 8)), "3 elements of a lane"),
    ((DeclareArray("x", dt.bf16, 8), MultiplyMatrices(dt.bf16, "x", int32(0), "x", int32(0), "x", int32(0))), "x is of bf16, not f32"),
])
def test_rules(body: tuple[Stmt, ...], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(kernel(*body))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_them(target: str) -> None:
    (report,) = build(emit(tensor_product(dt.f16)), target).functions.values()
    assert report.spill_bytes == report.stack_bytes == 0


def test_resources() -> None:
    counted = resources(tensor_product())
    assert counted.flops == 2 * 2 * 16 * 8 * 16
    assert counted.shared_bytes == 768
