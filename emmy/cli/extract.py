"""`emmy extract`: the best programs that extraction weighs, of which `emmy compile` takes the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from emmy.tune.choose import Alternative, Choice

Top = Annotated[int, typer.Option(min=1, help="How many programs to list, the cheapest first.")]


def command(file: options.File = None, snippet: options.Snippet = None, top: Top = 5, target: options.Target = None,
            math: options.Math = "fast", rules: options.Rules = None, budget: options.Budget = "", json: options.Json = None) -> None:
    """List the best programs that compute the same, and what each of their kernels is predicted to take.

    Programs differ by the tensors they keep in memory, or by kernels.  They are ranked by predicted time and the room and launches that
    kept tensors cost besides.  Of a program that may keep up to twelve tensors these are the best there are; of others, the best that
    the search met.
    """
    program = options.program(snippet, file, target, math, "", rules, budget)
    from emmy.tune.choose import alternatives

    found = alternatives(program.loop, program.stretches, program.regions, program.target, program.math, top, extra=program.rules["tile"],
                         evidence=program.evidence)
    out = options.console(stderr=json is not None and str(json) == "-")
    for n, alternative in enumerate(found, 1):
        kernels, weighed = alternative.choice.program.kernels, alternative.seconds * 1e6
        out.print(f"{n}. {options.kernels(kernels)}, predicted {predicted(alternative.choice):.2f} µs"
                  f"{options.once(alternative.choice.once * 1e6)}, weighed {weighed:.2f} µs", markup=False, soft_wrap=True)
        out.print(table(alternative.choice))
    if json is not None:
        options.write_json(json, {"programs": [fields(alternative) for alternative in found]})


def predicted(choice: Choice) -> float:
    """Microseconds of the launches of a call."""
    return choice.predicted * 1e6


def table(choice: Choice) -> Table:
    """The kernels of a program in launch order."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for column in ("kernel", "identity", "row", "writes"):
        shown.add_column(column, overflow="fold")
    shown.add_column("predicted", justify="right")
    for said in kernels_of(choice):
        shown.add_row(said["kernel"], said["identity"], said["row"], ", ".join(said["writes"]), f"{said['predicted_us']:.2f} µs")
    return shown


def kernels_of(choice: Choice) -> list[dict[str, Any]]:
    """The kernels as JSON says them; the time of a launch of several is told with the first."""
    return [{"kernel": k.name, "identity": choice.scheduled[k.name].identity, "row": str(k.schedule.row) if k.schedule else "",
             "reads": [t.name for t in k.tensors], "writes": [t.name for t in k.outputs],
             "predicted_us": choice.seconds(launch) * 1e6 if k is launch[0] else 0.0}
            for launch in choice.launches for k in launch]


def fields(alternative: Alternative) -> dict[str, Any]:
    """A program as JSON says it."""
    choice = alternative.choice
    return {"predicted_us": predicted(choice), "once_us": choice.once * 1e6, "weighed_us": alternative.seconds * 1e6,
            "kernels": kernels_of(choice)}
