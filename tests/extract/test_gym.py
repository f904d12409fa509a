"""Extraction on whole e-graphs: files of the public extraction-gym, and ours in its format (`benchmarks.egraphs` writes those)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import extract
from benchmarks import egraphs, gym
from extract import exact, greedy_dag, tree

FILES = gym.files([gym.FILES])
PUBLIC = [path for path in FILES if path.parent.name != "ours"]
TABLE = Path(__file__).parents[2] / "docs" / "extraction.md"
BUDGET = 0.5        # deterministic time, where the table has 20 seconds


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def test_thirty_files_are_public() -> None:
    assert len(PUBLIC) >= 30
    assert {path.parent.name for path in PUBLIC} == {"babble", "egg", "fuzz", "tensat"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_exact_is_never_worse_than_the_better_of_tree_and_greedy(path: Path) -> None:
    graph = extract.read_gym(path)
    better = min(extract.dag_cost(graph, extractor.extract(graph)) for extractor in (tree, greedy_dag))
    found = exact.extract(graph, budget=BUDGET)
    assert extract.is_acyclic(graph, found.choice)
    assert found.cost == extract.dag_cost(graph, found.choice) <= better
    assert found.bound == found.cost if found.proven else 0 < found.bound <= found.cost


def test_the_table_of_the_documentation_is_of_these_files() -> None:
    rows = {cells[0]: cells for line in TABLE.read_text().splitlines() if len(cells := re.findall(r"[^|\s][^|]*?(?= *\|)", line)) == 8}
    assert rows.keys() >= {name(path) for path in FILES}
    for path in FILES:
        graph = extract.read_gym(path)
        costs = [gym.number(extract.dag_cost(graph, extractor.extract(graph))) for extractor in (tree, greedy_dag)]
        assert rows[name(path)][1:4] == [str(sum(map(len, graph.classes.values()))), *costs]
    small = [cells for cells in rows.values() if cells[1].isdigit() and int(cells[1]) < gym.SMALL]
    assert sum(cells[6] == "yes" for cells in small) >= 0.6 * len(small)


def test_a_file_is_measured_as_a_row() -> None:
    (path,) = (path for path in FILES if path.stem == "10" and path.parent.name == "fuzz")
    row = gym.measure(path, 5.0)
    assert row[:2] == ("fuzz/10", 38) and row.proven and row.bound == row.exact < row.greedy < row.tree
    assert gym.line(row).startswith("| fuzz/10 | 38 | 122.182 | 118.225 | 112.737 | 112.737 | yes | ")


def test_our_files_are_what_is_written(tmp_path: Path) -> None:
    nodes, roots = egraphs.constants([7, 11, 19, 23, 29], 31, 5)
    egraphs.write(tmp_path, {"constants-31": (nodes, roots)}.items())
    (stored,) = (path for path in FILES if path.name == "constants-31.json.gz")
    assert extract.read_gym(tmp_path / stored.name) == extract.read_gym(stored)
    assert extract.read_gym(stored).roots == tuple(int(c) // 2 for c in roots)
