"""Clusters: what blocks read of each other, a planted fault for each rule, their text, and that nvcc takes them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import Barrier, ClusterArrive, ClusterWait, If, LoadCluster, StoreGlobal, StoreShared
from emmy.ir import dtype as dt
from emmy.ir import kernel_text
from emmy.ir.kernel_ir import Block, Kernel, Stmt, Thread, Var, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import build
from tests.kernels import rotation

SRC = np.arange(64 * 6).astype(np.float32)


def run(k: Kernel, blocks: int) -> np.ndarray:
    element = k.parameters[0].element.numpy
    buffers = {"src": SRC[:64 * blocks].astype(element), "dst": np.zeros(64 * blocks, element)}
    simulate(k, buffers)
    return buffers["dst"].reshape(-1, 64)


@pytest.mark.parametrize("element", [dt.f32, dt.i64])
@pytest.mark.parametrize("cluster, blocks", [(2, 4), (3, 6), (1, 2)])
def test_blocks_read_each_other(cluster: int, blocks: int, element: dt.DType) -> None:
    k = rotation(cluster, blocks, element)
    of = SRC[:64 * blocks].reshape(-1, cluster, 64)
    np.testing.assert_array_equal(run(k, blocks), np.roll(of, -1, axis=1)[..., ::-1].reshape(-1, 64))
    assert kernel_text.parse(kernel_text.show(k)) is k


def replaced(k: Kernel, *body: Stmt | int) -> Kernel:
    """The kernel with statements of its body, by their numbers, and others."""
    return k.replace(body=tuple(k.body[s] if isinstance(s, int) else s for s in body))


K = rotation()
COPY = StoreGlobal("dst", Block(0) * 64 + Thread(), Var("x", dt.f32))


@pytest.mark.parametrize("body, kind, said", [
    ((0, 1, Barrier(), 4, 5, 6, 7), "race", "of block 1 of its cluster with nothing that orders them"),    # a block's barrier is its own
    ((0, 2, 3, 1, 4, 5, 6, 7), "uninitialised", "nobody wrote it"),
    ((0, 1, 2, 3, 4, 6), "cluster", "nothing orders before its end"),                       # ends while it is read
    ((0, 1, 2, 3, 4, 5, 6), "cluster", "nothing orders before its end"),
    ((0, 1, 2, 3, 5, 4, 6, 7), "cluster", "nothing orders before its end"),                 # tells that it has read before it has
    ((0, 1, 2, 3, 4, If(Block(0) % 2 < 1, (StoreShared("part", Thread(), const(dt.f32, 0)),)), 6, 5, 7), "race",
     "is written and read by warp 1 (threads 32 to 63) of block 1 of its cluster"),
    ((0, 1, 2, 2, 3, 4, 6), "barrier", "arrives a second time"),
    ((0, 1, 3, 4, 6), "barrier", "has not arrived"),
    ((0, 1, If(Block(0) % 2 < 1, (ClusterArrive(), ClusterWait())), COPY), "deadlock", "its cluster"),
    ((0, 1, If(Thread() < 16, (ClusterArrive(),)), 3, 4, 6), "barrier", "a part of a warp"),
    ((0, 1, 2, 3, LoadCluster(Var("y", dt.f32), "part", Thread(), Block(0) + 1), 5, 6, 7), "cluster", "block 2 of a cluster of 2"),
])
def test_faults(body: tuple[Stmt | int, ...], kind: str, said: str) -> None:
    with pytest.raises(SimulationError) as error:
        run(replaced(K, *body), 4)
    assert error.value.kind == kind and said in str(error.value)


def test_a_block_that_has_ended_is_not_read() -> None:
    """The first block leaves before the second comes to read."""
    late = If(Block(0) % 2 > 0, (Barrier(), Barrier()))
    with pytest.raises(SimulationError, match="the block has ended") as error:
        run(replaced(K, 0, 1, 2, 3, late, 4, 6), 4)
    assert error.value.kind == "cluster"


@pytest.mark.parametrize("read, message", [
    (LoadCluster(Var("y", dt.f32), "part", Thread(), int32(8)), "at most 8"),
    (LoadCluster(Var("y", dt.f64), "part", Thread(), int32(0)), "do not take from another block"),
    (LoadCluster(Var("y", dt.f32), "src", Thread(), int32(0)), "SharedBuffer"),
])
def test_malformed(read: LoadCluster, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(replaced(K, 0, 1, 2, 3, read, 5, 7))
    with pytest.raises(IRError, match="clusters of 3"):
        verify(K.replace(cluster=3))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_them() -> None:
    text = emit(K)
    assert "__cluster_dims__(2, 1, 1)" in text and "const float y = emmy_load_cluster(&part[63 - thread], (block_x % 2 + 1) % 2);" in text
    for target in ("sm_90a", "sm_120"):
        assert build(text, target).functions["rotation"].spill_bytes == 0
    build(emit(rotation(4, 4, dt.i64)), "sm_90a")
    build(emit(rotation(4, 4, dt.bool_)), "sm_90a")
