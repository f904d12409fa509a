"""Rules as s-expressions: what seeds are built from, proofs are read off and mutants are made of.

A premise or action is a `Call`: `(= a b)`, a relation, a primitive; `(union a b)`, `(set (F x) y)`, `(let x e)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from emmy.egraph.rulefile import Rule, RuleFile

TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|;[^\n]*|([()])|(-?\d+)(?=[\s()]|$)|([^\s()";]+)')


class Var(NamedTuple):
    name: str

    def __str__(self) -> str:
        return self.name


class Lit(NamedTuple):
    """A string or a whole number."""

    value: str | int

    def __str__(self) -> str:
        return f'"{self.value}"' if isinstance(self.value, str) else str(self.value)


class Call(NamedTuple):
    name: str
    args: tuple[Term, ...]

    def __str__(self) -> str:
        return f"({' '.join((self.name, *map(str, self.args)))})"


type Term = Var | Lit | Call


def read(text: str) -> Term:
    """The term that egglog text spells."""
    stack: list[list[Term]] = [[]]
    for token in TOKEN.finditer(text):
        string, bracket, number, symbol = token.groups()
        match bracket:
            case "(": stack.append([])
            case ")":
                head, *args = stack.pop()
                stack[-1].append(Call(str(head), tuple(args)))
            case None if string is not None: stack[-1].append(Lit(string))
            case None if number is not None: stack[-1].append(Lit(int(number)))
            case None if symbol is not None: stack[-1].append(Var(symbol))
    (term,) = stack[0]
    return term


class Form(NamedTuple):
    """A rule's premises and actions."""

    premises: tuple[Call, ...]
    actions: tuple[Call, ...]

    def text(self, ruleset: str, name: str) -> str:
        """The rule as egglog text."""
        return f'(rule ({" ".join(map(str, self.premises))}) ({" ".join(map(str, self.actions))}) :ruleset {ruleset} :name "{name}")'

    def map(self, change: Callable[[Call], Term]) -> Form:
        return Form(*(tuple(c for c in map(change, side) if isinstance(c, Call)) for side in self))


def form(rule: Rule) -> Form:
    """A rule's premises and actions as terms."""
    def calls(side: Iterable[object]) -> tuple[Call, ...]:
        return tuple(c for c in (read(str(x)) for x in side) if isinstance(c, Call))

    return Form(calls(rule.premises), calls(rule.actions))


def walk(term: Term) -> Iterator[Term]:
    """The term and every term in it, outermost first."""
    stack = [term]
    while stack:
        yield (t := stack.pop())
        if isinstance(t, Call):
            stack += reversed(t.args)


def variables(*terms: Term) -> dict[str, None]:
    """The names of the variables in terms, in the order in which they occur."""
    return {t.name: None for term in terms for t in walk(term) if isinstance(t, Var)}


def calls(*terms: Term) -> Iterator[Call]:
    """Every call in terms."""
    return (t for term in terms for t in walk(term) if isinstance(t, Call))


def substitute(term: Term, values: dict[str, Term]) -> Term:
    """The term with `values` in the place of its variables."""
    match term:
        case Var(name): return values.get(name, term)
        case Call(name, args): return Call(name, tuple(substitute(a, values) for a in args))
    return term


def places(term: Term, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Term]]:
    """Every term in `term` with the argument positions that lead to it."""
    yield path, term
    for k, arg in enumerate(term.args if isinstance(term, Call) else ()):
        yield from places(arg, (*path, k))


def replaced(term: Term, path: tuple[int, ...], new: Term) -> Term:
    """The term with `new` at a path of argument positions."""
    if not path:
        return new
    assert isinstance(term, Call)
    k, *rest = path
    return Call(term.name, (*term.args[:k], replaced(term.args[k], tuple(rest), new), *term.args[k + 1:]))


def declarations(file: RuleFile) -> str:
    """A file's text with its rules blanked: sorts, functions, rulesets and facts, on the lines where they stood."""
    text = file.text
    for rule in file.rules:
        text = text.replace(rule.text, "\n" * rule.text.count("\n"), 1)
    return text
