"""The notation that every textual IR shares: a tokenizer and a recursive-descent reader.

    %ref  name.with.dots  12  -3  0x7f800000  1e-05  "string"  f32[2, 3]  head{attributes}[list](arguments)  # comment
    (p0 + p1) * 4 // 3 % 5          index arithmetic; `%` before a word character starts a ref, so a remainder is spaced

A comment ends at the end of its line and is skipped, unless the reader asks for it with `comment`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import NamedTuple

from emmy.ir import dtype as dt
from emmy.ir.dtype import DTYPES, DType
from emmy.ir.index import Ix, IxAdd, IxConst, IxDiv, IxMod, IxMul
from emmy.ir.node import IRError

_TOKEN = re.compile(r"""
    (?P<space>\s+) | (?P<comment>\#[^\n]*) | (?P<ref>%\w[\w.]*) | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)|-inf\b) | (?P<int>0x[0-9a-f]+|-?\d+)
  | (?P<name>[A-Za-z_][\w.]*) | (?P<mark>//|->|[-{}\[\]():,=+*%@<>|/;.!&^])
""", re.VERBOSE)


def number(element: DType, pattern: int) -> str:
    """A constant as its shortest decimal that reads back as the same bits, or the hexadecimal bits of an infinity or NaN."""
    value = dt.value(element, pattern)
    if element.kind != "float":
        return str(int(value)) if element.kind == "int" else str(bool(value))
    exact = float(value)
    if not math.isfinite(exact) or dt.bits(element, exact) != pattern:
        return hex(pattern)
    texts = (repr(float(f"{exact:.{digits}g}")) for digits in range(1, 18))
    return next(text for text in texts if dt.bits(element, float(text)) == pattern)


class Token(NamedTuple):
    """`kind` is a group of the token grammar or "end"; `start` the offset into the text."""

    kind: str
    text: str
    start: int


class Reader:
    """Reads `text` token by token.  Every method that does not find what it expects raises IRError with line and column."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self.error(f"unexpected character {text[at]!r}", at)
            if found.lastgroup != "space":
                self.tokens.append(Token(str(found.lastgroup), found.group(), at))
            at = found.end()
        self.tokens.append(Token("end", "", len(text)))
        self.position = 0

    def error(self, message: str, start: int | None = None) -> IRError:
        """An error at offset `start`, by default at the next token."""
        at = self.peek().start if start is None else start
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return IRError(f"line {line}, column {column}: {message}")

    def peek(self) -> Token:
        while self.tokens[self.position].kind == "comment":
            self.position += 1
        return self.tokens[self.position]

    def take(self, kind: str) -> str:
        """The text of the next token, which must be of `kind`."""
        token = self.peek()
        if token.kind != kind:
            raise self.error(f"expected {kind}, found {token.text or 'the end'!r}")
        self.position += 1
        return token.text

    def accept(self, text: str) -> bool:
        """Whether the next token is `text`, which is then consumed."""
        token = self.peek()
        if token.kind not in ("name", "mark") or token.text != text:
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r}, found {self.peek().text or 'the end'!r}")

    def comment(self) -> str:
        """The comment right after the last token, without its sign; "" if there is none."""
        token = self.tokens[self.position]
        if token.kind != "comment":
            return ""
        self.position += 1
        return token.text[1:].strip()

    def name(self) -> str:
        return self.take("name")

    def ref(self) -> str:
        """A reference, without its `%`."""
        return self.take("ref")[1:]

    def integer(self) -> int:
        return int(self.take("int"), 0)

    def string(self) -> str:
        return str(json.loads(self.take("string")))

    def bits(self, element: DType) -> int:
        """The bits of the constant of `element` that `number` spelled."""
        token = self.peek()
        self.position += 1
        if token.text.startswith("0x"):
            return int(token.text, 16)
        if token.text in ("True", "False"):
            return dt.bits(element, token.text == "True")
        if token.kind not in ("int", "float"):
            raise self.error(f"expected a number, found {token.text!r}", token.start)
        return dt.bits(element, int(token.text) if token.kind == "int" else float(token.text))

    def list[T](self, item: Callable[[], T], opening: str = "[", closing: str = "]") -> tuple[T, ...]:
        """Items separated by commas, between brackets."""
        self.expect(opening)
        return self.items(item, closing)

    def items[T](self, item: Callable[[], T], closing: str) -> tuple[T, ...]:
        """Items separated by commas, up to `closing`."""
        items: list[T] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    def outputs[T](self, name: Callable[[], str], tensor: Callable[[], T]) -> tuple[tuple[str, T], ...]:
        """What a program returns, `name = tensor` each, after `return` and up to the end of the text."""
        def output() -> tuple[str, T]:
            found = name()
            self.expect("=")
            return found, tensor()

        made = self.items(output, "}")
        self.end()
        return made

    def dtype(self) -> DType:
        name = self.take("name")
        if name not in DTYPES:
            self.position -= 1
            raise self.error(f"expected a dtype ({', '.join(DTYPES)}), found {name!r}")
        return DTYPES[name]

    def tensor_type(self) -> tuple[DType, tuple[int, ...]]:
        """`f32[2, 3]`."""
        return self.dtype(), self.list(self.integer)

    def index(self, leaf: Callable[[str], Ix | None]) -> Ix:
        """Index arithmetic; `leaf` makes the term of a name, or says None.  The term is built as written, nothing folded."""
        out = self._product(leaf)
        while self.accept("+"):
            out = IxAdd(out, self._product(leaf))
        return out

    def _product(self, leaf: Callable[[str], Ix | None]) -> Ix:
        out = self._atom(leaf)
        while True:
            if self.accept("*"):
                out = IxMul(out, self.integer())
            elif self.accept("//"):
                out = IxDiv(out, self.integer())
            elif self.accept("%"):
                out = IxMod(out, self.integer())
            else:
                return out

    def _atom(self, leaf: Callable[[str], Ix | None]) -> Ix:
        if self.accept("("):
            inner = self.index(leaf)
            self.expect(")")
            return inner
        if self.peek().kind == "int":
            return IxConst(self.integer())
        made = leaf(self.peek().text) if self.peek().kind == "name" else None
        if made is None:
            raise self.error(f"expected an index term, found {self.peek().text or 'the end'!r}")
        self.position += 1
        return made

    def end(self) -> None:
        self.take("end")
