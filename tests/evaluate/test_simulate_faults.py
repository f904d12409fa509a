"""Faults planted in kernels, each of which the simulator must name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from emmy.evaluate.machine import Machine
from emmy.evaluate.simulate import SimulationError, simulate
from emmy.evaluate.warp import Step, Warp
from emmy.instructions import (
    Assign,
    Barrier,
    Declare,
    DeclareArray,
    For,
    If,
    Let,
    LoadGlobal,
    LoadGlobalVector,
    LoadShared,
    SetElement,
    ShuffleXor,
    StoreGlobal,
    StoreShared,
    WaitKernels,
)
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import STATEMENTS, Block, Element, GlobalBuffer, Kernel, Scope, SharedBuffer, Stmt, Thread, Var, const, int32
from tests import kernels

T, X, ONE = Thread(), Var("x", dt.f32), const(dt.f32, 1)
K = Var("k", dt.i32)


def fails(kind: str, kernel: Kernel, *parts: str) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(kernel, {p.name: np.ones(p.length, p.element.numpy) for p in kernel.parameters})
    assert caught.value.kind == kind, caught.value
    for part in (kernel.name, *parts):
        assert part in str(caught.value)


def kernel(*body: Stmt, n: int = 64, block: int = 64, grid: int = 1, out: int = 64) -> Kernel:
    return Kernel("faulty", (GlobalBuffer("src", dt.f32, n, "read"), GlobalBuffer("dst", dt.f32, out, "write")),
        (SharedBuffer("tile", dt.f32, 64),), (grid, 1, 1), block, body)


def test_off_by_one() -> None:
    load = LoadGlobal(X, "src", T + 1)
    fails("bounds", kernel(load, StoreGlobal("dst", T, X)), "load_global x: f32 = src[thread + 1]", "thread 63", "element 64 of src")
    fails("bounds", kernel(StoreGlobal("dst", T - 1, ONE)), "thread 0", "element -1 of dst")
    shared = StoreShared("tile", Block(0) * 64 + T, ONE)
    fails("bounds", kernel(shared, StoreGlobal("dst", T, ONE, Block(0) == 0), grid=2), "block (1, 0, 0)")
    simulate(kernel(StoreGlobal("dst", T, ONE, T < 10), out=10), {"src": np.ones(64, np.float32), "dst": np.ones(10, np.float32)})


def test_late_buffers_wait_for_the_kernels_ahead() -> None:
    given, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    simulate(kernels.squares(), {"src": given, "dst": out})
    np.testing.assert_array_equal(out, given * given)
    fails("race", kernels.squares(wait=False), "load_global", "src", "wait_kernels")
    some = kernels.squares(wait=False)
    half = some.replace(body=(If(T < 16, (WaitKernels(),)), *some.body))
    fails("race", half, "threads 16, 17, 18, 19")
    ahead = some.replace(parameters=(some.parameters[0].replace(late=False), some.parameters[1]))
    fails("race", ahead, "store_global", "dst")        # an earlier kernel may still read what lies there


def test_register_array_index() -> None:
    loop = For(K, int32(0), int32(5), int32(1), True, (SetElement("a", dt.f32, K, ONE),))
    fails("bounds", kernel(DeclareArray("a", dt.f32, 4, ONE), loop), "a[4] of 4")


def test_misaligned_vector() -> None:
    load = LoadGlobalVector("a", 0, "src", T * 4 + 2, 4)
    fails("bounds", kernel(DeclareArray("a", dt.f32, 4), load, n=512), "aligned vector", "load_global_vector a[0 +: 4]")


def test_missing_barrier() -> None:
    fails("race", kernels.block_reduction(1000, barrier=False), "part")
    fails("race", kernels.matmul(37, 129, 37, second_barrier=False), "tile_a", "store_shared")
    fails("race", kernel(StoreShared("tile", T, ONE), StoreShared("tile", 63 - T, ONE)), "written")


def test_store_race() -> None:
    fails("race", kernel(StoreGlobal("dst", T // 2, ONE)), "same statement")
    fails("race", kernel(StoreShared("tile", int32(0), ONE)), "same statement")
    fails("race", kernel(StoreGlobal("dst", T, ONE), grid=2), "earlier block")
    fails("race", kernel(StoreGlobal("dst", T, ONE), LoadGlobal(X, "dst", 31 - T), block=32, out=32), "load_global")
    written = (StoreGlobal("dst", T, ONE, Block(0) == 0), LoadGlobal(X, "dst", T, Block(0) == 1))
    fails("race", kernel(*written, grid=2), "earlier block")


def test_read_then_written_by_another() -> None:
    body = (StoreShared("tile", T, ONE), Barrier(), LoadShared(X, "tile", (T + 1) % 64), StoreShared("tile", T, X))
    fails("race", kernel(*body), "read by")
    everyone = (StoreShared("tile", T, ONE), Barrier(), LoadShared(X, "tile", int32(0)), StoreShared("tile", int32(0), X, T == 63))
    fails("race", kernel(*everyone), "read by")


def test_own_elements_need_no_barrier() -> None:
    mine = (StoreShared("tile", T, ONE), LoadShared(X, "tile", T), StoreShared("tile", T, X + X))
    k = kernel(*mine, StoreGlobal("dst", T, X), StoreGlobal("dst", T, X))
    simulate(k, {"src": np.ones(64, np.float32), "dst": np.ones(64, np.float32)})


def test_uninitialised() -> None:
    shared = (StoreShared("tile", T, ONE, T < 63), Barrier(), LoadShared(X, "tile", T))
    fails("uninitialised", kernel(*shared), "element 63 of tile", "thread 63")
    fails("uninitialised", kernel(LoadGlobal(X, "dst", T)), "element 0 of dst")
    half = If(T % 2 == 0, (SetElement("a", dt.f32, int32(0), ONE),))
    fails("uninitialised", kernel(DeclareArray("a", dt.f32, 1), half, Let(X, Element("a", dt.f32, int32(0)))), "a[0]", "thread", "1, 3")
    fails("uninitialised", kernel(DeclareArray("a", dt.f32, 1), Let(X, Element("a", dt.f32, int32(0)))), "a[0]")
    both = If(T % 2 == 0, (SetElement("a", dt.f32, int32(0), ONE),), (SetElement("a", dt.f32, int32(0), ONE + ONE),))
    simulate(kernel(DeclareArray("a", dt.f32, 1), both, StoreGlobal("dst", T, Element("a", dt.f32, int32(0)))),
        {"src": np.ones(64, np.float32), "dst": np.ones(64, np.float32)})


def test_unwritten() -> None:
    k = kernel(StoreGlobal("dst", T, ONE, T < 60))
    fails("unwritten", k, "4 of 64 elements of dst unset, the first 60")
    simulate(k, {"src": np.ones(64, np.float32), "dst": np.ones(64, np.float32)}, poison=False)


def test_divergent_barrier() -> None:
    fails("barrier", kernel(If(T % 2 == 0, (Barrier(),))), "part of a warp")
    fails("barrier", kernel(For(K, T, int32(40), int32(32), False, (Barrier(),))), "part of a warp")
    fails("barrier", kernel(If(T < 32, (Barrier(),), (Barrier(),))), "barrier 1", "barrier 2")


def test_warp_that_waits_for_ended_ones() -> None:
    fails("barrier", kernel(If(T < 32, (Barrier(),))), "threads 0 to 31 wait", "threads 32 to 63 have ended")


def test_whole_partial_warp_may_wait() -> None:
    k = kernel(StoreShared("tile", T, ONE), Barrier(), LoadShared(X, "tile", 39 - T), StoreGlobal("dst", T, X), block=40, out=40)
    simulate(k, {"src": np.ones(64, np.float32), "dst": np.ones(40, np.float32)})


def test_shuffle_of_inactive_lanes() -> None:
    fails("shuffle", kernel(If(T < 40, (ShuffleXor(X, ONE, 1),))), "32 lanes")
    fails("shuffle", kernel(ShuffleXor(X, ONE, 1), block=40))


def test_endless_loop() -> None:
    n = Var("n", dt.i32)
    fails("steps", kernel(Declare(n, int32(0)), For(K, int32(0), int32(9), n, False, (Let(X, ONE),))), "not positive")
    k = kernel(Declare(n, int32(0)), For(K, int32(0), int32(2**31 - 1), int32(1), False, (Assign(n, n + 1),)))
    with pytest.raises(SimulationError, match="more than 1000 loop iterations"):
        simulate(k, {"src": np.ones(64, np.float32), "dst": np.ones(64, np.float32)}, limit=1000)


def test_deadlock() -> None:
    class WaitForever(Stmt):
        """Waits for what no one does."""

        syntax = "wait_forever"

        def check(self, scope: Scope) -> None:
            pass

        def cuda(self, types: Mapping[str, DType]) -> list[str]:
            return ["while (true) {}"]

        def meaning(self, machine: Machine) -> Step:
            def run(w: Warp) -> Iterator[Callable[[], bool]]:
                yield lambda: False
            return run

    try:
        fails("deadlock", kernel(WaitForever()), "threads 0 to 31", "threads 32 to 63")
    finally:
        del STATEMENTS["WaitForever"]


@pytest.mark.parametrize("given", [
    {}, {"src": np.ones(64), "dst": np.ones(64, np.float32)}, {"src": np.ones(63, np.float32), "dst": np.ones(64, np.float32)}])
def test_arguments(given: dict[str, np.ndarray]) -> None:
    with pytest.raises(SimulationError, match="argument"):
        simulate(kernel(StoreGlobal("dst", T, ONE)), given)
