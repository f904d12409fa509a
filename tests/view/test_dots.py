from __future__ import annotations

from xml.etree import ElementTree

import pytest

from emmy.view.dots import ACROSS, dots

SVG = "{http://www.w3.org/2000/svg}"


def test_equal_values_stand_below_each_other_on_an_axis_of_powers_of_two() -> None:
    root = ElementTree.fromstring(dots({"a & b": (2.0, 0.5), "c<d>": (None, 2.0)}, ("speed", "share"), "all"))
    found = {x.find(f"{SVG}title").text: float(x.get("cx", "")) for x in root.iter(f"{SVG}circle") if x.find(f"{SVG}title") is not None}
    left = found["a & b: share 0.50"]
    assert found == {"a & b: speed 2.00": left + ACROSS, "a & b: share 0.50": left, "c<d>: share 2.00": left + ACROSS}
    words = [x.text for x in root.iter(f"{SVG}text")]
    assert [w for w in words if w in ("0.5", "1", "2")] == ["0.5", "1", "2"] and {"a & b", "c<d>", "speed", "share", "all"} <= {*words}


@pytest.mark.parametrize("values", [{}, {"a": (None,)}, {"a": (1.0,)}])
def test_few_values_are_drawn_on_an_axis_about_one(values: dict[str, tuple[float | None, ...]]) -> None:
    words = [x.text for x in ElementTree.fromstring(dots(values, ("x",), "t")).iter(f"{SVG}text")]
    assert [w for w in words if w in ("0.5", "1", "2")] == ["0.5", "1", "2"]
