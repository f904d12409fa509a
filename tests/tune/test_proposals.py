from __future__ import annotations

import math

import pytest

from emmy.errors import EmmyError
from emmy.pipeline import compile_snippet
from emmy.tune import proposals
from emmy.tune.measure import Result
from emmy.tune.proposals import Judged, judge, ranked, read
from emmy.tune.tasks import Task, tasks
from extract import hardware

GPU = hardware.load("h200")


@pytest.fixture(scope="module")
def two() -> tuple[Task, ...]:
    return tasks(compile_snippet("x, y = torch.randn(64, 128), torch.randn(40, 96); (x.exp(), y.softmax(-1))"))


def test_lines() -> None:
    found = read("# by hand\nWORK=t64\n\n fold_12ab: REDUCE=warp,WORK=w4  # the second\n", "rows.txt")
    assert found == [(2, "", "WORK=t64"), (4, "fold_12ab", "WORK=w4,REDUCE=warp")]


@pytest.mark.parametrize("text", ["WORK", "map:", "WORK=t64,WORK=t64", "ROW=3"])
def test_a_line_that_is_none_is_named(text: str) -> None:
    with pytest.raises(EmmyError, match="rows.txt, line 2: "):
        read(f"\n{text}", "rows.txt")


def test_rows_are_judged_for_each_kernel_they_are_for(two: tuple[Task, ...]) -> None:
    lines = read("WORK=t64\nfold: WORK=w4,TILE=v4,REDUCE=warp\nexp: WORK=t2048", "rows.txt")
    found = list(judge(lines, two, GPU))
    by_form = {t.problem.identity: t.options[0].schedule.form for t in two}
    assert {(j.line, by_form[j.identity], j.option is not None) for j in found} == {(1, "map", True), (1, "fold", True), (2, "fold", True),
                                                                                    (3, "map", False)}
    assert found[-1].reason == "fails FitsThreads (more threads a block than the target has)"


def test_a_legal_row_that_no_rule_offers_unasked_is_legal(two: tuple[Task, ...]) -> None:
    (found,) = judge(read("exp: WORK=t96,TILE=v2", "r"), two, GPU)
    assert found.option is not None and str(found.option.schedule.row) == "WORK=t96,TILE=v2"


def test_what_no_rule_proposes_has_a_neighbour(two: tuple[Task, ...]) -> None:
    (found,) = judge(read("fold: WORK=w4,REDUCE=tree", "r"), two, GPU)
    assert found.option is None and found.reason.startswith("no rule proposes it; the nearest legal row is WORK=w4")


def test_a_site_where_no_kernel_is(two: tuple[Task, ...]) -> None:
    with pytest.raises(EmmyError, match="line 1: no kernel is at 'cross'"):
        list(judge(read("cross: WORK=t64", "r"), two, GPU))


def test_ranking_takes_measured_before_predicted_and_what_is_not_right_last(two: tuple[Task, ...]) -> None:
    slow, quick = two[0].options[-1], two[0].options[0]
    made = [Judged(1, "k", "a", None, "illegal"), Judged(2, "k", "b", quick, ""), Judged(3, "k", "c", slow, "", Result("right", 1e-3)),
            Judged(4, "k", "d", quick, "", Result("wrong")), Judged(5, "k", "e", quick, "", Result("right", None, error=0.0))]
    assert [j.row for j in ranked(made)["k"]] == ["c", "b", "e", "a", "d"]
    assert made[0].us == made[3].us == math.inf and made[4].us == pytest.approx(quick.seconds * 1e6)


def test_how_near_rows_are() -> None:
    assert proposals.shared("WORK=w4,REDUCE=warp", "WORK=w4,REDUCE=coop") == 1
