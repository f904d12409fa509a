"""The machine that runs Kernel IR: what each statement and expression does, as functions of a warp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isgeneratorfunction

import numpy as np

from emmy.evaluate.warp import Fault, Value, Warp
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_expr import operands
from emmy.ir.kernel_ir import Apply, Block, Const, Convert, Element, Expr, Kernel, Stmt, Thread, Var
from emmy.ir.node import postorder
from emmy.ir.operators import OPERATORS

Evaluator = Callable[[Warp], Value]


class Machine:
    """Compiles a kernel: a function for each expression and each statement, slots for its registers."""

    def __init__(self, kernel: Kernel, explain: Callable[[Warp, Fault, Stmt], Exception]) -> None:
        self.kernel, self._explain = kernel, explain
        self.arrays: dict[str, DType] = {}
        self.slots: dict[str, int] = {}
        self._sites = 0
        self._values: dict[Expr, Evaluator] = {}
        self.main = self.body(kernel.body)

    def slot(self, name: str) -> int:
        """Where a register is kept."""
        return self.slots.setdefault(name, len(self.slots))

    def site(self) -> int:
        """A number for a place where warps meet."""
        self._sites += 1
        return self._sites

    def body(self, body: tuple[Stmt, ...]) -> Callable[[Warp], Iterator[object]]:
        """A block of statements: yields what the warp waits for, which is a barrier's site or a function that says when to go on."""
        steps = [(step, isgeneratorfunction(step), s) for s in body for step in (s.meaning(self),)]
        explain = self._explain

        def run(w: Warp) -> Iterator[object]:
            for step, waits, s in steps:
                try:
                    if waits:
                        yield from step(w)  # type: ignore[misc]
                    else:
                        step(w)
                except Fault as fault:
                    raise explain(w, fault, s) from None
        return run

    def value(self, e: Expr) -> Evaluator:
        """The expression as a function of the warp."""
        for x in postorder((e,), lambda x: () if x in self._values else operands(x)):
            if x not in self._values:
                self._values[x] = self._compile(x)
        return self._values[e]

    def _compile(self, e: Expr) -> Evaluator:
        match e:
            case Const():
                constant = e.value
                return lambda w: constant
            case Var(name, _):
                slot = self.slot(name)
                return lambda w: w.registers[slot]
            case Thread(): return lambda w: w.threads
            case Block(axis): return lambda w: w.block[axis]
            case Element(array, _, index):
                slot, at = self.slot(array), self._values[index]
                if isinstance(index, Const):
                    element_number = int(index.value)
                    return lambda w: w.registers[slot].get(w, element_number)
                return lambda w: w.registers[slot].get(w, int(at(w)))
            case Convert(element, x):
                convert, of = converter(x.dtype, element), self._values[x]
                return lambda w: convert(of(w))
            case Apply(op, args):
                f = meaning(op, e.dtype)
                match [self._values[a] for a in args]:
                    case [a]: return lambda w: f(a(w))
                    case [a, b]: return lambda w: f(a(w), b(w))
                    case [a, b, c]: return lambda w: f(a(w), b(w), c(w))
        raise AssertionError(e)


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
