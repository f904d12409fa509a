"""Shuffles: values exchanged by the lanes of a warp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import TYPES, spell
from emmy.instructions.registers import words
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Register, Scope, Stmt, Var
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


class _Shuffle(Stmt):
    """`var` is the `value` of the lane that `source` has for each; all 32 lanes must be active."""

    var: Var
    value: Expr

    @property
    def source(self) -> np.ndarray:
        """The number of the lane that each lane reads."""
        raise NotImplementedError

    def define(self, scope: Scope) -> None:
        scope.expr(self.value, self.var.element)
        scope.define(self.var.name, Register("let", self.var.element))

    def call(self, how: str, by: int) -> list[str]:
        """The line that exchanges by `how`, "xor" or "up"."""
        call = f"__shfl_{how}_sync(0xffffffffu, {spell(self.value)}, {by})"
        return [f"const {TYPES[self.var.element]} {self.var.name} = {call}{' != 0' if self.var.element is dt.bool_ else ''};"]

    def meaning(self, machine: Machine) -> Step:
        slot, value, source = machine.slot(self.var.name), machine.value(self.value), self.source

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            w.registers[slot] = w.spread(value(w))[source]
        return run

    @property
    def words(self) -> int:
        return words(self.var.element)


class ShuffleXor(_Shuffle):
    """`var` is the `value` of the lane whose number differs by `lane_mask` (1 to 31, exclusive or); all 32 lanes must be active."""

    lane_mask: int
    syntax = "shuffle_xor {var:new} = {value}, {lane_mask}"

    @property
    def source(self) -> np.ndarray:
        return np.arange(32) ^ self.lane_mask

    def check(self, scope: Scope) -> None:
        if not 1 <= self.lane_mask <= 31:
            raise IRError(f"lane mask {self.lane_mask}; lanes differ by 1 to 31")
        self.define(scope)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return self.call("xor", self.lane_mask)


class FirstLane(Stmt):
    """`var` is the number of the first lane where `condition` holds, 32 if it does nowhere; all 32 lanes must be active."""

    var: Var
    condition: Expr
    syntax = "first_lane {var:new} = {condition}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.condition, dt.bool_)
        if self.var.element is not dt.i32:
            raise IRError(f"lane {self.var.name} is {self.var.element}, not i32")
        scope.define(self.var.name, Register("let", dt.i32))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        # of no lane __ffs says 0, and one less is the largest unsigned number
        first = f"static_cast<unsigned>(__ffs(__ballot_sync(0xffffffffu, {spell(self.condition)})) - 1)"
        return [f"const int {self.var.name} = min({first}, 32u);"]

    def meaning(self, machine: Machine) -> Step:
        slot, condition = machine.slot(self.var.name), machine.value(self.condition)

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            holds = w.spread(condition(w))
            w.registers[slot] = np.int32(np.argmax(holds) if holds.any() else 32)
        return run

    @property
    def words(self) -> int:
        return 1


class ShuffleUp(_Shuffle):
    """`var` is the `value` of the lane `delta` (1 to 31) below, or the lane's own where there is none; all 32 lanes must be active."""

    delta: int
    syntax = "shuffle_up {var:new} = {value}, {delta}"

    @property
    def source(self) -> np.ndarray:
        lanes = np.arange(32)
        return np.where(lanes < self.delta, lanes, lanes - self.delta)

    def check(self, scope: Scope) -> None:
        if not 1 <= self.delta <= 31:
            raise IRError(f"{self.delta} lanes below; there are 1 to 31")
        self.define(scope)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return self.call("up", self.delta)
