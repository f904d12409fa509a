"""Broken rule files, and what `emmy rules check` says of each."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.said import ROOT, Said, assert_bad

HERE = Path(__file__).parent / "broken"

UNREADABLE = {      # exit code 2: file, line and what is wrong
    "parse": ("parse.egg:3: rule exp-of-log", "parse error"),
    "unknown": ("unknown.egg:3: rule log-of-exponential", "Unbound function Exponential"),
    "phase": ("phase.egg", "the ruleset simplify-real never runs", "the phases are index"),
}
UNSOUND = {         # exit code 1: file, line and rule, how the sides differ, both sides of the smallest program
    "premise": ("premise.egg:2: rule factor-out-anything: unsound for class real", "the right side varies along a0, the left side does not",
                "= reduce.add{a0}(mul(x0[a0], x", "= mul(x0[p0], reduce.add{a0}(x"),
    "bits": ("bits.egg:2: rule plus-nothing: unsound for class exact: the left side is 0.0,",
             "= add(x", ", const{f32}(0.0))", "= x"),
    "undefined": ("undefined.egg:2: rule reciprocal-by-log: unsound for class real: the left side is defined where the right side is not",
                  "= recip(", "= exp(neg(log("),
    "index": ("index.egg:2: rule small-quotient: unsound for class exact", "rule small-quotient: wrong for some integers in range",
              "index(0)", "over the integers: left -1, right 0", "# equal, says the rule"),
}
OTHERWISE = {       # exit code 1: what else can be wrong
    "scope": ("scope.egg:2: rule negate-outside", "the right side is over a77, an axis that has no extent"),
    "types": ("types.egg:2: rule absolute-by-root", "sqrt does not take operands of i64", "on (Unary \"abs\" "),
    "grows": ("grows.egg:2: rule expand-fraction: grows for ever: ", "nodes after 16 rounds"),
    "starved": ("starved.egg:2: rule sum-of-nothing: never fires: starved by (set-contains d a)",),
}


@cache
def said_of(name: str) -> Said:
    return Said("rules", "check", HERE / f"{name}.egg", "--seconds", "1")


def test_every_broken_file_is_looked_at() -> None:
    assert {path.stem for path in HERE.glob("*.egg")} == {*UNREADABLE, *UNSOUND, *OTHERWISE}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_names_file_and_line(name: str) -> None:
    assert_bad(said_of(name), *UNREADABLE[name])


@pytest.mark.parametrize("name", [*UNSOUND, *OTHERWISE])
def test_what_is_wrong_is_said(name: str) -> None:
    said = said_of(name)
    assert said.code == 1, (said.err, said.exception)
    missing = [words for words in {**UNSOUND, **OTHERWISE}[name] if words not in said.out]
    assert not missing, said.out


@pytest.mark.parametrize("name", ["premise", "bits", "undefined"])
def test_the_snippet_runs_alone_and_prints_both_values(name: str) -> None:
    out = said_of(name).out
    code = out.partition("shown by:")[2].rpartition("\n1 rule")[0]
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sides = {line.split()[0]: line.split(None, 1)[1] for line in printed.splitlines()}
    assert set(sides) == {"left", "right"} and sides["left"] != sides["right"]
    values = [line.split() for line in out.splitlines() if line.startswith(("  left ", "  right "))]
    assert [" ".join(words[1:]) for words in values] == [" ".join(sides[words[0]].split()) for words in values]


def test_the_integers_that_refute_an_index_rule_are_python() -> None:
    out = said_of("index").out
    code = out.partition("over the integers")[2].partition("\n\n")[2].partition("\n\n")[0]
    left, right = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert left != right
