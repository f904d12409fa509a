"""Signals: what blocks hand each other through memory in any order, a planted fault for each rule, their text, and that nvcc takes them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import AwaitSignal, Barrier, For, GiveSignal, If, LoadGlobal, Publish, StoreGlobal, StoreGlobalVector
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.kernel_ir import Block, GlobalBuffer, Kernel, Stmt, Thread, Var, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.lower.tile_to_kernel.early import following
from emmy.runtime.build import build
from tests.kernels import relay

K = relay()
GIVE, TAKE = K.body[2].body, K.body[2].orelse       # type: ignore[attr-defined]
LOOP = TAKE[0]


def kernel(give: tuple[Stmt, ...] = GIVE, take: tuple[Stmt, ...] = TAKE) -> Kernel:
    """The relay with other statements of those that give, and of the block that takes."""
    return K.replace(body=(*K.body[:2], If(Block(0) > 0, give, take)))


def taken(*body: Stmt | int) -> tuple[Stmt, ...]:
    """What the taking block does with another body of its loop: statements, or the numbers of its own."""
    return LOOP.replace(body=tuple(LOOP.body[s] if isinstance(s, int) else s for s in body)), TAKE[1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("grid", [2, 4, 9])
def test_what_was_written_arrives(grid: int, seed: int) -> None:
    """More blocks than run at once where they hand each other words in scratch."""
    src = np.arange(256 * grid, dtype=np.float32)
    buffers = {"src": src, "dst": np.zeros(256, np.float32)}
    simulate(relay(grid), buffers, seed=seed)
    np.testing.assert_array_equal(buffers["dst"], src.reshape(grid, 256).sum(0))


FIRST = Thread() == 0
GIVEN = GiveSignal("given", Block(0) - 1)
AWAITED = AwaitSignal("given", Var("slot", dt.i32))
FAULTS: dict[str, tuple[Kernel, str, str]] = {
    "nobody gives": (kernel(give=GIVE[:1]), "deadlock", "signal 0 of given"),
    "one does not": (kernel(give=(*GIVE[:2], If(FIRST & (Block(0) < 3), (GIVEN,)))), "deadlock", "signal 2 of given"),
    "given before all have written": (kernel(give=(GIVE[0], GIVE[2])), "race", "is read and written by"),
    "given before anything is written": (kernel(give=(GIVE[2], GIVE[0])), "race", "is read and written by"),
    "given twice": (kernel(give=(*GIVE, GIVE[2]), take=(TAKE[1],)), "signal", "a second time"),
    "given by all": (kernel(give=(*GIVE[:2], GIVEN)), "signal", "one thread's to give"),
    "awaited by all": (kernel(take=taken(AWAITED, *range(1, 5))), "signal", "one thread's to give or await"),
    "read before it is awaited": (kernel(take=taken(*range(1, 5), 0)), "race", "is read and written by"),
    "read before who awaited it is met": (kernel(take=taken(0, 2, 3, 4, 1)), "race", "is read and written by"),
    "awaited twice": (kernel(take=taken(0, 0, *range(1, 5))), "deadlock", "signal 0 of given"),
    "not awaited": (kernel(take=(TAKE[1],)), "signal", "nobody has awaited"),
    "one is not awaited": (kernel(take=(LOOP.replace(stop=int32(2)), TAKE[1])), "signal", "leaves 1 of 3 signals"),
    "another is awaited": (kernel(take=(LOOP.replace(body=(If(FIRST, (AwaitSignal("given", 2 - Var("slot", dt.i32)),)), *LOOP.body[1:])),
                                        TAKE[1])), "race", "is read and written by"),
    "a word beyond the last": (kernel(take=(LOOP.replace(stop=int32(4)), TAKE[1])), "bounds", "element 3 of given"),
    "written where another writes": (kernel(give=(GIVE[0].replace(index=Thread() * 4), *GIVE[1:])), "race", "is written and written by"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    """In every order of blocks; what is read too early may have been written or not."""
    made, kind, said = FAULTS[name]
    found: dict[str, str] = {}
    for seed in range(8):
        with pytest.raises(SimulationError) as error:
            simulate(made, {"src": np.ones(1024, np.float32), "dst": np.ones(256, np.float32)}, seed=seed)
        found[error.value.kind] = str(error.value)
    assert said in found[kind] and found.keys() <= {kind, *(["uninitialised"] if kind == "race" else [])}, found


def test_a_block_tells_what_it_has_been_told() -> None:
    """The first block reads what the third has written, of which the second tells it."""
    t, slot = Thread(), Block(0) - 1
    x, y = Var("x", dt.f32), Var("y", dt.f32)
    second = (If(t == 0, (AwaitSignal("given", int32(1)),)), Barrier(), If(t == 0, (GiveSignal("given", int32(0)),)))
    third = (StoreGlobal("partial", t, const(dt.f32, 3)), Barrier(), If(t == 0, (GiveSignal("given", slot),)))
    first = (If(t == 0, (AwaitSignal("given", int32(0)),)), Barrier(), LoadGlobal(x, "partial", t), StoreGlobal("dst", t, x))
    buffers = (GlobalBuffer("dst", dt.f32, 64, "write"), GlobalBuffer("partial", dt.f32, 64, "exchange"),
               GlobalBuffer("given", dt.i32, 2, "signals"))
    made = Kernel("chain", buffers, (), (3, 1, 1), 64, (If(Block(0) == 0, first, (If(Block(0) == 1, second, third),)),))
    for seed in range(4):
        out = {"dst": np.zeros(64, np.float32)}
        simulate(made, out, seed=seed)
        assert (out["dst"] == 3).all()
    silent = made.replace(body=(If(Block(0) == 0, (LoadGlobal(y, "partial", t), *first), (If(Block(0) == 1, second, third),)),))
    with pytest.raises(SimulationError, match="race|uninitialised"):
        simulate(silent, {"dst": np.zeros(64, np.float32)})


def test_a_kernel_that_begins_early_waits_before_it_gives() -> None:
    made = following(K, ())
    assert [p.late for p in made.parameters] == [False, True, True, True]
    simulate(made, {"src": np.ones(1024, np.float32), "dst": np.zeros(256, np.float32)})
    hasty = made.replace(body=K.body)
    with pytest.raises(SimulationError, match="no wait_kernels stands before"):
        simulate(hasty, {"src": np.ones(1024, np.float32), "dst": np.zeros(256, np.float32)})


@pytest.mark.parametrize("plain", [StoreGlobal("given", int32(0), const(dt.i32, 1)), LoadGlobal(Var("plain", dt.i32), "given", int32(0))])
def test_signals_are_only_given_and_awaited(plain: Stmt) -> None:
    with pytest.raises(IRError, match="signals, whose words are given and awaited"):
        verify(kernel(give=(plain,)))


@pytest.mark.parametrize("wrong, message", [(GiveSignal("partial", int32(0)), "no signals"), (AwaitSignal("src", int32(0)), "no signals"),
                                            (Publish("given", int32(0), int32(1), const(dt.i32, 1)), "no scratch")])
def test_other_buffers_have_none(wrong: Stmt, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(kernel(give=(wrong,)))
    with pytest.raises(IRError, match="no words of 32 bits"):
        verify(K.replace(parameters=(*K.parameters[:3], GlobalBuffer("given", dt.i64, 3, "signals"))))


def test_text_and_machine_code() -> None:
    assert kernel_parser.parse(kernel_text.show(K)) is K
    assert "exchange partial: f32[768], signals given: i32[3]" in kernel_text.show(K)
    assert isinstance(LOOP, For) and isinstance(GIVE[0], StoreGlobalVector)
    text = emit(K)
    assert "st.release.gpu" in text and "ld.acquire.gpu" in text and "float* partial, int* given" in text
    if shutil.which("nvcc"):
        for target in ("sm_90a", "sm_80", "sm_120"):
            assert build(text, target).functions["relay"].spill_bytes == 0
