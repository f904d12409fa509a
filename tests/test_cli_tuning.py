"""What a terminal shows of a search while it goes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from emmy.cli.tuning import Bar
from emmy.pipeline import compile_snippet
from emmy.tune.database import Database
from emmy.tune.measure import Result
from emmy.tune.tasks import tasks
from emmy.tune.tuner import Tried
from tests.said import ROOT


def test_the_bar_tells_the_best_so_far_and_the_time_left() -> None:
    screen = io.StringIO()
    bar = Bar(Console(file=screen, force_terminal=True, width=160))
    (task,) = tasks(compile_snippet("torch.randn(64, 128).softmax(-1)"))
    with bar.progress:
        bar.kernel(task, 3, 60.0)
        for at, best, status in ((1.0, None, "crash"), (10.0, 12.5, "right"), (30.0, 11.25, "right")):
            bar.tried(Tried(task.problem.identity, "WORK=t64", Result(status), best, at))
            bar.progress.refresh()
        (shown,) = bar.progress.tasks
        assert shown.fields["said"] == f"6 of {len(task.options)} rows, best 11.25 µs, 1 not right"
        assert (shown.total, shown.completed) == (60.0, 29.0) and task.problem.identity in shown.description
        bar.kernel(task, 0, 5.0)
        assert len(bar.progress.tasks) == 1, "a kernel at a time"
    assert "best none" in screen.getvalue() and "best 12.50 µs" in screen.getvalue()
    quiet = Bar(Console(file=io.StringIO()))
    with quiet.progress:
        quiet.kernel(task, 0, 1.0)
        quiet.tried(Tried(task.problem.identity, "WORK=t64", Result("right"), 1.0, 0.5))


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    """The process of a search, sent what Ctrl-C sends once it has measured some."""
    snippet = "x = torch.randn(64, 128); (x.softmax(-1), x @ x.t(), x.sum(0), x.exp(), x.cumsum(-1))"
    words = [sys.executable, "-m", "emmy", "tune", "-c", snippet, "--device", "stand-in", "--budget", "1h", "--processes", "1"]
    kept = Database(tmp_path / "tune.db")
    running = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "EMMY_TUNE_DB": str(kept.path)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while not kept.get() and running.poll() is None and time.monotonic() - began < 120:
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert "Traceback" not in err and kept.get(), err
    assert running.returncode in (0, 130) and ("stopped: what was measured is kept" in out or running.returncode == 130), (out, err)
