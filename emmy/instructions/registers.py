"""Registers: named values, variables and arrays of one thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from emmy.instructions.arithmetic import TYPES, spell
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Register, Scope, Stmt, Var
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


def words(dtype: DType) -> int:
    """The 32-bit registers a value takes."""
    return 2 if dtype.bytes == 8 else 1


class Let(Stmt):
    """A name for a value."""

    var: Var
    value: Expr
    syntax = "let {var:new} = {value}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.value, self.var.element)
        scope.define(self.var.name, Register("let", self.var.element, static=scope.static(self.value)))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"const {TYPES[self.var.element]} {self.var.name} = {spell(self.value)};"]

    def meaning(self, machine: Machine) -> Step:
        slot, value = machine.slot(self.var.name), machine.value(self.value)

        def run(w: Warp) -> None:
            w.registers[slot] = value(w)
        return run

    @property
    def words(self) -> int:
        return words(self.var.element)


class Declare(Let):
    """A variable, with its first value."""

    syntax = "var {var:new} = {value}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.value, self.var.element)
        scope.define(self.var.name, Register("var", self.var.element))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"{TYPES[self.var.element]} {self.var.name} = {spell(self.value)};"]


class Assign(Stmt):
    """A new value for a variable."""

    var: Var
    value: Expr
    syntax = "{var} = {value}"

    def check(self, scope: Scope) -> None:
        scope.register(self.var.name, "var")
        scope.expr(self.var)
        scope.expr(self.value, self.var.element)
        scope.assigned.add(self.var.name)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"{self.var.name} = {spell(self.value)};"]

    def meaning(self, machine: Machine) -> Step:
        slot, value = machine.slot(self.var.name), machine.value(self.value)

        def run(w: Warp) -> None:
            w.registers[slot] = w.merge(value(w), w.registers[slot])
        return run


class DeclareArray(Stmt):
    """An array in registers, each element `fill`, or unset where there is none."""

    name: str
    element: DType
    length: int
    fill: Expr | None = None
    syntax = "array {name}: {element}[{length}]< = {fill}>"

    def check(self, scope: Scope) -> None:
        if self.length < 1:
            raise IRError(f"array {self.name} of {self.length} elements")
        if self.fill is not None:
            scope.expr(self.fill, self.element)
        scope.define(self.name, Register("array", self.element, self.length))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        aligned = "" if self.element is self.element.compute else "__align__(16) "    # halves move in pairs and more
        lines = [f"{aligned}{TYPES[self.element]} {self.name}[{self.length}];"]
        if self.fill is not None:
            lines += ["#pragma unroll", f"for (int emmy_i = 0; emmy_i < {self.length}; ++emmy_i) {self.name}[emmy_i] = {spell(self.fill)};"]
        return lines

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.warp import RegisterArray

        slot, fill = machine.slot(self.name), machine.value(self.fill) if self.fill is not None else None
        machine.arrays[self.name] = self.element

        def run(w: Warp) -> None:
            w.registers[slot] = RegisterArray(self.name, [fill(w) if fill else None] * self.length)
        return run

    @property
    def words(self) -> int:
        return self.length * words(self.element)


class SetElement(Stmt):
    """A new value for an element of an array."""

    array: str
    element: DType
    index: Expr
    value: Expr
    syntax = "{array}[{index}] = {value}"

    def check(self, scope: Scope) -> None:
        scope.element(self.array, self.element, self.index)
        scope.expr(self.value, self.element)
        scope.assigned.add(self.array)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"{self.array}[{spell(self.index)}] = {spell(self.value)};"]

    def meaning(self, machine: Machine) -> Step:
        slot, index, value = machine.slot(self.array), machine.value(self.index), machine.value(self.value)

        def run(w: Warp) -> None:
            w.registers[slot].set(w, int(index(w)), value(w))
        return run
