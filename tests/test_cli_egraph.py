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
