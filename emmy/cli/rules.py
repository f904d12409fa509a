"""`emmy rules`: the rulebook as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli import options, rules_check, rules_new
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from emmy.egraph.budget import Spent

app = typer.Typer(no_args_is_help=True, help="List, start and check rewrite rules.")

SORTS = ("rulebook", "firings", "nodes", "time")

Phase = Annotated[str | None, typer.Option(help="Only the rules of one phase, such as algebra.", show_default=False)]
Sort = Annotated[str, typer.Option(help=f"With -c: {', '.join(SORTS[:-1])} or {SORTS[-1]}.")]
All = Annotated[bool, typer.Option("--all", help="With -c: the rules that did not fire as well.")]


@app.command("list")
def list_rules(phase: Phase = None, rules: options.Rules = None, snippet: options.Snippet = None, math: options.Math = "fast",
               budget: options.Budget = "", sort: Sort = "rulebook", everything: All = False) -> None:
    """List the rewrite rules: name, phase, class, file, and what each says; those of --rules and EMMY_RULES come last.

    With -c, the rules of Loop IR that fired on a program: how often, how many nodes they added (net of those that merged), how long they
    took.  Rules run one by one then, so that each has an account; a stretch of the program that repeats counts once."""
    from emmy.egraph.rulebook import ORDER, extra_rules, house
    from emmy.egraph.rulefile import PHASES, parse

    phases = [p for ir in ORDER for p in PHASES[ir]]
    if phase is not None and phase not in phases:
        raise EmmyError(f"unknown phase {phase!r}", f"the phases are {', '.join(phases)}")
    if sort not in SORTS:
        raise EmmyError(f"unknown order {sort!r}", f"the orders are {', '.join(SORTS)}")
    spent = measured(snippet, math, rules, budget) if snippet is not None else None
    extra = extra_rules(rules or ())
    shown = [rule for ir in (ORDER if spent is None else ("loop",)) for rule in house(ir)]
    shown += [rule for ir in (ORDER if spent is None else ("loop",)) for file in extra[ir] for rule in parse(*file).rules]
    shown = [rule for rule in shown if phase in (None, rule.phase)]
    from rich.table import Table

    columns = ("rule", "phase", "class", "file", *("firings", "new nodes", "time") * (spent is not None), "what it says")
    table = Table(*columns, box=None, pad_edge=False)
    if spent is None:
        for rule in shown:
            table.add_row(rule.name, rule.phase, rule.kind, rule.file, rule.says)
    else:
        from emmy.egraph.budget import Spent

        for column in table.columns[4:7]:
            column.justify = "right"
        told = [(rule, spent.get((rule.phase, rule.command), Spent())) for rule in shown]
        for rule, own in sorted(told, key=lambda pair: -pair[1][SORTS.index(sort) - 1] if sort != SORTS[0] else 0):
            if own.matches or everything:
                counts = str(own.matches), str(own.nodes), f"{own.seconds * 1e3:.1f} ms"
                table.add_row(rule.name, rule.phase, rule.kind, rule.file, *counts, rule.says)
    options.console().print(table, markup=False)


def measured(snippet: str, math: str, rules: options.Rules, budget: str) -> dict[tuple[str, str], Spent]:
    """What each rule, by (phase, rule), spent on the distinct stretches of a program."""
    program = options.program(snippet, None, None, math, "", rules, budget)
    from emmy.egraph.budget import together
    from emmy.egraph.saturate import run

    return together(run(s.program, math, program.rules["loop"], program.budget, apart=True).rules for s in program.stretches)


app.command("check")(rules_check.command)
app.command("new")(rules_new.command)
