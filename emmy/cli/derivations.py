"""Explanations as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from emmy.cli import reasons
from emmy.cli.notation import Notation
from emmy.cli.options import kernels
from emmy.egraph.derivation import Step
from emmy.egraph.forest import KEPT
from emmy.tune.alternatives import FormOf
from emmy.tune.choose import Scheduled
from emmy.tune.explanation import Costs, Explanation

WIDEST, SHOWN, FEW = 150, 12, 2     # columns of a page, tensors as written, kernels whose forms are told on a line each


def page(told: Explanation, width: int, all_steps: bool = False, all_forms: bool = False) -> Iterator[Text]:
    """The explanation on a page of a given width; `all_steps` and `all_forms` leave nothing out."""
    notation, width = Notation(told.forest), min(width, WIDEST)
    first, last = total(told.costs[0]), told.predicted
    outputs = ", ".join(name for name, _ in told.forest.region.program.outputs)
    yield Text.assemble((f"{outputs}: ", "bold"), f"{counted(len(told.costs[0]))}, {us(first)} as written → ",
                        (f"{counted(len(told.kernels))}, {us(last)}", "bold green"))
    yield Text("")
    yield from written(told, notation, width)
    yield Text("")
    yield from steps(told, notation, width, all_steps)
    yield Text("")
    yield from taken(told, notation, width)
    yield Text("")
    yield from not_taken(told, notation, width, all_forms or len(told.forms) <= FEW)


def total(costs: Costs) -> float | None:
    """Seconds of all kernels, None if one is not known."""
    known = [s for s in costs.values() if s is not None]
    return sum(known) if len(known) == len(costs) else None


def us(seconds: float | None) -> str:
    return "—" if seconds is None else f"{seconds * 1e6:,.2f} µs"


def line(left: str, right: str, width: int, change: float = 0.0) -> Text:
    """Two ends of a line, the right one coloured where it is a change for the better or the worse."""
    text = Text(f"{left:<{width - len(right) - 1}} {right}")
    if change:
        text.stylize("green" if change < 0 else "red", len(text) - len(right))
    return text


def written(told: Explanation, notation: Notation, width: int) -> Iterator[Text]:
    bodies = told.derivation.written
    for tensor, body in list(bodies.items())[:SHOWN]:
        head = f"     {notation.head(tensor)} = "
        yield line(head + notation.tree(tensor, body, width - len(head) - 14), us(told.costs[0].get(tensor)), width)
    if len(bodies) > SHOWN:
        yield Text(f"     … and {len(bodies) - SHOWN} more")


def steps(told: Explanation, notation: Notation, width: int, all_steps: bool) -> Iterator[Text]:
    """The derivation: the rule, where, what it changes, the cost after it and the difference that it makes."""
    found = told.derivation.steps
    shown = [k for k, s in enumerate(found) if all_steps or not s.rule or not notation.swaps(s)]
    names, tensors = [rule(found[k]) for k in shown], {found[k].tensor for k in shown}
    wide = max(map(len, names), default=0)
    column = max(map(len, tensors), default=0) if len(tensors) > 1 else 0
    before = total(told.costs[0])
    for n, k in enumerate(shown):
        after = total(told.costs[k + 1])
        left = f"{n + 1:>3}  {names[n]:<{wide}}  " + (f"{found[k].tensor:<{column}}  " if column else "")
        right = f"{us(after)} {difference(before, after):>10}"
        change, where = notation.changes(found[k], width - len(left) - len(right) - 2, width - len(left))
        yield line(left + change, right, width, (after or 0.0) - (before or 0.0))
        if where:
            yield Text(f"{'':<{len(left)}}{where}"[:width], style="dim" if not where.startswith("→") else "")
        before = after
    for what, after in (*merges(told), *shares(told), *hoisted(told)):
        right = f"{us(after)} {difference(before, after):>10}"
        yield line(f"     {what}", right, width, (after or 0.0) - (before or 0.0))
        before = after
    if hidden := len(found) - len(shown):
        yield Text(f"     and {hidden} more that swap operands or spell a constant anew: --all-steps", style="dim")
    if not found and len(told.kernels) == len(told.costs[-1]):
        yield Text("     nothing to rewrite: it is extracted as written", style="dim")


def merges(told: Explanation) -> Iterator[tuple[str, float | None]]:
    """The kernels that write several tensors, each with the cost of the program once it takes the place of one for each of them."""
    costs = dict(told.costs[-1])
    for writes, scheduled in told.kernels.items():
        if len(writes) > 1:
            costs = {t: s for t, s in costs.items() if t not in writes} | {", ".join(writes): scheduled.seconds}
            yield f"one kernel  {', '.join(writes)}", total(costs)


def shares(told: Explanation) -> Iterator[tuple[str, float]]:
    """The launches of several kernels, each with the cost of the program once it takes the place of one for each of them."""
    cost = sum(s.seconds for s in told.kernels.values())
    for kernels_, seconds in told.launches:
        if len(kernels_) > 1:
            cost += seconds - sum(told.kernels[writes].seconds for writes in kernels_)
            yield f"one launch  {' · '.join(', '.join(writes) for writes in kernels_)}", cost


def hoisted(told: Explanation) -> Iterator[tuple[str, float]]:
    """The kernels that run once for all calls, each with the cost of a call without it."""
    cost = sum(seconds for _, seconds in told.launches)
    for writes in told.kernels:
        if writes in told.once:
            cost -= told.kernels[writes].seconds
            yield f"once  {', '.join(writes)}", cost


def rule(step: Step) -> str:
    """The rule of a step; ⁻¹ where it is taken from its action to its premise."""
    keeps = any(after.node.op == KEPT for after in step.changes.values())
    return f"{step.rule}{'' if step.forward else '⁻¹'}{' (keep)' if keeps else ''}" if step.rule else "(several, out of order)"


def difference(before: float | None, after: float | None) -> str:
    if before is None or after is None or abs(after - before) < 5e-9:
        return ""
    return f"{'−' if after < before else '+'}{abs(after - before) * 1e6:,.2f}"


def taken(told: Explanation, notation: Notation, width: int) -> Iterator[Text]:
    """The kernels extracted, in launch order, with their forms and rows."""
    bodies = told.derivation.steps[-1].bodies if told.derivation.steps else told.derivation.written
    for writes, scheduled in told.kernels.items():
        for tensor in writes:
            head, cost = f"     {notation.head(tensor)} = ", us(scheduled.seconds) if tensor == writes[0] else ""
            yield line(head + notation.tree(tensor, bodies[tensor], width - len(head) - 14), cost, width)
        yield Text(f"       {named(scheduled)}  {row(scheduled)}{'  once' if writes in told.once else ''}", style="dim")


def named(scheduled: Scheduled) -> str:
    """A kernel's name: its form and identity."""
    form = scheduled.kernel.schedule.form if scheduled.kernel.schedule else "kernel"
    return f"{form}_{scheduled.identity}"


