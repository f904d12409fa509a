from __future__ import annotations

from xml.etree import ElementTree

import pytest

from emmy.view.chart import chart, ticks

SVG = "{http://www.w3.org/2000/svg}"


def test_a_line_for_each_name_steps_down_and_tells_its_best() -> None:
    drawn = chart({"fold_1": [None, 9.0, 9.0, 5.0], "map<2>": [3.0, 2.5], "none": [None]}, "best & time", "candidates", "µs")
    root = ElementTree.fromstring(drawn)
    words = [x.text for x in root.iter(f"{SVG}text")]
    assert "fold_1  5" in words and "map<2>  2.5" in words and "best & time" in words and "candidates: 4" in words
    lines = [x.get("d", "") for x in root.iter(f"{SVG}path") if x.get("fill") == "none"]
    assert [line.count("V") for line in lines] == [3, 2]
    assert root.find(f"{SVG}title") is not None


def test_nothing_found_is_drawn_as_nothing() -> None:
    assert ElementTree.fromstring(chart({}, "t", "a", "u")) is not None


@pytest.mark.parametrize(("least", "most"), [(1.0, 10.0), (67.0, 68.5), (100.0, 100.0), (2.44, 213.8)])
def test_ticks_are_round_and_few(least: float, most: float) -> None:
    found = ticks(least, most)
    assert 1 <= len(found) <= 9 and all(least * 0.99 <= y <= most * 1.01 for y in found) and found == sorted(found)
