"""Rule files: what a rule is, where it stands, and the errors that a broken one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from emmy.egraph import rulefile
from emmy.egraph.rulebook import ORDER, EGraph, extra_rules, house, rule_files
from emmy.egraph.rulefile import check_names, parse
from emmy.errors import EmmyError

TEXT = '''; the file · of rules

; what it means,
; in two lines
(rewrite (Unary "abs" x) x :ruleset algebra-real :name "one")   ; not this
(relation r (String))
(ruleset normalize-mine-exact)
(rewrite (Input "; (" x) (Input "g" x) :when ((= x x)) :ruleset normalize-mine-exact :name "two")
(rule ((= v (Unary "neg" a)) (r b))
      ((union v a)) :ruleset normalize-mine-exact :name "three")
(birewrite (Unary "log" x) (Unary "exp" x) :ruleset algebra-real :name "four")
'''


def test_what_a_rule_is() -> None:
    file = rulefile.parse("f.egg", TEXT)
    assert file.rulesets == ("normalize-mine-exact",)
    assert [(r.name, r.line, r.phase, r.kind, r.says) for r in file.rules] == [
        ("one", 5, "algebra", "real", "what it means, in two lines"),
        ("two", 8, "normalize", "exact", '(Input "; (" x) = (Input "g" x)'),
        ("three", 9, "normalize", "exact", '(= v (Unary "neg" a)) (r b) => (union v a)'),
        ("four=>", 11, "algebra", "real", '(Unary "log" x) = (Unary "exp" x)'),
        ("four<=", 11, "algebra", "real", '(Unary "log" x) = (Unary "exp" x)')]
    assert [len(r.premises) for r in file.rules] == [1, 2, 2, 1, 1]
    assert file.at(10) == file.rules[2] and file.at(7) is None


def test_a_rewrite_is_the_union_of_its_sides() -> None:
    one, *_, forth, back = rulefile.parse("f.egg", TEXT).rules
    assert [str(x) for x in (*one.premises, *one.actions)] == ['(= rewritten (Unary "abs" x))', "(union rewritten x)"]
    assert str(forth.actions[0]) == '(union rewritten (Unary "exp" x))' and str(back.premises[0]) == '(= rewritten (Unary "exp" x))'


def test_names_and_rulesets_of_a_file_join_the_house(tmp_path: Path) -> None:
    path = tmp_path / "f.egg"
    path.write_text(TEXT)
    (file,) = extra_rules([path])["loop"]
    graph = EGraph("loop", [file])
    assert graph.phase("normalize", ("exact",)) == "(seq (run normalize-exact) (run normalize-mine-exact))"
    graph.run('(let $y (Input "; (" (End)))')
    graph.schedule(graph.phase("normalize", ("exact", "real")))
    assert graph.equal("$y", '(Input "g" (End))') and graph.fired["two"] == 1


def test_files_of_the_environment_come_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{name}.egg" for name in "abc"]
    for path in paths:
        path.write_text("(relation mine (i64))" if path.stem == "a" else "")
    monkeypatch.setenv("EMMY_RULES", f"{paths[0]}:{paths[1]}")
    assert [Path(name).stem for name, _ in extra_rules([paths[2], paths[0]])["loop"]] == ["a", "b", "c"]


def test_the_phases_of_its_rules_say_which_ir_a_file_extends(tmp_path: Path) -> None:
    rule = '(relation r (i64)) (rule ((r x)) ((r x)) :ruleset {} :name "n")'
    for ir, ruleset in ("tile", "place-exact"), ("loop", "cut-exact"):
        (tmp_path / "x.egg").write_text(rule.format(ruleset))
        assert extra_rules([tmp_path / "x.egg"])[ir]
    (tmp_path / "x.egg").write_text(rule.format("place-exact") + "(ruleset cut-more-exact)")
    with pytest.raises(EmmyError, match="loop and tile IR"):
        extra_rules([tmp_path / "x.egg"])


BROKEN = {      # a rule at line 3 of a file: what is wrong, and what the error says besides file, line and name
    '(rewrite (Unary "exp" x) (Nothing x) :ruleset algebra-real :name "bad")': "Unbound function Nothing",
    '(rewrite (Unary "exp" x) (Unary x) :ruleset algebra-real :name "bad")': "Arity mismatch",
    '(rewrite (Unary "exp" x) y :ruleset algebra-real :name "bad")': "Unbound symbol y",
    '(rewrite (Unary 1 x) x :ruleset algebra-real :name "bad")': "String",
    '(rewrite (Unary "exp" x) x :name "bad")': "in no ruleset",
    '(rewrite (Unary "exp" x) x :ruleset lunch-real :name "bad")': "in lunch-real, which never runs",
    '(rewrite (Unary "exp" x) x :ruleset algebra-roughly :name "bad")': "the classes exact, finite, real, approx",
    '(rewrite (Unary "exp" x) x :ruleset algebra-mine-real :name "bad")': "algebra-mine-real",
    '(rewrite (Unary "exp" x) x :ruleset algebra-real)': "has no name",
    '(rewrite (Unary "exq" x) x :ruleset algebra-real :name "bad")': "'exq' names no operator of 1 operand",
    '(rewrite (Unary "add" x) x :ruleset algebra-real :name "bad")': "'add' names no operator of 1 operand",
    '(rewrite (Binary "add" x y) (Binary "plus" x y) :ruleset algebra-real :name "bad")': "name one of add, sub",
    '(rewrite (Reduce "sum" a x) x :ruleset algebra-real :name "bad")': "'sum' names no monoid",
    '(rewrite (Channel "softmin" a s x) x :ruleset algebra-real :name "bad")': "'softmin' names no recipe",
    '(rewrite (Round "f33" x) x :ruleset algebra-real :name "bad")': "'f33' names no type",
    '(relation Kept (Valeu))': "Undefined sort Valeu",
}
MENDED = {      # how it may be mended, besides the file's name
    '(relation Kept (Valeu))': ": Value is the nearest known; rules/loop/syntax.egg declares sorts and terms",
    '(rewrite (Unery "exp" x) x :ruleset algebra-real :name "bad")': ": Unary is the nearest known; rules/loop/syntax.egg",
    '(rewrite (Unary "exp" x) (Unary x) :ruleset algebra-real :name "bad")': "; rules/loop/syntax.egg declares sorts and terms",
    '(rewrite (Unary "exp" x) y :ruleset algebra-real :name "bad")': ": bind y on the left side or in a premise",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_an_error_names_file_line_and_rule(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.egg"
    path.write_text(f'; a file\n(rewrite (Unary "log" (Unary "exp" x)) x :ruleset algebra-real :name "good")\n{rule}\n')
    with pytest.raises(EmmyError) as found:
        EGraph("loop", extra_rules([path])["loop"])
    said = str(found.value)
    assert f"{path}:3: " in said and BROKEN[rule] in said and ('"bad"' not in rule or "rule bad" in said), said


@pytest.mark.parametrize("text", MENDED)
def test_a_remedy_names_what_may_have_been_meant(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.egg"
    path.write_text(text)
    with pytest.raises(EmmyError) as found:
        EGraph("loop", extra_rules([path])["loop"])
    assert f"mend {path}{MENDED[text]}" in found.value.remedy


def test_the_house_names_operators_and_types_that_there_are() -> None:
    for ir in ORDER:
        for file in rule_files(ir):
            check_names(parse(*file))


def test_a_name_that_is_none_is_told_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "broken.egg"
    path.write_text('; a file\n(rule ((= v (Unary "exp" x)))\n      ((union v (Unary "xep" x))) :ruleset algebra-real :name "bad")')
    with pytest.raises(EmmyError, match=r"broken\.egg:3: rule bad: \(Unary \"xep\" …\): 'xep' names no operator"):
        extra_rules([path])


def test_a_rule_named_like_one_of_the_house_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "again.egg"
    path.write_text('\n(rewrite (Unary "exp" x) x :ruleset algebra-real :name "factor-out")')
    with pytest.raises(EmmyError, match=r"again\.egg:2: rule factor-out"):
        EGraph("loop", extra_rules([path])["loop"])


def test_the_house_knows_where_its_rules_stand() -> None:
    rule = next(r for r in house("loop") if r.name == "factor-out")
    assert (rule.file, rule.line, rule.ruleset) == ("loop/algebra.egg", 4, "algebra-real")
    assert rule.says == "sum_a x*y = x * sum_a y where x does not depend on a"
