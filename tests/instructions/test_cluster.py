"""Clusters: what blocks send each other, a planted fault for each rule, their text, and that nvcc takes them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import (
    Barrier,
    ClusterArrive,
    ExpectBytes,
    If,
    StoreCluster,
    StoreGlobal,
    StoreShared,
)
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.kernel_ir import Block, Expr, Kernel, Stmt, Thread, Var, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import build
from tests.kernels import rotation, runs

SRC = np.arange(64 * 6).astype(np.float32)


def run(k: Kernel, blocks: int) -> np.ndarray:
    element = k.parameters[0].element.numpy
    buffers = {"src": SRC[:64 * blocks].astype(element), "dst": np.zeros(64 * blocks, element)}
    simulate(k, buffers)
    return buffers["dst"].reshape(-1, 64)


@pytest.mark.parametrize("element", [dt.f32, dt.i64])
@pytest.mark.parametrize("cluster, blocks", [(2, 4), (3, 6), (1, 2)])
def test_blocks_send_each_other(cluster: int, blocks: int, element: dt.DType) -> None:
    k = rotation(cluster, blocks, element)
    of = SRC[:64 * blocks].reshape(-1, cluster, 64)
    np.testing.assert_array_equal(run(k, blocks), np.roll(of, 1, axis=1)[..., ::-1].reshape(-1, 64))
    assert kernel_parser.parse(kernel_text.show(k)) is k


def replaced(k: Kernel, *body: Stmt | int) -> Kernel:
    """The kernel with statements of its body, by their numbers, and others."""
    return k.replace(body=tuple(k.body[s] if isinstance(s, int) else s for s in body))


K = rotation()
INIT, EXPECT, FENCE = K.body[1].bodies[0]
FIRST, T, X = Block(0) % 2 < 1, Thread(), Var("x", dt.f32)


def send(rank: Expr, index: Expr = 63 - T) -> StoreCluster:
    return StoreCluster("part", index, rank, X, "met", int32(0))


def expecting(size: int) -> If:
    return If(T == 0, (INIT, ExpectBytes("met", int32(0), size), FENCE))


@pytest.mark.parametrize("body, kind, said", [
    ((0, 1, Barrier(), 4, 5, 6, 7), "race", "made by thread 0 of block 1 of its cluster"),   # a block's barrier is its own
    ((0, 2, 3, 1, 4, 5, 6, 7), "uninitialised", "nobody made it one"),
    ((0, If(T == 0, (INIT, EXPECT)), 2, 3, 4, 5, 6, 7), "race", "is used as a barrier and made by thread 0"),      # made and not fenced
    ((0, If(T == 0, (INIT, EXPECT)), 2, 3, If(T == 0, (FENCE,)), 4, 5, 6, 7), "race", "is used as a barrier and made by thread 0"),
    ((0, 1, 2, 3, 4, 6, 7), "uninitialised", "nobody wrote it"),                            # reads what has not come
    ((0, 1, 2, 3, 4, StoreGlobal("dst", Block(0) * 64 + T, X)), "unfinished", "ends while copies or arrivals are on their way to it"),
    ((0, expecting(128), 2, 3, 4, 5, 6, 7), "bytes", "which it does not expect"),
    ((0, expecting(512), 2, 3, 4, 5, 6, 7), "deadlock", "lacks 0 of 1 arrivals and 256 bytes"),
    ((0, 1, 2, 2, 3, 4, 5, 6, 7), "barrier", "arrives a second time"),
    ((0, 1, 3, 4, 5, 6, 7), "barrier", "has not arrived"),
    ((0, 1, If(FIRST, (K.body[2], K.body[3])), StoreGlobal("dst", Block(0) * 64 + T, X)), "deadlock", "its cluster"),
    ((0, 1, If(T < 16, (ClusterArrive(),)), 3, 4, 5, 6, 7), "barrier", "a part of a warp"),
    ((0, 1, 2, 3, send(Block(0) + 1), 5, 6, 7), "cluster", "block 2 of a cluster of 2"),
    ((0, 1, 2, 3, send(Block(0) % 2, T + 1), 5, 6, 7), "bounds", "64"),
    ((0, 1, 2, 3, send(Block(0) % 2, T // 2 * 2), 5, 6, 7), "race", "whose copy is under way"),     # two go to one place
    ((0, 1, StoreShared("part", T, X), 2, 3, 4, 5, 6, 7), "race", "written by thread"),      # the meeting orders no writes
    ((0, 1, 2, 3, StoreShared("part", T, X), 4, 5, 6, 7), "race", "whose copy is under way"),
])
def test_faults(body: tuple[Stmt | int, ...], kind: str, said: str) -> None:
    with pytest.raises(SimulationError) as error:
        run(replaced(K, *body), 4)
    assert error.value.kind == kind and said in str(error.value)


def test_a_block_that_has_ended_is_sent_nothing() -> None:
    """The first block expects nothing, and leaves before the second sends."""
    leave, late = StoreGlobal("dst", Block(0) * 64 + T, X), If(Block(0) % 2 > 0, (Barrier(), Barrier(), send(int32(0))))
    with pytest.raises(SimulationError, match="has ended") as error:
        run(replaced(K, 0, If(T == 0, (INIT, FENCE)), 2, 3, leave, late), 4)
    assert error.value.kind == "cluster"


@pytest.mark.parametrize("sent, message", [
    (send(int32(8)), "at most 8"),
    (StoreCluster("part", T, int32(0), const(dt.f64, 0), "met", int32(0)), "4 or 8 bytes of one dtype"),
    (StoreCluster("src", T, int32(0), X, "met", int32(0)), "SharedBuffer"),
    (StoreCluster("part", T, int32(0), X, "part", int32(0)), "a barrier is an element of i64"),
])
def test_malformed(sent: StoreCluster, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(replaced(K, 0, 1, 2, 3, sent, 5, 6, 7))
    with pytest.raises(IRError, match="clusters of 3"):
        verify(K.replace(cluster=3))


@pytest.mark.parametrize("element", [dt.f32, dt.i32])
def test_runs_of_four(element: dt.DType) -> None:
    k, src = runs(element=element), np.arange(512).astype(element.numpy)
    buffers = {"src": src, "dst": np.zeros(512, element.numpy)}
    simulate(k, buffers)
    np.testing.assert_array_equal(buffers["dst"], np.roll(src, 256))
    assert kernel_parser.parse(kernel_text.show(k)) is k


@pytest.mark.parametrize("k, kind, said", [
    (runs(2), "bounds", "on, which is no multiple of 4"),
    (runs(4), "bounds", "elements 256 to 259 of part"),
    (runs(-4 * (T % 2)), "race", "whose copy is under way"),            # two threads' runs go to one place
    (runs(rank=Block(0) * 0), "race", "whose copy is under way"),       # both blocks send to the first
    (runs(rank=Block(0) + 1), "cluster", "block 2 of a cluster of 2"),
    (runs(bytes=1008), "bytes", "16 bytes, which it does not expect"),
    (runs(bytes=1040), "deadlock", "lacks 0 of 1 arrivals and 16 bytes"),
])
def test_faults_of_runs(k: Kernel, kind: str, said: str) -> None:
    with pytest.raises(SimulationError) as error:
        simulate(k, {name: np.zeros(512, np.float32) for name in ("src", "dst")})
    assert error.value.kind == kind and said in str(error.value)


RUNS = runs(element=dt.i64)


@pytest.mark.parametrize("k, message", [
    (RUNS.replace(body=(RUNS.body[2], RUNS.body[5])), "16 bytes are sent"), (runs(element=dt.f16), "4 or 8 bytes of one dtype"),
    (runs(offset=5), "which has 8")])
def test_malformed_runs(k: Kernel, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(k)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_runs() -> None:
    text = emit(runs())
    assert "emmy_store_cluster_vector(&part[thread * 4], (block_x + 1) % 2, &x[4], &met[0]);" in text
    for target in ("sm_90a", "sm_120"):
        assert build(text, target).functions["runs"].spill_bytes == 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_them() -> None:
    text = emit(K)
    assert "__cluster_dims__(2, 1, 1)" in text and "emmy_store_cluster(&part[63 - thread], (block_x % 2 + 1) % 2, x, &met[0]);" in text
    for target in ("sm_90a", "sm_120"):
        assert build(text, target).functions["rotation"].spill_bytes == 0
    build(emit(rotation(4, 4, dt.i64)), "sm_90a")
