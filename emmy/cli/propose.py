"""`emmy propose`: schedule rows from a person, a script or a language model, checked, simulated, measured and ranked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.cli import options
from emmy.cli.tune import us
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from emmy.tune.proposals import Judged
    from emmy.tune.tasks import Task

RowsFile = Annotated[Path, typer.Option("--rows", metavar="FILE", help="The rows, one a line: [KERNEL:] ROW; - is the standard input.")]
Keep = Annotated[bool, typer.Option("--keep/--forget", help="Keep what is measured in the database, where it outranks the model.")]


def command(rows: RowsFile, file: options.File = None, snippet: options.Snippet = None, target: options.Target = None,
            math: options.Math = "fast", rules: options.Rules = None, keep: Keep = True, json: options.Json = None) -> None:
    """Judge proposed schedule rows: which premises they fail, whether they compute the right numbers, what they take.  Small kernels are
    simulated; all are measured where there is a GPU, and predicted otherwise.  Exit code 1 if no row of a kernel is legal and right."""
    import sys

    from emmy.cli import outcome
    from emmy.tune import proposals
    from emmy.tune.tasks import tasks
    from extract import hardware

    proposed = proposals.read(sys.stdin.read() if str(rows) == "-" else rows.read_text(), str(rows))
    if not proposed:
        raise EmmyError(f"{rows} proposes no row", "write a row a line, as WORK=t256,TILE=v4")
    there = outcome.gpu_is_there()
    program = options.program(snippet, file, outcome.gpu_target(target) if there else target, math, "", rules)
    out = options.console(stderr=json is not None and str(json) == "-")
    found = {t.problem.identity: t for t in tasks(program)}
    judged = list(proposals.judge(proposed, list(found.values()), hardware.for_target(program.target), program.rules["tile"]))
    judged = tried(judged, found, "cuda" if there else "simulator", keep and there, out)
    ranking = proposals.ranked(judged)
    for identity, those in ranking.items():
        name, pick = proposals.names_of(found[identity])[1], found[identity].options[0].row
        out.print(f"{name}: the model's own pick is {pick}", markup=False, soft_wrap=True)
        out.print(table(those, there))
    if json is not None:
        options.write_json(json, {"device": "cuda" if there else None,
                                  "kernels": [{"identity": k, "rows": [fields(j) for j in those]} for k, those in ranking.items()]})
    if any(all(j.us == float("inf") for j in those) for those in ranking.values()):
        raise typer.Exit(1)


def tried(judged: Sequence[Judged], found: dict[str, Task], device: str, keep: bool, out: Console) -> list[Judged]:
    """The proposals with what became of the legal ones: on the GPU, or in the simulator where the kernel is small."""
    from emmy.runtime.build import compiler
    from emmy.tune import database, executor
    from emmy.tune.worker import device_name

    legal = {(j.identity, j.row): j for j in judged if j.option is not None}
    running = executor.make("local", device, min(max(len(legal), 1), 8)) if legal else None
    results = {}
    try:
        for j in legal.values():
            assert running is not None and j.option is not None
            task = found[j.identity]
            running.submit(executor.Job(task.problem, task.candidate(j.option), device))
        for _ in options.track(legal, "trying", out):
            while (done := running.next(60.0) if running else None) is None:
                pass
            results[done[0].candidate.identity, done[0].candidate.row] = done[1]
    finally:
        if running is not None:
            running.close()
    if keep and results and database.default_path() is not None:
        some = next(iter(found.values())).problem
        name, by = device_name(device, some.target), compiler()
        database.default().put(*(database.Measurement(identity, name, some.target, row, by, some.math, r.status, r.us, r.spread_us, r.error,
                                                      note=r.note, revision=database.revision()) for (identity, row), r in results.items()))
    return [j._replace(result=results.get((j.identity, j.row))) for j in judged]


def table(judged: Sequence[Judged], measured: bool) -> Table:
    """Proposals in their ranking."""
    from rich.table import Table

    shown = Table("line", "row", box=None, pad_edge=False)
    shown.add_column("predicted", justify="right")
    if measured:
        shown.add_column("measured", justify="right")
    shown.add_column("error", justify="right")
    shown.add_column("", overflow="fold")
    for j in judged:
        values = fields(j)
        error = "" if values["error"] is None else f"{values['error']:.1e}"
        timed = [us(values["measured_us"])] if measured else []
        shown.add_row(str(j.line), j.row, us(values["predicted_us"]), *timed, error, values["says"])
    return shown


def fields(j: Judged) -> dict[str, Any]:
    """A proposal as JSON says it."""
    result = j.result
    unseen = result is not None and result.status == "right" and result.error is None        # nothing ran: no numbers were looked at
    status = "unchecked" if unseen else result and result.status
    says = f"illegal: {j.reason}" if j.option is None else ": ".join(filter(None, (status, result.note))) if result else ""
    return {"line": j.line, "row": j.row, "legal": j.option is not None, "predicted_us": j.option and j.option.seconds * 1e6,
            "measured_us": result and result.us, "error": result and result.error,
            "status": status, "says": says}
