"""Barriers in shared memory, which threads arrive at and wait for apart, and which count the bytes of copies.

A phase of a barrier ends when as many threads have arrived as it counts and the bytes expected have come; the next one begins at once.
Phases have parity 0, 1, 0, …  Whoever waits for the parity of the phase under way goes on when that phase ends; the parity of the phase
before it does not wait, so a fresh barrier lets parity 1 pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


def check_barrier(scope: Scope, barrier: str, at: Expr) -> None:
    """IRError unless element `at` of `barrier` may be a barrier."""
    found = scope.buffer(barrier, SharedBuffer)
    if found.element is not dt.i64:
        raise IRError(f"{barrier} holds {found.element}; a barrier is an element of i64")
    scope.expr(at, dt.i32, dt.i64)
    if isinstance(at, Const) and not 0 <= at.value < found.length:
        raise IRError(f"barrier {at.value} of {barrier}, which has {found.length}")


class _OnBarrier(Stmt):
    """Something done with element `at` of `barrier`."""

    barrier: str
    at: Expr
    asynchronous = True

    def check(self, scope: Scope) -> None:
        check_barrier(scope, self.barrier, self.at)


class InitBarrier(_OnBarrier):
    """Element `at` of `barrier` becomes a barrier of `count` arrivals a phase.  One thread does it; the others meet it at a `barrier`."""

    count: int
    syntax = "init_barrier {barrier}[{at}] {count}"

    def check(self, scope: Scope) -> None:
        super().check(scope)
        if not 1 <= self.count < 2**20:
            raise IRError(f"a barrier of {self.count} arrivals; it counts 1 to {2**20 - 1}")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_init_barrier(&{self.barrier}[{spell(self.at)}], {self.count});"]

    def meaning(self, machine: Machine) -> Step:
        at = machine.value(self.at)

        def run(w: Warp) -> None:
            k = at(w)
            w.memory[self.barrier].write(w, k, 0, w.mask)
            for one in np.unique(w.spread(k)[w.active_of(True)]):
                w.engine.make(w, self.barrier, int(one), self.count)
        return run


class FenceBarriers(Bare):
    """The barriers that this thread has made are seen by the copy engine too."""

    asynchronous = True
    syntax = "fence_barriers"
    call = "emmy_fence_barriers();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            for (name, at), phases in w.engine.phases.items():
                phases.fenced |= bool(np.isin(w.memory[name].writer[at] % w.span, w.among(w.mask)))
        return run


class ExpectBytes(_OnBarrier):
    """Arrives at a barrier whose phase also waits for `bytes` of copies; a tile counts whole, also where the tensor clips it."""

    bytes: int
    syntax = "expect_bytes {barrier}[{at}] {bytes}"

    def check(self, scope: Scope) -> None:
        super().check(scope)
        if not 0 < self.bytes < 2**20:
            raise IRError(f"{self.bytes} bytes expected; a barrier counts 1 to {2**20 - 1}")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_expect_bytes(&{self.barrier}[{spell(self.at)}], {self.bytes});"]

    def meaning(self, machine: Machine) -> Step:
        at = machine.value(self.at)

        def run(w: Warp) -> None:
            w.engine.arrive(w, self.barrier, at(w), self.bytes)
        return run


class Arrive(_OnBarrier):
    """Each active thread arrives at a barrier; what it did before is seen by those who wait for the phase."""

    syntax = "arrive {barrier}[{at}]"

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_arrive(&{self.barrier}[{spell(self.at)}]);"]

    def meaning(self, machine: Machine) -> Step:
        at = machine.value(self.at)

        def run(w: Warp) -> None:
            w.engine.arrive(w, self.barrier, at(w))
        return run


class WaitBarrier(_OnBarrier):
    """Waits for the end of the phase of that parity, 0 or 1."""

    parity: Expr
    syntax = "wait_barrier {barrier}[{at}] parity {parity}"

    def check(self, scope: Scope) -> None:
        super().check(scope)
        scope.expr(self.parity, dt.i32)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_barrier(&{self.barrier}[{spell(self.at)}], {spell(self.parity)});"]

    def meaning(self, machine: Machine) -> Step:
        at, parity = machine.value(self.at), machine.value(self.parity)

        def run(w: Warp) -> Iterator[object]:
            yield from w.engine.wait(w, self.barrier, at(w), parity(w))
        return run
