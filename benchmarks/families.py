"""Predicted times of the families of tests/families.py, as written and as extracted, in Markdown: python -m benchmarks.families [PATTERN]

Run from the root of a checkout, where `tests` lies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tests.families import Family


def line(name: str, family: Family) -> str:
    """A row of the table: the spellings, microseconds of one kernel a tensor that the program names with every bit kept, those of what is
    extracted, how often these go into those, and the launches."""
    import torch

    from emmy.pipeline import compile
    from emmy.tune.as_written import as_written
    from emmy.tune.choose import Rows

    made = compile(family.spellings[0], *map(torch.empty, family.shapes))
    before = sum(as_written(made.loop, Rows(made.target, "exact")).values()) * 1e6
    after = made.choice.predicted * 1e6
    return (f"| {name} | {len(family.spellings)} | {number(before)} | {number(after)} | {before / after:,.1f} | "
            f"{len(made.plan.launches)} |")


def number(us: float) -> str:
    """One decimal below a thousand, none above."""
    return f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def main(pattern: Annotated[str, typer.Argument(help="Only families whose names match a regular expression.")] = "") -> None:
    """The table, a family a line."""
    from tests.families import FAMILIES

    print("| family | spellings | as written | extracted | ratio | launches |\n|---|--:|--:|--:|--:|--:|")
    for name, family in FAMILIES.items():
        if re.search(pattern, name):
            print(line(name, family), flush=True)


if __name__ == "__main__":
    typer.run(main)
