"""Where candidates are compiled and measured: processes of this host, one a GPU, or the workers of a Ray cluster.

An executor is given jobs and gives back results, in the order in which they are done.  Each job is compiled in one process and measured
in another, under time limits of their own: a crash or a hang costs that candidate alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from emmy.errors import EmmyError
from emmy.runtime.process import Died, TimedOut, Worker
from emmy.tune import candidate, measure
from emmy.tune.candidate import Candidate, Problem
from emmy.tune.measure import Result
from emmy.tune.worker import READY_S, guarded

GRACE_S = 30.0      # beyond nvcc's own limit, for a compiling process to start in


class Limits(NamedTuple):
    """Seconds that a candidate may take to compile, and to be measured."""

    compile_s: float = 60.0
    measure_s: float = 20.0


LIMITS = Limits()


class Job(NamedTuple):
    """A candidate to compile and measure on a device of `measure.DEVICES`."""

    problem: Problem
    candidate: Candidate
    device: str
    limits: Limits = LIMITS


class Executor(Protocol):
    """Runs jobs.  `slots`: how many it is worth to have under way."""

    slots: int

    def submit(self, job: Job) -> None:
        """Begin a job, or have it wait."""

    def next(self, timeout: float) -> tuple[Job, Result] | None:
        """A job that is done; None if none is within `timeout` seconds."""

    def close(self) -> None:
        """End whatever is under way."""


def complete(job: Job, compiling: Worker, measuring: Worker, turn: Any = None) -> Result:
    """Compile a job in one process and, while it holds the lock `turn`, measure it in another."""
    limit = job.limits.compile_s
    try:
        arguments = [job.candidate], job.problem.target, job.problem.math, limit, job.device == "cuda"
        (compiled,) = compiling.call(candidate.build, *arguments, timeout=limit + GRACE_S)
    except TimedOut as error:
        return Result("timeout", note=f"compiling: {error.message}")
    except Died as error:
        return Result("crash", note=f"compiling: {error.message}")
    except EmmyError as error:
        return Result("compile-error", note=error.message)
    with turn or threading.Lock():
        return guarded(measuring, job.problem, compiled, job.device, job.limits.measure_s)


def warm(measuring: Worker, turn: threading.Lock) -> None:
    """Have a process load what it measures with, before it is needed; what goes wrong then will go wrong again where it counts."""
    with turn, contextlib.suppress(EmmyError):
        measuring.call(measure.warm, timeout=READY_S)


class Local:
    """Processes of this host: `processes` that compile, and one for each of `gpus` (as CUDA_VISIBLE_DEVICES spells them) that measures.
    A device that is no GPU is measured where it is compiled."""

    def __init__(self, processes: int, gpus: Sequence[str] = ()) -> None:
        self.slots = processes + len(gpus)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, Result]] = queue.SimpleQueue()
        benches = [(Worker(measure.synchronize, {"CUDA_VISIBLE_DEVICES": gpu}), threading.Lock()) for gpu in gpus]
        self._workers = [bench for bench, _ in benches]
        self._threads: list[threading.Thread] = []
        self._closed = False
        for k in range(self.slots):
            compiling = Worker()
            bench, turn = benches[k % len(gpus)] if gpus else (compiling, None)
            self._workers.append(compiling)
            self._threads.append(threading.Thread(target=self._serve, args=(compiling, bench, turn), daemon=True))
        self._threads += [threading.Thread(target=warm, args=bench, daemon=True) for bench in benches]
        for thread in reversed(self._threads):
            thread.start()

    def _serve(self, compiling: Worker, measuring: Worker, turn: Any) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            self._done.put((job, complete(job, compiling, measuring, turn)))

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def next(self, timeout: float) -> tuple[Job, Result] | None:
        try:
            return self._done.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None

    def close(self) -> None:
        self._closed = True
        for _ in range(self.slots):
            self._jobs.put(None)
        for worker in self._workers:
            worker.close()
        for thread in self._threads:
            thread.join(1.0)
        for worker in self._workers:    # one that was begun meanwhile
            worker.close()


_own: tuple[Worker, Worker] | None = None


def on_ray(job: Job) -> Result:
    """A job on a worker of Ray, which has processes of its own for it."""
    global _own
    _own = _own or (Worker(), Worker(measure.synchronize))
    return complete(job, *_own)


class Ray:
    """The workers of a Ray cluster, that of $RAY_ADDRESS or one that is started on this host; each job takes a CPU and, on CUDA, a GPU."""

    def __init__(self, device: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise EmmyError("the executor ray needs Ray, which is not installed",
                            'install it: pip install "emmy-egraph[ray]", or take --executor local') from error
        self._ray = ray
        if not ray.is_initialized():
            ray.init(address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._run = ray.remote(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=0)(on_ray)
        self._jobs: dict[Any, Job] = {}
        unit = "GPU" if device == "cuda" else "CPU"
        if not (count := int(ray.cluster_resources().get(unit, 0))):
            raise EmmyError(f"the Ray cluster has no {unit}", "join a host that has one, or choose another device")
        self.slots = 2 * count

    def submit(self, job: Job) -> None:
        self._jobs[self._run.remote(job)] = job

    def next(self, timeout: float) -> tuple[Job, Result] | None:
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=max(timeout, 0.0)) if self._jobs else ([], [])
        if not ready:
            return None
        job = self._jobs.pop(ready[0])
        try:
            return job, self._ray.get(ready[0])
        except self._ray.exceptions.RayError as error:
            return job, Result("crash", note=f"{type(error).__name__}: {error}".splitlines()[0])

    def close(self) -> None:
        for reference in self._jobs:
            self._ray.cancel(reference, force=True)
        self._jobs.clear()


def make(name: str, device: str, processes: int | None = None) -> Executor:
    """The executor "local" or "ray" for a device; EmmyError if there is no such executor, or no GPU for it."""
    match name:
        case "local":
            from emmy.runtime.launch import cuda_device

            gpus: list[str] = []
            if device == "cuda":
                cuda_device()
                import torch

                visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
            return Local(processes or max(1, len(os.sched_getaffinity(0)) - len(gpus)), gpus)
        case "ray":
            return Ray(device)
    raise EmmyError(f"unknown executor {name!r}", "the executors are local and ray")
