from __future__ import annotations

import functools
import importlib.util
import os
import sys
import time

import pytest

from emmy.errors import EmmyError
from emmy.pipeline import compile_snippet
from emmy.runtime.process import Worker
from emmy.tune import executor, measure
from emmy.tune.executor import Job, Limits, Local, complete
from emmy.tune.measure import Result
from emmy.tune.tasks import Task, tasks
from emmy.tune.worker import guarded
from tests.tune.devices import note_visible, troubled


@pytest.fixture(scope="module")
def task() -> Task:
    (task,) = tasks(compile_snippet("torch.randn(64, 64).exp()"))
    return task


def jobs(task: Task, device: str = "stand-in") -> list[Job]:
    return [Job(task.problem, task.candidate(o), device) for o in task.options[:6]]


def run(running: executor.Executor, given: list[Job], timeout: float = 120.0) -> dict[str, Result]:
    for job in given:
        running.submit(job)
    found = {}
    while len(found) < len(given):
        done = running.next(timeout)
        assert done is not None, "it takes too long"
        found[done[0].candidate.row] = done[1]
    return found


def test_processes_of_this_host(task: Task) -> None:
    running = executor.make("local", "stand-in", 2)
    try:
        assert running.slots == 2 and running.next(0.01) is None
        found = run(running, jobs(task))
    finally:
        running.close()
    assert {row: r.status for row, r in found.items()} == {o.row: "right" for o in task.options[:6]}


def test_closing_ends_what_is_under_way(task: Task) -> None:
    running = Local(1)
    for job in jobs(task):
        running.submit(job)
    running.close()
    assert not any(worker._process for worker in running._workers)


def test_a_crash_a_hang_and_an_error_cost_one_candidate_each(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.DEVICES, "troubled", troubled)
    worker, compiling = Worker(measure.synchronize), Worker()
    try:
        found = {}
        for width in ("v8", "", "v4", "v2"):
            option = next(o for o in task.options if (f"TILE={width}" in o.row if width else "TILE" not in o.row))
            job = Job(task.problem, task.candidate(option), "troubled", Limits(measure_s=3.0))
            found[width] = complete(job, compiling, worker)
    finally:
        worker.close()
        compiling.close()
    assert {width: r.status for width, r in found.items()} == {"v8": "crash", "": "right", "v4": "timeout", "v2": "crash"}
    assert "exit code 3" in found["v8"].note and "illegal memory access" in found["v2"].note and "no answer within 3 s" in found["v4"].note


def test_what_does_not_compile_is_told(task: Task) -> None:
    worker = Worker()
    try:
        job = jobs(task)[0]
        found = complete(job._replace(problem=task.problem._replace(target="sm_10"), device="cuda"), worker, worker)
    finally:
        worker.close()
    assert found.status == "compile-error" and "unknown target 'sm_10'" in found.note


def test_each_gpu_has_a_process_that_sees_it_alone_and_is_warm(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:     # noqa: ANN001
    monkeypatch.setattr(measure, "warm", functools.partial(note_visible, str(tmp_path)))
    running = Local(1, ["3", "5"])
    try:
        assert running.slots == 3
        seen = [worker.call(os.getenv, "CUDA_VISIBLE_DEVICES", timeout=60) for worker in running._workers[2:]]
        began = time.monotonic()
        while len(os.listdir(tmp_path)) < 2 and time.monotonic() - began < 60:
            time.sleep(0.1)
    finally:
        running.close()
    assert sorted(os.listdir(tmp_path)) == ["3", "5"]
    assert seen == [os.environ.get("CUDA_VISIBLE_DEVICES")] * 3, "processes that compile see what the host does"


def test_results_come_one_by_one_under_guard(task: Task) -> None:
    worker = Worker()
    try:
        (compiled,) = worker.call(executor.candidate.build, [task.candidate(task.options[0])], "sm_90a", "fast", None, False, timeout=60)
        assert guarded(worker, task.problem, compiled, "stand-in", 60.0).status == "right"
    finally:
        worker.close()


def test_no_such_executor_no_ray_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmmyError, match="unknown executor 'slurm'"):
        executor.make("slurm", "stand-in")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EmmyError, match=r"needs Ray.*\n.*emmy-egraph\[ray\]"):
        executor.make("ray", "stand-in")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_ray_workers_measure_on_a_stand_in(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with pytest.raises(EmmyError, match="the Ray cluster has no GPU"):
            executor.make("ray", "cuda")
        running = executor.make("ray", "stand-in")
        assert running.slots == 4 and running.next(0.01) is None
        found = run(running, jobs(task))
        running.close()
    finally:
        ray.shutdown()
    assert {row: r.status for row, r in found.items()} == {o.row: "right" for o in task.options[:6]}
    assert found[task.options[0].row] == measure.stand_in(task.problem, executor.candidate.build(
        [task.candidate(task.options[0])], "sm_90a", "fast", assemble=False)[0]), "a stand-in measures alike anywhere"


class FakeRay:
    """What an executor asks of Ray, run where it is asked: a task at a time, when its result is waited for."""

    def __init__(self, gpus: int, lost: str = "") -> None:
        self.exceptions = type("exceptions", (), {"RayError": RuntimeError})
        self.resources = {"CPU": 2.0, "GPU": float(gpus)}
        self.lost = lost
        self.asked: list[dict[str, int]] = []
        self.cancelled: list[object] = []

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, **asked: int):     # noqa: ANN201
        self.asked.append(asked)
        return lambda function: type("Remote", (), {"remote": staticmethod(lambda job: (function, job))})

    def wait(self, references: list, num_returns: int, timeout: float) -> tuple[list, list]:      # noqa: ANN001
        return references[:1], references[1:]

    def get(self, reference):       # noqa: ANN001, ANN201
        if reference[1].candidate.row == self.lost:
            raise RuntimeError("the worker died\nand more")
        return Result("right", 1.0)

    def cancel(self, reference: object, force: bool) -> None:
        self.cancelled.append(reference)


def test_a_cluster_is_asked_for_a_gpu_a_job_and_what_it_loses_is_a_crash(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = task.options[1].row
    cluster = FakeRay(3, lost)
    monkeypatch.setitem(sys.modules, "ray", cluster)    # type: ignore[arg-type]
    running = executor.make("ray", "cuda")
    assert running.slots == 6 and cluster.asked == [{"num_cpus": 1, "num_gpus": 1, "max_retries": 0}]
    found = run(running, jobs(task, "cuda"))
    assert {row: r.status for row, r in found.items()} == {o.row: "crash" if o.row == lost else "right" for o in task.options[:6]}
    assert found[lost].note == "RuntimeError: the worker died"
    running.submit(jobs(task)[0])
    running.close()
    assert len(cluster.cancelled) == 1 and running.next(0.0) is None
    monkeypatch.setitem(sys.modules, "ray", FakeRay(0))     # type: ignore[arg-type]
    with pytest.raises(EmmyError, match="the Ray cluster has no GPU"):
        executor.make("ray", "cuda")
