"""`emmy egraph`: the three kinds of file it writes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import extract
from tests.said import Said, assert_bad, no_gpu

__all__ = ["no_gpu"]    # a fixture of every test here
PROGRAM = ("-c", "x = torch.randn(8).log(); x.exp() + x")


@pytest.mark.parametrize("suffix", [".html", ".svg", ".json"])
def test_it_writes_what_the_suffix_says(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph{suffix}"
    said = Said("egraph", *PROGRAM, "-o", path).well()
    assert said.startswith(f"{path}: ") and "classes" in said and "1 kernel extracted" in said
    match suffix:
        case ".json":
            graph = extract.read_gym(path)
            assert extract.is_acyclic(graph, extract.best(graph))
        case ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        case _:
            text = path.read_text()
            data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
            assert text.startswith("<!doctype html>") and data["title"] == PROGRAM[1] and data["settings"] == ["fast", "sm_90a"]
            assert any(rule["says"] for rule in data["rules"]), "what a rule means is with it"


def test_all_is_for_pictures(tmp_path: Path) -> None:
    assert Said("egraph", *PROGRAM, "-o", tmp_path / "all.svg", "--all").well()
    assert "every class and every member is drawn" in (tmp_path / "all.svg").read_text()
    assert_bad(Said("egraph", *PROGRAM, "-o", tmp_path / "all.html", "--all"), "all.html", "--all", ".svg")


def test_rules_and_math_take_part(tmp_path: Path) -> None:
    rule = tmp_path / "inverse.egg"
    rule.write_text('(rewrite (Unary "exp" (Unary "log" x)) x :ruleset algebra-real :name "exp-of-log")\n')
    classes = {}
    for words in ((), ("--rules", rule), ("--rules", rule, "--math", "exact")):
        Said("egraph", *PROGRAM, "-o", tmp_path / "graph.json", *words).well()
        values = json.loads((tmp_path / "graph.json").read_text())
        classes[words] = len(values["class_data"])
    plain, merged, exact = classes.values()
    assert merged == plain - 1 and exact == plain


@pytest.mark.parametrize("name, named", [("graph.png", ("graph.png", ".html", ".svg", ".json")), ("absent/graph.svg", ("no folder",))])
def test_bad_files(name: str, named: tuple[str, ...], tmp_path: Path) -> None:
    assert_bad(Said("egraph", *PROGRAM, "-o", tmp_path / name), *named)


def test_the_file_must_be_named() -> None:
    assert Said("egraph", *PROGRAM).code == 2


LAYERS = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        h = self.before(x).softmax(-1)
        return x + self.down(torch.relu(self.up(h)).log_softmax(-1)).softmax(-1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.Sequential(*(Layer() for _ in range(4))), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.layers(x))


def example_inputs():
    return (torch.randn(6, 8),)
"""


def test_of_a_program_with_repeats_one_stretch_is_written_and_all_are_listed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LAYERS)
    words = ("egraph", f"{tmp_path / 'model.py'}:Model", "-o", tmp_path / "graph.json")
    costliest, first, second = (Said(*words, *more).well() for more in ((), ("--stretch", "1"), ("--stretch", "2")))
    for said, mark in ((first, 1), (second, 2)):
        rows = [line.split() for line in said.splitlines()[3:]]
        assert len(rows) > 1 and [row[0] == "*" for row in rows] == [k + 1 == mark for k in range(len(rows))]
    assert costliest in (first, second) and first.split(" classes")[0] != second.split(" classes")[0]
    assert "stretches, each an e-graph of its own" in first
    graph = extract.read_gym(tmp_path / "graph.json")
    assert extract.is_acyclic(graph, extract.best(graph))
    Said(*words[:2], "-o", tmp_path / "graph.html", "--stretch", "2").well()
    assert '"title":"stretch 2 of ' in (tmp_path / "graph.html").read_text()
    assert_bad(Said(*words, "--stretch", "9"), "no stretch 9", "--stretch 1 to")


def test_a_program_without_repeats_has_one_stretch(tmp_path: Path) -> None:
    assert "stretch" not in Said("egraph", *PROGRAM, "-o", tmp_path / "graph.json", "--stretch", "1").well()
    assert_bad(Said("egraph", *PROGRAM, "-o", tmp_path / "graph.json", "--stretch", "2"), "1 distinct stretch", "leave --stretch out")


@pytest.mark.parametrize("command", [("egraph", "-o", "graph.json"), ("explain",), ("canon",)])
def test_a_budget_may_be_given(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = Said(*command, "-c", "torch.randn(3, 4).softmax(-1)", "--budget", "1")
    said.well()
    assert "stopped phase" in said.err and "--budget" in said.err
    assert_bad(Said(*command, "-c", "torch.randn(3)", "--budget", "much"), "much", "--budget 60000")
