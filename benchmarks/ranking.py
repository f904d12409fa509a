"""How well the model ranks measured rows: python -m benchmarks.ranking benchmarks/results/h200/rows.jsonl"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import typer
from rich.table import Table
from scipy.stats import spearmanr

from emmy.cli import options
from emmy.tune import database
from emmy.tune.database import Measurement

SUITE = Path(__file__).with_name("schedules.py")


class Ranked(NamedTuple):
    """A kernel's measured rows: how many, the rank correlation of predicted and measured times, over all and over those within ten times
    of the best; microseconds of the model's pick among them, and of the best."""

    case: str
    rows: int
    correlation: float
    near: int
    correlation_near: float
    predicted_us: float
    first_us: float
    best_us: float
    best_row: str

    @property
    def distance(self) -> float:
        """How much longer the model's pick takes than the best, as a fraction of it."""
        return self.first_us / self.best_us - 1


def ranked(case: str, pairs: Mapping[str, tuple[float, float]]) -> Ranked:
    """What `pairs`, (predicted, measured) microseconds by row, say."""
    best_row, (_, best) = min(pairs.items(), key=lambda item: item[1][1])
    predicted, first = min(pairs.values(), key=lambda pair: pair[0])
    near = [p for p in pairs.values() if p[1] <= 10 * best]
    return Ranked(case, len(pairs), correlation(pairs.values()), len(near), correlation(near), predicted, first, best, best_row)


def correlation(pairs: Iterable[tuple[float, float]]) -> float:
    """Spearman's, 1 for fewer than three pairs."""
    some = list(pairs)
    return float(spearmanr(*zip(*some, strict=True)).statistic) if len(some) > 2 else 1.0


def predictions(suite: Path) -> dict[str, tuple[str, dict[str, float]]]:
    """By identity, each kernel of the programs of a file: its name, and what today's model predicts of its rows in microseconds."""
    from emmy.capture.snippet import capture_file, programs
    from emmy.pipeline import Program
    from emmy.tune.evidence import Evidence
    from emmy.tune.tasks import tasks

    found: dict[str, tuple[str, dict[str, float]]] = {}
    for name in programs(str(suite)):
        made = tasks(Program(capture_file(f"{suite}:{name}"), evidence=Evidence()))
        for k, task in enumerate(made):
            case = name if len(made) == 1 else f"{name} {k + 1}"
            found[task.problem.identity] = case, {o.row: o.seconds * 1e6 for o in task.options}
    return found


def judge(measured: Iterable[Measurement], today: Mapping[str, tuple[str, dict[str, float]]]) -> list[Ranked]:
    """Each kernel's measured rows, by today's predictions where there are some, else by those that were kept."""
    kernels: dict[str, dict[str, tuple[float, float]]] = {}
    for m in measured:
        _, predicted = today.get(m.identity, ("", {}))
        us = predicted.get(m.row) if predicted else m.predicted_us
        if m.us is not None and us is not None:
            kernels.setdefault(m.identity, {})[m.row] = us, m.us
    return [ranked(today.get(identity, (identity, {}))[0], pairs) for identity, pairs in kernels.items()]


def table(found: list[Ranked]) -> Table:
    """A line for each kernel."""
    shown = Table("case", *("rows", "correlation", "near", "correlation", "predicted", "first pick", "best", "distance"), box=None)
    for column in shown.columns[1:]:
        column.justify = "right"
    for r in found:
        shown.add_row(r.case, str(r.rows), f"{r.correlation:.2f}", str(r.near), f"{r.correlation_near:.2f}", f"{r.predicted_us:.1f} µs",
                      f"{r.first_us:.1f} µs", f"{r.best_us:.1f} µs", f"{r.distance:.1%}")
    return shown


def main(
    rows: Annotated[Path, typer.Argument(help="Measurements, as emmy.tune.worker or emmy tune export writes them.", exists=True)],
    suite: Annotated[Path, typer.Option(help="The file whose programs they are of.")] = SUITE,
    kept: Annotated[bool, typer.Option("--kept", help="Judge the predictions that were kept, not today's.")] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Rank correlation and the model's pick, a kernel a line."""
    measured = database.read(rows.read_text(), str(rows))
    found = judge(measured, {} if kept else predictions(suite))
    console = options.console()
    console.print(table(found))
    correlations, distances = [r.correlation for r in found], [r.distance for r in found]
    console.print(f"correlation {median(correlations):.2f} in the median; the first pick is {median(distances):.1%} from the best in the "
                  f"median, {max(distances):.1%} at worst", soft_wrap=True)
    if output is not None:
        said = {"correlation_median": median(correlations), "distance_median": median(distances), "distance_worst": max(distances)}
        output.write_text(json.dumps(said | {"kernels": [r._asdict() for r in found]}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
