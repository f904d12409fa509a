"""Words that the blocks of a launch hand each other: tickets, and values that appear together with a flag.

A word is 64 bits of a scratch buffer, which is zeros before the launch: the flag above, not 0 once something is published, and below it
the 32 bits of the value.  Both come and go in one access at the scope of the GPU, so that nobody sees a flag without its value, and no
fence is needed: a word stands for nothing but itself, and what else a block has written no other may read.  A block that waits for another
may wait for ever unless the other has begun: blocks that take tickets have begun in the order of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import TYPES, spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, GlobalBuffer, Kernel, Register, Scope, Stmt, Var
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp

WORD = 8    # bytes


class _OnWord(Stmt):
    """Something done with word `index` of the scratch buffer `buffer`."""

    buffer: str
    index: Expr
    across = True

    def check_word(self, scope: Scope) -> None:
        if scope.buffer(self.buffer, GlobalBuffer, words="scratch").element is not dt.i64:
            raise IRError(f"{self.buffer} has no words of 64 bits")
        scope.expr(self.index, dt.i32, dt.i64)

    def traffic(self, kernel: Kernel) -> float:
        return WORD


class TakeTicket(_OnWord):
    """`var` is how many have taken a ticket from the word before."""

    var: Var
    syntax = "take_ticket {var:new} = {buffer}[{index}]"

    def check(self, scope: Scope) -> None:
        self.check_word(scope)
        if self.var.element is not dt.i32:
            raise IRError(f"ticket {self.var.name} is {self.var.element}, not i32")
        scope.define(self.var.name, Register("let", self.var.element))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"const int {self.var.name} = emmy_take_ticket(&{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        slot, index, name = machine.slot(self.var.name), machine.value(self.index), self.buffer

        def run(w: Warp) -> None:
            at = w.memory[name].locate(w, index(w), w.mask)
            taken = np.zeros(32, np.int32)
            for k in np.flatnonzero(w.active_of(True)):
                taken[k] = w.memory[name].data[at[k]]
                w.memory[name].data[at[k]] += 1
            w.registers[slot] = taken
        return run

    @property
    def words(self) -> int:
        return 1


class Publish(_OnWord):
    """The word becomes `flag` and `value`, at once."""

    flag: Expr
    value: Expr
    syntax = "publish {buffer}[{index}] = {flag}, {value}"

    def check(self, scope: Scope) -> None:
        self.check_word(scope)
        scope.expr(self.flag, dt.i32)
        scope.expr(self.value, dt.f32, dt.i32)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        bits = f"__float_as_int({spell(self.value)})" if self.value.dtype is dt.f32 else spell(self.value)
        return [f"emmy_publish(&{self.buffer}[{spell(self.index)}], {spell(self.flag)}, {bits});"]

    def meaning(self, machine: Machine) -> Step:
        index, flag, value, name = machine.value(self.index), machine.value(self.flag), machine.value(self.value), self.buffer
        element = self.value.dtype.numpy

        def run(w: Warp) -> None:
            at, active = w.memory[name].locate(w, index(w), w.mask), w.active_of(True)
            bits = w.spread(value(w)).astype(element).view(np.uint32).astype(np.int64)
            w.memory[name].data[at[active]] = ((w.spread(flag(w)).astype(np.int64) << 32) | bits)[active]
        return run


class Await(_OnWord):
    """Waits until something is published in the word: `flag` and `value` are that."""

    flag: Var
    value: Var
    syntax = "await {flag:new}, {value:new} = {buffer}[{index}]"

    def check(self, scope: Scope) -> None:
        self.check_word(scope)
        if self.flag.element is not dt.i32 or self.value.element not in (dt.f32, dt.i32):
            raise IRError(f"a flag of {self.flag.element} and a value of {self.value.element}; they are i32, and f32 or i32")
        for v in (self.flag, self.value):
            scope.define(v.name, Register("let", v.element))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        word = f"word_{self.flag.name}"
        value = f"__int_as_float(static_cast<int>({word}))" if self.value.element is dt.f32 else f"static_cast<int>({word})"
        return [f"const long long {word} = emmy_await(&{self.buffer}[{spell(self.index)}]);",
                f"const int {self.flag.name} = static_cast<int>({word} >> 32);",
                f"const {TYPES[self.value.element]} {self.value.name} = {value};"]

    def meaning(self, machine: Machine) -> Step:
        flag, value = machine.slot(self.flag.name), machine.slot(self.value.name)
        index, name, element = machine.value(self.index), self.buffer, self.value.element.numpy

        def run(w: Warp) -> Iterator[object]:
            memory, active = w.memory[name], w.active_of(True)
            at = np.where(active, memory.locate(w, index(w), w.mask), 0)
            if not memory.data[at[active]].all():
                yield lambda: bool(memory.data[at[active]].all())
            words = memory.data[at]
            w.registers[flag] = (words >> 32).astype(np.int32)
            w.registers[value] = (words & 0xffffffff).astype(np.uint32).view(element)
        return run

    @property
    def words(self) -> int:
        return 2
