"""The bounds that the code base keeps: file length, folder depth, named rules, import time, layers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("emmy", "extract", "rules", "tests", "benchmarks")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_longer_than_400_lines() -> None:
    length = {relative(path): len(path.read_text().splitlines()) for path in FILES if path.suffix in (".py", ".egg")}
    assert len(length) > 20, "the search found the sources"
    assert {name: lines for name, lines in length.items() if lines > 400} == {}, "split these by idea"


def test_no_folder_is_deeper_than_four() -> None:
    assert [relative(path) for path in FILES if len(path.relative_to(ROOT).parts) > 5] == []


def rules(text: str) -> list[str]:
    """The top-level rule and rewrite commands of egglog text, without comments and with strings kept."""
    tokens = re.finditer(r'"(?:\\.|[^"\\])*"|;[^\n]*|[()]', text)
    depth, start, found = 0, 0, []
    for token in tokens:
        if token[0] == "(":
            start = token.start() if depth == 0 else start
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0 and re.match(r"\((rule|rewrite|birewrite)\b", command := text[start : token.end()]):
                found.append(re.sub(r'("(?:\\.|[^"\\])*")|;[^\n]*', r"\1", command))
    return found


def unnamed(text: str) -> list[str]:
    return [rule for rule in rules(text) if not re.search(r':name\s+"[^"]+"', rule)]


def test_the_search_for_unnamed_rules_sees_them() -> None:
    text = """(rewrite (F "; (" x) x :name "f") ; (rewrite (A) (B))
              (rule ((= x (F x))) ((delete (F x)))) ; :name "in a comment"
              (relation named (String))"""
    assert len(rules(text)) == 2
    assert unnamed(text) == ["(rule ((= x (F x))) ((delete (F x))))"]


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".egg" and path.is_relative_to(ROOT / "rules")], ids=relative)
def test_every_rule_has_a_name(path: Path) -> None:
    assert unnamed(path.read_text()) == []


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def test_importing_emmy_is_quick_and_lazy() -> None:
    code = """import sys, time; start = time.process_time(); import emmy
print(time.process_time() - start, *sorted({"torch", "egglog", "scipy", "ortools"} & sys.modules.keys()))"""
    seconds, *heavy = min((run(code).split() for _ in range(3)), key=lambda words: float(words[0]))
    assert heavy == []
    assert float(seconds) < 0.3


def test_extract_imports_nothing_of_emmy() -> None:
    modules = ", ".join(f"extract.{path.stem}" for path in (ROOT / "extract").glob("*.py") if path.stem != "__init__")
    assert run(f"import sys, extract, {modules}, extract.hardware; print([m for m in sys.modules if m.split('.')[0] == 'emmy'])") == "[]"
