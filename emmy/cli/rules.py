"""`emmy rules`: the rulebook as a table."""

from __future__ import annotations

from typing import Annotated

import typer

from emmy.cli import options
from emmy.errors import EmmyError

app = typer.Typer(no_args_is_help=True, help="List, start and check rewrite rules.")

Phase = Annotated[str | None, typer.Option(help="Only the rules of one phase, such as algebra.", show_default=False)]


@app.command("list")
def list_rules(phase: Phase = None, rules: options.Rules = None) -> None:
    """List the rewrite rules: name, phase, class, file, and what each says; those of --rules and EMMY_RULES come last."""
    from emmy.egraph.rulebook import ORDER, extra_rules, house
    from emmy.egraph.rulefile import PHASES, parse

    phases = [p for ir in ORDER for p in PHASES[ir]]
    if phase is not None and phase not in phases:
        raise EmmyError(f"unknown phase {phase!r}", f"the phases are {', '.join(phases)}")
    further = (rule for files in extra_rules(rules or ()).values() for file in files for rule in parse(*file).rules)
    from rich.table import Table

    table = Table("rule", "phase", "class", "file", "what it says", box=None, pad_edge=False)
    for rule in (*(r for ir in ORDER for r in house(ir)), *further):
        if phase in (None, rule.phase):
            table.add_row(rule.name, rule.phase, rule.kind, rule.file, rule.says)
    options.console().print(table, markup=False)
