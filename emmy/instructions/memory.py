"""What global and shared memory have in common: one element or one aligned vector, to or from registers.

An element is converted between its stored dtype and the register's, which is either the same or its compute dtype.
A vector is one access of 2, 4, 8 or 16 bytes at an index that its width divides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from emmy.instructions.arithmetic import PRIMARY, TYPES, at_least, conversion, spell, spelled
from emmy.instructions.registers import words
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, GlobalBuffer, Register, Scope, SharedBuffer, Stmt, Var, const
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


class _Access(Stmt):
    """An access to `buffer`, which lives in `space`."""

    space: ClassVar[type[GlobalBuffer] | type[SharedBuffer]]
    writes: ClassVar[bool] = False

    def check_access(self, scope: Scope, buffer: str, index: Expr, register: DType, width: int = 1) -> None:
        found = scope.buffer(buffer, self.space)
        scope.expr(index, dt.i32, dt.i64)
        if register not in (found.element, found.element.compute):
            raise IRError(f"{buffer} holds {found.element}, which registers of {register} do not take")
        if self.writes and isinstance(found, GlobalBuffer) and found.access not in ("write", "exchange"):
            raise IRError(f"{buffer} is only read")
        if width > 1 and width * found.element.bytes not in (2, 4, 8, 16):
            raise IRError(f"a vector of {width} {found.element} is not 2, 4, 8 or 16 bytes")
        if width > 1 and isinstance(index, Const) and index.value % width:
            raise IRError(f"index {index.value} of a vector of {width}")

    def check_array(self, scope: Scope, array: str, offset: int, width: int) -> DType:
        found = scope.register(array, "array")
        if width < 1 or not 0 <= offset <= found.length - width:
            raise IRError(f"elements {offset} to {offset + width - 1} of {array}, which has {found.length}")
        return found.dtype


class Load(_Access):
    """`var` is an element of `buffer`; where `guard` is false it is `otherwise` (0 if none is given) and memory is not touched."""

    var: Var
    buffer: str
    index: Expr
    guard: Expr | None = None
    otherwise: Expr | None = None

    def check(self, scope: Scope) -> None:
        self.check_access(scope, self.buffer, self.index, self.var.element)
        if self.guard is not None:
            scope.expr(self.guard, dt.bool_)
        if self.otherwise is not None:
            scope.expr(self.otherwise, self.var.element)
            if self.guard is None:
                raise IRError("otherwise without a guard")
        scope.define(self.var.name, Register("let", self.var.element))

    @property
    def fallback(self) -> Expr:
        return const(self.var.element, 0) if self.otherwise is None else self.otherwise

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        value, _ = conversion((f"{self.buffer}[{spell(self.index)}]", PRIMARY), types[self.buffer], self.var.element)
        if self.guard is not None:
            value = f"{at_least(self.guard, 4)} ? {value} : {at_least(self.fallback, 3)}"
        return [f"const {TYPES[self.var.element]} {self.var.name} = {value};"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.machine import converter

        slot, index, name = machine.slot(self.var.name), machine.value(self.index), self.buffer
        convert = converter(machine.kernel.types[name], self.var.element)
        if self.guard is None:
            def run(w: Warp) -> None:
                w.registers[slot] = convert(w.memory[name].read(w, index(w), w.mask))
            return run
        guard, otherwise = machine.value(self.guard), machine.value(self.fallback)

        def run_guarded(w: Warp) -> None:
            inside = guard(w)
            w.registers[slot] = np.where(inside, convert(w.memory[name].read(w, index(w), w.lanes(inside))), otherwise(w))
        return run_guarded

    @property
    def words(self) -> int:
        return words(self.var.element)


class LoadVector(_Access):
    """`width` consecutive elements of `buffer` into `array[offset]` and on."""

    array: str
    offset: int
    buffer: str
    index: Expr
    width: int

    def check(self, scope: Scope) -> None:
        register = self.check_array(scope, self.array, self.offset, self.width)
        self.check_access(scope, self.buffer, self.index, register, self.width)
        scope.assigned.add(self.array)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_load<{self.width}>(&{self.array}[{self.offset}], &{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.machine import converter

        slot, index, name = machine.slot(self.array), machine.value(self.index), self.buffer
        convert = converter(machine.kernel.types[name], machine.arrays[self.array])

        def run(w: Warp) -> None:
            rows = convert(w.memory[name].read(w, index(w), w.mask, self.width))
            for j in range(self.width):
                w.registers[slot].set(w, self.offset + j, rows[j])
        return run


class Store(_Access):
    """An element of `buffer` becomes `value`, where `guard` holds."""

    buffer: str
    index: Expr
    value: Expr
    guard: Expr | None = None
    writes = True

    def check(self, scope: Scope) -> None:
        scope.expr(self.value)
        self.check_access(scope, self.buffer, self.index, self.value.dtype)
        if self.guard is not None:
            scope.expr(self.guard, dt.bool_)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        value, _ = conversion(spelled(self.value), self.value.dtype, types[self.buffer])
        line = f"{self.buffer}[{spell(self.index)}] = {value};"
        return [line if self.guard is None else f"if ({spell(self.guard)}) {line}"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.machine import converter

        index, value, name = machine.value(self.index), machine.value(self.value), self.buffer
        guard = machine.value(self.guard) if self.guard is not None else None
        convert = converter(self.value.dtype, machine.kernel.types[name])

        def run(w: Warp) -> None:
            w.memory[name].write(w, index(w), convert(value(w)), w.lanes(guard(w)) if guard else w.mask)
        return run


class StoreVector(_Access):
    """`width` consecutive elements of `buffer` become `array[offset]` and on."""

    buffer: str
    index: Expr
    array: str
    offset: int
    width: int
    writes = True

    def check(self, scope: Scope) -> None:
        self.check_access(scope, self.buffer, self.index, self.check_array(scope, self.array, self.offset, self.width), self.width)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_store<{self.width}>(&{self.buffer}[{spell(self.index)}], &{self.array}[{self.offset}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.machine import converter

        slot, index, name = machine.slot(self.array), machine.value(self.index), self.buffer
        convert = converter(machine.arrays[self.array], machine.kernel.types[name])

        def run(w: Warp) -> None:
            rows = [w.spread(convert(w.registers[slot].get(w, self.offset + j))) for j in range(self.width)]
            w.memory[name].write(w, index(w), np.stack(rows), w.mask, self.width)
        return run
