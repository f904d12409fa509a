"""Extractors on e-graphs in the format of extraction-gym: `python -m benchmarks.gym [--seconds 20] [FOLDER …]` prints a table.

The folders default to what the tests hold: public files and our own (`benchmarks.egraphs`).  A row has the `dag_cost` of tree, greedy-DAG
and exact extraction, the lower bound that exact proves (the cost itself where it is optimal), and the seconds that exact took.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from extract import dag_cost, exact, greedy_dag, read_gym, tree

FILES = Path(__file__).parents[1] / "tests" / "extract" / "gym"
SMALL = 2000        # nodes below which optimality is expected of most


class Row(NamedTuple):
    """What extraction made of one file; costs as `dag_cost`."""

    name: str
    nodes: int
    tree: float
    greedy: float
    exact: float
    bound: float
    proven: bool
    seconds: float


def files(folders: Iterable[Path]) -> list[Path]:
    """The e-graphs of folders, by name."""
    return sorted(path for folder in folders for path in folder.rglob("*.json*"))


def measure(path: Path, seconds: float) -> Row:
    """All extractors on one file, exact with so many seconds of wall-clock."""
    graph = read_gym(path)
    first, second = (dag_cost(graph, extractor.extract(graph)) for extractor in (tree, greedy_dag))
    start = time.perf_counter()
    found = exact.extract(graph, budget=float("inf"), seconds=seconds)
    took = time.perf_counter() - start
    name = f"{path.parent.name}/{path.name.partition('.')[0]}"
    return Row(name, sum(map(len, graph.classes.values())), first, second, found.cost, found.bound, found.proven, took)


def number(x: float) -> str:
    """Six digits, without an exponent."""
    return f"{x:.0f}" if abs(x) >= 1e5 else f"{x:.6g}"


def line(row: Row) -> str:
    """A row of the table."""
    costs = (number(x) for x in (row.tree, row.greedy, row.exact, row.bound))
    return f"| {row.name} | {row.nodes} | {' | '.join(costs)} | {'yes' if row.proven else 'no'} | {row.seconds:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gym", description="Extractors on e-graphs of extraction-gym's format.")
    parser.add_argument("folders", nargs="*", type=Path, default=[FILES], metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=20.0, help="wall-clock of exact extraction for a file (default 20)")
    given = parser.parse_args()
    print("| e-graph | nodes | tree | greedy | exact | bound | proven | seconds |\n|---|--:|--:|--:|--:|--:|---|--:|")
    rows = []
    for path in files(given.folders):
        rows.append(measure(path, given.seconds))
        print(line(rows[-1]), flush=True)
    small = [row for row in rows if row.nodes < SMALL]
    print(f"{len(rows)} e-graphs; of {len(small)} below {SMALL} nodes, {sum(row.proven for row in small)} proven optimal", file=sys.stderr)


if __name__ == "__main__":
    main()
