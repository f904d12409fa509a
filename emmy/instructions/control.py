"""Control: counted loops and branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import TYPES, at_least, spell
from emmy.instructions.registers import words
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, Register, Scope, Stmt, Var, subexpressions
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


def indented(body: tuple[Stmt, ...], types: Mapping[str, DType]) -> list[str]:
    """The CUDA of a block, two spaces in; preprocessor lines stay at the margin."""
    return [line if line.startswith("#") else "  " + line for s in body for line in s.cuda(types)]


class For(Stmt):
    """`var` from `start` while below `stop`, by `step` (positive); the bounds are evaluated once, on entry."""

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    unroll: bool
    body: tuple[Stmt, ...]
    syntax = "for {var:new} = {start}, {stop}, {step}{unroll} {body}"

    def check(self, scope: Scope) -> None:
        bounds = (self.start, self.stop, self.step)
        for e in (scope.expr(e, self.var.element) for e in bounds):
            if e.dtype not in (dt.i32, dt.i64):
                raise IRError(f"loop variable {self.var.name} is {e.dtype}, not i32 or i64")
        if isinstance(self.step, Const) and self.step.value <= 0:
            raise IRError(f"loop step {self.step.value} is not positive")
        counter = Register("let", self.var.element, static=self.unroll and all(map(scope.static, bounds)))
        assigned = scope.body(self.body, define=lambda inner: inner.define(self.var.name, counter))
        for x in (*subexpressions(self.stop), *subexpressions(self.step)):
            if (name := getattr(x, "name", getattr(x, "array", None))) in assigned:
                raise IRError(f"a bound of the loop reads {name}, which its body sets; name the bound first")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        v, stop, step = self.var.name, at_least(self.stop, 11), spell(self.step)
        advance = f"++{v}" if step == "1" else f"{v} += {step}"
        head = f"for ({TYPES[self.var.element]} {v} = {spell(self.start)}; {v} < {stop}; {advance}) {{"
        return [*(["#pragma unroll"] if self.unroll else []), head, *indented(self.body, types), "}"]

    def meaning(self, machine: Machine) -> Step:
        bounds = self.start, self.stop, self.step
        values = [machine.known(e) for e in bounds]
        if self.unroll and all(v is not None for v in values):
            return machine.unrolled(self.var, range(*map(int, values)), self.body)
        slot, one = machine.slot(self.var.name), self.var.element.numpy.type
        start, stop, step = map(machine.value, bounds)
        body = machine.body(self.body)

        def run(w: Warp) -> Iterator[object]:
            first, last, by = (w.uniform(e(w)) for e in (start, stop, step))
            w.require_positive(by)
            if np.ndim(first) == np.ndim(last) == np.ndim(by) == 0:
                for k in range(int(first), int(last), int(by)):
                    w.count_step()
                    w.registers[slot] = one(k)
                    yield from body(w)
                return
            outer, k = w.mask, first
            while (inside := w.lanes(k < last)) is None or inside.any():
                w.count_step()
                w.mask, w.registers[slot] = inside, k
                yield from body(w)
                k = k + by
            w.mask = outer
        return run

    @property
    def range(self) -> range:
        """The values of `var`, where the bounds are constant; a start that is not counts as 0, and other bounds as one trip."""
        match self.start, self.stop, self.step:
            case start, Const() as stop, Const() as step:
                return range(int(start.value) if isinstance(start, Const) else 0, int(stop.value), int(step.value))
        return range(1)

    @property
    def trips(self) -> int:
        return len(self.range)

    @property
    def words(self) -> int:
        return words(self.var.element)


class While(Stmt):
    """`body` again and again as long as `condition` holds, for the threads where it does."""

    condition: Expr
    body: tuple[Stmt, ...]
    syntax = "while {condition} {body}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.condition, dt.bool_)
        scope.body(self.body)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"while ({spell(self.condition)}) {{", *indented(self.body, types), "}"]

    def meaning(self, machine: Machine) -> Step:
        condition, body = machine.value(self.condition), machine.body(self.body)

        def run(w: Warp) -> Iterator[object]:
            outer = w.mask
            while (inside := w.lanes(condition(w))) is None or inside.any():
                w.count_step()
                w.mask = inside
                yield from body(w)
            w.mask = outer
        return run


class If(Stmt):
    """`body` for the threads where `condition` holds, `orelse` for the others."""

    condition: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    syntax = "if {condition} {body}< else {orelse}>"

    def check(self, scope: Scope) -> None:
        scope.expr(self.condition, dt.bool_)
        scope.body(self.body)
        scope.body(self.orelse)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        orelse = ["} else {", *indented(self.orelse, types)] if self.orelse else []
        return [f"if ({spell(self.condition)}) {{", *indented(self.body, types), *orelse, "}"]

    def meaning(self, machine: Machine) -> Step:
        condition, body, orelse = machine.value(self.condition), machine.body(self.body), machine.body(self.orelse)

        def run(w: Warp) -> Iterator[object]:
            outer, holds = w.mask, condition(w)
            for side, block in ((holds, body), *(((np.logical_not(holds), orelse),) if self.orelse else ())):
                w.mask = outer
                inside = w.lanes(side)
                if inside is None or inside.any():
                    w.mask = inside
                    yield from block(w)
            w.mask = outer
        return run
