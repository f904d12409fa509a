"""Why a rule did not match: the fewest of its premises without which it would have.

Each set of premises left out is a query of the e-graph; what then binds no variable any more is left out with them.  A missing fact
that other rules derive is followed to the premises that those lack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, count
from typing import Any, NamedTuple

from emmy.egraph import pattern
from emmy.egraph.pattern import Atom, Signature
from emmy.egraph.provenance import converter
from emmy.egraph.recording import signatures
from emmy.egraph.rulebook import EGraph
from emmy.egraph.rulefile import Rule, bindings

MOST = 2        # premises left out at a time


class Reason(NamedTuple):
    """`premises`: those of `rule` that fail, as written; `facts`: what the rule files say of the tables that those ask; `found`: their
    variables where the other premises hold, with their sorts; `behind`: why the rules that derive what is missing did not."""

    rule: Rule
    premises: tuple[str, ...]
    facts: Mapping[str, str]
    found: Mapping[str, tuple[str, Atom]]
    behind: tuple[Reason, ...]


def why_not(graph: EGraph, rule: Rule, key: Callable[[Any], Atom] = lambda v: v) -> Reason | None:
    """The fewest premises that `rule` lacks: those that leave most others to hold, late ones rather than early ones; where more are
    missing, the first that fails after those before it.  None if the rule matches.  `key` numbers classes of Value."""
    return _why_not(graph, rule, signatures(graph.engine, graph.files), key, {rule.name})


def _why_not(graph: EGraph, rule: Rule, tables: Mapping[str, Signature], key: Callable[[Any], Atom], met: set[str]) -> Reason | None:
    """`why_not`; rules that were `met` are not asked again."""
    fresh = map("_{}".format, count(1))
    premises = [flat for p in rule.premises for flat in _flat(p, tables, fresh)]
    if _hold(graph, premises):
        return None
    for size in range(1, min(MOST, len(premises)) + 1):
        ranked = []
        for left_out in combinations(range(len(premises)), size):
            rest = _grounded([p for k, p in enumerate(premises) if k not in left_out], tables)
            ranked.append((len(rest) < len(premises) - size and 0 in left_out, -len(rest), tuple(-k for k in left_out), rest))
        for *_, left_out, rest in sorted(ranked, key=lambda r: r[:3]):
            if _hold(graph, rest):
                return _reason(graph, rule, [premises[-k] for k in left_out], rest, tables, key, met)
    held = next(k for k in range(len(premises), -1, -1) if _hold(graph, _grounded(premises[:k], tables)))
    return _reason(graph, rule, premises[held:held + 1], _grounded(premises[:held], tables), tables, key, met)


def _reason(graph: EGraph, rule: Rule, missing: list[Any], rest: list[Any], tables: Mapping[str, Signature],
            key: Callable[[Any], Atom], met: set[str]) -> Reason:
    empty = {call.name for premise in missing for call in _calls(premise) if call.name in tables and not tables[call.name].makes}
    empty -= {name for name, table in graph.engine.freeze().functions.items() if table.rows}
    others = [r for r in graph.rules if r.name not in met and empty & _derives(r)]
    met |= {r.name for r in others}
    behind = tuple(filter(None, (_why_not(graph, other, tables, key, met) for other in others)))
    found, wanted = _found(graph, rule, rest, tables, key), {v for p in missing for side in _sides(p) for v in pattern.variables(side)}
    names = [{v for side in _sides(p) for v in pattern.variables(side)} for p in rest]
    for sides, own in zip(map(_sides, rest), names, strict=True):     # and what those are computed of
        if any(isinstance(side, bindings().Var) and side.name in wanted for side in sides):
            wanted |= own
    near = set(names[0]) if names else set()
    for _ in names:     # what hangs together with the first premise: the others hold somewhere else
        near = near.union(*(own for own in names if own & near))
    wanted &= near
    asked = {call.name for premise in missing for call in _calls(premise) if call.name in tables}
    says = {name: said for name in sorted(asked) for _, text in graph.files if (said := declared(text, name))}
    return Reason(rule, tuple(map(str, missing)), says, {v: value for v, value in found.items() if v in wanted}, behind)


def declared(text: str, table: str) -> str:
    """What the comment at the declaration of a table says of it."""
    found = re.search(rf"^\s*\((?:relation|function) {re.escape(table)} .*?\)\s+; (.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _derives(rule: Rule) -> set[str]:
    """The tables that a rule's actions write."""
    egg = bindings()
    sets = {a.lhs for a in rule.actions if isinstance(a, egg.Set)}
    return sets | {a.expr.name for a in rule.actions if isinstance(a, egg.Expr_) and isinstance(a.expr, egg.Call)}


