"""Words that blocks hand each other: what arrives in any order of blocks, faults that the simulator names, their text, and that nvcc takes
them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import (
    Assign,
    Await,
    Barrier,
    Declare,
    If,
    LoadGlobal,
    LoadShared,
    Publish,
    StoreGlobal,
    StoreShared,
    TakeTicket,
    While,
)
from emmy.ir import dtype as dt
from emmy.ir import kernel_parser, kernel_text
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Block, Expr, GlobalBuffer, Kernel, SharedBuffer, Stmt, Thread, Var, const, int32, verify
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import build

BLOCKS = 12
TAKEN, N, FLAG = (Var(name, dt.i32) for name in ("taken", "n", "flag"))


def chain(element: DType = dt.f32, number: Expr | None = None, first: tuple[Stmt, ...] = (), then: tuple[Stmt, ...] = ()) -> Kernel:
    """dst[n] = src[0] + … + src[n], a block an element: each waits for the sum of the one before it.  `number`: a block's element, its
    ticket unless given; `first` and `then` come before the sum is published and after it is known."""
    x, before, sum_ = (Var(name, element) for name in ("x", "before", "sum"))
    at = N if number is None else number
    ticket = If(Thread() == 0, (TakeTicket("words", int32(0), TAKEN), StoreShared("ticket", int32(0), TAKEN)))
    body = (ticket, Barrier(), LoadShared(N, "ticket", int32(0)), *first, LoadGlobal(x, "src", at), Declare(sum_, x),
            If(0 < at, (Await("words", at, FLAG, before), Assign(sum_, Apply("add", (before, x))), *then)),
            If(Thread() == 0, (Publish("words", at + 1, int32(1), sum_), StoreGlobal("dst", at, sum_))))
    buffers = (GlobalBuffer("src", element, BLOCKS, "read"), GlobalBuffer("dst", element, BLOCKS, "write"),
               GlobalBuffer("words", dt.i64, BLOCKS + 1, "scratch"))
    return Kernel("chain", buffers, (SharedBuffer("ticket", dt.i32, 1),), (BLOCKS, 1, 1), 32, body)


@pytest.mark.parametrize("element", [dt.f32, dt.i32])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_published_arrives(element: DType, seed: int) -> None:
    src = np.arange(-3, BLOCKS - 3).astype(element.numpy)
    buffers = {"src": src, "dst": np.zeros_like(src)}
    simulate(chain(element), buffers, seed=seed)
    np.testing.assert_array_equal(buffers["dst"], src.cumsum())


def kinds(kernel: Kernel) -> set[str]:
    """The kinds of its failures in some orders of blocks."""
    found = set()
    for seed in range(6):
        try:
            simulate(kernel, {p.name: np.ones(p.length, p.element.numpy) for p in kernel.parameters if not p.own}, seed=seed)
        except SimulationError as error:
            found.add(error.kind)
    return found


def test_without_tickets_blocks_may_wait_for_ever() -> None:
    assert kinds(chain()) == set()
    assert kinds(chain(number=Block(0))) == {"deadlock"}


def test_a_value_apart_from_its_flag_is_a_race() -> None:
    """A block that reads what another has stored, whatever was published since."""
    kernel = chain(then=(LoadGlobal(Var("apart", dt.f32), "dst", N - 1),))
    assert kinds(kernel) == {"race"}


@pytest.mark.parametrize("plain", [StoreGlobal("words", int32(1), const(dt.i64, 1)), LoadGlobal(Var("plain", dt.i64), "words", int32(1))])
def test_scratch_is_only_published_and_awaited(plain: Stmt) -> None:
    with pytest.raises(IRError, match="scratch, whose words are published and awaited"):
        verify(chain(first=(plain,)))


def test_other_buffers_are_not() -> None:
    with pytest.raises(IRError, match="no scratch"):
        verify(chain(first=(Publish("dst", int32(0), int32(1), const(dt.f32, 1)),)))
    with pytest.raises(IRError, match="f32 or i32"):
        verify(chain(first=(Await("words", int32(0), Var("g", dt.i32), Var("v", dt.f64)),)))


def test_a_word_beyond_the_last() -> None:
    assert kinds(chain(first=(If(Thread() == 0, (Publish("words", int32(BLOCKS + 1), int32(1), const(dt.f32, 1)),)),))) == {"bounds"}


def test_a_loop_while_a_condition_holds_for_some_lanes() -> None:
    x, k = Var("x", dt.i32), Var("k", dt.i32)
    body = (Declare(k, int32(0)), While(k < Thread() % 5, (Assign(k, k + 1),)), StoreGlobal("dst", Thread(), k))
    kernel = Kernel("loop", (GlobalBuffer("dst", dt.i32, 64, "write"),), (), (1, 1, 1), 64, body)
    buffers = {"dst": np.zeros(64, np.int32)}
    simulate(kernel, buffers)
    np.testing.assert_array_equal(buffers["dst"], np.arange(64) % 5)
    assert kernel_parser.parse(kernel_text.show(kernel)) is kernel and "while (k < thread % 5) {" in emit(kernel)
    endless = kernel.replace(body=(Declare(x, int32(0)), While(x < 1, (Declare(k, int32(0)),)), StoreGlobal("dst", Thread(), x)))
    with pytest.raises(SimulationError, match="loop iterations"):
        simulate(endless, buffers, limit=100)


def test_text_and_machine_code() -> None:
    kernel = chain()
    assert kernel_parser.parse(kernel_text.show(kernel)) is kernel
    text = emit(kernel)
    assert "st.relaxed.gpu" in text and "ld.relaxed.gpu" in text and "atomicAdd" in text
    if shutil.which("nvcc"):
        for target in ("sm_90a", "sm_80", "sm_120"):
            assert build(text, target).functions["chain"].spill_bytes == 0
