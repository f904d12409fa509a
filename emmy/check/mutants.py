"""Mutants: a rule with one thing wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

from emmy.check.book import Book
from emmy.check.pattern import Call, Form, Lit, Term, Var, places, replaced, variables
from emmy.check.seeds import AXIS
from emmy.egraph.rulefile import Rule

# An operator, monoid or type in the place of another that takes the same operands.
OTHER = {"add": "max", "max": "min", "min": "max", "mul": "add", "sub": "add", "div": "mul", "exp": "abs", "log": "abs", "recip": "neg",
         "sqrt": "abs", "i64": "i32", "i32": "i64", "f32": "f64", "f64": "f32", "and": "or", "or": "and"}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "!=": "=", "set-contains": "set-not-contains",
               "set-not-contains": "set-contains"}
ORDERED = ("-", "/", "%", "set-diff", "set-remove", "<", "<=", ">", ">=")   # primitives whose operands have an order
PRIMITIVES = {"+": "-", "-": "+", "*": "+", "max": "min", "min": "max", "set-union": "set-intersect", "set-intersect": "set-union",
              "set-remove": "set-insert", "set-diff": "set-union"}
OF_VALUES = ("Value", "Index", "Point")


class Mutant(NamedTuple):
    """What was done to a rule, in words, and what it became."""

    operator: str
    what: str
    form: Form


def mutants(book: Book, rule: Rule) -> Iterator[Mutant]:
    """Every mutant of a rule, each once."""
    form, seen = book.forms[rule.name], set()
    for mutant in _all(book, form):
        if mutant.form not in seen and mutant.form != form:
            seen.add(mutant.form)
            yield mutant


def _all(book: Book, form: Form) -> Iterator[Mutant]:
    for k, p in enumerate(form.premises):
        yield Mutant("drop", f"without {p}", form._replace(premises=(*form.premises[:k], *form.premises[k + 1:])))
    named = {a for c in _calls(form) for k, a in enumerate(c.args) if (c.name, k) in AXIS}
    axes = [x for x in variables(*form.premises) if Var(x) in named]
    sides = [("premises", k, p) for k, p in enumerate(form.premises)] + [("actions", k, a) for k, a in enumerate(form.actions)]
    for side, k, whole in sides:
        for path, term in places(whole):
            for operator, new in _changes(book, term, whole, path, axes, side == "actions"):
                terms = list(getattr(form, side))
                terms[k] = replaced(whole, path, new)
                yield Mutant(operator, f"{new} for {term}", form._replace(**{side: tuple(terms)}))


def _calls(form: Form) -> Iterator[Call]:
    return (t for c in (*form.premises, *form.actions) for _, t in places(c) if isinstance(t, Call))


def _changes(book: Book, term: Term, whole: Call, path: tuple[int, ...], axes: list[str], acts: bool) -> Iterator[tuple[str, Term]]:
    """What may stand in a term's place."""
    parent = _at(whole, path[:-1]) if path else None
    match term:
        case Lit(str(name)) if name in OTHER: yield "constant", Lit(OTHER[name])
        case Lit(int(n)): yield "constant", Lit(n + 1)
        case Call(name, args) if name in COMPARISONS and not acts: yield "condition", Call(COMPARISONS[name], args)
        case Var(x) if acts and x in axes and isinstance(parent, Call) and (parent.name, path[-1]) in AXIS:
            others = [y for y in axes if y != x]
            yield "axis", Var(others[0]) if others else Call("+", (term, Lit(1)))
    if not isinstance(term, Call) or not acts:
        return
    match term.name, term.args:
        case "Binary", (op, left, right) if not _commutes(book, op): yield "swap", Call("Binary", (op, right, left))
        case "Ternary" | "Channel" as name, (*first, left, right): yield "swap", Call(name, (*first, right, left))
        case name, (left, right) if name in ORDERED and name != "set-remove": yield "swap", Call(name, (right, left))
    if term.name in PRIMITIVES:
        yield "primitive", Call(PRIMITIVES[term.name], term.args)
    if term.name in book.signature and book.constructs(term.name) and path:
        sorts, sort = book.signature[term.name]
        if sort in OF_VALUES:
            yield from (("operand", a) for s, a in zip(sorts, term.args, strict=True) if s == sort)


def _commutes(book: Book, op: Term) -> bool:
    return isinstance(op, Lit) and (op,) in book.relations.get("commutative", [])


def _at(term: Term, path: tuple[int, ...]) -> Term:
    for k in path:
        assert isinstance(term, Call)
        term = term.args[k]
    return term


def mutated(book: Book, rule: Rule, form: Form) -> Book:
    """The book with another form for a rule."""
    made = copy.copy(book)
    made.forms = {**book.forms, rule.name: form}
    made.__dict__.pop("derivers", None)
    return made
