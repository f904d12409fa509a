"""What changed between two results: python -m benchmarks.compare OLD.json NEW.json"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


class Change(NamedTuple):
    """A case in both results or in one; `speedup` is old time over new, None where either has no time."""

    case: str
    dtype: str
    old: Row | None
    new: Row | None

    @property
    def speedup(self) -> float | None:
        times = [row.get("emmy_us") if row else None for row in (self.old, self.new)]
        return times[0] / times[1] if times[0] and times[1] else None

    @property
    def broke(self) -> bool:
        """Timed before, and failing now."""
        return self.old is not None and "emmy_us" in self.old and self.new is not None and "error" in self.new


def changes(old: Row, new: Row) -> Iterator[Change]:
    """The cases of both results, the new one's order first."""
    before, after = ({(r["case"], r["dtype"]): r for r in result["rows"]} for result in (old, new))
    for case, dtype in dict.fromkeys([*after, *before]):
        yield Change(case, dtype, before.get((case, dtype)), after.get((case, dtype)))


def table(compared: list[Change], noise: float) -> Table:
    """Times in microseconds; a change beyond `noise` (a fraction) has a colour."""
    shown = Table("case", "dtype", "old", "new", "speedup", "of floor", "ratio", "schedule")
    for c in compared:
        new = c.new or {}
        speedup = "" if c.speedup is None else f"{c.speedup:.3f}"
        colour = "" if c.speedup is None or abs(c.speedup - 1) <= noise else "[green]" if c.speedup > 1 else "[red]"
        floor = f"{new['floor_us'] / new['emmy_us']:.2f}" if new.get("emmy_us") else ""
        ratio = f"{new['ratio']:.2f}" if new.get("ratio") else ""
        schedules = dict.fromkeys(row["row"] for row in (c.old, c.new) if row and row.get("row"))
        shown.add_row(c.case, c.dtype, _time(c.old), _time(c.new), f"{colour}{speedup}", floor, ratio, " → ".join(schedules))
    return shown


def _time(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"[red]{row['error'][:60]}" if "error" in row else f"{row['emmy_us']:.2f}"


def read(path: Path) -> Row:
    """A result file; BadParameter if it is not one."""
    try:
        result: Row = json.loads(path.read_text())
        _ = [(row["case"], row["dtype"]) for row in result["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(f"{path} is no result of benchmarks.run: {error!r}") from error
    return result


def main(
    old: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    new: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    noise: Annotated[float, typer.Option(help="Relative changes up to this are noise.")] = 0.03,
) -> None:
    """Compare two results; exit 1 if a case is slower beyond the noise or fails where it had a time."""
    before, after = read(old), read(new)
    console = Console()
    for name, result in (("old", before), ("new", after)):
        facts = ("gpu", "torch", "commit", "date", "copy_TBs")
        console.print(f"{name}: " + ", ".join(f"{fact} {result[fact]}" for fact in facts if fact in result))
    compared = list(changes(before, after))
    console.print(table(compared, noise))
    slower = [c for c in compared if c.broke or (c.speedup is not None and c.speedup < 1 - noise)]
    console.print(f"{len(compared)} cases, {len(slower)} slower or broken")
    raise typer.Exit(bool(slower))


if __name__ == "__main__":
    typer.run(main)
