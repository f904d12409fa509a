"""Tuning a program: its kernels' rows searched on a device, what was measured kept, and the program partitioned again by it.

Kernels are searched one after another, each with the share of the time left that its predicted time has in the program.  Then the
program is chosen anew on what was measured; kernels that it has only now are searched too, until it has none or the time is spent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from emmy.tune.database import Database, Finished, Measurement, revision
from emmy.tune.evidence import Evidence
from emmy.tune.executor import LIMITS, Executor, Job, Limits
from emmy.tune.measure import Result
from emmy.tune.search import Search
from emmy.tune.tasks import Task, tasks

if TYPE_CHECKING:
    from emmy.pipeline import Program

COMPLETE, HOPELESS, SPENT, STOPPED = ("every row is measured", "no row left is expected to be better", "the budget is spent", "stopped")
FIRST_SHARE = 0.75      # of the time, for the kernels that are chosen before anything is measured


class Tried(NamedTuple):
    """A candidate that was measured: the row, what became of it, the best microseconds of its kernel so far, and when, in seconds since
    the search of the program began."""

    identity: str
    row: str
    result: Result
    best_us: float | None
    at: float


class Tuned(NamedTuple):
    """A kernel's search: rows that are legal, how many are measured and not right, the row predicted to be best and what it took, the
    best one measured, and why the search ended."""

    identity: str
    calls: int
    legal: int
    measured: int
    failed: int
    first_row: str
    first_us: float | None
    predicted_us: float
    row: str
    us: float | None
    reason: str


class Watch(Protocol):
    """Is told of a search as it goes."""

    def kernel(self, task: Task, done: int, seconds: float) -> None:
        """A kernel's search begins, `done` of its rows measured already, with so many seconds for it."""

    def tried(self, tried: Tried) -> None:
        """A candidate was measured."""


class Session:
    """A search on a device, by its name in the database, with its executor.  `stopped` is set by an interrupt; what was measured is
    kept."""

    def __init__(self, executor: Executor, database: Database, device: str, name: str, compiler: str, budget_s: float, seed: int = 0,
                 limits: Limits = LIMITS, watch: Watch | None = None) -> None:
        self.executor, self.database, self.device, self.name, self.compiler = executor, database, device, name, compiler
        self.budget_s, self.seed, self.limits, self.watch = budget_s, seed, limits, watch
        self.began, self.stopped = time.monotonic(), False
        self.trace: list[Tried] = []

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began)

    def evidence(self, math: str) -> Evidence:
        """What is known of the device."""
        return Evidence(self.database.get(device=self.name, math=math, compiler=self.compiler))

    def program(self, program: Program) -> tuple[Program, list[Tuned]]:
        """Search the kernels of a program; the program chosen on what was measured, and what was found of each kernel."""
        evidence = self.evidence(program.math)
        program = program.knowing(evidence)
        found: dict[str, Tuned] = {}
        share = FIRST_SHARE
        while fresh := [t for t in tasks(program) if t.problem.identity not in found]:
            fresh.sort(key=lambda t: -t.calls * t.options[0].seconds)
            for k, task in enumerate(fresh):
                weights = [t.calls * t.options[0].seconds for t in fresh[k:]]
                found[task.problem.identity] = self.kernel(task, evidence, share * self.left_s * weights[0] / sum(weights))
                if self.stopped:
                    return program.knowing(evidence), list(found.values())
            program, share = program.knowing(evidence), 1.0
        return program, list(found.values())

    def kernel(self, task: Task, evidence: Evidence, seconds: float) -> Tuned:
        """Search the rows of a kernel for so many seconds, and keep what is measured in the database and in `evidence`."""
        identity, math = task.problem.identity, task.problem.math
        known = evidence.of(identity)
        search = Search(task.options, self.seed)
        number = {o.row: k for k, o in enumerate(task.options)}
        for row, m in known.items():
            if row in number:
                search.tell(number[row], m.us * 1e-6 if m.us is not None else None)
        ended = self.database.finished(identity, self.name, self.compiler, math)
        if not search.left:
            reason = COMPLETE
        elif ended is not None and (ended.reason == HOPELESS or ended.seconds >= self.budget_s):
            reason = ended.reason
        else:
            if self.watch:
                self.watch.kernel(task, len(search.seconds), seconds)
            reason = self._search(task, search, number, evidence, time.monotonic() + seconds)
            if reason != STOPPED:
                self.database.finish(Finished(identity, self.name, self.compiler, math, self.budget_s, reason))
        first, best = task.options[0], search.best
        failed = sum(s is None for s in search.seconds.values())
        taken = search.seconds.get(0)
        row, us = (task.options[best[0]].row, best[1] * 1e6) if best else (first.row, None)
        return Tuned(identity, task.calls, len(task.options), len(search.seconds), failed, first.row, taken and taken * 1e6,
                     first.seconds * 1e6, row, us, reason)

    def _search(self, task: Task, search: Search, number: dict[str, int], evidence: Evidence, deadline: float) -> str:
        under_way = 0
        try:
            while True:
                spent = time.monotonic() >= deadline
                ending = COMPLETE if not search.left else SPENT if spent else HOPELESS if search.hopeless() else ""
                while not ending and under_way < self.executor.slots and (k := search.take()) is not None:
                    self.executor.submit(Job(task.problem, task.candidate(task.options[k]), self.device, self.limits))
                    under_way += 1
                if not under_way:
                    return ending
                if (done := self.executor.next(0.5)) is None:
                    continue
                under_way -= 1
                for m in self._kept(task, done[0], done[1], evidence):
                    search.tell(number[m.row], m.us * 1e-6 if m.us is not None else None)
                self._told(task, search, done)
        except KeyboardInterrupt:
            self.stopped = True
            return STOPPED

    def _kept(self, task: Task, job: Job, result: Result, evidence: Evidence) -> Iterable[Measurement]:
        """What a result says, kept: of its row, and of one that it overturns."""
        c, now = job.candidate, time.time()
        found = [Measurement(c.identity, self.name, task.problem.target, c.row, self.compiler, task.problem.math, result.status, result.us,
                             result.spread_us, result.error, c.predicted_us, result.note, revision(), now)]
        if result.overturned and (before := evidence.of(c.identity).get(result.overturned)):
            found.append(before._replace(status="wrong", us=None, spread_us=None, at=now,
                                         note=f"differs from {c.row}, which is right where it does"))
        self.database.put(*found)
        for m in found:
            evidence.add(m)
        return found

    def _told(self, task: Task, search: Search, done: tuple[Job, Result]) -> None:
        best = search.best
        tried = Tried(task.problem.identity, done[0].candidate.row, done[1], best and best[1] * 1e6, time.monotonic() - self.began)
        self.trace.append(tried)
        if self.watch:
            self.watch.tried(tried)
