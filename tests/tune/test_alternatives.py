"""What other programs would cost."""

from __future__ import annotations

import pytest

from emmy.capture.snippet import capture_snippet
from emmy.pipeline import Program
from emmy.tune.choose import Rows
from emmy.tune.explanation import Explanation, explain


def explained(source: str, most: int = 8) -> tuple[Program, Explanation]:
    program = Program(capture_snippet(source), traced=True)
    return program, explain(program.region, Rows(program.target), most=most)


@pytest.fixture(scope="module")
def chain() -> tuple[Program, Explanation]:
    return explained("(torch.randn(512, 8) @ torch.randn(8, 512)) @ torch.randn(512, 8)")


def test_the_last_state_costs_what_the_choice_was_predicted_to(chain: tuple[Program, Explanation]) -> None:
    program, told = chain
    by = {s.kernel.outputs[0].name: s.seconds for s in program.choice.scheduled.values()}
    assert {t: s for t, s in told.costs[-1].items() if s is not None} == pytest.approx(by)
    assert len(told.costs) == len(told.derivation.steps) + 1
    assert all(s is not None for costs in told.costs for s in costs.values())


def test_keeping_and_fusing_are_priced_on_the_scale_of_the_choice(chain: tuple[Program, Explanation]) -> None:
    program, told = chain
    kept = {k.outputs[0].name for k in program.tile.kernels}
    assert {a.tensor for a in told.alternatives} >= {"t0"} and "matmul_1" not in {a.tensor for a in told.alternatives}
    for other in told.alternatives:
        assert other.kept == (other.tensor not in kept)
        assert other.seconds is not None and other.seconds >= told.weighed * (1 - 1e-9)
        assert other.kernels >= 2 if other.kept else other.kernels >= 1


def test_forms_are_priced_or_lack_a_fact(chain: tuple[Program, Explanation]) -> None:
    program, told = chain
    chosen = {tuple(t.name for t in s.kernel.outputs): s for s in program.choice.scheduled.values()}
    assert told.forms.keys() == chosen.keys()
    for writes, forms in told.forms.items():
        schedule = chosen[writes].kernel.schedule
        assert schedule is not None and (forms[0].form, forms[0].row) == (schedule.form, schedule.row)
        known = [f.seconds for f in forms if f.seconds is not None]
        assert known == sorted(known) and known[0] == pytest.approx(chosen[writes].seconds)
        assert all(f.reasons and f.reasons[0].premises for f in forms if f.seconds is None)
        assert len({f.form for f in forms}) == len(forms) >= 6


def test_no_more_alternatives_than_asked_for() -> None:
    _, told = explained("F.softmax(torch.randn(64, 64), -1)", 1)
    assert len(told.alternatives) == 1 and told.unasked == 2


def test_a_program_that_is_extracted_as_written_has_no_steps_and_no_alternatives() -> None:
    _, told = explained("torch.randn(4).exp()")
    assert told.derivation.steps == () and told.alternatives == () and len(told.costs) == len(told.forms) == 1


def test_pinned_rows_are_those_of_the_kernels_chosen() -> None:
    program = Program(capture_snippet("torch.randn(1024).exp()"), traced=True)
    told = explain(program.region, Rows(program.target), "WORK=t64")
    (kernel,) = told.kernels.values()
    assert kernel.kernel.schedule is not None and kernel.kernel.schedule.row.work == "t64" and told.costs[-1] == {"exp": kernel.seconds}
