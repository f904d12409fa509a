"""Fixpoint counts are declared: a change of what saturation finds on these programs is a change of their golden files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from benchmarks import saturation
from tests.conftest import GOLDEN


@pytest.mark.parametrize("name", saturation.COUNTED)
def test_fixpoint_counts(golden: Callable[[str, str], None], name: str) -> None:
    """And rewriting has come to it."""
    program = saturation.PROGRAMS[name]()
    runners = saturation.run(program)
    golden(f"saturation/{name}.txt", saturation.fixpoint(program, runners))
    assert all(runner.settled for runner in runners)


def test_counts_are_those_of_the_programs_there_are() -> None:
    assert saturation.FOLDER == GOLDEN / "saturation"
    assert sorted(path.stem for path in saturation.FOLDER.glob("*.txt")) == sorted(saturation.COUNTED)


def test_counts_do_not_depend_on_the_run_and_tell_stretches_apart() -> None:
    made = [saturation.PROGRAMS["softmax-fp32"]() for _ in range(2)]
    first, second = (saturation.fixpoint(program, saturation.run(program)) for program in made)
    assert first == second and first.startswith("stretch of ") and "rule softmax-denominator " in first and "table Channel " in first


def test_accounts_and_the_summary_tell_phases_rules_and_times() -> None:
    console = Console(width=200, file=io.StringIO())
    for table in (*saturation.accounts("attention-bf16", 400), saturation.summary(["exp_neg-fp32"])):
        console.print(table)
    text = console.file.getvalue()
    assert re.search(r"^twist +[1-9]", text, re.M) and re.search(r"^softmax-channel \(twist\) +[1-9].* ms", text, re.M)
    assert re.search(r"^exp_neg-fp32 +1 +1 +\d+ +1 +1 +\d", text, re.M)
