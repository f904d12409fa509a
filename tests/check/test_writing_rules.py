"""docs/writing-rules.md, followed from its first command to its last."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emmy.cli import app
from tests.said import ROOT

PAGE = (ROOT / "docs" / "writing-rules.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)


def words(line: str) -> list[str]:
    """The words of a line but for numbers that are times or depend on the machine's speed: which zero has which sign, too."""
    return re.sub(r"-?\b\d+(\.\d+)?\b", "#", line).split()


def test_the_page_is_what_its_commands_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule, twin = (next(text for kind, text in BLOCKS if not kind and text.startswith(start)) for start in ("; ", ";; "))
    (program,) = re.findall(r'^\$ P="(.*)"$', PAGE, re.M)
    codes = []
    for shown in (text.splitlines() for kind, text in BLOCKS if kind == "console"):
        command = next(line for line in shown if line.startswith("$ emmy"))
        if "rules check" in command:
            Path("maximum-of-maxima.egg").write_text(rule if 1 not in codes else rule.replace("normalize-exact", "algebra-real"))
            Path("maximum-of-maxima.twin.egg").write_text(twin)
        said = CliRunner().invoke(app, shlex.split(command.replace('"$P"', shlex.quote(program)))[2:], env={"EMMY_KNOBS": ""})
        codes.append(said.exit_code)
        found = [words(line) for line in said.stdout.splitlines()]
        missing = [line for line in shown if not line.startswith("$") and words(line) not in found]
        assert missing == [], said.stdout + said.stderr
    assert codes == [0, 0, 1, 0, 0]
