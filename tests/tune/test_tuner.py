"""Whole searches, with an executor that needs no process."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from emmy.pipeline import Program, compile_snippet
from emmy.tune import tuner
from emmy.tune.database import Database
from emmy.tune.evidence import Evidence
from emmy.tune.executor import Job
from emmy.tune.measure import Result
from emmy.tune.tasks import Task, tasks
from emmy.tune.tuner import COMPLETE, HOPELESS, SPENT, STOPPED, Session

TWO = "x = torch.randn(256, 64); (x.softmax(-1), x.t().contiguous().cumsum(-1))"


class Direct:
    """An executor that measures when asked for a result, by a function of the test's."""

    slots = 3

    def __init__(self, measure=None) -> None:      # noqa: ANN001
        self.waiting: deque[Job] = deque()
        self.rows: list[tuple[str, str]] = []
        self.measure = measure or (lambda job: Result("right", 2 * job.candidate.predicted_us, 0.1, 1e-7))

    def submit(self, job: Job) -> None:
        assert len(self.waiting) < self.slots
        self.waiting.append(job)

    def next(self, timeout: float) -> tuple[Job, Result] | None:
        job = self.waiting.popleft()
        self.rows.append((job.candidate.identity, job.candidate.row))
        return job, self.measure(job)

    def close(self) -> None:
        self.waiting.clear()


@pytest.fixture(scope="module")
def program() -> Program:
    made = compile_snippet(TWO)
    _ = made.regions
    return made


def session(running: Direct, path: Path, budget: float = 1e6, **more: object) -> Session:
    return Session(running, Database(path / "tune.db"), "stand-in", "h200 test", "c", budget, **more)      # type: ignore[arg-type]


def test_all_rows_of_all_kernels_are_measured_and_a_second_run_measures_nothing(program: Program, tmp_path: Path,
                                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emmy.tune.search.Search.hopeless", lambda self: False)
    running = Direct()
    tuned, found = session(running, tmp_path).program(program)
    expected = {(t.problem.identity, o.row) for t in tasks(tuned) for o in t.options}
    assert expected <= set(running.rows) and len(set(running.rows)) == len(running.rows)
    assert len(found) >= 2 and {t.reason for t in found} == {COMPLETE} and all(t.measured == t.legal and not t.failed for t in found)
    assert all(t.us == pytest.approx(2 * t.predicted_us) for t in found)
    again = Direct()
    _, found = session(again, tmp_path).program(program)
    assert again.rows == [] and {t.reason for t in found} == {COMPLETE}


def test_the_best_measured_row_is_chosen_and_wrong_ones_are_not(program: Program, tmp_path: Path) -> None:
    def only_map(job: Job) -> Result:
        return Result("right", 0.5, 0.0, 0.0) if "REDUCE" not in job.candidate.row else Result("wrong", note="off")

    tuned, found = session(Direct(only_map), tmp_path).program(program)
    assert all("REDUCE" not in str(k.schedule.row) for k in tuned.tile.kernels if k.schedule)
    assert all(t.us == 0.5 and "REDUCE" not in t.row for t in found) and any(t.failed for t in found)
    kept = Database(tmp_path / "tune.db").get()
    assert {m.status for m in kept} == {"right", "wrong"} and {m.note for m in kept if m.status == "wrong"} == {"off"}


def test_a_search_without_hope_ends_early_and_stays_ended(program: Program, tmp_path: Path) -> None:
    running = Direct()
    _, found = session(running, tmp_path).program(program)
    assert HOPELESS in {t.reason for t in found} and any(t.measured < t.legal for t in found)
    again = Direct()
    session(again, tmp_path, budget=2e6).program(program)
    assert again.rows == []


def test_a_spent_budget_is_remembered_and_a_larger_one_goes_on(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr("emmy.tune.tuner.time.monotonic", lambda: float(next(clock)))
    running = Direct()
    _, found = session(running, tmp_path, budget=60.0).program(program)
    assert SPENT in {t.reason for t in found} and 0 < len(running.rows) < 60
    again = Direct()
    session(again, tmp_path, budget=60.0).program(program)
    assert again.rows == []
    more = Direct()
    session(more, tmp_path, budget=200.0).program(program)
    assert more.rows and not set(more.rows) & set(running.rows)


def test_an_interrupt_keeps_what_is_done_and_the_next_run_goes_on(program: Program, tmp_path: Path) -> None:
    def interrupted(job: Job) -> Result:
        if len(running.rows) > 5:
            raise KeyboardInterrupt
        return Result("right", 1.0, 0.0, 0.0)

    running = Direct(interrupted)
    first = session(running, tmp_path)
    _, found = first.program(program)
    assert first.stopped and found[-1].reason == STOPPED and len(Database(tmp_path / "tune.db").get()) == 5
    again = Direct()
    session(again, tmp_path).program(program)
    assert not {(m.identity, m.row) for m in Database(tmp_path / "tune.db").get() if m.us == 1.0} & set(again.rows)


def test_a_row_that_another_overturns_is_wrong_from_then_on(program: Program, tmp_path: Path) -> None:
    first: dict[str, str] = {}

    def overturning(job: Job) -> Result:
        before = first.setdefault(job.candidate.identity, job.candidate.row)
        found = Result("right", job.candidate.predicted_us, 0.0, 0.0)
        return found._replace(overturned=before) if len(running.rows) == 2 else found

    running = Direct(overturning)
    _, found = session(running, tmp_path).program(program)
    wrong = [m for m in Database(tmp_path / "tune.db").get() if m.status == "wrong"]
    assert [m.row for m in wrong] == [running.rows[0][1]] and wrong[0].us is None and running.rows[1][1] in wrong[0].note
    assert next(t for t in found if t.identity == wrong[0].identity).row != wrong[0].row


def test_after_tuning_partition_runs_again_and_new_kernels_are_searched(tmp_path: Path) -> None:
    program = compile_snippet("x = torch.randn(256, 256); (x.exp().sum(-1, keepdim=True) + x).sin().sum(-1)")
    (whole,) = tasks(program)

    def slow_together(job: Job) -> Result:
        return Result("right", 1e5 if job.candidate.identity == whole.problem.identity else job.candidate.predicted_us, 0.0, 0.0)

    running = Direct(slow_together)
    tuned, found = session(running, tmp_path).program(program)
    assert len(tuned.tile.kernels) > 1 and {t.identity for t in found} > {whole.problem.identity}
    assert {s.identity for s in tuned.choice.scheduled.values()} <= {t.identity for t in found}, "all that it has is measured"


class Watched:
    def __init__(self) -> None:
        self.kernels: list[tuple[str, int]] = []
        self.best: list[float | None] = []

    def kernel(self, task: Task, done: int, seconds: float) -> None:
        self.kernels.append((task.problem.identity, done))

    def tried(self, tried: tuner.Tried) -> None:
        self.best.append(tried.best_us)


def test_who_watches_is_told(program: Program, tmp_path: Path) -> None:
    watched, running = Watched(), Direct()
    made = session(running, tmp_path, watch=watched)
    made.program(program)
    assert len(watched.best) == len(running.rows) == len(made.trace) and {k for k, _ in watched.kernels} == {k for k, _ in running.rows}
    assert [t.row for t in made.trace] == [row for _, row in running.rows] and None not in watched.best


def test_a_program_knows_what_it_is_told_and_the_other_does_not(program: Program) -> None:
    _ = program.plan
    other = program.knowing(Evidence())
    assert other.regions is program.regions and "plan" not in vars(other) and "plan" in vars(program)
