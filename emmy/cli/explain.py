"""`emmy explain`: which rules fired, which kernels were chosen, and which rows each could have had."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from emmy.egraph.rulefile import Rule
    from emmy.pipeline import Program
    from emmy.tune.choose import Scheduled


def command(file: options.File = None, snippet: options.Snippet = None, target: options.Target = None, math: options.Math = "fast",
            knobs: options.Knobs = "", rules: options.Rules = None,
            rows: Annotated[int, typer.Option(min=1, help="How many of each kernel's rows to show, the fastest first.")] = 8) -> None:
    """Say why a program became what it did: the rules that fired, the kernels chosen, and the legal rows of each kernel."""
    program = options.program(snippet, file, target, math, knobs, rules)
    out = options.console()
    out.print(fired(program))
    for name, scheduled in program.choice.scheduled.items():
        reads = ", ".join(f"{t.name}: {t.element}{list(t.shape)}" for t in scheduled.kernel.tensors)
        output = scheduled.kernel.output
        out.print(f"\nkernel {name}({reads}) -> {output.name}: {output.element}{list(output.shape)}", markup=False, soft_wrap=True)
        out.print(legal_rows(scheduled, program, rows))


def fired(program: Program) -> Table:
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


def legal_rows(scheduled: Scheduled, program: Program, most: int) -> Table:
    """The cheapest legal rows of a kernel with the predicted time of each; the chosen one is marked."""
    from rich.table import Table

    from emmy.egraph.schedule import schedules
    from emmy.tune.features import Census, features
    from extract import cost, hardware

    chosen, gpu = scheduled.kernel.schedule, hardware.for_target(program.target)
    kernel = scheduled.kernel.replace(schedule=None)
    found = schedules(kernel, program.target, program.math, "", program.rules["tile"])
    census = Census(kernel)
    priced = sorted(((cost.seconds(features(census, s), gpu) * 1e6, s) for s in found), key=lambda p: (p[0], p[1] != chosen, str(p[1].row)))
    table = Table("", "row", "form", "predicted", box=None, pad_edge=False, caption=f"{len(found)} legal rows", caption_justify="left")
    table.columns[3].justify = "right"
    for us, schedule in [p for k, p in enumerate(priced) if k < most or p[1] == chosen]:
        table.add_row("*" if schedule == chosen else "", str(schedule.row), schedule.form, f"{us:.2f} µs")
    return table
