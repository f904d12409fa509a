"""The text of Kernel IR.  `parse(show(k))` is `k`.

Each statement class declares its text as a template: `{field}` is a field, `{field:new}` a variable that is defined here,
and `<...>` a part that stands only when the fields in it are given.  Printing fills the template, parsing follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import Any, NamedTuple

from emmy.instructions.arithmetic import INFIX, decimal
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import (
    BODY,
    STATEMENTS,
    Apply,
    Block,
    Const,
    Convert,
    Element,
    Expr,
    GlobalBuffer,
    Kernel,
    SharedBuffer,
    Stmt,
    TensorMap,
    Thread,
    Var,
    Windows,
    const,
)
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS

_INFIX = {op: s for op, s in INFIX.items() if op not in ("xor", "div", "and", "or")} | {
    "truncdiv": ("/", 13), "fmod": ("%", 13), "and": ("&", 8), "or": ("|", 6)}
_SYMBOLS = {symbol: (op, p) for op, (symbol, p) in _INFIX.items()}


def show(kernel: Kernel) -> str:
    """The kernel as text."""
    parameters = [f"{b.access} {b.name}: {b.element}[{b.length}]{' late' * b.late}" for b in kernel.parameters]
    parameters += [f"map {m.name} of {m.buffer}: {m.element}{_tuple(m.shape)} box{_tuple(m.box)} swizzle {m.swizzle}"
                   f"{f' start {m.start}' * (m.start > 0)}{f' pitches{_tuple(m.pitches)}' * bool(m.pitches)}"
                   f"{f' windows{_tuple(map(_tuple, m.windows.numbers))}' if m.windows else ''}" for m in kernel.maps]
    places = (f"{f' align {b.alignment}' * (b.alignment != 16)}{'' if b.start is None else f' at {b.start}'}" for b in kernel.shared)
    shared = [f"  shared {b.name}: {b.element}[{b.length}]{place};" for b, place in zip(kernel.shared, places, strict=True)]
    cluster = f" cluster({kernel.cluster})" * (kernel.cluster != 1)
    head = f"kernel {kernel.name}({', '.join(parameters)}) grid{_tuple(kernel.grid)} block({kernel.block}){cluster} {{"
    return "\n".join([head, *shared, *("  " + line for s in kernel.body for line in print_statement(s)), "}"]) + "\n"


def _tuple(values: Iterable[object]) -> str:
    return f"({', '.join(map(str, values))})"


def print_statement(s: Stmt) -> list[str]:
    """The lines of a statement."""
    annotations = {f.name: f.type for f in fields(s)}
    lines = [""]

    def put(parts: tuple[Part, ...]) -> None:
        for part in parts:
            if part.inner:
                if all(getattr(s, p.text) not in (None, ()) for p in part.inner if p.field):
                    put(part.inner)
            elif not part.field:
                lines[-1] += part.text
            elif annotations[part.text] == BODY:
                lines[-1] += "{"
                lines.extend("  " + line for inner in getattr(s, part.text) for line in print_statement(inner))
                lines.append("}")
            else:
                lines[-1] += _show_field(getattr(s, part.text), part)

    put(template(type(s)))
    return lines if lines[-1].endswith("}") else [*lines[:-1], lines[-1] + ";"]


def _show_field(value: Any, part: Part) -> str:
    if part.new:
        return f"{value.name}: {value.element}"
    if isinstance(value, bool):
        return f" {part.text}" if value else ""
    if isinstance(value, tuple):
        return _tuple(show_expr(v) if isinstance(v, Expr) else v for v in value)
    return show_expr(value) if isinstance(value, Expr) else str(value)


def show_expr(e: Expr, precedence: int = 0) -> str:
    """The expression as text, in parentheses if it binds less tightly than `precedence`."""
    match e:
        case Const(element, bits): return show_constant(element, bits)
        case Var(name, _): return name
        case Thread(): return "thread"
        case Block(axis): return f"block_{'xyz'[axis]}"
        case Element(array, _, index): return f"{array}[{show_expr(index)}]"
        case Convert(element, x): return f"{element}({show_expr(x)})"
        case Apply(op, (x, y)) if op in _INFIX:
            symbol, p = _INFIX[op]
            text = f"{show_expr(x, p)} {symbol} {show_expr(y, p + 1)}"
            return f"({text})" if p < precedence else text
        case Apply(op, args): return f"{op}({', '.join(map(show_expr, args))})"
    raise AssertionError(type(e))


def show_constant(element: DType, bits: int) -> str:
    """A constant: 3 (i32), 3L (i64), 1.5f (f32), 1.5 (f64), true; by its bits where that does not tell it: f32#7fc00000."""
    value = dt.value(element, bits)
    if element is dt.bool_:
        return str(bool(value)).lower()
    if element in (dt.i32, dt.i64):
        return f"{value}{'L' * (element is dt.i64)}"
    if element in (dt.f32, dt.f64) and abs(value) < float("inf"):
        return decimal(element, bits) + "f" * (element is dt.f32)
    return f"{element}#{bits:0{2 * element.bytes}x}"


