from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import compare

RUNNER = CliRunner(env={"COLUMNS": "200"})


def result(rows):
    return {"gpu": "NVIDIA H200", "torch": "2.11.0", "commit": "abc", "date": "2026-01-01", "copy_TBs": 4.2, "rows": rows}


def timed(case, us, row="WORK=t128", ratio=1.5):
    return {"case": case, "dtype": "fp32", "floor_us": 10.0, "emmy_us": us, "ratio": ratio, "row": row}


def failing(case):
    return {"case": case, "dtype": "fp32", "error": "output 'y' is wrong"}


def compared(tmp_path, old, new, *options):
    """Exit code and text of the command on two results with those rows."""
    paths = []
    for name, rows in (("old", old), ("new", new)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(result(rows)))
    app = compare.typer.Typer()
    app.command()(compare.main)
    done = RUNNER.invoke(app, [*map(str, paths), *options])
    return done.exit_code, done.output


def test_faster_slower_new_and_gone(tmp_path):
    old = [timed("softmax", 20.0), timed("gone", 1.0)]
    code, text = compared(tmp_path, old, [timed("softmax", 10.0, "WORK=t256"), timed("fresh", 5.0, ratio=None)])
    assert code == 0
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    assert all(part in lines["softmax"] for part in ("20.00", "10.00", "2.000", "1.00", "1.50", "WORK=t128 → WORK=t256"))
    assert "–" in lines["fresh"] and "–" in lines["gone"] and "3 cases, 0 slower or broken" in text


@pytest.mark.parametrize(("new", "options", "code"), [
    (timed("softmax", 20.5), (), 0), (timed("softmax", 22.0), (), 1), (timed("softmax", 22.0), ("--noise", "0.2"), 0),
    (failing("softmax"), (), 1)])
def test_exit_code_says_whether_something_got_worse(tmp_path, new, options, code):
    assert compared(tmp_path, [timed("softmax", 20.0)], [new], *options)[0] == code


def test_a_repaired_case_is_no_regression(tmp_path):
    code, text = compared(tmp_path, [failing("softmax")], [timed("softmax", 9.0)])
    assert code == 0 and "is wrong" in text and "9.00" in text


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [{}]}'])
def test_files_that_are_no_results(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(compare.typer.BadParameter, match="no result of benchmarks.run"):
        compare.read(path)
