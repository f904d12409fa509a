"""A process of its own for work that may break it: a faulting kernel ends its CUDA context, a hanging one never returns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from emmy.errors import EmmyError


class Died(EmmyError):
    """The process ended before it answered."""


class TimedOut(EmmyError):
    """The process did not answer in time, and was ended."""


class Worker:
    """Runs functions one after another in a child process, which is replaced when it dies, breaks or hangs.

    Functions and arguments are pickled: they are those of modules.  `healthy` is called in the child after a failure;
    if it raises, the process is taken for broken.  `environment` is set in it before anything is imported there.  It leads a session of
    its own: an interrupt from the terminal does not reach it, and what it has started ends with it."""

    def __init__(self, healthy: Callable[[], object] = bool, environment: Mapping[str, str] | None = None) -> None:
        self._healthy, self._environment = healthy, dict(environment or {})
        self._process: Any = None
        self._pipe: Any = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Any:
        """What `function(*arguments)` returns; EmmyError with what it raised, or if the process died or took over `timeout` seconds."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._healthy, self._environment), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(timeout):
                self.close()
                raise TimedOut(f"no answer within {timeout:g} s", "Look for a kernel that hangs, or allow more time.")
            value, error, healthy = self._pipe.recv()
        except (EOFError, ConnectionError) as failure:
            code = self._process.join(5) or self._process.exitcode
            self.close()
            raise Died(f"the process died (exit code {code})", "Run this workload alone to see why.") from failure
        if not healthy:
            self.close()
        if error is not None:
            raise EmmyError(*error)
        return value

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):     # it ended, or leads no session yet
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Connection, healthy: Callable[[], object], environment: dict[str, str]) -> None:
    os.setsid()
    os.environ.update(environment)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, tuple[str, str] | None, bool]  # what it returned, what it raised, whether the process is fit for more
        try:
            answer = (function(*arguments), None, True)
        except Exception as error:
            if isinstance(error, EmmyError):
                raised = error.message, error.remedy
            else:
                raised = f"{type(error).__name__}: {error}", "The traceback is on the standard error."
                traceback.print_exc()
            answer = (None, raised, _is_healthy(healthy))
        pipe.send(answer)


def _is_healthy(healthy: Callable[[], object]) -> bool:
    try:
        healthy()
    except Exception:
        return False
    return True
