"""The extraction-gym file of a region: what it says, and that extractors take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import extract
from emmy.view.gym import gym
from tests.programs import PROGRAMS
from tests.view.pictures import BLOCK, CHAIN, drawn


def read(source: str, folder: Path) -> extract.Graph:
    path = folder / "graph.json"
    path.write_text(json.dumps(gym(drawn(source)), allow_nan=False))
    return extract.read_gym(path)


HALVES = [PROGRAMS[name].snippet(8, "bf16") for name in ("softmax", "rms_norm_linear", "layer_norm")]


@pytest.mark.parametrize("source", [CHAIN, BLOCK, *HALVES])
def test_a_choice_of_it_is_finite_and_costs_seconds(source: str, tmp_path: Path) -> None:
    graph = read(source, tmp_path)
    choice = extract.best(graph, budget=0.05)
    assert extract.is_acyclic(graph, choice) and 0 < extract.dag_cost(graph, choice) < 1e-3


def test_it_holds_the_classes_their_members_and_what_they_cost() -> None:
    found, values = drawn(CHAIN), gym(drawn(CHAIN))
    nodes = values["nodes"]
    assert values.keys() == {"nodes", "root_eclasses", "class_data"}
    assert all(x.keys() == {"op", "children", "eclass", "cost", "subsumed"} for x in nodes.values())
    assert all(nodes[k]["eclass"] == k.rpartition(".")[0] for x in nodes.values() for k in x["children"])
    assert values["root_eclasses"] == [str(c) for _, c in found.outputs]
    assert values["class_data"].keys() == {str(c) for c in found.classes}
    for c, x in found.classes.items():
        priced = sorted(m.seconds for m in x.members if m.seconds is not None and m.tensor not in x.keeps)
        assert sorted(n["cost"] for n in nodes.values() if n["eclass"] == str(c)) == priced
    result = next(x for x in nodes.values() if x["eclass"] == values["root_eclasses"][0] and x["op"] == "reduce.add{r0}")
    assert nodes[result["children"][0]]["op"] in ("mul", "reduce.add{r1}")


def test_a_cut_is_a_load_of_what_is_computed_elsewhere() -> None:
    found, nodes = drawn(CHAIN), gym(drawn(CHAIN))["nodes"]
    home = found.keeps["t0"].home
    keep = nodes["keep t0.0"]
    assert keep["children"] == [f"{home}.0"] and keep["cost"] == found.keeps["t0"].seconds > 2e-6
    loads = [x for x in nodes.values() if x["op"].startswith("t0[")]
    assert loads and all(x["children"] == ["keep t0.0"] and x["eclass"] != str(home) for x in loads)
