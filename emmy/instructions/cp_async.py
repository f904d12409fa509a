"""Asynchronous copies from global to shared memory, past the registers: 4, 8 or 16 bytes a thread, in groups that are waited for in order.

A copy has arrived for the thread that issued it after a wait that covers its group, for others after a barrier behind that wait.
Until then its elements of shared memory may neither be read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, GlobalBuffer, Kernel, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp

WORDS, BYTES = (4, 8, 16), 16     # bytes of a copy, and of one that passes by the first-level cache


class CopyAsync(Stmt):
    """`width` elements (4, 8 or 16 bytes) of a global buffer, from `source` on, begin their way to `index` of the shared buffer `target`.
    Where `guard` is false zeros do, and global memory is not touched."""

    target: str
    index: Expr
    width: int
    buffer: str
    source: Expr
    guard: Expr | None = None
    syntax = "copy_async {target}[{index} +: {width}] = {buffer}[{source}]< if {guard}>"

    def check(self, scope: Scope) -> None:
        to, of = scope.buffer(self.target, SharedBuffer), scope.buffer(self.buffer, GlobalBuffer)
        if to.element is not of.element or self.width * of.element.bytes not in WORDS:
            raise IRError(f"{self.width} elements from {of.element} to {to.element}; an asynchronous copy is 4, 8 or 16 bytes of one dtype")
        for index in (self.index, self.source):
            scope.expr(index, dt.i32, dt.i64)
            if isinstance(index, Const) and index.value % self.width:
                raise IRError(f"index {index.value} of a vector of {self.width}")
        if self.guard is not None:
            scope.expr(self.guard, dt.bool_)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        there = "" if self.guard is None else f", {spell(self.guard)}"
        size = self.width * types[self.buffer].bytes
        name = "emmy_copy_async" if size == BYTES else f"emmy_copy_words<{size}>"
        return [f"{name}(&{self.target}[{spell(self.index)}], &{self.buffer}[{spell(self.source)}]{there});"]

    def meaning(self, machine: Machine) -> Step:
        index, source, width = machine.value(self.index), machine.value(self.source), self.width
        guard = machine.value(self.guard) if self.guard is not None else None

        def run(w: Warp) -> None:
            there = w.lanes(guard(w)) if guard else w.mask
            value = w.memory[self.buffer].read(w, source(w), there, width)
            w.copies[-1].append(w.memory[self.target].copy(w, index(w), value, w.mask, width))
        return run

    def traffic(self, kernel: Kernel) -> float:
        return self.width * kernel.types[self.buffer].bytes


class CommitCopies(Bare):
    """The copies that a thread has issued since the last commit become its youngest group.  Whole warps commit."""

    syntax = "commit_copies"
    call = "emmy_commit_copies();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("barrier", "is reached by a part of a warp only")
            w.copies.append([])
        return run


class WaitCopies(Stmt):
    """A thread waits until at most `pending` of its groups of copies are under way.  Whole warps wait."""

    pending: int
    syntax = "wait_copies {pending}"

    def check(self, scope: Scope) -> None:
        if self.pending < 0:
            raise IRError(f"{self.pending} pending groups")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_copies<{self.pending}>();"]

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("barrier", "is reached by a part of a warp only")
            while len(w.copies) - 1 > self.pending:
                for arrive in w.copies.pop(0):
                    arrive()
        return run
