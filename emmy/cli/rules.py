"""`emmy rules`: the rulebook as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from emmy.cli import options
from emmy.errors import EmmyError


class Rule(NamedTuple):
    """A rule of the rulebook: its ruleset is `phase`-`kind`, and `says` is the comment right above it, or else the rule itself."""

    name: str
    file: str
    phase: str
    kind: str
    says: str


def rulebook() -> tuple[Rule, ...]:
    """Every rule of the house, in load order."""
    from emmy.egraph.rulebook import ORDER, rule_files

    return tuple(rule for ir in ORDER for file, text in rule_files(ir) for rule in read(file, text))


def read(file: str, text: str) -> Iterator[Rule]:
    """The rules of a file's text."""
    comment: list[str] = []
    for command in commands(text):
        if command.startswith(";"):
            comment.append(command.lstrip("; ").strip())
            continue
        if named := re.search(r':ruleset\s+(\w+)-(\w+)\s+:name\s+"([^"]+)"', command):
            phase, kind, name = named.groups()
            yield Rule(name, file, phase, kind, " ".join(comment) or shortened(command))
        comment = []


def commands(text: str) -> Iterator[str]:
    """The top-level commands, the comment lines between them, and "" for each blank line between them."""
    depth, start = 0, 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|;[^\n]*|[()]|(?<=\n)[ \t]*\n', text):
        match token[0]:
            case "(":
                start, depth = (token.start() if depth == 0 else start), depth + 1
            case ")":
                depth -= 1
                if depth == 0:
                    yield text[start:token.end()]
            case other if depth == 0 and other.startswith(";") and text[:token.start()].rpartition("\n")[2].strip() == "":
                yield other
            case other if depth == 0 and not other.strip():
                yield ""


def shortened(command: str) -> str:
    """A rewrite as "left = right", a rule as "premises => actions"."""
    kind, left, right, *_ = parts(command[1:])
    sign = "=" if kind == "rewrite" else "=>"
    left, right = (" ".join((side if kind == "rewrite" else side[1:-1]).split()) for side in (left, right))
    return f"{left} {sign} {right}"


def parts(text: str) -> Iterator[str]:
    """The terms of a list, one by one."""
    depth, start = 0, 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|[()]|[^\s()"]+', text):
        start = token.start() if depth == 0 else start
        depth += (token[0] == "(") - (token[0] == ")")
        if depth < 0:
            return
        if depth == 0:
            yield text[start:token.end()]


Phase = Annotated[str | None, typer.Option(help="Only the rules of one phase, such as algebra.", show_default=False)]


def command(phase: Phase = None) -> None:
    """List the rewrite rules: name, phase, class, file, and what each says."""
    found = rulebook()
    phases = list(dict.fromkeys(rule.phase for rule in found))
    if phase is not None and phase not in phases:
        raise EmmyError(f"unknown phase {phase!r}", f"the phases are {', '.join(phases)}")
    from rich.table import Table

    table = Table("rule", "phase", "class", "file", "what it says", box=None, pad_edge=False)
    for rule in found:
        if phase in (None, rule.phase):
            table.add_row(rule.name, rule.phase, rule.kind, rule.file, rule.says)
    options.console().print(table, markup=False)
