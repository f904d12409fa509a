"""Signals: what a block has written to a buffer of exchange becomes another's to read.

A word of signals is 0 or 1.  Who gives a signal hands on all that it has seen written, by itself and by the threads that it has met; who
awaits it has seen that from then on, and so have those whom it meets next.  A signal is given once and awaited once a launch, and is 0
again once it has been awaited: the next launch finds all words as this one did, with nothing to clear.
(PTX ISA, "Memory Consistency Model": release and acquire patterns, and barriers, order what lies before and behind them.)

Blocks of such a launch run at once: there are at most as many as have a place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, GlobalBuffer, Kernel, Scope, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp

WORD = 4    # bytes


class _OnSignal(Stmt):
    """What one thread does with word `index` of the signals `buffer`."""

    buffer: str
    index: Expr
    asynchronous = True
    across = True
    at_once = True

    def check(self, scope: Scope) -> None:
        if scope.buffer(self.buffer, GlobalBuffer, words="signals").element is not dt.i32:
            raise IRError(f"{self.buffer} has no words of 32 bits")
        scope.expr(self.index, dt.i32, dt.i64)

    def traffic(self, kernel: Kernel) -> float:
        return WORD

    @staticmethod
    def word(w: Warp, name: str, index: object) -> tuple[int, int]:
        """The one thread's lane, and which word it names."""
        from emmy.evaluate.warp import Fault

        memory, lanes = w.memory[name], np.flatnonzero(w.active_of(True))
        memory.meet(w, w.mask)
        if len(lanes) != 1:
            raise Fault("signal", f"a word of {name} is one thread's to give or await, and {len(lanes)} of a warp do", w.active(w.mask))
        return int(lanes[0]), int(memory.locate(w, index, w.mask)[lanes[0]])


class GiveSignal(_OnSignal):
    """The word becomes 1, after all that the thread has seen written."""

    syntax = "give_signal {buffer}[{index}]"

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_give_signal(&{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.warp import Fault

        index, name = machine.value(self.index), self.buffer

        def run(w: Warp) -> None:
            lane, at = self.word(w, name, index(w))
            memory = w.memory[name]
            if memory.data[at]:
                raise Fault("signal", f"signal {at} of {name} is given a second time, and nobody has awaited it", w.active(w.mask))
            memory.data[at], memory.told[at] = 1, w.tell(lane)
            w.advance()
        return run


class AwaitSignal(_OnSignal):
    """Waits until the word is 1, and makes it 0; what was written before it was given has been written."""

    syntax = "await_signal {buffer}[{index}]"

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_await_signal(&{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.asynchronous import Wait

        index, name = machine.value(self.index), self.buffer

        def run(w: Warp) -> Iterator[object]:
            lane, at = self.word(w, name, index(w))
            memory = w.memory[name]
            if not memory.data[at]:
                yield Wait(lambda: bool(memory.data[at]), f"signal {at} of {name}", across=True)
            memory.data[at] = 0
            w.hear(lane, memory.told[at])
        return run