def _flat(premise: Any, tables: Mapping[str, Signature], fresh: Iterator[str]) -> list[Any]:
    """A premise with each nested application of a constructor as a premise of its own, about a variable of its own."""
    egg = bindings()
    inner: list[Any] = []

    def lift(expr: Any, top: bool) -> Any:
        if not isinstance(expr, egg.Call) or expr.name not in tables:
            return expr
        if top or not tables[expr.name].makes:
            return egg.Call(expr.span, expr.name, [lift(a, False) for a in expr.args])
        name = egg.Var(expr.span, next(fresh))
        inner.append(egg.Eq(expr.span, name, egg.Call(expr.span, expr.name, [lift(a, False) for a in expr.args])))
        return name

    if isinstance(premise, egg.Eq):
        made = egg.Eq(premise.span, lift(premise.left, True), lift(premise.right, True))
    else:
        made = egg.Fact(lift(premise.expr, True))
    return [made, *reversed(inner)]


def _sides(premise: Any) -> tuple[Any, ...]:
    return (premise.left, premise.right) if isinstance(premise, bindings().Eq) else (premise.expr,)


def _calls(part: Any) -> Iterator[Any]:
    """The calls in a premise or an expression."""
    egg = bindings()
    if isinstance(part, egg.Call):
        yield part
    for inner in _sides(part) if isinstance(part, egg.Eq | egg.Fact) else getattr(part, "args", ()):
        yield from _calls(inner)


def _grounded(premises: list[Any], tables: Mapping[str, Signature]) -> list[Any]:
    """The premises all of whose variables are bound: by the row of a table, or computed of bound ones."""
    egg = bindings()
    known: set[str] = set()
    grown = True
    while grown:
        before = len(known)
        for sides in map(_sides, premises):
            rows = [call for side in sides for call in _calls(side) if call.name in tables]
            known |= {a.name for call in rows for a in call.args if isinstance(a, egg.Var)}
            if any(not isinstance(side, egg.Var) and set(pattern.variables(side)) <= known for side in sides):
                known |= {side.name for side in sides if isinstance(side, egg.Var)}
        grown = len(known) > before
    return [p for p in premises if all(set(pattern.variables(side)) <= known for side in _sides(p))]


def _hold(graph: EGraph, premises: list[Any]) -> bool:
    """Whether premises hold somewhere."""
    egg = bindings()
    try:
        graph.engine.run_program(*([egg.Check(_span(premises[0]), premises)] if premises else []))
    except egg.EggSmolError:
        return False
    return True


def _span(premise: Any) -> Any:
    return getattr(premise, "span", None) or premise.expr.span


def _found(graph: EGraph, rule: Rule, premises: list[Any], tables: Mapping[str, Signature],
           key: Callable[[Any], Atom]) -> Mapping[str, tuple[str, Atom]]:
    """The variables of premises at their first match in the order of the engine."""
    egg = bindings()
    if not premises:
        return {}
    bound = {v for p in premises for side in _sides(p) for v in pattern.variables(side)}
    sorts = pattern.patterns(rule._replace(premises=tuple(premises), actions=()), tables).columns
    columns = {name: sort for name, sort in sorts if name in bound}
    span = _span(premises[0])
    held = egg.Expr_(span, egg.Call(span, "Held", [egg.Var(span, name) for name in columns]))
    graph.run("(push)")
    try:
        graph.engine.run_program(egg.Relation(span, "Held", list(columns.values())), egg.AddRuleset(span, "held"),
                                 egg.RuleCommand(egg.Rule(span, [held], premises, "held", "held")))
        graph.run("(run-schedule (run held))")
        row = graph.engine.freeze().functions["Held"].rows[0]
        convert = converter(graph, key)
        return {name: (sort, convert(sort, value)) for (name, sort), value in zip(columns.items(), row.inputs, strict=True)}
    finally:
        graph.run("(pop)")
