"""The text of Loop IR.

    loop {
      input x : f32[32, 2048]
      axis a0 < 2048
      m[p0] : f32[32] = reduce.max{a0}(x[p0, a0])
      y[p0, p1] : f32[32, 2048] =
        %0 = exp(sub(x[p0, p1], m[p0]))
        mul(%0, sub(%0, const{f32}(1.0)))
      return y = y
    }

A value used more than once, or nested too deep to read, has a line of its own before the value it belongs to.  Braces hold
dtypes and axes, brackets the point that is read; a value in brackets inside a point is a gather's index.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS
from emmy.ir.tensor_ir import Input
from emmy.ir.text import Reader, number

DEEPEST = 8     # nesting within one line
_WORDS = ("axis", "constant", "input", "return", "weight")


def spelled(name: str, words: Iterable[str] = _WORDS) -> str:
    """A tensor's name, in quotes where it is not a name of the notation or begins a line."""
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name) and name not in words else json.dumps(name)


def _no_leaf(v: Value) -> str:
    raise IRError(f"{type(v).__name__} is no value of Loop IR")


class Writer:
    """Writes values.  `axis` names an axis, `leaf` a value that the IR at hand adds."""

    def __init__(self, axis: Callable[[int], str] = "a{}".format, leaf: Callable[[Value], str] = _no_leaf):
        self.axis, self.leaf = axis, leaf
        self.text: dict[Value, str] = {}

    def lines(self, root: Value) -> list[str]:
        """The lines `%n = ...` that `root` needs, and `root` last."""
        order = loop.walk((root,))
        uses = Counter(x for v in order for x in v.operands)
        depth: dict[Value, int] = {}
        lets: list[str] = []
        self.text = {}
        for v in order:
            self.text[v] = self.value(v)
            depth[v] = 1 + max((depth[x] for x in v.operands), default=-1)
            if v is not root and v.operands and (uses[v] > 1 or depth[v] >= DEEPEST):
                lets.append(f"%{len(lets)} = {self.text[v]}")
                self.text[v], depth[v] = f"%{len(lets) - 1}", 0
        return [*lets, self.text[root]]

    def term(self, x: Ix) -> str:
        """An index term outside of any value."""
        self.text = {}
        for v in loop.walk(loop.indices(x)):
            self.text[v] = self.value(v)
        return self.index(x)

    def index(self, x: Ix, level: int = 0) -> str:
        """An index term; level 0 admits sums, 1 products, 2 neither."""
        match x:
            case Pos(k): return f"p{k}"
            case Ax(a): return self.axis(a)
            case IxOf(value): return f"[{self.text[value]}]"
            case ix.IxConst(n): return str(n)
            case ix.IxAdd(a, b): own, text = 0, f"{self.index(a)} + {self.index(b, 1)}"
            case ix.IxMul(a, n): own, text = 1, f"{self.index(a, 1)} * {n}"
            case ix.IxDiv(a, n): own, text = 1, f"{self.index(a, 1)} // {n}"
            case ix.IxMod(a, n): own, text = 1, f"{self.index(a, 1)} % {n}"
            case _: raise IRError(f"no index term {x!r}")
        return text if own >= level else f"({text})"

    def value(self, v: Value) -> str:
        """A value whose operands are in `text`."""
        def arguments(xs: Iterable[Value]) -> str:
            return f"({', '.join(self.text[x] for x in xs)})"

        match v:
            case loop.Load(name, _, point): return f"{spelled(name, ())}[{', '.join(map(self.index, point))}]"
            case loop.Const(element, bits): return f"const{{{element}}}({number(element, bits)})"
            case loop.IndexOf(at): return f"index({self.index(at)})"
            case loop.Apply(op, args): return op + arguments(args)
            case loop.Cast(element, x): return f"cast{{{element}}}{arguments((x,))}"
            case loop.Round(element, x): return f"round{{{element}}}{arguments((x,))}"
            case loop.Reduce(monoid, a, x): return f"reduce.{monoid}{{{self.axis(a)}}}{arguments((x,))}"
            case loop.Scan(monoid, a, at, x): return f"scan.{monoid}{{{self.axis(a)} <= {self.index(at)}}}{arguments((x,))}"
            case loop.Pivot(recipe, a, score): return f"pivot.{recipe}{{{self.axis(a)}}}{arguments((score,))}"
            case loop.Channel(recipe, a, score, x): return f"channel.{recipe}{{{self.axis(a)}}}{arguments((score, x))}"
        return self.leaf(v)


def print_program(program: loop.Program) -> str:
    """The text of a program; `parse` reads it back to the same node."""
    lines = [f"{i.role} {spelled(i.name)} : {type_text(i.element, i.dims)}" for i in program.inputs]
    lines += [f"axis a{a} < {n}" for a, n in program.axes]
    for d in program.definitions:
        *lets, body = Writer().lines(d.body)
        point = ", ".join(f"p{k}" for k in range(len(d.shape)))
        head = f"{spelled(d.name)}[{point}] : {type_text(d.element, d.shape)} ="
        lines += [head, *(f"  {line}" for line in (*lets, body))] if lets else [f"{head} {body}"]
    lines.append("return " + ", ".join(f"{spelled(out, ())} = {spelled(name, ())}" for out, name in program.outputs))
    return "loop {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def type_text(element: DType, shape: Iterable[int]) -> str:
    return f"{element}[{', '.join(map(str, shape))}]"