class Part(NamedTuple):
    """A piece of a template: literal text, a field, or an optional group."""

    text: str
    field: bool = False
    new: bool = False
    inner: tuple[Part, ...] = ()


@cache
def template(cls: type[Stmt]) -> tuple[Part, ...]:
    """The parts of a statement's template."""
    def parts(text: str) -> Iterator[Part]:
        for group, field, new, literal in re.findall(r"<([^<>]*\{[^<>]*)>|\{(\w+)(:new)?\}|([^<{]+)", text):
            yield Part("", inner=tuple(parts(group))) if group else Part(field, True, bool(new)) if field else Part(literal)
    return tuple(parts(cls.syntax))


_TOKEN = re.compile(r"""\s*(?:
    ([a-z]\w*\#[0-9a-f]+ | \d+(?:\.\d+)?(?:e[+-]?\d+)?[fL]?)     # a constant
  | ([A-Za-z_]\w*)                                               # a name
  | (\+:|<=|==|!= | [-+*/%<&|(){}\[\],;:=]) | (\S))""", re.VERBOSE)


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [m.group(0).strip() for m in _TOKEN.finditer(text) if m.group(0).strip()] + [""]
        self.at = 0
        self.names: dict[str, DType] = {}

    def error(self, wanted: str) -> IRError:
        before = " ".join(self.tokens[max(0, self.at - 8):self.at])
        return IRError(f"{wanted} expected, not {self.tokens[self.at] or 'the end'!r}, after {before!r}")

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self, *wanted: str) -> str:
        token = self.tokens[self.at]
        if wanted and token not in wanted:
            raise self.error(" or ".join(map(repr, wanted)))
        self.at += 1
        return token

    def match(self, pattern: str, what: str) -> str:
        if not re.fullmatch(pattern, self.peek(), re.ASCII):
            raise self.error(what)
        return self.take()

    def name(self) -> str:
        return self.match(r"[A-Za-z_]\w*", "a name")

    def integer(self) -> int:
        sign = -1 if self.peek() == "-" and self.take() else 1
        return sign * int(self.match(r"\d+", "an integer"))

    def dtype(self) -> DType:
        return dt.named(self.match("|".join(dt.OPERANDS), "a dtype"))

    def separated(self, item: Any) -> tuple[Any, ...]:
        self.take("(")
        out = []
        while self.peek() != ")":
            out.append(item())
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return tuple(out)

    def kernel(self) -> Kernel:
        self.take("kernel")
        name, every = self.name(), self.separated(self.parameter)
        self.take("grid")
        grid = self.separated(self.integer)
        self.take("block")
        (block,) = self.separated(self.integer)
        (cluster,) = self.separated(self.integer) if self.skip("cluster") else (1,)
        self.take("{")
        shared = []
        while self.skip("shared"):
            found = self.buffer()
            alignment = self.integer() if self.skip("align") else 16
            shared.append(SharedBuffer(*found, alignment, self.integer() if self.skip("at") else None))
            self.take(";")
        body = self.statements()
        self.take("")
        parameters, maps = (tuple(p for p in every if isinstance(p, kind)) for kind in (GlobalBuffer, TensorMap))
        return Kernel(name, parameters, tuple(shared), grid, block, body, maps, cluster)  # type: ignore[arg-type]

    def skip(self, token: str) -> bool:
        """Takes the token if it comes next."""
        return self.peek() == token and bool(self.take())

    def parameter(self) -> GlobalBuffer | TensorMap:
        access = self.take("read", "write", "scratch", "map")
        if access != "map":
            return GlobalBuffer(*self.buffer(), access, self.skip("late"))  # type: ignore[arg-type]
        name = self.name()
        self.take("of")
        buffer = self.name()
        self.take(":")
        element, shape = self.dtype(), self.separated(self.integer)
        self.take("box")
        box = self.separated(self.integer)
        self.take("swizzle")
        swizzle, start = self.integer(), self.integer() if self.skip("start") else 0
        pitches = self.separated(self.integer) if self.skip("pitches") else ()
        windows = Windows(*self.separated(partial(self.separated, self.integer))) if self.skip("windows") else None
        return TensorMap(name, buffer, element, shape, box, swizzle, start, pitches, windows)

    def buffer(self) -> tuple[str, DType, int]:
        name = self.name()
        self.take(":")
        element = self.dtype()
        self.take("[")
        length = self.integer()
        self.take("]")
        return name, element, length

    def statements(self) -> tuple[Stmt, ...]:
        """Statements up to and with the closing brace."""
        out = []
        while self.peek() != "}":
            out.append(self.statement())
        self.take("}")
        return tuple(out)

    def statement(self) -> Stmt:
        start, names = self.at, self.names
        furthest, best = start, self.error("a statement")
        for cls in STATEMENTS.values():
            if "syntax" in cls.__dict__:
                self.at, self.names = start, dict(names)
                try:
                    return self.follow(cls)
                except IRError as error:
                    if self.at > furthest:
                        furthest, best = self.at, error
        raise best

    def follow(self, cls: type[Stmt]) -> Stmt:
        values: dict[str, Any] = {f.name: () if f.default is MISSING else f.default for f in fields(cls)}
        annotations = {f.name: str(f.type) for f in fields(cls)}
        outer = dict(self.names)

        def take(parts: tuple[Part, ...]) -> None:
            for part in parts:
                if part.inner:
                    if self.peek() == part.inner[0].text.split()[0]:
                        take(part.inner)
                elif part.field:
                    values[part.text] = self.field(annotations[part.text], part)
                else:
                    for token in _TOKEN.finditer(part.text):
                        self.take(token.group(0).strip()) if token.group(0).strip() else None

        take(template(cls))
        braced = any(annotations[p.text] == BODY for p in template(cls) if p.field)
        if braced:
            self.names = outer
        else:
            self.take(";")
            if "element" in values and "array" in values and values["element"] == ():
                values["element"] = self.known(values["array"])
            if "name" in values and "element" in values:
                self.names[values["name"]] = values["element"]
        return cls(**values)

    def field(self, annotation: str, part: Part) -> Any:
        match annotation:
            case "Var" if part.new:
                name = self.name()
                self.take(":")
                self.names[name] = self.dtype()
                return Var(name, self.names[name])
            case "Var": return Var(name := self.name(), self.known(name))
            case "Expr" | "Expr | None": return self.expr()
            case "DType": return self.dtype()
            case "str":
                if part.text == "array":
                    self.known(self.match(r"[A-Za-z_]\w*", "a name"))
                    self.at -= 1
                return self.name()
            case "int": return self.integer()
            case "bool": return self.peek() == part.text and self.take() == part.text
            case "tuple[Expr, ...]": return self.separated(self.expr)
            case "tuple[str, ...]": return self.separated(self.name)
            case "tuple[Stmt, ...]":
                self.take("{")
                return self.statements()
        raise AssertionError(annotation)

    def known(self, name: str) -> DType:
        if name not in self.names:
            self.at -= 1
            raise self.error("a name that is defined")
        return self.names[name]

    def expr(self, precedence: int = 0) -> Expr:
        left = self.primary()
        while (found := _SYMBOLS.get(self.peek())) and found[1] >= precedence:
            self.take()
            left = Apply(found[0], (left, self.expr(found[1] + 1)))
        return left

    def primary(self) -> Expr:
        token = self.take()
        if token == "(":
            inner = self.expr()
            self.take(")")
            return inner
        if token in ("true", "false"):
            return const(dt.bool_, token == "true")
        if "#" in token:
            element, bits = token.split("#")
            return Const(dt.named(element), int(bits, 16))
        if token == "-" or token[:1].isdigit():
            return self.number(token)
        if token == "thread":
            return Thread()
        if token in ("block_x", "block_y", "block_z"):
            return Block("xyz".index(token[-1]))
        if token in dt.OPERANDS and self.peek() == "(":
            return Convert(dt.named(token), *self.separated(self.expr))
        if token in OPERATORS and self.peek() == "(":
            return Apply(token, self.separated(self.expr))
        of = self.known(token)
        if self.peek() == "[":
            self.take()
            index = self.expr()
            self.take("]")
            return Element(token, of, index)
        return Var(token, of)

    def number(self, token: str) -> Const:
        text = token + self.match(r"\d.*", "a number") if token == "-" else token
        if re.search(r"[.e]", text):
            return const(dt.f32, float(text[:-1])) if text.endswith("f") else const(dt.f64, float(text))
        return const(dt.i64, int(text[:-1])) if text.endswith("L") else const(dt.i32, int(text))


def parse(text: str) -> Kernel:
    """The kernel that `show` prints as `text`; IRError, with what stood before it, where the text is not one."""
    return _Parser(text).kernel()
