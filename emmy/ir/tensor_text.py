"""The text of Tensor IR.

    tensor {
      %0 = input("x") : bf16[32, 2048]
      %1 = cast{f32}(%0) : f32[32, 2048]
      %2 = reduce.add[1](%1) : f32[32]
      %3 = map[p0](%2) : f32[32, 2048]
      return y = %3
    }

Brackets hold axes (reduce, scan) or the point read (map, gather, index), in the coordinates p0, p1, ... of the line's own
tensor.  A constant is its shortest decimal, or the hexadecimal bits of an infinity or NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Ix, Pos
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS
from emmy.ir.tensor_ir import (
    Cast,
    Constant,
    Elementwise,
    Gather,
    IndexMap,
    IndexValue,
    Input,
    Program,
    Reduce,
    Role,
    Round,
    Scan,
    Shape,
    Tensor,
)
from emmy.ir.text import Reader

_HEADS: dict[Role, str] = {"input": "input", "weight": "load", "constant": "constant"}
_ROLES = {head: role for role, head in _HEADS.items()}


def _list(items: Iterable[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def _number(constant: Constant) -> str:
    value = dt.value(constant.element, constant.bits)
    if constant.element.kind == "float":
        number = float(value)
        exact = math.isfinite(number) and dt.bits(constant.element, number) == constant.bits
        return (repr(number) if constant.element is dt.f64 else _shortest(constant.element, number)) if exact else hex(constant.bits)
    return str(int(value)) if constant.element.kind == "int" else str(bool(value))


def _shortest(element: DType, number: float) -> str:
    """The fewest digits that read back as the same bits."""
    pattern = dt.bits(element, number)
    texts = (repr(float(f"{number:.{digits}g}")) for digits in range(1, 18))
    return next(text for text in texts if dt.bits(element, float(text)) == pattern)


def print_node(node: Tensor, ref: dict[Tensor, str]) -> str:
    """The right-hand side of one line; `ref` has the name of each operand."""
    match node:
        case Input(name, _, _, role): head = f"{_HEADS[role]}({json.dumps(name)})"
        case Constant(element, _): head = f"const{{{element}}}({_number(node)})"
        case IndexValue(_, at): head = f"index[{at}]"
        case Elementwise(op, args): head = f"{op}({', '.join(ref[a] for a in args)})"
        case Cast(element, x): head = f"cast{{{element}}}({ref[x]})"
        case Round(element, x): head = f"round{{{element}}}({ref[x]})"
        case Reduce(monoid, axes, x): head = f"reduce.{monoid}{_list(axes)}({ref[x]})"
        case Scan(monoid, axis, x): head = f"scan.{monoid}[{axis}]({ref[x]})"
        case IndexMap(_, point, x): head = f"map{_list(point)}({ref[x]})"
        case Gather(axis, point, x, index): head = f"gather{{{axis}}}{_list(point)}({ref[x]}, {ref[index]})"
        case _: raise AssertionError(type(node))
    return f"{head} : {node.dtype}{_list(node.shape)}"


def print_program(program: Program) -> str:
    """The text of a program; `parse` reads it back to the same node."""
    ref = {node: f"%{k}" for k, node in enumerate(program.nodes)}
    lines = [f"{name} = {print_node(node, ref)}" for node, name in ref.items()]
    lines.append("return " + ", ".join(f"{name} = {ref[t]}" for name, t in program.outputs))
    return "tensor {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


class _Parser(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values: dict[str, Tensor] = {}

    def operand(self) -> Tensor:
        name = self.ref()
        if name not in self.values:
            self.position -= 1
            raise self.error(f"%{name} is not defined")
        return self.values[name]

    def operands(self) -> tuple[Tensor, ...]:
        return self.list(self.operand, "(", ")")

    def attribute(self) -> DType:
        self.expect("{")
        made = self.dtype()
        self.expect("}")
        return made

    def point(self) -> tuple[Ix, ...]:
        return self.list(lambda: self.index(lambda name: Pos(int(name[1:])) if name[:1] == "p" and name[1:].isdigit() else None))

    def one(self) -> Tensor:
        self.expect("(")
        made = self.operand()
        self.expect(")")
        return made

    def number(self, element: DType) -> int:
        """The bits of a constant."""
        token = self.peek()
        self.position += 1
        match token.kind, token.text:
            case "int", text if text.startswith("0x"): return int(text, 16)
            case "int", text: return dt.bits(element, int(text))
            case "float", text: return dt.bits(element, float(text))
            case _, "True" | "False": return dt.bits(element, token.text == "True")
        raise self.error(f"expected a number, found {token.text!r}", token.start)

    def form(self, head: str, start: int) -> Callable[[DType, Shape], Tensor]:
        """Reads what follows a head; the node, given the type at the line's end."""
        family, _, monoid = head.partition(".")
        if head in OPERATORS and self.peek().text == "(":  # `round` is an operator and, with a dtype, a node
            args = self.operands()
            return lambda element, dims: Elementwise(head, args)
        match family:
            case "input" | "load" | "constant":
                self.expect("(")
                name = self.string()
                self.expect(")")
                return lambda element, dims: Input(name, dims, element, _ROLES[family])
            case "const":
                kind = self.attribute()
                (pattern,) = self.list(lambda: self.number(kind), "(", ")")
                return lambda element, dims: Constant(kind, pattern)
            case "cast":
                kind, x = self.attribute(), self.one()
                return lambda element, dims: Cast(kind, x)
            case "round":
                kind, x = self.attribute(), self.one()
                return lambda element, dims: Round(kind, x)
            case "reduce":
                axes, x = self.list(self.integer), self.one()
                return lambda element, dims: Reduce(monoid, axes, x)
            case "scan":
                (axis,), x = self.list(self.integer), self.one()
                return lambda element, dims: Scan(monoid, axis, x)
            case "index":
                (at,) = self.point()
                return lambda element, dims: IndexValue(dims, at)
            case "map":
                point, x = self.point(), self.one()
                return lambda element, dims: IndexMap(dims, point, x)
            case "gather":
                self.expect("{")
                along = self.integer()
                self.expect("}")
                point, (source, index) = self.point(), self.operands()
                return lambda element, dims: Gather(along, point, source, index)
        raise self.error(f"expected a Tensor IR node, found {head!r}", start)

    def node(self) -> Tensor:
        start, head = self.peek().start, self.name()
        try:
            form = self.form(head, start)
        except ValueError as problem:
            raise problem if isinstance(problem, IRError) else self.error(f"{head} has the wrong number of parts", start) from None
        self.expect(":")
        element, dims = self.tensor_type()
        try:
            made = form(element, dims)
        except IRError as problem:
            raise self.error(str(problem), start) from None
        if (made.dtype, made.shape) != (element, dims):
            raise self.error(f"{head} is {made.dtype}{_list(made.shape)}, not {element}{_list(dims)}", start)
        return made

    def program(self) -> Program:
        self.expect("tensor")
        self.expect("{")
        while not self.accept("return"):
            name = self.ref()
            self.expect("=")
            self.values[name] = self.node()
        outputs: list[tuple[str, Tensor]] = []
        while not self.accept("}"):
            if outputs:
                self.expect(",")
            out = self.name()
            self.expect("=")
            outputs.append((out, self.operand()))
        self.end()
        return Program(tuple(outputs))


def parse(text: str) -> Program:
    """The program that `text` prints; IRError with line and column where it is malformed."""
    return _Parser(text).program()
