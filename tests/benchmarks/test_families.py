from __future__ import annotations

import re

from benchmarks.families import line, number
from tests.families import FAMILIES
from tests.said import ROOT

TEXT = (ROOT / "docs" / "families.md").read_text()
PAGE = dict(re.findall(r"^\| ([^|]+) \| (\d+ \| [\d,.]+ \| [\d,.]+ \| [\d,.]+ \| \d+) \|$", TEXT, re.MULTILINE))


def test_the_page_has_every_family_with_its_spellings() -> None:
    assert {name: int(rest.split()[0]) for name, rest in PAGE.items()} == {name: len(f.spellings) for name, f in FAMILIES.items()}


def test_a_line_is_one_of_the_page() -> None:
    name = "maximum of a sum"
    assert line(name, FAMILIES[name]) == f"| {name} | {PAGE[name]} |"


def test_times_have_a_decimal_below_a_thousand() -> None:
    assert (number(4.96), number(999.94), number(1404.6)) == ("5.0", "999.9", "1,405")
