"""Rule files: what a rule is, where it stands, and the errors that a broken one gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from emmy.egraph import rulefile
from emmy.egraph.rulebook import EGraph, extra_rules, house
from emmy.errors import EmmyError

TEXT = '''; the file · of rules

; what it means,
; in two lines
(rewrite (Unary "f" x) x :ruleset algebra-real :name "one")   ; not this
(relation r (String))
(ruleset normalize-mine-exact)
(rewrite (Unary "; (" x) (Unary "g" x) :when ((= x x)) :ruleset normalize-mine-exact :name "two")
(rule ((= v (Unary "h" a)) (r b))
      ((union v a)) :ruleset normalize-mine-exact :name "three")
(birewrite (Unary "p" x) (Unary "q" x) :ruleset algebra-real :name "four")
'''


def test_what_a_rule_is() -> None:
    file = rulefile.parse("f.egg", TEXT)
    assert file.rulesets == ("normalize-mine-exact",)
    assert [(r.name, r.line, r.phase, r.kind, r.says) for r in file.rules] == [
        ("one", 5, "algebra", "real", "what it means, in two lines"),
        ("two", 8, "normalize", "exact", '(Unary "; (" x) = (Unary "g" x)'),
        ("three", 9, "normalize", "exact", '(= v (Unary "h" a)) (r b) => (union v a)'),
        ("four=>", 11, "algebra", "real", '(Unary "p" x) = (Unary "q" x)'),
        ("four<=", 11, "algebra", "real", '(Unary "p" x) = (Unary "q" x)')]
    assert [len(r.premises) for r in file.rules] == [1, 2, 2, 1, 1]
    assert file.at(10) == file.rules[2] and file.at(7) is None


def test_a_rewrite_is_the_union_of_its_sides() -> None:
    one, *_, forth, back = rulefile.parse("f.egg", TEXT).rules
    assert [str(x) for x in (*one.premises, *one.actions)] == ['(= rewritten (Unary "f" x))', "(union rewritten x)"]
    assert str(forth.actions[0]) == '(union rewritten (Unary "q" x))' and str(back.premises[0]) == '(= rewritten (Unary "q" x))'


def test_names_and_rulesets_of_a_file_join_the_house(tmp_path: Path) -> None:
    path = tmp_path / "f.egg"
    path.write_text(TEXT)
    (file,) = extra_rules([path])["loop"]
    graph = EGraph("loop", [file])
    assert graph.phase("normalize", ("exact",)) == "(seq (run normalize-exact) (run normalize-mine-exact))"
    graph.run('(let $x (Input "x" (End))) (let $y (Unary "; (" $x))')
    graph.schedule(graph.phase("normalize", ("exact", "real")))
    assert graph.equal("$y", '(Unary "g" $x)') and graph.fired["two"] == 1


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
}


@pytest.mark.parametrize("rule", BROKEN)
def test_an_error_names_file_line_and_rule(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.egg"
    path.write_text(f'; a file\n(rewrite (Unary "log" (Unary "exp" x)) x :ruleset algebra-real :name "good")\n{rule}\n')
    with pytest.raises(EmmyError) as found:
        EGraph("loop", extra_rules([path])["loop"])
    said = str(found.value)
    assert f"{path}:3: " in said and BROKEN[rule] in said and ('"bad"' not in rule or "rule bad" in said), said


def test_a_rule_named_like_one_of_the_house_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "again.egg"
    path.write_text('\n(rewrite (Unary "exp" x) x :ruleset algebra-real :name "factor-out")')
    with pytest.raises(EmmyError, match=r"again\.egg:2: rule factor-out"):
        EGraph("loop", extra_rules([path])["loop"])


def test_the_house_knows_where_its_rules_stand() -> None:
    rule = next(r for r in house("loop") if r.name == "factor-out")
    assert (rule.file, rule.line, rule.ruleset) == ("loop/algebra.egg", 4, "algebra-real")
    assert rule.says == "sum_a x*y = x * sum_a y where x does not depend on a"
