"""Which premise a rule lacks, and what lies behind it."""

from __future__ import annotations

import pytest

from emmy.egraph.rulebook import EGraph
from emmy.egraph.rulefile import Rule
from emmy.egraph.why_not import Reason, why_not

RULES = """
(relation Wide (Value i64))        ; a value and its width
(relation Narrow (Value))
(relation Ready (Value))
(rule ((Wide v n) (< n 8)) ((Narrow v)) :ruleset algebra-real :name "narrow")
(rule ((= v (Binary "add" x y)) (Narrow v)) ((Ready v)) :ruleset algebra-real :name "ready")
(rule ((Ready v) (= v (Binary "add" x (Unary "exp" y)))) ((Wide v 1)) :ruleset algebra-real :name "widen")
(rule ((= v (Unary "exp" x)) (= v (Unary "log" x)) (= v (Unary "sin" x)) (Wide x n)) ((Narrow v)) :ruleset algebra-real :name "hopeless")
"""


def graph(facts: str = "") -> EGraph:
    made = EGraph("loop", [("further.egg", RULES)])
    made.run('(let $a (Const "f32" 0)) (let $b (Unary "exp" $a)) (let $s (Binary "add" $b $a))' + facts)
    made.schedule("(saturate (run algebra-real))")
    return made


def rule(of: EGraph, name: str) -> Rule:
    return next(r for r in of.rules if r.name == name)


def reason(facts: str, name: str) -> Reason:
    of = graph(facts)
    found = why_not(of, rule(of, name))
    assert found is not None
    return found


def test_a_rule_that_matches_lacks_nothing() -> None:
    of = graph("(Wide $s 4)")
    assert why_not(of, rule(of, "ready")) is None and why_not(of, rule(of, "narrow")) is None


def test_a_condition_that_fails_is_told_with_the_values_it_fails_for() -> None:
    found = reason("(Wide $s 9)", "narrow")
    assert found.premises == ("(< n 8)",) and found.found["n"] == ("i64", 9) and found.behind == ()


def test_a_missing_fact_is_followed_to_the_rules_that_derive_it() -> None:
    found = reason("(Wide $s 9)", "ready")
    assert found.premises == ("(Narrow v)",)
    assert ("narrow", ("(< n 8)",)) in {(r.rule.name, r.premises) for r in found.behind}


def test_a_fact_that_was_never_stated_is_told_with_what_the_file_says_of_it() -> None:
    found = reason("", "narrow")
    assert found.premises == ("(Wide v n)",) and found.facts == {"Wide": "a value and its width"}


def test_of_a_nested_pattern_the_part_that_fails_is_told() -> None:
    found = reason("(Wide $s 4)", "widen")
    assert found.premises == ('(= _1 (Unary "exp" y))',) and found.found["_1"][0] == "Value"


def test_where_much_is_missing_the_first_is_told() -> None:
    assert reason("", "hopeless").premises == ('(= v (Unary "log" x))',)


def test_rules_that_derive_each_other_are_asked_once() -> None:
    found = reason("", "ready")

    def names(r: Reason) -> list[str]:
        return [r.rule.name, *(name for b in r.behind for name in names(b))]

    assert sorted(names(found)) == sorted(set(names(found))) and {"narrow", "widen"} <= set(names(found))


@pytest.mark.parametrize("name", ["factor-out", "distribute", "softmax-channel", "in-pieces", "starved", "two-sided-sum"])
def test_every_rule_of_the_house_can_be_asked(name: str) -> None:
    of = graph()
    found = why_not(of, rule(of, name))
    assert found is not None and found.premises


def test_the_graph_is_as_it_was() -> None:
    of = graph("(Wide $s 9)")
    before = of.size()
    why_not(of, rule(of, "ready"))
    assert of.size() == before
