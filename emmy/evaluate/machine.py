"""The machine that runs Kernel IR: what each statement and expression does, as functions of a warp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import isgeneratorfunction
from typing import NamedTuple

import numpy as np

from emmy.evaluate.warp import Fault, Step, Value, Warp
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_expr import idle, operands
from emmy.ir.kernel_ir import Apply, Block, Const, Convert, Element, Expr, Kernel, Stmt, Thread, Var, const
from emmy.ir.node import postorder
from emmy.ir.operators import OPERATORS
from emmy.ir.operators import apply as applied

Evaluator = Callable[[Warp], Value]


class Meaning(NamedTuple):
    """What an expression is: a function of the warp, and its value where that is `known` once loops are unrolled."""

    of: Evaluator
    known: Value = None


class Part(NamedTuple):
    """A statement of a block: what it does, whether it may wait, and the values that unrolled loops give to its variables."""

    step: Step
    waits: bool
    statement: Stmt
    values: Mapping[str, Const]


class Machine:
    """Compiles a kernel: a function for each expression and each statement, slots for its registers.

    A loop that is unrolled is compiled once for each value of its variable.  What is compiled is kept by the innermost unrolled loop whose
    variable it reads, for as long as that has its value."""

    def __init__(self, kernel: Kernel, explain: Callable[[Warp, Fault, Stmt], Exception]) -> None:
        self.kernel, self._explain = kernel, explain
        self.arrays: dict[str, DType] = {}
        self.slots: dict[str, int] = {}
        self._sites = 0
        self._below: dict[Expr, tuple[Expr, ...]] = {}
        self._names: dict[Expr, frozenset[str]] = {}
        self._unrolled: dict[str, Const] = {}               # the variables of unrolled loops around, outermost first
        self._meanings: list[dict[Expr, Meaning]] = [{}]    # of what reads none of them, and for each of them
        self.main = self.body(kernel.body)

    def slot(self, name: str) -> int:
        """Where a register is kept."""
        return self.slots.setdefault(name, len(self.slots))

    def site(self) -> int:
        """A number for a place where warps meet."""
        self._sites += 1
        return self._sites

    def stated[S: Stmt](self, s: S) -> S:
        """The statement with the present values of unrolled loops' variables."""
        return s.substitute(self._unrolled) if self._unrolled else s    # type: ignore[return-value]

    def body(self, body: tuple[Stmt, ...]) -> Callable[[Warp], Iterator[object]]:
        """A block of statements: yields what the warp waits for, which is a barrier's site or a function that says when to go on."""
        return self._block(self._parts(body))

    def unrolled(self, var: Var, values: Iterable[int], body: tuple[Stmt, ...]) -> Callable[[Warp], Iterator[object]]:
        """A block for each value of a variable, one behind the other."""
        parts: list[Part] = []
        for value in values:
            now = self._unrolled[var.name] = const(var.element, value)
            self._meanings.append({var: known(now.value)})
            parts += self._parts(body)
            self._meanings.pop()
            del self._unrolled[var.name]
        return self._block(parts)

    def _parts(self, body: tuple[Stmt, ...]) -> list[Part]:
        values = dict(self._unrolled)
        return [Part(step, isgeneratorfunction(step), s, values) for s in body for step in (s.meaning(self),)]

    def _block(self, parts: list[Part]) -> Callable[[Warp], Iterator[object]]:
        explain = self._explain

        def run(w: Warp) -> Iterator[object]:
            for step, waits, s, values in parts:
                try:
                    if waits:
                        yield from step(w)  # type: ignore[misc]
                    else:
                        step(w)
                except Fault as fault:
                    raise explain(w, fault, s.substitute(values) if values else s) from None
        return run

    def value(self, e: Expr) -> Evaluator:
        """The expression as a function of the warp."""
        return self._meaning(e).of

    def known(self, e: Expr) -> Value:
        """The value of an expression that is constant once loops are unrolled; None for another."""
        return self._meaning(e).known

    def _meaning(self, e: Expr) -> Meaning:
        if e not in self._below:
            self._below[e] = postorder((e,), operands)
            for x in self._below[e]:
                self._names[x] = frozenset({x.name}) if isinstance(x, Var) else frozenset().union(*(self._names[a] for a in operands(x)))
        for x in self._below[e]:
            if x not in (kept := self._kept(x)):
                kept[x] = self._compile(x)
        return kept[e]

    def _kept(self, e: Expr) -> dict[Expr, Meaning]:
        """The meanings among which that of `e` is."""
        if (names := self._names[e]).isdisjoint(self._unrolled):
            return self._meanings[0]
        return self._meanings[max(k for k, name in enumerate(self._unrolled, 1) if name in names)]

    def _compile(self, e: Expr) -> Meaning:
        match e:
            case Const(): return known(e.value)
            case Var(name, _):
                slot = self.slot(name)
                return Meaning(lambda w: w.registers[slot])
            case Thread(): return Meaning(lambda w: w.threads)
            case Block(axis): return Meaning(lambda w: w.block[axis])
            case Element(array, _, index):
                slot, at = self.slot(array), self._kept(index)[index]
                if at.known is not None:
                    element_number = int(at.known)
                    return Meaning(lambda w: w.registers[slot].get(w, element_number))
                where = at.of
                return Meaning(lambda w: w.registers[slot].get(w, int(where(w))))
            case Convert(element, x):
                convert, operand = converter(x.dtype, element), self._kept(x)[x]
                if operand.known is not None and element is dt.i64 and x.dtype is dt.i32:
                    return known(convert(operand.known))
                of = operand.of
                return Meaning(lambda w: convert(of(w)))
            case Apply(op, args): return self._apply(op, e.dtype, args[0].dtype, [self._kept(a)[a] for a in args])
        raise AssertionError(e)

    @staticmethod
    def _apply(op: str, result: DType, element: DType, args: list[Meaning]) -> Meaning:
        values = [a.known for a in args]
        if all(v is not None for v in values):
            return known(np.asarray(applied(op, *values)).astype(result.numpy)[()])
        if element.kind != "float" and len(args) == 2:
            match idle(op, element, *(None if v is None else int(v) for v in values)):
                case "left": return args[0]
                case "right": return args[1]
                case "zero": return known(element.numpy.type(0))
        f = meaning(op, result)
        match [a.of for a in args], values:
            case [a], _: return Meaning(lambda w: f(a(w)))
            case [a, _], [_, y] if y is not None: return Meaning(lambda w: f(a(w), y))
            case [_, b], [x, _] if x is not None: return Meaning(lambda w: f(x, b(w)))
            case [a, b], _: return Meaning(lambda w: f(a(w), b(w)))
            case [a, b, c], _: return Meaning(lambda w: f(a(w), b(w), c(w)))
        raise AssertionError(op)


def known(value: Value) -> Meaning:
    return Meaning(lambda w: value, value)


def _fused(x: Value, y: Value, z: Value) -> Value:
    """x * y + z in fp64, where the product of two fp32 is exact, rounded to fp32."""
    return (np.multiply(x, y, dtype=np.float64) + z).astype(np.float32)


def meaning(op: str, dtype: DType) -> Callable[..., Value]:
    """The operator on scalars and arrays; the result has the operands' dtype."""
    return _fused if op == "fma" and dtype is dt.f32 else OPERATORS[op].meaning


def converter(source: DType, target: DType) -> Callable[[Value], Value]:
    """The conversion of values; anything but fp32 becomes a half type by way of fp32, as in torch."""
    if source.stored is target:
        return lambda x: x
    if target is dt.tf32:
        return lambda x: dt.rounded(np.asarray(x, np.float32), even=False)
    to = target.numpy
    if target is not target.compute and source is not dt.f32:
        return lambda x: x.astype(np.float32).astype(to)
    return lambda x: dt.converted(x, target)
