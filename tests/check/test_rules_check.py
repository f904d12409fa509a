"""`emmy rules check` on rules that are right, and `emmy rules new`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from emmy.check.agreement import Trial, judge, targets
from emmy.check.book import Book
from emmy.check.integers import prove
from emmy.check.redundancy import redundant
from emmy.check.tiles import judged
from emmy.egraph.rulebook import house
from tests.said import ROOT, Said, assert_bad

QUICK = 0.1         # seconds of the processor for each rule of the house; the command gives each six
GOOD = '; a root squared\n(rewrite (Binary "mul" (Unary "sqrt" x) (Unary "sqrt" x)) x :ruleset algebra-real :name "root-squared")\n'


@pytest.fixture(scope="module")
def book() -> Book:
    return Book()


@pytest.mark.parametrize("file", sorted({rule.file for rule in house("loop")}))
def test_no_rule_of_the_house_is_found_unsound(file: str, book: Book) -> None:
    rules = [rule for rule in house("loop") if rule.file == file]
    outcomes = {rule.name: judge(book, rule, enough=30, seconds=QUICK, explain=False) for rule in rules}
    starved = [rule for rule in rules if not outcomes[rule.name].firings]
    outcomes |= {rule.name: judge(book, rule, enough=1, seconds=10 * QUICK, explain=False) for rule in starved}
    assert {name: outcome.failure for name, outcome in outcomes.items() if outcome.failure} == {}
    assert sum(outcome.firings > 0 for outcome in outcomes.values()) >= 0.6 * len(rules)


def test_index_rules_of_the_house_are_proved(book: Book) -> None:
    proofs = {rule.name: proof.verdict for rule in house("loop") if rule.name != "remainder-of-product" and (proof := prove(book, rule))}
    assert len(proofs) > 20 and set(proofs.values()) == {"proved", "proved up to 12"}


def test_every_tile_rule_fires_and_stops() -> None:
    fired, grows = judged()
    assert grows == "" and [rule.name for rule in house("tile") if not fired[rule.name]] == []


def test_a_rule_that_the_others_derive_is_redundant(tmp_path: Path) -> None:
    texts = '''(rewrite (Binary "mul" x (Const "f32" 1065353216)) x :ruleset algebra-real :name "times-one-again")
               (rewrite (Binary "mul" (Unary "sqrt" x) (Unary "sqrt" x)) x :ruleset algebra-real :name "root-squared")'''
    book = Book([("mine.egg", texts)])
    again, new = (rule for rule in book.rules if rule.file == "mine.egg")
    found = [redundant(book, rule, Trial(book, targets(book, rule)[0])) for rule in (again, new)]
    assert found == [True, False]


def test_a_sound_rule_passes_with_its_twin_and_says_what_it_buys(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(GOOD)
    (tmp_path / "mine.twin.egg").write_text(''';; root-squared
(let $x (Input "x" (End)))
(let $y (Binary "mul" (Unary "sqrt" $x) (Unary "sqrt" $x)))
(run-schedule (saturate (run algebra-real)))
(check (= $y $x))''')
    snippet = "x = torch.randn(64, 64); x.sqrt() * x.sqrt()"
    said = Said("rules", "check", path, "--seconds", "1", "-c", snippet, "--json", tmp_path / "out.json")
    assert "none at fault" in said.well() and "root-squared fires" in said.out and "the program chosen is another" in said.out
    found = json.loads((tmp_path / "out.json").read_text())
    (rule,) = found["rules"]
    assert (rule["rule"], rule["agreement"], rule["faults"], rule["snippet"]) == ("root-squared", "agrees", [], None)
    assert rule["firings"] > 50
    assert found["gain"]["before"] > found["gain"]["after"] and found["gain"]["fired"]["root-squared"] > 0


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are not judged together with the house's on whole programs, which takes the most time: `GOOD`, which a new file has too, is
    above, and those of the house are by tests/egraph/test_agreement.py."""
    monkeypatch.setattr("emmy.check.whole.together", lambda book, count: (Counter(), None))


@pytest.mark.usefixtures("apart")
def test_a_twin_that_does_not_hold_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(GOOD)
    (tmp_path / "mine.twin.egg").write_text(''';; root-squared: and the other way round
(let $x (Input "x" (End)))
(let $y (Unary "sqrt" (Binary "mul" $x $x)))
(run-schedule (saturate (run algebra-real)))
(check (= $y $x))''')
    said = Said("rules", "check", path, "--seconds", "0.5")
    assert said.code == 1 and "mine.twin.egg:5: (check" in said.out and "Check failed" in said.out, said.out


@pytest.mark.usefixtures("apart")
def test_a_new_file_passes_as_it_is(tmp_path: Path) -> None:
    said = Said("rules", "new", "root-twice", "--dir", tmp_path).well()
    assert str(tmp_path / "root-twice.egg") in said and (tmp_path / "root-twice.twin.egg").is_file()
    assert "none at fault" in Said("rules", "check", tmp_path / "root-twice.egg", "--seconds", "0.5").well()


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_bad(Said("rules", "check"), "hypothesis and z3: not installed", "emmy-egraph[check]")


def test_names_and_places_that_do_not_do(tmp_path: Path) -> None:
    (tmp_path / "taken.egg").write_text("")
    assert_bad(Said("rules", "new", "Root Twice", "--dir", tmp_path), "'Root Twice'", "small letters")
    assert_bad(Said("rules", "new", "factor-out", "--dir", tmp_path), "factor-out", "loop/algebra.egg:4")
    assert_bad(Said("rules", "new", "taken", "--dir", tmp_path), "taken.egg exists")
    assert_bad(Said("rules", "new", "mine", "--dir", tmp_path / "nowhere"), "nowhere")
    assert_bad(Said("rules", "check", tmp_path / "taken.egg"), "taken.egg has no rule", "emmy rules new")
    assert_bad(Said("rules", "check", tmp_path / "missing.egg"), "missing.egg")


@pytest.mark.usefixtures("apart")
def test_a_file_of_the_house_is_judged_as_such() -> None:
    said = Said("rules", "check", ROOT / "rules" / "loop" / "exponent.egg", "--seconds", "0.1")
    assert said.code == 0 and "log-of-exp" in said.out and "factor-out" not in said.out, said.err
    assert "0 rules, none at fault" in Said("rules", "check", ROOT / "rules" / "hardware" / "sm_80.egg").well()