def row(scheduled: Scheduled) -> str:
    return str(scheduled.kernel.schedule.row) if scheduled.kernel.schedule else ""


def not_taken(told: Explanation, notation: Notation, width: int, whole: bool) -> Iterator[Text]:
    """What the program could have been: the price of each alternative beside that of the choice, or the fact that is missing;
    a kernel's forms on one line, unless `whole`."""
    yield Text(f"{'not taken':<40}{'would cost':>14}{'taken':>14}", style="bold")
    for other in told.alternatives:
        what = f"     {'keep' if other.kept else 'fuse'} {other.tensor}"
        made = told.forest.region.home.get(other.tensor)
        derived = "" if made is not None else f": {notation.head(other.tensor)} = {notation.kept(other.tensor, width - 120)}"
        yield Text(f"{what:<40}{us(other.seconds):>14}{us(told.weighed):>14}  {counted(other.kernels)}{derived}"[:width])
    if told.alternatives and abs(told.weighed - told.predicted) > 5e-9:
        yield Text("     weighed with what tensors between kernels cost besides: a launch on the host, and room in caches", style="dim")
    if told.unasked:
        yield Text(f"     {told.unasked} more tensors were not asked about: --alternatives", style="dim")
    for writes, (chosen, *others) in told.forms.items():
        name = named(told.kernels[writes])
        if whole:
            yield from [Text(f"     {name}")] if len(told.forms) > 1 else []
            yield from forms(chosen, others, width)
        else:
            priced = [f"as {f.form} {us(f.seconds)}" for f in others if f.seconds is not None]
            lacks = [f.form for f in others if f.seconds is None]
            what = f"     {name}"
            yield Text(f"{what:<54}{us(chosen.seconds):>14}  {', '.join(priced)}{'; ' if priced else ''}not {', '.join(lacks)}"[:width])
    if not whole:
        yield Text("     --forms says what a form lacks", style="dim")


def forms(chosen: FormOf, others: list[FormOf], width: int) -> Iterator[Text]:
    """The forms that a kernel did not take: what they cost, or what they lack."""
    for form in others:
        what = f"     as {form.form}"
        if form.seconds is not None:
            yield Text(f"{what:<40}{us(form.seconds):>14}{us(chosen.seconds):>14}  {form.row}")
        for reason in map(reasons.last, form.reasons[:1]):
            says = "".join(f"; {told_of}" for told_of in reasons.sayings(reason)[:1])
            text = Text.assemble(f"{what:<24}{reasons.lacking(reason)}", (says, "dim"))
            text.truncate(width, overflow="ellipsis")
            yield text


def counted(n: int) -> str:
    return kernels(range(n))


def facts(told: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    notation = Notation(told.forest)
    found = told.derivation
    return {
        "written": [{"tensor": t, "body": notation.tree(t, b), "us": micro(told.costs[0].get(t))} for t, b in found.written.items()],
        "steps": [{"rule": s.rule, "forward": s.forward, "tensor": s.tensor, "us": micro(total(cost)),
                   "changes": [[notation.tree(s.tensor, x) for x in change] for change in s.changes.items()]}
                  for s, cost in zip(found.steps, told.costs[1:], strict=True)],
        "launches": [{"tensors": [list(writes) for writes in launch], "us": micro(seconds)} for launch, seconds in told.launches],
        "kernels": [{"name": named(s), "tensors": list(writes), "row": row(s), "us": micro(s.seconds), "once": writes in told.once,
                     "forms": list(map(_form, told.forms[writes]))} for writes, s in told.kernels.items()],
        "weighed_us": micro(told.weighed),
        "alternatives": [{"tensor": a.tensor, "kept": a.kept, "kernels": a.kernels, "us": micro(a.seconds)} for a in told.alternatives],
    }


def _form(form: FormOf) -> dict[str, Any]:
    return {"form": form.form, "row": str(form.row) if form.row else None, "us": micro(form.seconds),
            "reasons": list(map(reasons.facts, form.reasons))}


def micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
