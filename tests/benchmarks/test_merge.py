"""Rows that were measured anew take the place of those of their case, and say of which commit they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.merge import main, merged


def result(commit: str, *rows: tuple[str, float], gpu: str = "NVIDIA H200") -> dict[str, Any]:
    return {"gpu": gpu, "commit": commit, "rows": [{"case": case, "dtype": "bf16", "emmy_us": us} for case, us in rows]}


def test_rows_take_their_places(tmp_path: Path) -> None:
    old, new = result("abc", ("a 1", 1.0), ("b 2", 2.0)), result("def", ("c 3", 3.0), ("a 1", 0.5))
    for name, of in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(of))
    main(tmp_path / "new.json", tmp_path / "old.json")
    found = json.loads((tmp_path / "old.json").read_text())
    rows = [(r["case"], r["emmy_us"], r.get("commit")) for r in found["rows"]]
    assert rows == [("a 1", 0.5, "def"), ("b 2", 2.0, None), ("c 3", 3.0, "def")]
    assert found["commit"] == "abc"


def test_rows_of_the_same_commit_say_no_more() -> None:
    assert "commit" not in merged(result("abc", ("a 1", 1.0)), result("abc", ("a 1", 2.0)))["rows"][0]


def test_other_gpus_are_other_results(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(result("abc")))
    (tmp_path / "new.json").write_text(json.dumps(result("abc", gpu="NVIDIA A100")))
    with pytest.raises(typer.BadParameter, match="different GPUs"):
        main(tmp_path / "new.json", tmp_path / "old.json")
