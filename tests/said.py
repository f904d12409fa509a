"""The command line as tests call it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from emmy.cli import app

ROOT = Path(__file__).parents[1]


class Said:
    """What a command said, and its exit code."""

    def __init__(self, *words: str | Path, env: dict[str, str] | None = None) -> None:
        result = CliRunner().invoke(app, [*map(str, words)], env={"EMMY_KNOBS": "", **(env or {})})
        self.out, self.err, self.code, self.exception = result.stdout, result.stderr, result.exit_code, result.exception

    def well(self) -> str:
        assert self.code == 0, (self.out, self.err, self.exception)
        return self.out


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def assert_bad(said: Said, *words: str) -> None:
    """One message on stderr that names the thing and the remedy, exit code 2, no traceback."""
    assert (said.code, said.out) == (2, ""), (said.out, said.err, said.exception)
    assert said.err.startswith("error: ") and len(re.findall(r"^error: |^  remedy: ", said.err, re.M)) == 2 and "Traceback" not in said.err
    assert all(word in said.err for word in words), said.err


def shell(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
