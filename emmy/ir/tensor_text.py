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
from collections.abc import Iterable

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Ix, Pos
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS
from emmy.ir.tensor_ir import Cast, Constant, Elementwise, Gather, IndexMap, IndexValue, Input, Program, Reduce, Role, Round, Scan, Tensor
from emmy.ir.text import Reader, number

_HEADS: dict[Role, str] = {"input": "input", "weight": "load", "constant": "constant"}
_ROLES = {head: role for role, head in _HEADS.items()}


def _list(items: Iterable[object]) -> str:
    return f"[{', '.join(map(str, items))}]"


def print_node(node: Tensor, ref: dict[Tensor, str]) -> str:
    """The right-hand side of one line; `ref` has the name of each operand."""
    match node:
        case Input(name, _, _, role): head = f"{_HEADS[role]}({json.dumps(name)})"
        case Constant(element, bits): head = f"const{{{element}}}({number(element, bits)})"
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

    def node(self) -> Tensor:
        start, head = self.peek().start, self.name()
        family, _, monoid = head.partition(".")
        element, axis, pattern = dt.f32, -1, 0
        typed = self.peek().text == "{"      # `round` without a type is the operator
        axes: tuple[int, ...] = ()
        at: tuple[Ix, ...] = ()
        args: tuple[Tensor, ...] = ()
        role, name = _ROLES.get(head), ""
        if role is not None:
            (name,) = self.list(self.string, "(", ")")
        elif family == "const":
            element = self.attribute()
            (pattern,) = self.list(lambda: self.bits(element), "(", ")")
        elif family in ("cast", "round") and typed:
            element, args = self.attribute(), self.operands()
        elif family in ("reduce", "scan"):
            axes, args = self.list(self.integer), self.operands()
        elif family == "gather":
            self.expect("{")
            axis = self.integer()
            self.expect("}")
            at, args = self.point(), self.operands()
        elif family == "map":
            at, args = self.point(), self.operands()
        elif family == "index":
            at = self.point()
        elif head in OPERATORS:
            args = self.operands()
        else:
            raise self.error(f"expected a Tensor IR node, found {head!r}", start)
        self.expect(":")
        written, dims = self.tensor_type()
        arity = {"cast": 1, "round": 1, "reduce": 1, "scan": 1, "map": 1, "gather": 2}.get(family, len(args))
        if len(args) != arity or (family == "index" and len(at) != 1) or (family == "scan" and len(axes) != 1):
            raise self.error(f"{head} has the wrong number of operands", start)
        try:
            made: Tensor
            match family:
                case _ if role is not None: made = Input(name, dims, written, role)
                case "const": made = Constant(element, pattern)
                case "index": made = IndexValue(dims, at[0])
                case "cast": made = Cast(element, args[0])
                case "round" if typed: made = Round(element, args[0])
                case "reduce": made = Reduce(monoid, axes, args[0])
                case "scan": made = Scan(monoid, axes[0], args[0])
                case "map": made = IndexMap(dims, at, args[0])
                case "gather": made = Gather(axis, at, args[0], args[1])
                case _: made = Elementwise(head, args)
        except IRError as problem:
            raise self.error(str(problem), start) from None
        if (made.dtype, made.shape) != (written, dims):
            raise self.error(f"{head} is {made.dtype}{_list(made.shape)}, not {written}{_list(dims)}", start)
        return made

    def program(self) -> Program:
        self.expect("tensor")
        self.expect("{")
        while not self.accept("return"):
            name = self.ref()
            self.expect("=")
            self.values[name] = self.node()
        return Program(self.outputs(self.name, self.operand))


def parse(text: str) -> Program:
    """The program that `text` prints; IRError with line and column where it is malformed."""
    return _Parser(text).program()
