"""What the assembler made of the bundles' kernels: python -m benchmarks.sass --bundles DIR --output benchmarks/results/h200/sass.json

A row for each kernel: its schedule, registers and bytes of spills and stack, and how often each instruction that tells a path stands in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.measure import label
from emmy.errors import EmmyError
from emmy.runtime.bundle import load
from emmy.runtime.sass import instructions

# tensor cores, bulk and asynchronous copies, local memory
SHOWN = ("HGMMA", "QGMMA", "HMMA", "QMMA", "UTMALDG", "UBLKCP", "UTMASTG", "LDGSTS", "LDL", "STL")


def report(path: Path) -> list[dict[str, Any]]:
    """The rows of a bundle; EmmyError if it is none or has no code for its own target."""
    bundle = load(path)
    plan = bundle.plan
    counts, reports = instructions(bundle.cubins[plan.target]), bundle.reports[plan.target]
    return [{**label(path), "kernel": x.kernel, "row": x.row, **reports[x.kernel], "instructions": sum(counts[x.kernel].values()),
             **{name: counts[x.kernel][name] for name in SHOWN if counts[x.kernel][name]}}
            for x in {x.kernel: x for x in plan.launches}.values()]


def main(
    bundles: Annotated[list[Path], typer.Option(help="Folders of bundles.")],
    output: Annotated[Path, typer.Option(help="Where to write the rows as JSON.")],
) -> None:
    """Count the instructions of every kernel of some bundles; exit 1 if one cannot be read."""
    paths = sorted(p for folder in bundles for p in folder.glob("*.emmy"))
    rows, failed = [], 0
    console = Console(stderr=True)
    for path in track(paths, "disassembling", console=console):
        try:
            rows += report(path)
        except EmmyError as error:
            failed += 1
            console.print(f"{path.name}: {error}", style="red", markup=False)
    output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    console.print(f"{len(rows)} kernels of {len(paths) - failed} bundles in {output}")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
