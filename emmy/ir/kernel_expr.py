"""Expressions of Kernel IR: pure, and of one thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from emmy.ir import dtype as dt
from emmy.ir import operators
from emmy.ir.dtype import DType
from emmy.ir.node import IRError, Node


class Expr(Node):
    """Base of expressions.  Python's operators build folded nodes; an `int` beside an expression takes its dtype and i32 widens to i64.

    `//` and `%` truncate, as C's do: use them on non-negative integers.  `==` builds a node too, so compare nodes with `is`.
    """

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    def __add__(self, other: Expr | int) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: int) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Expr | int) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: int) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Expr | int) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: int) -> Expr:
        return _binary("mul", other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _binary("truncdiv", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return _binary("fmod", self, other)

    def __lt__(self, other: Expr | int) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Expr | int) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Expr | int) -> Expr:
        return _binary("lt", other, self)

    def __ge__(self, other: Expr | int) -> Expr:
        return _binary("le", other, self)

    def __eq__(self, other: object) -> Any:
        return _binary("eq", self, other) if isinstance(other, Expr | int) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return _binary("ne", self, other) if isinstance(other, Expr | int) else NotImplemented

    def __and__(self, other: Expr | bool) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: Expr | bool) -> Expr:
        return _binary("or", self, other)

    def __xor__(self, other: Expr | int) -> Expr:
        return _binary("xor", self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} is known to the kernel only; compare nodes with `is`")

    __hash__ = Node.__hash__


class Const(Expr):
    """A constant by its bits."""

    element: DType
    bits: int

    @property
    def dtype(self) -> DType:
        return self.element

    @property
    def value(self) -> Any:
        """The constant as a NumPy scalar."""
        return dt.value(self.element, self.bits)


class Var(Expr):
    """A register variable."""

    name: str
    element: DType

    @property
    def dtype(self) -> DType:
        return self.element


class Thread(Expr):
    """The thread's index in its block, i32."""

    @property
    def dtype(self) -> DType:
        return dt.i32


class Block(Expr):
    """The block's index along `axis` (0, 1, 2) of the grid, i32."""

    axis: int

    def __post_init__(self) -> None:
        if self.axis not in (0, 1, 2):
            raise IRError(f"block axis {self.axis}; a grid has axes 0, 1 and 2")

    @property
    def dtype(self) -> DType:
        return dt.i32


class Apply(Expr):
    """An operator of `emmy.ir.operators`."""

    op: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        self.dtype  # noqa: B018  raises where the operator does not take these operands

    @cached_property
    def dtype(self) -> DType:
        return operators.result_dtype(self.op, tuple(a.dtype for a in self.args))


class Convert(Expr):
    """A value conversion with torch's meaning: float to int truncates, an integer of fewer bits has the low ones,
    to bool is `!= 0`, narrowing a float rounds to nearest even."""

    element: DType
    x: Expr

    @property
    def dtype(self) -> DType:
        return self.element


class Element(Expr):
    """An element of a register array; `index` is constant once unrolled loops are unrolled."""

    array: str
    element: DType
    index: Expr

    @property
    def dtype(self) -> DType:
        return self.element


def const(dtype: DType, value: Any) -> Const:
    """The constant `value` rounded to `dtype`."""
    return Const(dtype, dt.bits(dtype, value))


def int32(n: int) -> Const:
    return const(dt.i32, n)


def operands(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(_, args): return args
        case Convert(_, x) | Element(_, _, x): return (x,)
    return ()


def subexpressions(e: Expr) -> Iterator[Expr]:
    """`e` and what it is made of, each node once."""
    seen, stack = {e}, [e]
    while stack:
        yield (node := stack.pop())
        for x in operands(node):
            if x not in seen:
                seen.add(x)
                stack.append(x)


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """`e` with variables replaced by the values of their names, folded."""
    match e:
        case Var(name, _): return values.get(name, e)
        case Apply(op, args): return fold(op, *(substitute(a, values) for a in args))
        case Convert(element, x): return widen(substitute(x, values)) if element is dt.i64 else Convert(element, substitute(x, values))
        case Element(array, element, index): return Element(array, element, substitute(index, values))
    return e


def fold(op: str, *args: Expr) -> Expr:
    """The operator on `args`: constants are folded, neutral operands of integers and booleans dropped."""
    made = Apply(op, args)
    if all(isinstance(a, Const) for a in args):
        return const(made.dtype, operators.apply(op, *(a.value for a in args if isinstance(a, Const))))
    if args[0].dtype.kind == "float" or len(args) != 2:
        return made
    x, y = args
    match idle(op, x.dtype, *(int(a.value) if isinstance(a, Const) else None for a in args)):
        case "left": return x
        case "right": return y
        case "zero": return const(x.dtype, 0)
    return made


def idle(op: str, element: DType, left: int | None, right: int | None) -> Literal["left", "right", "zero"] | None:
    """What an operator on two integers or booleans is without computing, given the operands that are constants; None if it computes."""
    match op, left, right:
        case ("add" | "xor", 0, _) | ("mul", 1, _) | ("or", 0, _): return "right"
        case ("add" | "sub" | "xor", _, 0) | ("mul" | "truncdiv", _, 1) | ("or" | "shl" | "shr", _, 0): return "left"
        case ("and", 1, _) if element is dt.bool_: return "right"
        case ("and", _, 1) if element is dt.bool_: return "left"
        case ("mul" | "and", 0, _): return "left"
        case ("mul" | "and", _, 0): return "right"
        case ("or", 1, _) if element is dt.bool_: return "left"
        case ("or", _, 1) if element is dt.bool_: return "right"
        case "fmod", _, 1: return "zero"
    return None


def _binary(op: str, x: Expr | int, y: Expr | int) -> Expr:
    if not isinstance(x, Expr):
        assert isinstance(y, Expr)
        x = const(y.dtype, x)
    elif not isinstance(y, Expr):
        y = const(x.dtype, y)
    if {x.dtype, y.dtype} == {dt.i32, dt.i64}:
        x, y = widen(x), widen(y)
    return fold(op, x, y)


def widen(e: Expr) -> Expr:
    """An integer expression as i64."""
    return e if e.dtype is dt.i64 else const(dt.i64, e.value) if isinstance(e, Const) and e.dtype is dt.i32 else Convert(dt.i64, e)
