"""Rules as patterns over e-nodes: what a rule joins, read off its premises and actions.

An action `(union v T)` under a premise `(= v P)` makes the instances of P and T one class.  Where a variable of the union has no such
premise, the relation that binds it is followed to the rules that derive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from emmy.egraph.rulefile import Rule, bindings

Atom = Any      # an argument of a row: an int for a class of Value or an i64, a str, a frozenset, …
Bindings = Mapping[str, Atom]


class Hole(NamedTuple):
    """A variable."""

    name: str


class Computed(NamedTuple):
    """What the engine computes of variables: its text, which names its column, and those variables."""

    name: str
    of: tuple[str, ...]


class Literal(NamedTuple):
    value: Atom


class Form(NamedTuple):
    """An application of a constructor; `name` is the variable that stands for the whole, if one does."""

    op: str
    args: tuple[Pattern, ...]
    name: str = ""


Pattern = Hole | Computed | Literal | Form


class Signature(NamedTuple):
    """The sorts of a table's columns; `makes` says that it is a constructor."""

    inputs: tuple[str, ...]
    output: str
    makes: bool


class Fact(NamedTuple):
    """A row of a relation."""

    relation: str
    args: tuple[Pattern, ...]


class Patterns(NamedTuple):
    """A rule as patterns.

    `columns`: the variables and computed expressions that stand for arguments, with their sorts.  `unions`: the pairs it joins.
    `forms`: by variable, the patterns that premises say it is.  `asks`, `derives`: facts among its premises and its actions."""

    rule: Rule
    columns: tuple[tuple[str, str], ...]
    unions: tuple[tuple[Pattern, Pattern], ...]
    forms: Mapping[str, tuple[Form, ...]]
    asks: tuple[Fact, ...]
    derives: tuple[Fact, ...]


def patterns(rule: Rule, signatures: Mapping[str, Signature]) -> Patterns:
    """The patterns of a rule."""
    egg = bindings()
    columns: dict[str, str] = {}
    lets: dict[str, Pattern] = {}
    forms: dict[str, list[Form]] = {}

    def note(expr: Any, sort: str) -> None:
        signature = signatures.get(expr.name) if isinstance(expr, egg.Call) else None
        if sort and not isinstance(expr, egg.Lit) and not (signature and signature.makes) and str(expr) not in lets:
            columns.setdefault(str(expr), sort)
        for argument, own in zip(expr.args, signature.inputs, strict=True) if signature else ():
            note(argument, own)

    def sort_of(expr: Any) -> str:
        signature = signatures.get(expr.name) if isinstance(expr, egg.Call) else None
        return signature.output if signature else columns.get(expr.name, "") if isinstance(expr, egg.Var) else ""

    def read(expr: Any) -> Pattern:
        if isinstance(expr, egg.Lit):
            return Literal(getattr(expr.value, "value", None))
        if isinstance(expr, egg.Call) and expr.name in signatures and signatures[expr.name].makes:
            return Form(expr.name, tuple(map(read, expr.args)))
        if isinstance(expr, egg.Call):
            return Computed(str(expr), tuple(dict.fromkeys(variables(expr))))
        return lets.get(expr.name, Hole(expr.name))

    def facts(of: Iterable[Any], kind: Any) -> tuple[Fact, ...]:
        calls = (f.expr for f in of if isinstance(f, kind))
        return tuple(Fact(c.name, tuple(map(read, c.args))) for c in calls
                     if isinstance(c, egg.Call) and c.name in signatures and not signatures[c.name].makes)

    for premise in rule.premises:
        sides = (premise.left, premise.right) if isinstance(premise, egg.Eq) else (premise.expr,)
        for side in sides:
            note(side, "")
        for x, y in (sides, sides[::-1]) if len(sides) == 2 else ():
            note(x, "" if isinstance(x, egg.Call) else sort_of(y))
            if isinstance(x, egg.Var) and isinstance(form := read(y), Form):
                forms.setdefault(x.name, []).append(form)
    for action in rule.actions:
        match action:
            case egg.Let():
                note(action.rhs, "")
                lets[action.lhs] = read(action.rhs)
            case egg.Union():
                note(action.lhs, "")
                note(action.rhs, "")
            case egg.Expr_():
                note(action.expr, "")
    unions = tuple((read(a.lhs), read(a.rhs)) for a in rule.actions if isinstance(a, egg.Union))
    return Patterns(rule, tuple(columns.items()), unions, {v: tuple(fs) for v, fs in forms.items()},
                 facts(rule.premises, egg.Fact), facts(rule.actions, egg.Expr_))


def variables(expr: Any) -> Iterator[str]:
    """The variables of an expression of egglog's."""
    if isinstance(expr, bindings().Var):
        yield expr.name
    for argument in getattr(expr, "args", ()):
        yield from variables(argument)


def holes(pattern: Pattern) -> frozenset[str]:
    """The variables of a pattern."""
    match pattern:
        case Computed(_, of): return frozenset(of)
        case Hole(name): return frozenset((name,))
        case Form(_, args, name): return frozenset((name,)).union(*map(holes, args)) - {""}
    return frozenset()


def subforms(pattern: Pattern) -> Iterator[Form]:
    """The applications in a pattern, the outermost first."""
    if isinstance(pattern, Form):
        yield pattern
        for argument in pattern.args:
            yield from subforms(argument)


def bind(pattern: Pattern, wanted: frozenset[str], forms: Mapping[str, tuple[Form, ...]]) -> Pattern:
    """`pattern` with variables opened to what `forms` says they are, as long as it lacks a variable of `wanted`."""
    missing = wanted - holes(pattern)

    def opened(p: Pattern) -> Pattern:
        match p:
            case Hole(name):
                inside = next((f for f in forms.get(name, ()) if missing & holes(f)), None)
                return p if inside is None else Form(inside.op, inside.args, name)
            case Form(op, args, name): return Form(op, tuple(map(opened, args)), name)
        return p

    made = opened(pattern) if missing else pattern
    return made if made == pattern else bind(made, wanted, forms)


def renamed(pattern: Pattern, names: Mapping[str, Pattern], prefix: str) -> Pattern:
    """`pattern` with variables replaced, and those that are not among `names` under a prefix."""
    match pattern:
        case Hole(name): return names.get(name, Hole(prefix + name))
        case Computed(name, of):
            new = (names.get(v, Hole(prefix + v)) for v in of)
            return Computed(prefix + name, tuple(v.name for v in new if isinstance(v, Hole)))
        case Form(op, args, name): return Form(op, tuple(renamed(a, names, prefix) for a in args), prefix + name if name else "")
    return pattern
