"""A search as the terminal shows it: a bar of the time left with the best so far, then what was found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from emmy.cli import options
from emmy.cli.tune import fields, us
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from emmy.pipeline import Program
    from emmy.tune.tasks import Task
    from emmy.tune.tuner import Tried, Tuned


class Bar:
    """A bar for the kernel that is searched: time spent of its share, candidates tried, the best so far, those that were not right."""

    def __init__(self, out: Console) -> None:
        self.progress = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn(),
                                 console=out, transient=True, disable=not out.is_terminal)
        self.bar: Any = None
        self.tries = self.failed = self.legal = 0
        self.begun: float | None = None

    def kernel(self, task: Task, done: int, seconds: float) -> None:
        self.tries, self.failed, self.legal = done, 0, len(task.options)
        self.begun = None
        if self.bar is not None:
            self.progress.remove_task(self.bar)
        self.bar = self.progress.add_task(f"{task.options[0].schedule.form}_{task.problem.identity}", total=seconds, said="")

    def tried(self, tried: Tried) -> None:
        self.begun = tried.at if self.begun is None else self.begun
        self.tries, self.failed = self.tries + 1, self.failed + (tried.result.status != "right")
        said = f"{self.tries} of {self.legal} rows, best {us(tried.best_us) or 'none'}" + f", {self.failed} not right" * bool(self.failed)
        self.progress.update(self.bar, completed=tried.at - self.begun, said=said)


def tune(programs: Iterable[tuple[str, Program]], executor: str, device: str, seconds: float, seed: int, processes: int | None,
         plot: Path | None, json: Path | None) -> None:
    """Search programs one after another, each for so many seconds."""
    from emmy import __version__
    from emmy.runtime.build import compiler
    from emmy.tune import database
    from emmy.tune import executor as executors
    from emmy.tune.tuner import Session
    from emmy.tune.worker import device_name
    from emmy.view.chart import chart

    kept = database.default()
    by = compiler() if device == "cuda" else f"emmy {__version__}"
    out = options.console(stderr=json is not None and str(json) == "-")
    running = executors.make(executor, device, processes)
    bar, results, trace, failed = Bar(out), [], [], list[EmmyError]()
    try:
        with bar.progress:
            for name, program in programs:
                session = Session(running, kept, device, device_name(device, program.target), by, seconds, seed, watch=bar)
                try:
                    before = expected(program.knowing(session.evidence(program.math)))
                    program, tuned = session.program(program)
                except EmmyError as error:
                    failed.append(error)
                    out.print(f"left out {name}: {error.message}", markup=False, soft_wrap=True)
                    continue
                trace += session.trace
                results.append(fields(name, tuned, before, expected(program)))
                show(name, tuned, results[-1], out)
                if session.stopped:
                    out.print("stopped: what was measured is kept, and the next run goes on from there")
                    break
    finally:
        running.close()
    if plot is not None:
        plot.write_text(chart({t.identity: [x.best_us for x in trace if x.identity == t.identity] for t in trace},
                              "best time found over the candidates tried", "candidates", "µs"))
        out.print(f"{plot}: {options.counted(len(trace), 'candidate')}")
    if json is not None:
        options.write_json(json, {"programs": results})
    if not results:
        raise failed[0] if failed else EmmyError("there is no program to tune", "see what was left out, above")


def expected(program: Program) -> float:
    """Microseconds that the launches of a program take by what is known."""
    return program.choice.predicted * 1e6


def show(name: str, tuned: list[Tuned], found: dict[str, Any], out: Console) -> None:
    """The kernels of a program, and what all of them take."""
    out.print(" ".join(name.split())[:160], style="bold", markup=False, soft_wrap=True)
    out.print(table(tuned))
    out.print(f"{options.kernels(tuned)}; the program takes {found['after_us']:.2f} µs, {found['before_us']:.2f} µs before",
              soft_wrap=True)


def table(tuned: list[Tuned]) -> Table:
    """A line for each kernel: how far it was searched, the model's pick and the best row."""
    from rich.table import Table

    shown = Table("kernel", box=None, pad_edge=False)
    for column in ("calls", "measured", "legal", "not right", "predicted", "first pick", "best"):
        shown.add_column(column, justify="right")
    shown.add_column("row", overflow="fold")
    shown.add_column("", overflow="fold")
    for t in tuned:
        shown.add_row(t.identity, str(t.calls), str(t.measured), str(t.legal), str(t.failed), us(t.predicted_us), us(t.first_us), us(t.us),
                      t.row, t.reason)
    return shown
