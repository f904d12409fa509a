"""Reads the text of Kernel IR.  `parse(show(k))` is `k`."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import (
    ACCESSES,
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
from emmy.ir.kernel_text import OPERATOR_TEXT, Part, template
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS

SYMBOLS = {symbol: (op, p) for op, (symbol, p) in OPERATOR_TEXT.items()}
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
        access = self.take(*ACCESSES, "map")
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
        while (found := SYMBOLS.get(self.peek())) and found[1] >= precedence:
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
