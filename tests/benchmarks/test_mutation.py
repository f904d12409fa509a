from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import mutation
from benchmarks.mutation import Judged, digest, page, reason
from emmy.egraph.rulebook import ORDER, house

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "mutation.jsonl"
REASONS = tomllib.loads((ROOT / "benchmarks" / "mutation.toml").read_text())["listed"]


def on_record() -> list[Judged]:
    return list(map(Judged.read, RECORD.read_text().splitlines()))


def test_the_record_has_every_rule_as_it_is() -> None:
    assert {(r.ir, r.rule): r.digest for r in on_record()} == {(ir, r.name): digest(ir, r) for ir in ORDER for r in house(ir)}, \
        "run make mutation MUTATION=--resume"


def test_every_mutant_is_caught_or_has_a_reason() -> None:
    assert [m for r in on_record() for m in r.listed if not reason(m, REASONS)] == []
    assert all(r.counts for r in on_record()), "each rule has a mutant"


def test_the_page_is_that_of_the_record() -> None:
    assert (ROOT / "docs" / "mutation.md").read_text() == page(on_record(), REASONS)


def test_a_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    record, output = tmp_path / "record.jsonl", tmp_path / "page.md"

    def run(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mutation", "--only", "zero*", "--record", str(record), "--output", str(output), *flags])
        with pytest.raises(SystemExit) as ended:
            mutation.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    first = run()
    rules = {r.name for ir in ORDER for r in house(ir) if r.name.startswith("zero")}
    assert {json.loads(line)["rule"] for line in record.read_text().splitlines()} == rules
    assert f"of {len(rules)} rules" in first and f"{len(rules)} rules judged" in first
    text = output.read_text()
    assert ", 0 rules judged" in run("--resume") and output.read_text() == text
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join([lines[0].replace('"digest": "', '"digest": "-'), *lines[1:]]))
    assert ", 1 rules judged" in run("--resume") and output.read_text() == text
    other = on_record()[0].line()
    record.write_text(other + record.read_text())
    assert ", 0 rules judged" in run("--resume") and other in record.read_text(), "rules that are not asked for stay on record"
