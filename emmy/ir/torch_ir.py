"""Torch IR: the exported FX graph, one line a node.

    torch {
      %x = input("x") : f32[32, 2048]
      %weight = load("weight") : f32[2048]
      %rms_norm = aten.rms_norm.default(%x, [2048], %weight) : f32[32, 2048]  # <snippet>:1: nn.RMSNorm(2048)(x)
      return %rms_norm
    }

`load` reads a parameter or buffer, `constant` a tensor lifted from the program's text.  An argument is another value, a
literal, a dtype, or a list of arguments.  The trailing comment is the source line that made the call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal as Choice
from typing import Union

from emmy.ir.dtype import DTYPES, DType
from emmy.ir.node import IRError, Node
from emmy.ir.text import Reader

Role = Choice["input", "load", "constant"]
Scalar = int | float | bool | str | None
Arg = Union["Value", "Literal", DType, tuple["Arg", ...]]


class Type(Node):
    """Dtype and shape of a tensor."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Literal(Node):
    """A number, boolean, None or string by its spelling: a spelling tells 1, 1.0 and True apart, and -0.0 from 0.0."""

    text: str

    @property
    def value(self) -> Scalar:
        match self.text:
            case "True" | "False": return self.text == "True"
            case "None": return None
            case text if text.startswith('"'): return str(json.loads(text))
            case text if text.removeprefix("-").isdigit(): return int(text)
        return float(self.text)


def literal(value: Scalar) -> Literal:
    """The literal that is `value`."""
    return Literal(json.dumps(value) if isinstance(value, str) else repr(value))


class Value(Node):
    """A node of the graph; `name` is unique in its program."""

    name: str


class Input(Value):
    """A tensor from outside.  `target`: the argument, the parameter's or buffer's qualified name, or the constant's name."""

    target: str
    type: Type
    role: Role


class Call(Value):
    """A call of the torch operator `op`; `results` is a tuple where the operator returns several tensors."""

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: Type | tuple[Type, ...]
    source: str

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(values((self.args, *(v for _, v in self.kwargs))))


class Program(Node):
    """The graph: its nodes in order, and which of them it returns."""

    nodes: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Input))


def values(arg: Arg) -> Iterator[Value]:
    """The values in an argument, left to right."""
    if isinstance(arg, tuple):
        for item in arg:
            yield from values(item)
    elif isinstance(arg, Value):
        yield arg


def verify(program: Program) -> Program:
    """The program itself; IRError where a name repeats, a value is used before it is made, or an output is no tensor."""
    seen: set[Value] = set()
    names: set[str] = set()
    for node in program.nodes:
        if node.name in names:
            raise IRError(f"%{node.name} is defined twice")
        for operand in node.operands if isinstance(node, Call) else ():
            if operand not in seen:
                raise IRError(f"%{node.name} uses %{operand.name} before its definition")
        seen.add(node)
        names.add(node.name)
    for out in program.outputs:
        if out not in seen:
            raise IRError(f"the program returns %{out.name}, which it does not define")
        if isinstance(out, Call) and isinstance(out.results, tuple):
            raise IRError(f"the program returns %{out.name}, which is several tensors: return its items")
    return program


def _show(arg: Arg) -> str:
    match arg:
        case tuple(): return f"[{', '.join(map(_show, arg))}]"
        case Value(): return f"%{arg.name}"
        case Literal(): return arg.text
    return str(arg)


def print_node(node: Value) -> str:
    """One line of a program's text."""
    if isinstance(node, Input):
        return f"%{node.name} = {node.role}({json.dumps(node.target)}) : {node.type}"
    assert isinstance(node, Call)
    arguments = ", ".join((*map(_show, node.args), *(f"{k}={_show(v)}" for k, v in node.kwargs)))
    result = str(node.results) if isinstance(node.results, Type) else f"({', '.join(map(str, node.results))})"
    return f"%{node.name} = {node.op}({arguments}) : {result}" + (f"  # {node.source}" if node.source else "")


def print_program(program: Program) -> str:
    """The text of a program; `parse` reads it back to the same node."""
    lines = [*map(print_node, program.nodes), "return " + ", ".join(f"%{o.name}" for o in program.outputs)]
    return "torch {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


class _Parser(Reader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values: dict[str, Value] = {}

    def value(self) -> Value:
        name = self.ref()
        if name not in self.values:
            self.position -= 1
            raise self.error(f"%{name} is not defined")
        return self.values[name]

    def arg(self) -> Arg:
        token = self.peek()
        match token.kind:
            case "ref": return self.value()
            case "int" | "float" | "string": return Literal(self.take(token.kind))
            case "name" if token.text in ("True", "False", "None", "inf", "nan"): return Literal(self.take("name"))
            case "name" if token.text in DTYPES: return self.dtype()
        return self.list(self.arg)

    def typed(self) -> Type:
        return Type(*self.tensor_type())

    def call(self, name: str, op: str) -> Value:
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []

        def argument() -> None:
            if self.tokens[self.position + 1].text == "=":
                key = self.name()
                self.expect("=")
                kwargs.append((key, self.arg()))
            else:
                args.append(self.arg())

        self.list(argument, "(", ")")
        self.expect(":")
        results = self.list(self.typed, "(", ")") if self.peek().text == "(" else self.typed()
        return Call(name, op, tuple(args), tuple(kwargs), results, self.comment())

    def node(self) -> Value:
        name = self.ref()
        self.expect("=")
        match self.name():
            case "input" | "load" | "constant" as role:
                (target,) = self.list(self.string, "(", ")")
                self.expect(":")
                return Input(name, target, self.typed(), role)
            case op:
                return self.call(name, op)

    def program(self) -> Program:
        self.expect("torch")
        self.expect("{")
        nodes: list[Value] = []
        while not self.accept("return"):
            nodes.append(self.node())
            self.values[nodes[-1].name] = nodes[-1]
        outputs: list[Value] = []
        while not self.accept("}"):
            if outputs:
                self.expect(",")
            outputs.append(self.value())
        self.end()
        return verify(Program(tuple(nodes), tuple(outputs)))


def parse(text: str) -> Program:
    """The program that `text` prints; IRError with line and column where it is malformed."""
    return _Parser(text).program()
