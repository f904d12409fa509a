"""The text of Kernel IR.  `emmy.ir.kernel_parser` reads what is printed here.

Each statement class declares its text as a template: `{field}` is a field, `{field:new}` a variable that is defined here,
and `<...>` a part that stands only when the fields in it are given.  Printing fills the template, parsing follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from emmy.instructions.arithmetic import INFIX, decimal
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import (
    BODY,
    Apply,
    Block,
    Const,
    Convert,
    Element,
    Expr,
    Kernel,
    Stmt,
    Thread,
    Var,
)

OPERATOR_TEXT = {op: s for op, s in INFIX.items() if op not in ("xor", "div", "and", "or")} | {
    "truncdiv": ("/", 13), "fmod": ("%", 13), "and": ("&", 8), "or": ("|", 6)}


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
        case Apply(op, (x, y)) if op in OPERATOR_TEXT:
            symbol, p = OPERATOR_TEXT[op]
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
