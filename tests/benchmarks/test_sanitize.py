"""What is read of a sanitizer's report, and the programs that it is given."""

from __future__ import annotations

import sys

import pytest

from benchmarks.sanitize import SNIPPETS, checked
from emmy.capture.snippet import capture_snippet
from emmy.errors import EmmyError

RAN = """print('{"ran": {"map": ["WORK=t64", "WORK=t128"]}, "wrong": []}'); """


@pytest.mark.parametrize(("said", "errors"), [("========= ERROR SUMMARY: 2 errors", 2), ("========= ERROR SUMMARY: 0 errors", 0),
                                              ("========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)", 3)])
def test_summaries(said, errors):
    found = checked([sys.executable, "-c", f"{RAN}print({said!r})"], 30)
    assert found["errors"] == errors and found["rows"] == 2 and found["programs"] == {"map": 2} and said in found["report"]


def test_a_tool_that_ends_early_or_never():
    assert checked([sys.executable, "-c", "print('crash')"], 30)["errors"] is None
    assert checked([sys.executable, "-c", "import time; time.sleep(60)"], 1)["errors"] is None
    with pytest.raises(EmmyError, match="there is no /nowhere/compute-sanitizer"):
        checked(["/nowhere/compute-sanitizer"], 1)


def test_programs_are_captured():
    assert all(capture_snippet(snippet).program.outputs for snippet in SNIPPETS.values())
