"""Rules as s-expressions: the text of a form is the rule it was read from."""

from __future__ import annotations

import pytest

from emmy.check.pattern import Call, Lit, Var, declarations, form, read, replaced, substitute, variables
from emmy.egraph.rulebook import ORDER, house, rule_files
from emmy.egraph.rulefile import parse


def test_terms_read_and_print() -> None:
    term = read('(f "a; (b)" -3 x (g)) ; a comment')
    assert term == Call("f", (Lit("a; (b)"), Lit(-3), Var("x"), Call("g", ())))
    assert read(str(term)) == term and list(variables(term)) == ["x"]
    assert str(substitute(term, {"x": Lit(1)})) == '(f "a; (b)" -3 1 (g))' and str(replaced(term, (3,), Var("y"))) == '(f "a; (b)" -3 x y)'


@pytest.mark.parametrize("ir", ORDER)
def test_forms_of_the_house_say_what_the_rules_say(ir: str) -> None:
    for rule in house(ir):
        (again,) = parse("again", form(rule).text(rule.ruleset, rule.name)).rules
        assert [str(x) for x in (*again.premises, *again.actions)] == [str(x) for x in (*rule.premises, *rule.actions)]


@pytest.mark.parametrize("ir", ORDER)
def test_declarations_are_a_file_without_its_rules(ir: str) -> None:
    for name, text in rule_files(ir):
        file = parse(name, declarations(parse(name, text)))
        assert not file.rules and file.rulesets == parse(name, text).rulesets and file.text.count("\n") == text.count("\n")
