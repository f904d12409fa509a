"""Why rules did not match, as text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from emmy.cli.notation import Notation
from emmy.egraph import why_not as asked
from emmy.egraph.forest import Forest
from emmy.egraph.problem import outline
from emmy.egraph.rulebook import hardware_rules, house, math_classes
from emmy.egraph.rulefile import Rule, parse
from emmy.egraph.schedule import saturated
from emmy.egraph.terms import Region
from emmy.egraph.why_not import Reason
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile

if TYPE_CHECKING:
    from emmy.pipeline import Program


class Answer(NamedTuple):
    """Why a rule did not match in a region or, if it is of the Tile IR, in a kernel, by name; None if it matches."""

    where: str
    region: Region | None
    reason: Reason | None


def ask(program: Program, name: str) -> tuple[Rule, list[Answer]]:
    """A rule, and why it did not match in a traced program or, if it is of the Tile IR, in each of its kernels.  EmmyError if there is no
    such rule."""
    graphs = [region.provenance.graph for region in program.regions if region.provenance is not None]
    further = (rule for file in (hardware_rules(program.target), *program.rules["tile"]) for rule in parse(*file).rules)
    known = {rule.name: rule for rule in (*house("tile"), *further, *graphs[0].rules)}
    if name not in known:
        near = difflib.get_close_matches(name, known)
        raise EmmyError(f"there is no rule {name!r}", f"did you mean {' or '.join(near)}?" if near else "see emmy rules list")
    rule = known[name]
    if rule in graphs[0].rules:
        several = len(program.regions) > 1
        return rule, [Answer(f"region {k + 1}" if several else "", region, asked.why_not(p.graph, rule, p.tables.key))
                      for k, region in enumerate(program.regions) if (p := region.provenance) is not None]
    answers = []
    for kernel, scheduled in program.choice.scheduled.items():
        with saturated(scheduled.kernel.replace(schedule=None), program.target, program.math, tile.Row(), program.rules["tile"]) as of:
            answers.append(Answer(kernel, None, asked.why_not(of, rule)))
    return rule, answers


def page(program: Program, rule: Rule, answers: list[Answer]) -> Iterator[Text]:
    """Answers as text."""
    yield Text.assemble((rule.name, "bold"), f"  {rule.file}:{rule.line}" + (f"  {rule.says}" if commented(rule) else ""))
    if rule.kind not in math_classes(program.math):
        yield Text(f"  it is of class {rule.kind}, which --math {program.math} does not admit")
    for where, region, reason in answers:
        if where:
            yield Text(f"  {where}")
        notation = Notation(Forest(outline(region))) if region is not None else None
        yield from [Text("  it matches")] if reason is None else chain(reason, notation)


def facts(reason: Reason) -> dict[str, Any]:
    """A reason as JSON."""
    found = {v: spelled(sort, value) for v, (sort, value) in reason.found.items()}
    return {"rule": reason.rule.name, "premises": list(reason.premises), "found": found, "behind": list(map(facts, reason.behind))}


def chain(reason: Reason, notation: Notation | None, level: int = 1) -> Iterator[Text]:
    """A reason and those behind it, a level each; `notation` writes values of the Loop IR."""
    for premise in reason.premises:
        yield Text(f"{'  ' * level}{reason.rule.name}: {premise} fails")
    for said in reason.facts.items():
        yield Text(f"{'  ' * level}  {': '.join(said)}", style="dim")
    for v, (sort, value) in reason.found.items():
        if text := notation.of_class(value) if notation and sort == "Value" else spelled(sort, value):
            yield Text(f"{'  ' * level}  {v} = {text}")
    for other in reason.behind:
        yield from chain(other, notation, level + 1)


def last(reason: Reason) -> Reason:
    """The reason behind a reason, as far as there is one."""
    while reason.behind:
        reason = min(reason.behind, key=lambda r: len(r.premises))
    return reason


def lacking(reason: Reason) -> str:
    """What a rule lacks: the premises that fail, and what their variables are."""
    held = ", ".join(f"{v} = {text}" for v, (sort, value) in reason.found.items() if (text := spelled(sort, value)))
    return f"{' and '.join(reason.premises)} fails{f' where {held}' if held else ''}"


def sayings(reason: Reason) -> list[str]:
    """What the rule files say of a rule, and of the facts that it lacks."""
    rules = [f"{reason.rule.name}: {reason.rule.says}"] if commented(reason.rule) else []
    return rules + [f"{name}: {said}" for name, said in reason.facts.items()]


def spelled(sort: str, value: Any) -> str:
    """A value of a sort, or nothing where there is no short text."""
    match value:
        case frozenset(): return "{" + ", ".join(f"a{v}" if sort == "Axes" else str(v) for v in sorted(value, key=str)) + "}"
        case str() | int() if sort != "Value": return str(value)
    return ""


def commented(rule: Rule) -> bool:
    """Whether a comment says what a rule does; else it says itself."""
    return not rule.says.startswith("(")
