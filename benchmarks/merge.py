"""Put rows that were measured anew into a result: python -m benchmarks.merge NEW.json --into benchmarks/results/h200/gemm.json

A row of another commit than its file's says so: it has the key "commit".  The conditions of the file are those that most of its rows were
measured under.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old result with the rows of the new one in the place of those of the same case and type, or at the end.  ValueError where they
    are of different GPUs."""
    if old["gpu"] != new["gpu"]:
        raise ValueError(f"{old['gpu']} and {new['gpu']} are different GPUs: measure a result of its own")
    rows = {(r["case"], r["dtype"]): r for r in old["rows"]}
    rows |= {(r["case"], r["dtype"]): r | ({"commit": new["commit"]} if new["commit"] != old["commit"] else {}) for r in new["rows"]}
    return {**old, "rows": [*rows.values()]}


def main(
    new: Annotated[Path, typer.Argument(help="Result of benchmarks.run.", exists=True, dir_okay=False)],
    into: Annotated[Path, typer.Option(help="Result that takes its rows.", exists=True, dir_okay=False)],
) -> None:
    """Merge rows into a result."""
    try:
        made = merged(json.loads(into.read_text()), json.loads(new.read_text()))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NEW") from error
    into.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
