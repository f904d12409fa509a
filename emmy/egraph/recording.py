"""Rule files loaded so that an e-graph records what each rule matches.

Each rule that joins or derives something gets one action more, `(Matched.<rule> v1 v2 …)`, over the variables and computed expressions
that stand for arguments of its patterns.  The engine keeps those rows canonical.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from emmy.egraph import pattern
from emmy.egraph.pattern import Patterns, Signature
from emmy.egraph.rulefile import Rule, bindings, rules_of

MATCHED = "Matched."    # begins the name of the relation that a rule's matches are recorded in


def record(engine: Any, files: Iterable[tuple[str, str]]) -> tuple[Patterns, ...]:
    """Load rule files (name, text) into the engine, so that rules record their matches; the rules that do."""
    files = tuple(files)
    commands = [(c, tuple(rules_of(c, name, text.encode()))) for name, text in files for c in engine.parse_program(text, name)]
    for command, found in commands:
        if not found:
            engine.run_program(command)
    tables = signatures(engine, files)
    recorded: list[Patterns] = []
    for command, found in commands:
        own = [pattern.patterns(rule, tables) for rule in found]
        if not found:
            continue
        traced = [s for s in own if s.unions or s.derives]
        if not traced:
            engine.run_program(command)
        for s in traced:
            engine.run_program(*_recording(s, command))
        recorded += traced
    return tuple(recorded)


def signatures(engine: Any, files: Iterable[tuple[str, str]]) -> dict[str, Signature]:
    """The signatures of the tables that rule files declare, by name."""
    egg = bindings()
    commands = (c for name, text in files for c in engine.parse_program(text, name))
    tables = {c.name for c in commands if isinstance(c, egg.FunctionCommand | egg.Relation)}
    return {name: Signature(tuple(f.input_sorts), f.output_sort, name not in tables)
            for name, f in engine.freeze().functions.items() if not f.is_let_binding}


def _recording(s: Patterns, command: Any) -> Iterator[Any]:
    """The commands that declare a rule's relation, and the rule with one action more."""
    egg = bindings()
    span = s.rule.actions[0].span
    columns = {name: sort for name, sort in s.columns}
    written = {str(e): e for part in (*s.rule.premises, *s.rule.actions) for e in _expressions(part)}
    yield egg.Relation(span, matched(s.rule), list(columns.values()))
    action = egg.Expr_(span, egg.Call(span, matched(s.rule), [written[name] for name in columns]))
    mode = (command.rule.eval_mode, command.rule.no_decomp, command.rule.include_subsumed) if isinstance(command, egg.RuleCommand) else ()
    subsumed = [egg.Change(span, egg.Subsume(), s.rule.premises[0].right.name, s.rule.premises[0].right.args)] if (
        isinstance(command, egg.RewriteCommand) and command.subsume) else []
    yield egg.RuleCommand(egg.Rule(span, [*s.rule.actions, action, *subsumed], list(s.rule.premises), s.rule.name, s.rule.ruleset, *mode))


def _expressions(part: Any) -> Iterator[Any]:
    """Every expression in a premise, an action or an expression."""
    egg = bindings()
    if isinstance(part, egg.Var | egg.Call | egg.Lit):
        yield part
    for field in ("left", "right", "expr", "lhs", "rhs"):
        inner = getattr(part, field, None)
        if inner is not None and not isinstance(inner, str):
            yield from _expressions(inner)
    for argument in getattr(part, "args", ()):
        yield from _expressions(argument)


def matched(rule: Rule) -> str:
    """The relation that a rule's matches are recorded in."""
    return MATCHED + rule.name
