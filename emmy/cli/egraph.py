"""`emmy egraph`: the saturated e-graph of a program, to look at or to extract from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli import options
from emmy.cli.explain import known
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from emmy.pipeline import Program

SUFFIXES = {".html": "a page to search", ".svg": "a picture", ".json": "the extraction-gym format"}

Output = Annotated[Path, typer.Option("-o", help="The file to write: .html is a page to search, which opens offline; .svg a picture of the "
                                      "extracted program; .json the extraction-gym format.")]
Everything = Annotated[bool, typer.Option("--all", help="Draw every class and member in an .svg, however many.")]
Number = Annotated[int | None, typer.Option("--stretch", min=1, show_default=False, metavar="N", help="Which of the distinct stretches "
                                            "that a program with repeats is cut into; else the one that takes most of its time.")]


def command(output: Output, file: options.File = None, snippet: options.Snippet = None, target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "",
            stretch: Number = None, everything: Everything = False) -> None:
    """Write the e-graph of a program: its classes, their members with costs, and the program extracted from them."""
    if output.suffix not in SUFFIXES:
        raise EmmyError(f"{output} is no kind of picture", f"end it with {', '.join(f'{s} ({what})' for s, what in SUFFIXES.items())}")
    if everything and output.suffix != ".svg":
        raise EmmyError(f"{output} has every class and member as it is", "give --all with an .svg only")
    if not output.parent.is_dir():
        raise EmmyError(f"there is no folder {output.parent}", "make it first, or write elsewhere")
    program = options.program(snippet, file, target, math, knobs, rules, budget, traced=True)
    count = len(program.stretches)
    if stretch is not None and stretch > count:
        there = options.counted(count, "distinct stretch", "distinct stretches")
        raise EmmyError(f"there is no stretch {stretch}: the program has {there}",
                        f"give --stretch 1 to {count}" if count > 1 else "leave --stretch out")
    shown = costliest(program) if stretch is None else stretch - 1
    from emmy.view.picture import of_program

    named = f"stretch {shown + 1} of {count} of " if count > 1 else ""
    picture = of_program(program, named + (snippet or str(file)), shown)
    match output.suffix:
        case ".html":
            from emmy.view.html import page

            output.write_text(page(picture, {name: rule.says for name, rule in known(program).items()}))
        case ".svg":
            from emmy.view.svg import svg

            output.write_text(svg(picture, everything))
        case _:
            from emmy.view.gym import gym

            options.write_json(output, gym(picture))
    members = sum(len(x.members) for x in picture.classes.values())
    typer.echo(f"{output}: {len(picture.classes)} classes, {members} members, {options.kernels(picture.kernels)} extracted")
    if count > 1 or len(program.stretches[0].uses) > 1:
        tell(program, shown)


def seconds(program: Program) -> list[float]:
    """What one use of each stretch is predicted to take."""
    by_identity = {s.identity: s.seconds for s in program.choice.scheduled.values()}
    return [sum(by_identity[call.identity] for call in one.calls) for one in program.choice.extracted]


def costliest(program: Program) -> int:
    """The stretch whose uses take most of the program's time; the first of such."""
    totals = [each * len(stretch.uses) for stretch, each in zip(program.stretches, seconds(program), strict=True)]
    return totals.index(max(totals))


def tell(program: Program, shown: int) -> None:
    """The stretches of a program: where they stand, how large they are, what they take; the one shown is marked."""
    from rich.table import Table

    places = sum(len(stretch.uses) for stretch in program.stretches)
    table = Table("", "--stretch", "stands at", "definitions", "a use takes", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify = "right"
    for k, (stretch, each) in enumerate(zip(program.stretches, seconds(program), strict=True)):
        stands = ranges([use.place + 1 for use in stretch.uses])
        table.add_row("*" if k == shown else "", str(k + 1), stands, str(len(stretch.program.definitions)), f"{each * 1e6:.2f} µs")
    out = options.console()
    out.print(f"the program is cut into {options.counted(places, 'stretch', 'stretches')}, each an e-graph of its own; * is written here")
    out.print(table)


def ranges(places: list[int]) -> str:
    """Ascending numbers with their runs: "1, 3-24"."""
    runs: list[list[int]] = []
    for n in places:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