class BodyReader(Reader):
    """Reads values; `elements` has the stored dtype of every tensor that may be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.elements: dict[str, DType] = {}
        self.lets: dict[str, Value] = {}

    # -- what an IR built on this one may change
    def leaf(self, name: str) -> Ix | None:
        """The index term called `name`."""
        number = int(name[1:]) if name[1:].isdigit() else None
        return None if number is None else Pos(number) if name[0] == "p" else Ax(number) if name[0] == "a" else None

    def other(self, name: str) -> Value | None:
        """The value called `name` that is neither a load nor an operator."""
        return None

    # -- names, axes and index terms
    def tensor(self) -> str:
        return self.string() if self.peek().kind == "string" else self.name()

    def axis(self) -> int:
        found = self.leaf(self.name())
        if not isinstance(found, Ax):
            self.position -= 1
            raise self.error(f"expected an axis, found {self.peek().text!r}")
        return found.a

    def term(self) -> Ix:
        return self.index(self.leaf)

    def _atom(self, leaf: Callable[[str], Ix | None]) -> Ix:
        if not self.accept("["):
            return super()._atom(leaf)
        made = IxOf(self.value())
        self.expect("]")
        return made

    def braced[T](self, item: Callable[[], T]) -> T:
        self.expect("{")
        made = item()
        self.expect("}")
        return made

    # -- values
    def body(self) -> Value:
        """Lines `%n = value`, then a value."""
        self.lets = {}
        while self.peek().kind == "ref" and self.tokens[self.position + 1].text == "=":
            name = self.ref()
            self.expect("=")
            self.lets[name] = self.value()
        return self.value()

    def value(self) -> Value:
        start = self.peek()
        if start.kind == "ref":
            name = self.ref()
            if name not in self.lets:
                raise self.error(f"%{name} is not defined", start.start)
            return self.lets[name]
        name = self.tensor()
        try:
            return self.made(name, start.kind == "string")
        except IRError as problem:
            raise problem if str(problem).startswith("line ") else self.error(str(problem), start.start) from None

    def made(self, name: str, quoted: bool) -> Value:
        following = self.peek().text
        if following == "[" or quoted:
            if name not in self.elements:
                raise IRError(f"no tensor {name!r} before this")
            return loop.Load(name, self.elements[name], self.list(self.term))
        family, _, monoid = name.partition(".")
        if name == "index":
            (at,) = self.list(self.term, "(", ")")
            return loop.IndexOf(at)
        if following == "{":
            match family:
                case "const":
                    element = self.braced(self.dtype)
                    (bits,) = self.list(lambda: self.bits(element), "(", ")")
                    return loop.Const(element, bits)
                case "cast": return loop.Cast(self.braced(self.dtype), *self.operands(1))
                case "round": return loop.Round(self.braced(self.dtype), *self.operands(1))
                case "reduce": return loop.Reduce(monoid, self.braced(self.axis), *self.operands(1))
                case "scan": return loop.Scan(monoid, *self.braced(self.prefix), *self.operands(1))
                case "pivot": return loop.Pivot(monoid, self.braced(self.axis), *self.operands(1))
                case "channel": return loop.Channel(monoid, self.braced(self.axis), *self.operands(2))
        if name in OPERATORS:
            return loop.Apply(name, self.operands(OPERATORS[name].arity))
        found = self.other(name)
        if found is None:
            raise IRError(f"expected a value, found {name!r}")
        return found

    def prefix(self) -> tuple[int, Ix]:
        axis = self.axis()
        self.expect("<")
        self.expect("=")
        return axis, self.term()

    def operands(self, count: int) -> tuple[Value, ...]:
        found = self.list(self.value, "(", ")")
        if len(found) != count:
            raise IRError(f"{len(found)} operands where {count} belong")
        return found


class _Parser(BodyReader):
    def program(self) -> loop.Program:
        inputs: list[Input] = []
        axes: list[tuple[int, int]] = []
        definitions: list[loop.Definition] = []
        self.expect("loop")
        self.expect("{")
        while not self.accept("return"):
            role = next((r for r in ("input", "weight", "constant") if self.accept(r)), None)
            if self.accept("axis"):
                axis = self.axis()
                self.expect("<")
                axes.append((axis, self.integer()))
                continue
            name = self.tensor()
            if role is None:
                self.list(self.term)
            self.expect(":")
            element, shape = self.tensor_type()
            if role is not None:
                inputs.append(Input(name, shape, element, role))  # type: ignore[arg-type]
            else:
                self.expect("=")
                definitions.append(loop.Definition(name, shape, element, self.body()))
            self.elements[name] = element
        made = loop.Program(tuple(inputs), tuple(axes), tuple(definitions), self.outputs(self.tensor, self.tensor))
        loop.verify(made)
        return made


def parse(text: str) -> loop.Program:
    """The program that `text` prints; IRError, with line and column, where it is malformed."""
    return _Parser(text).program()
