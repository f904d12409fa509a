"""`emmy tune`: search the schedule rows of a program's kernels by measuring them, and keep what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from emmy.cli import options
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from rich.table import Table

    from emmy.pipeline import Program
    from emmy.tune.database import Measurement
    from emmy.tune.tuner import Tuned


class WithDefault(TyperGroup):
    """A group whose command `program` needs no name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["program", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=WithDefault, no_args_is_help=True, help="Search schedule rows by measuring them: emmy tune -c SNIPPET, or "
                  "FILE.py:NAME, FILE.py or a folder of such files.  What is measured is kept, and outranks the model from then on.  The "
                  "options of a search: emmy tune program --help.")

Path_ = Annotated[str | None, typer.Argument(metavar="FILE.py[:NAME] | DIR", show_default=False,
                                             help="A function, module or class of a file; a file or a folder for all in it.")]
Spend = Annotated[str, typer.Option("--budget", metavar="TIME", help="How long a program may be searched: 60s, 5m.")]
ExecutorName = Annotated[str, typer.Option("--executor", help="local (processes of this host, all its GPUs) or ray (the cluster of "
                                           "RAY_ADDRESS).")]
Device = Annotated[str, typer.Option(help="cuda, or stand-in: the model's times with noise, to try it without a GPU.")]
Seed = Annotated[int, typer.Option(help="Of the rows that are drawn at random.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes that compile. By default one a core.", show_default=False)]
Plot = Annotated[Path | None, typer.Option(metavar="FILE.svg", show_default=False,
                                           help="Draw the best time found over the candidates tried.")]
PackTo = Annotated[Path | None, typer.Option("--pack", metavar="FILE", show_default=False, help="Measure nothing: write machine code of "
                                             "all candidates, for python3 -m emmy.tune.worker on a machine without the compiler.")]
Most = Annotated[int, typer.Option(min=0, help="With --pack, the rows of each kernel to pack: the first pick and others drawn at random. "
                                   "0: all.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Lines of JSON.", show_default=False)]
Kernel = Annotated[str, typer.Option(help="Only kernels whose identity begins so.")]


@app.command("program")
def program(path: Path_ = None, snippet: options.Snippet = None, budget: Spend = "60s", executor: ExecutorName = "local",
            device: Device = "cuda", target: options.Target = None, math: options.Math = "fast", rules: options.Rules = None,
            seed: Seed = 0, processes: Processes = None, plot: Plot = None, pack: PackTo = None, most: Most = 0,
            json: options.Json = None) -> None:
    """Search the rows of every distinct kernel (the default command).  A second run measures nothing that is known."""
    from emmy.cli import outcome
    from emmy.tune import measure

    measure.device(device)
    seconds = duration(budget)
    if plot is not None and plot.suffix != ".svg":
        raise EmmyError(f"{plot} is no picture that is drawn here", "end it with .svg; convert that with rsvg-convert or a browser")
    if device == "cuda" and pack is None:
        target = outcome.gpu_target(target)
    from emmy.pipeline import Program
    from emmy.tune.evidence import Evidence

    target = target or options.DEFAULT_TARGET
    options.check(target, math, "", rules)

    def made() -> Iterator[tuple[str, Program]]:
        for name, captured in programs(path, snippet):
            yield name, Program(captured, target, math, rules or (), evidence=Evidence())

    if pack is not None:
        write_pack(pack, [p for _, p in made()], most, seed, processes)
        return
    from emmy.cli.tuning import tune

    tune(made(), executor, device, seconds, seed, processes, plot, json)


def programs(path: str | None, snippet: str | None) -> Iterator[tuple[str, Any]]:
    """The captured programs that the command line names, by name.  One of several that cannot be captured is told, and left out."""
    if snippet is not None or path is None or re.search(r"\.py:\w+$", path):
        yield snippet or str(path), options.captured(snippet, path)
        return
    from emmy.capture import snippet as capture

    files = sorted(map(str, Path(path).glob("*.py"))) if Path(path).is_dir() else [path]
    named = [f"{file}:{name}" for file in files for name in capture.programs(file)]
    if not named:
        raise EmmyError(f"{path} has no program", "name a file or folder with functions or modules that have example inputs")
    for spec in named:
        try:
            captured = capture.capture_file(spec)
        except EmmyError as error:
            typer.echo(f"left out {spec}: {error}", err=True)
        else:
            yield spec, captured


