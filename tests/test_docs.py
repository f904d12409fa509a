"""What the documents show is so: rules, twins, commands, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emmy.cli import app
from emmy.egraph.rulebook import EGraph, rule_files
from emmy.pipeline import STAGES, compile_snippet

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str = "") -> list[str]:
    return [text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S) if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_rule_of_the_readme_and_its_twin() -> None:
    (rule,) = (text for text in blocks(ROOT / "README.md") if text.startswith("; ") and "(rewrite" in text)
    (twin,) = (text for text in blocks(ROOT / "README.md") if text.startswith(";; "))
    assert "(check" in twin and "(fail" in twin
    EGraph("loop", [("README.md", rule)]).run(twin)


def test_the_rule_that_rules_md_explains_is_in_the_rulebook() -> None:
    rule, twin = (text for text in blocks(ROOT / "docs" / "rules.md") if text.startswith(";"))
    assert rule in dict(rule_files("loop"))["loop/algebra.egg"]
    EGraph("loop").run(twin)


FOLLOWED = "writing-rules.md"      # one command after another: tests/check/test_writing_rules.py
CONSOLE = [(page, text) for page in PAGES if page.name != FOLLOWED for text in blocks(page, "console")]


@pytest.mark.parametrize("page, shown", CONSOLE, ids=[f"{page.stem}-{text.split()[2]}" for page, text in CONSOLE])
def test_commands_print_what_the_documents_show(page: Path, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in blocks(page, "text"):       # files, named in their first line
        Path(text.split()[1]).write_text(text)
    command, *lines = shown.splitlines()
    said = CliRunner().invoke(app, shlex.split(command)[2:], env={"EMMY_KNOBS": ""})
    assert said.exit_code == 0
    for line in lines:
        if line != "  …" and not re.search(r"GPU|µs|relative error", line):      # numbers and machines differ
            assert line.split() == next((found.split() for found in said.stdout.splitlines() if found.split() == line.split()), []), line


def test_the_stages_print_what_the_readme_shows() -> None:
    (readme,) = (page for page in PAGES if page.name == "README.md")
    shown = readme.read_text().partition("## The stages")[2].partition("## Commands")[0]
    program = compile_snippet("nn.RMSNorm(2048)(torch.randn(1,32,2048))")
    said = "\n".join(program.ir(stage) for stage in STAGES)
    lines = [line for block in re.findall(r"^```\n(.*?)^```$", shown, re.M | re.S) for line in block.splitlines()]
    assert len(lines) > 15 and [piece for line in lines for piece in line.split("…") if piece.strip() not in said] == []
