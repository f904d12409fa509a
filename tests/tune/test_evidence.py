from __future__ import annotations

import math

import pytest
import torch

from emmy.pipeline import Program, compile_snippet
from emmy.runtime import build
from emmy.tune import evidence
from emmy.tune.database import Database, Measurement
from emmy.tune.evidence import Evidence
from emmy.tune.tasks import tasks

ROWS = [("a", 1e-6), ("b", 2e-6), ("c", 4e-6)]


def measured(row: str, us: float | None, status: str = "right", identity: str = "k", at: float = 1.0) -> Measurement:
    return Measurement(identity, "h200", "sm_90a", row, "c", "fast", status, us, predicted_us=1.0, at=at)


def test_nothing_known_changes_nothing() -> None:
    assert Evidence().prices("k", ROWS) == [1e-6, 2e-6, 4e-6]


def test_measured_rows_take_what_they_took_and_others_what_the_model_was_off_by() -> None:
    known = Evidence([measured("b", 3.0)])
    assert known.prices("k", ROWS) == pytest.approx([3e-6, 3e-6, 6e-6], rel=1e-6)
    assert min((p, k) for k, p in enumerate(known.prices("k", ROWS)))[1] == 1, "a guess does not outrank a measurement"


def test_rows_that_are_not_right_are_left_out_unless_there_are_no_others() -> None:
    known = Evidence([measured("a", None, "crash"), measured("b", None, "wrong")])
    assert known.prices("k", ROWS) == [math.inf, math.inf, 4e-6]
    known.add(measured("c", None, "timeout"))
    assert known.prices("k", ROWS) == [1e-6, 2e-6, 4e-6]


def test_the_newest_counts() -> None:
    assert Evidence([measured("a", 5.0, at=9.0), measured("a", 7.0, at=3.0)]).prices("k", ROWS)[0] == pytest.approx(5e-6)


def test_a_kernel_never_measured_takes_what_others_were_off_by() -> None:
    known = Evidence([measured("x", 2.0, identity="other"), measured("y", 4.0, identity="more"), measured("z", 3.0, identity="third")])
    assert Evidence([measured("x", 2.0, identity="other")]).share == 1.0, "one kernel says nothing of the device"
    assert known.share == 3.0 and known.prices("k", ROWS) == pytest.approx([3e-6, 6e-6, 12e-6])


def test_the_measured_row_is_chosen_and_told() -> None:
    program = compile_snippet("torch.randn(64, 512).softmax(-1)")
    (task,) = tasks(program)
    slow = task.options[-1]
    known = Evidence(Measurement(task.problem.identity, "h200", "sm_90a", o.row, "c", "fast", "right", 1.0 if o == slow else 50.0)
                     for o in task.options)
    tuned = program.knowing(known)
    (kernel,) = tuned.tile.kernels
    assert kernel.schedule == slow.schedule and tuned.plan.launches[0].predicted_us == pytest.approx(1.0)
    assert program.tile.kernels[0].schedule != slow.schedule and tuned.regions is program.regions
    x = torch.randn(64, 512)
    assert torch.allclose(tuned(x), x.softmax(-1), atol=1e-6)


def test_partition_follows_what_was_measured() -> None:
    """Two kernels where the model takes one, once the one was measured to be slow."""
    program = compile_snippet("x = torch.randn(256, 256); (x.exp().sum(-1, keepdim=True) + x).sin().sum(-1)")
    whole = tasks(program)
    assert len(whole) == 1
    slow = Evidence(Measurement(whole[0].problem.identity, "h200", "sm_90a", o.row, "c", "fast", "right", 9e4, predicted_us=9e4)
                    for o in whole[0].options)
    assert len(program.knowing(slow).tile.kernels) > 1


def test_the_database_is_asked_for_this_device_compiler_and_math(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:   # noqa: ANN001
    monkeypatch.setenv("EMMY_TUNE_DB", str(tmp_path / "tune.db"))
    monkeypatch.setattr(build, "compiler", lambda: "c")
    others = measured("b", 5.0)._replace(compiler="older"), measured("c", 5.0)._replace(math="exact")
    Database(tmp_path / "tune.db").put(measured("a", 5.0), *others)
    assert list(evidence.here("h200", "fast").of("k")) == ["a"]
    assert evidence.here("a100", "fast").of("k") == {}
    program = Program(compile_snippet("torch.randn(4, 4) + 1").captured)
    assert list(program.evidence.found) == ["k"]
    monkeypatch.setenv("EMMY_TUNE_DB", "off")
    assert evidence.here("h200", "fast").found == {}
