"""A process of its own for work that may break it: a faulting kernel ends its CUDA context, a hanging one never returns."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from emmy.errors import EmmyError


class Worker:
    """Runs functions one after another in a child process, which is replaced when it dies, breaks or hangs.

    Functions and arguments are pickled: they are those of modules.  `healthy` is called in the child after a failure;
    if it raises, the process is taken for broken."""

    def __init__(self, healthy: Callable[[], object]) -> None:
        self._healthy = healthy
        self._process: Any = None
        self._pipe: Any = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None) -> Any:
        """What `function(*arguments)` returns; EmmyError with what it raised, or if the process died or took over `timeout` seconds."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._healthy))
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(timeout):
                self.close()
                raise EmmyError(f"no answer within {timeout:g} s", "Look for a kernel that hangs, or allow more time.")
            value, error, healthy = self._pipe.recv()
        except (EOFError, ConnectionError) as failure:
            code = self._process.join(5) or self._process.exitcode
            self.close()
            raise EmmyError(f"the process died (exit code {code})", "Run this workload alone to see why.") from failure
        if not healthy:
            self.close()
        if error is not None:
            raise EmmyError(error, "The other workloads are measured all the same.")
        return value

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Connection, healthy: Callable[[], object]) -> None:
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, str | None, bool]  # what it returned, what it raised, whether the process is fit for more
        try:
            answer = (function(*arguments), None, True)
        except Exception as error:
            traceback.print_exc()
            answer = (None, error.message if isinstance(error, EmmyError) else f"{type(error).__name__}: {error}", _is_healthy(healthy))
        pipe.send(answer)


def _is_healthy(healthy: Callable[[], object]) -> bool:
    try:
        healthy()
    except Exception:
        return False
    return True