def duration(text: str) -> float:
    """Seconds of "60s", "5m", "1.5h" or "60"; EmmyError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if not found:
        raise EmmyError(f"a budget of {text!r} is no time", "give it as 60s, 5m or 1h")
    return float(found[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[found[2]]


def write_pack(path: Path, made: list[Program], most: int, seed: int, processes: int | None) -> None:
    """Compile candidates of every kernel and write them as one pack."""
    from emmy.runtime.build import compiler
    from emmy.tune import pack
    from emmy.tune.database import revision
    from emmy.tune.tasks import tasks

    if not path.parent.is_dir():
        raise EmmyError(f"there is no folder {path.parent}", "make it first, or write elsewhere")
    out = options.console(stderr=True)
    if not made:
        raise EmmyError("there is no program to pack", "see what was left out, above")
    distinct = {t.problem.identity: t for p in options.track(made, "choosing rows", out) for t in tasks(p)}
    compiled, failed = pack.compiled(list(distinct.values()), most, seed, processes,
                                     lambda steps: options.track(steps, "compiling", out))
    first = made[0]
    pack.save(path, pack.Pack(first.target, first.math, compiler(), revision(), compiled))
    count = sum(len(cs) for _, cs in compiled)
    typer.echo(f"{path}: {options.counted(count, 'candidate')} of {options.kernels(compiled)}, {options.si(path.stat().st_size, 'B')}"
               + (f"; {len(failed)} did not compile" if failed else ""))
    for row, why in failed[:5]:
        typer.echo(f"  {row}: {why.splitlines()[0]}", err=True)


@app.command("export")
def export(file: File, kernel: Kernel = "") -> None:
    """Write the database as lines of JSON; - is the standard output."""
    from emmy.tune import database

    lines = [database.line(m) for m in database.default().get() if m.identity.startswith(kernel)]
    text = "".join(f"{one}\n" for one in lines)
    if str(file) == "-":
        typer.echo(text, nl=False)
        return
    file.write_text(text)
    typer.echo(f"{file}: {options.counted(len(lines), 'measurement')}")


@app.command("import")
def import_(file: File) -> None:
    """Take measurements from lines of JSON; of one key the later stays."""
    from emmy.tune import database

    found = database.read(file.read_text(), str(file))
    kept = database.default().put(*found)
    typer.echo(f"{options.counted(len(found), 'measurement')} read, {kept} new or later than what was known")


@app.command("show")
def show(kernel: Kernel = "", json: options.Json = None) -> None:
    """Show what is known: a kernel a line, or all rows of those that --kernel names."""
    from emmy.tune import database

    found = [m for m in database.default().get() if m.identity.startswith(kernel)]
    out = options.console(stderr=json is not None and str(json) == "-")
    if found:
        out.print(rows_table(found) if kernel else kernels_table(found))
    else:
        out.print(f"nothing is known of {f'a kernel {kernel}…' if kernel else 'any kernel'}", markup=False)
    if json is not None:
        options.write_json(json, [m._asdict() for m in found])


def rows_table(found: list[Measurement]) -> Table:
    """Measurements, the quickest first."""
    from rich.table import Table

    shown = Table("kernel", "device", "math", "row", "status", box=None, pad_edge=False)
    for column in ("measured", "spread", "predicted", "error"):
        shown.add_column(column, justify="right")
    shown.add_column("note", overflow="fold")
    for m in sorted(found, key=lambda m: (m.identity, m.device, m.math, m.us is None, m.us or 0.0)):
        shown.add_row(m.identity, m.device, m.math, m.row, m.status, us(m.us), us(m.spread_us), us(m.predicted_us),
                      "" if m.error is None else f"{m.error:.1e}", m.note)
    return shown


def kernels_table(found: list[Measurement]) -> Table:
    """A line for each kernel, device and math mode: its best row."""
    from rich.table import Table

    kernels: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in found:
        kernels.setdefault((m.identity, m.device, m.math), []).append(m)
    shown = Table("kernel", "device", "math", box=None, pad_edge=False)
    for column in ("rows", "not right", "best"):
        shown.add_column(column, justify="right")
    shown.add_column("row", overflow="fold")
    for key, those in kernels.items():
        best = min((m for m in those if m.us is not None), key=lambda m: m.us or 0.0, default=None)
        shown.add_row(*key, str(len(those)), str(sum(m.us is None for m in those)), us(best and best.us), best.row if best else "")
    return shown


def us(x: float | None) -> str:
    return "" if x is None else f"{x:.2f} µs"


def fields(name: str, tuned: list[Tuned], before: float, after: float) -> dict[str, Any]:
    """A tuned program as JSON says it; microseconds."""
    return {"program": name, "before_us": before, "after_us": after, "kernels": [t._asdict() for t in tuned]}
