"""Budgets: a runaway rule ends and is named, what was found by then stands, and the account of rules run apart is exact."""

from __future__ import annotations

import warnings

import pytest
import torch

from emmy.egraph.budget import BUDGET, Budget, Overrun, Spent
from emmy.egraph.rulefile import parse, without
from emmy.egraph.saturate import run, saturate
from emmy.egraph.terms import Region
from emmy.errors import EmmyError, EmmyWarning
from emmy.lower.tensor_to_loop import lower
from emmy.pipeline import compile
from tests.egraph.test_saturate import attention, kinds

SMALL = Budget(nodes=1_500)
GROW = '(rule ((= v (Unary op x))) ((Unary "abs" (Unary "neg" v))) :ruleset algebra-real :name "grow")'
COUNT = ('(rule ((= i (Axis a))) ((IndexAdd i (IndexConst 1))) :ruleset index-exact :name "one-on")\n'
         '(rule ((= i (IndexAdd x (IndexConst n)))) ((IndexAdd x (IndexConst (+ n 1)))) :ruleset index-exact :name "count-up")')


def saturated(rules: str, budget: Budget) -> tuple[Region, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        region = saturate(lower(attention()), extra=[("mine.egg", rules)], budget=budget)
    assert all(w.category is EmmyWarning for w in caught)
    return region, [str(w.message) for w in caught]


def test_a_rule_that_grows_for_ever_ends_and_is_named() -> None:
    region, (said,) = saturated(GROW, SMALL)
    assert "phase algebra" in said and "is grow (" in said and "new nodes" in said and "--budget" in said
    assert region.home["y"] in region.terms and [o.rule for o in region.over][:1] == ["grow"]
    assert "Channel" in kinds(region), "other phases take their steps"


def test_rounds_that_end_before_a_fixpoint_are_told() -> None:
    _, (said,) = saturated(GROW, Budget(rounds=3))
    assert "at 3 rounds" in said and "is grow (" in said


def test_a_rule_that_would_keep_values_from_being_instantiated_is_left_out() -> None:
    region, (said,) = saturated(COUNT, SMALL)
    assert "phase index" in said and "count-up" in said and "left out" in said
    assert "Channel" in kinds(region) and region.fired["one-on"] > 0 == region.fired.get("count-up", 0)


def test_the_house_rules_spend_no_whole_budget_and_nothing_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region = saturate(lower(attention(layers=2)))
    assert region.over == ()


def test_a_house_rule_is_named_where_the_program_is_what_is_large() -> None:
    with pytest.warns(EmmyWarning, match="phase normalize at .* new nodes; the rule that grew it most is sum-of-two"):
        region = saturate(lower(attention(layers=2)), budget=Budget(nodes=10))
    assert region.home["y"] in region.terms


def test_time_is_a_budget_too() -> None:
    with pytest.warns(EmmyWarning, match=r"at \d+\.\d s; the rule that took it most"):
        region = saturate(lower(attention()), budget=Budget(seconds=0.0))
    assert {"Reduce", "Tensor"} <= {t.kind for t in region.terms[region.home["y"]]}, "what is instantiated is so whatever the budget"


@pytest.mark.parametrize("math", ["fast", "exact"])
def test_rules_run_apart_find_the_same_and_the_account_adds_up(math: str) -> None:
    program = compile(lambda x, w: torch.nn.functional.rms_norm(x, (32,)).softmax(-1) @ w, torch.empty(2048, 32), torch.empty(32, 8)).loop
    plain, apart = (run(program, math, apart=flag) for flag in (False, True))
    assert plain.graph.sizes() == apart.graph.sizes() and plain.size == sum(plain.graph.sizes().values())
    for phase, spent in apart.phases.items():
        own = [s for (of, _), s in apart.rules.items() if of == phase]
        assert sum(s.nodes for s in own) == spent.nodes and sum(s.matches for s in own) == spent.matches
    fired = {rule.removesuffix("=>").removesuffix("<=") for rule, count in plain.graph.fired.items() if count}
    assert not plain.rules and fired == {rule for (_, rule), s in apart.rules.items() if s.matches}


@pytest.mark.parametrize("text, budget", [("", BUDGET), ("500", Budget(500)), ("500,2.5", Budget(500, 2.5))])
def test_a_budget_is_spelled(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["many", "5,", ",5", "-1", "5,x"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(EmmyError, match="NODES,SECONDS"):
        Budget.parse(text)


def test_an_overrun_blames_what_was_short() -> None:
    rules = {("algebra", "wide"): Spent(1, 90, 0.1), ("algebra", "slow"): Spent(1, 10, 9.0), ("twist", "other"): Spent(1, 999, 99.0)}
    assert Overrun("algebra", Spent(2, 100, 9.1), Budget(nodes=50)).blamed(rules).rule == "wide"
    assert Overrun("algebra", Spent(2, 100, 9.1), Budget(seconds=5)).blamed(rules).rule == "slow"


def test_a_file_without_a_rule_keeps_its_lines() -> None:
    _, text = without("one-on", "mine.egg", COUNT)
    assert [(r.name, r.line) for r in parse("mine.egg", text).rules] == [("count-up", 2)]
    assert without("none", "mine.egg", COUNT) == ("mine.egg", COUNT)
