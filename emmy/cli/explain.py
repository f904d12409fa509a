"""`emmy explain`: the derivation from the program as written to the program extracted, and the reasons for what was not taken."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from emmy.egraph.rulefile import Rule
    from emmy.pipeline import Program

AllSteps = Annotated[bool, typer.Option("--all-steps", help="Show the steps that put operands in another order, too.")]
AllForms = Annotated[bool, typer.Option("--forms", help="Say of every form what it lacks, however many kernels there are.")]
WhyNot = Annotated[str | None, typer.Option("--why-not", metavar="RULE", help="Say which premises of a rule fail.", show_default=False)]
Rows = Annotated[int, typer.Option(min=0, help="How many of each kernel's legal rows to show, the fastest first.", show_default=False)]
Fired = Annotated[bool, typer.Option("--rules-fired", help="Show how often each rule matched.")]
Most = Annotated[int, typer.Option("--alternatives", min=0, help="For how many tensors to search for the program that keeps or fuses it.")]


def command(file: options.File = None, snippet: options.Snippet = None, target: options.Target = None, math: options.Math = "fast",
            knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "", all_steps: AllSteps = False,
            forms: AllForms = False, why_not: WhyNot = None, alternatives: Most = 8, rows: Rows = 0, fired: Fired = False,
            json: options.Json = None) -> None:
    """Say why a program became what it did: its derivation, rule by rule with the cost after each, and why not otherwise."""
    program = options.program(snippet, file, target, math, knobs, rules, budget, traced=True)
    out = options.console(stderr=json is not None and str(json) == "-")
    from emmy.cli import derivations, reasons, schedules
    from emmy.ir.tile_text import signature

    if why_not is not None:
        rule, answers = reasons.ask(program, why_not)
        show(reasons.page(program, rule, answers), out)
        if json is not None:
            found = [{"where": a.where, "reason": a.reason and reasons.facts(a.reason)} for a in answers]
            options.write_json(json, {"rule": rule.name, "answers": found})
        return
    from emmy.tune import choose
    from emmy.tune.explanation import explain

    best = choose.Rows(program.target, program.math, tuple(program.rules["tile"]), program.evidence)
    told = [explain(region, best, program.pins, alternatives) for region in program.regions]
    for k, (stretch, explanation) in enumerate(zip(program.stretches, told, strict=True)):
        if len(told) > 1 or len(stretch.uses) > 1:
            out.print(f"{chr(10) if k else ''}region {k + 1} of {len(told)}, used {len(stretch.uses)} times", style="bold")
        show(derivations.page(explanation, out.width, all_steps, forms), out)
    if fired:
        out.print()
        out.print(rules_fired(program))
    for scheduled in program.choice.scheduled.values() if rows else ():
        out.print(f"\n{signature(scheduled.kernel)}", markup=False, soft_wrap=True)
        out.print(schedules.table(schedules.of_kernel(program, scheduled.kernel.name, scheduled, most=rows)))
    if json is not None:
        regions = [{"uses": len(s.uses), **derivations.facts(t)} for s, t in zip(program.stretches, told, strict=True)]
        options.write_json(json, {"regions": regions})


def show(lines: Iterable[Text], out: Console) -> None:
    """Print lines as they are, each on one line."""
    for text in lines:
        out.print(text, soft_wrap=True)


def rules_fired(program: Program) -> Table:
    """The rules that matched, in the order of the rulebook."""
    from rich.table import Table

    table = Table("rule", "class", "matches", "file", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    counts = Counter[str]()
    for region in program.regions:
        counts.update(region.fired)
    for name, rule in known(program).items():
        if counts.get(name):
            table.add_row(name, rule.kind, str(counts[name]), rule.file)
    return table


def known(program: Program) -> dict[str, Rule]:
    """The rules of Loop IR that a program is rewritten by, in the order of the rulebook, further files' last."""
    from emmy.egraph.rulebook import house
    from emmy.egraph.rulefile import parse

    further = (rule for file in program.rules["loop"] for rule in parse(*file).rules)
    return {rule.name: rule for rule in (*house("loop"), *further)}
