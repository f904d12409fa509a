"""Measure bundles on this machine's GPU: python -m benchmarks.run --bundles DIR --output benchmarks/results/h200/spine.json"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.measure import Row, label, machine, measure, synchronize
from emmy.errors import EmmyError
from emmy.runtime.process import Worker
from emmy.runtime.rates import Rates

CONSOLE = Console()


def commit() -> str:
    """The commit of the checkout, or "unknown" outside one."""
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def measure_all(paths: list[Path], worker: Worker, rates: Rates, compile_mode: str | None, repeats: int, time_budget: float,
                timeout: float) -> Iterator[Row]:
    """A row for each bundle, as it is measured.  Past half the time budget (seconds) torch.compile is left out, past all of it the rest."""
    started = time.monotonic()
    for path in paths:
        spent = time.monotonic() - started
        try:
            if spent > time_budget:
                raise EmmyError(f"not measured: the time budget of {time_budget:g} s is spent", "Raise --time-budget.")
            row = worker.call(measure, path, rates, compile_mode if spent <= time_budget / 2 else None, repeats, timeout=timeout)
        except EmmyError as error:
            row = {**label(path), "error": error.message}
        yield row


def table(rows: list[Row]) -> Table:
    """The rows for a terminal; times in microseconds."""
    times = "floor_us", "emmy_us", "tuned_us", "eager_us", "compile_us", "max_autotune_us"
    columns = ("case", "dtype", *times, "ratio", "err", "registers", "row")
    shown = Table(*columns)
    for row in rows:
        if "error" in row:
            shown.add_row(row["case"], row["dtype"], *[""] * (len(columns) - 3), f"[red]{row['error'][:120]}")
        else:
            shown.add_row(*(_cell(row.get(c)) for c in columns))
    return shown


def _cell(x: Any) -> str:
    return "" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x)


def main(
    bundles: Annotated[Path, typer.Option(help="Folder of bundles, as benchmarks.build writes it.", exists=True, file_okay=False)],
    output: Annotated[Path, typer.Option(help="JSON file to write; its folder is made.")],
    only: Annotated[str, typer.Option(help="Regular expression on the bundles' names.")] = "",
    compile_mode: Annotated[str, typer.Option(help="torch.compile's mode, 'both' for default and max-autotune, or 'off'.")] = "default",
    repeats: Annotated[int, typer.Option(help="Alternated turns; the median counts.", min=1)] = 7,
    time_budget: Annotated[float, typer.Option(help="Seconds for all; past half of them torch.compile is left out.")] = 480,
    timeout: Annotated[float, typer.Option(help="Seconds for one bundle.")] = 120,
    revision: Annotated[str, typer.Option(help="The commit measured, where this is no checkout.")] = "",
) -> None:
    """Check every bundle against float64, then time it beside eager and torch.compile; exit 1 if any failed."""
    paths = sorted(p for p in bundles.glob("*.emmy") if re.search(only, p.stem))
    if not paths:
        raise typer.BadParameter(f"no bundle in {bundles} matches {only!r}: see python -m benchmarks.build", param_hint="--bundles")
    mode = {"off": None, "max-autotune": "max-autotune-no-cudagraphs"}.get(compile_mode, compile_mode)  # the harness captures graphs itself
    worker = Worker(synchronize)
    try:
        date = datetime.date.today().isoformat()
        conditions = worker.call(machine, timeout=timeout)
        result: Row = {**conditions, "commit": revision or commit(), "date": date, "compile_mode": compile_mode, "rows": []}
        rates = Rates(*(result[name] for name in Rates._fields))
        output.parent.mkdir(parents=True, exist_ok=True)
        for row in track(measure_all(paths, worker, rates, mode, repeats, time_budget, timeout), "measuring", len(paths), console=CONSOLE):
            result["rows"].append(row)
            output.write_text(json.dumps(result, indent=1) + "\n")  # after each row: what is measured outlives what fails
    except EmmyError as error:
        CONSOLE.print(f"[red]nothing can be measured here: {error.message}\n  remedy: run it where torch finds a GPU", soft_wrap=True)
        raise typer.Exit(1) from error
    finally:
        worker.close()
    CONSOLE.print(table(result["rows"]))
    raise typer.Exit(any("error" in row for row in result["rows"]))


if __name__ == "__main__":
    typer.run(main)
