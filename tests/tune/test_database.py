from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.errors import EmmyError
from emmy.tune import database
from emmy.tune.database import Database, Finished, Measurement

ONE = Measurement("aa11", "h200", "sm_90a", "WORK=t256", "emmy 0.1.0, nvcc 13.0", "fast", "right", 12.5, 0.1, 1e-7, 11.0, "", "0.1.0",
                  100.0)


def test_what_is_put_is_there_and_the_later_stays(tmp_path: Path) -> None:
    kept = Database(tmp_path / "made" / "tune.db")
    assert kept.get() == [] and not kept.path.exists(), "asking makes no file"
    assert kept.put(ONE, ONE._replace(row="WORK=t64", us=9.0)) == 2
    assert kept.put(ONE._replace(us=99.0, at=50.0)) == 0, "an earlier measurement that comes late"
    assert kept.put(ONE._replace(us=13.0, at=200.0)) == 1
    assert {m.row: m.us for m in Database(kept.path).get(identity="aa11")} == {"WORK=t256": 13.0, "WORK=t64": 9.0}
    assert kept.get(device="a100") == [] and len(kept.get(device="h200", math="fast", compiler=ONE.compiler)) == 2


def test_the_key_is_kernel_device_target_row_compiler_and_math(tmp_path: Path) -> None:
    kept = Database(tmp_path / "tune.db")
    for field in database.KEY:
        kept.put(ONE._replace(**{field: "other"}))
    assert len(kept.get()) == len(database.KEY)
    kept.put(Measurement(*ONE[:6], "crash", note="it died"))
    (now,) = kept.get(identity="aa11", device="h200", math="fast", compiler=ONE.compiler)[:1]
    assert now.status in ("crash", "right") and all(m.at > 0 for m in kept.get())


def put(path: Path, name: str, count: int) -> None:
    for k in range(count):
        Database(path).put(ONE._replace(identity=name, row=f"WORK=t{k}"))


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    running = [spawn.Process(target=put, args=(tmp_path / "tune.db", name, 30)) for name in ("one", "two", "three")]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0, 0, 0] and len(Database(tmp_path / "tune.db").get()) == 90


def test_searches(tmp_path: Path) -> None:
    kept = Database(tmp_path / "tune.db")
    assert kept.finished("a", "h200", "c", "fast") is None
    kept.finish(Finished("a", "h200", "c", "fast", 60.0, "the budget is spent"))
    kept.finish(Finished("a", "h200", "c", "fast", 90.0, "every row is measured"))
    found = kept.finished("a", "h200", "c", "fast")
    assert found is not None and (found.seconds, found.reason) == (90.0, "every row is measured")


NUMBERS = st.floats(1e-3, 1e9)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@given(st.builds(Measurement, *[TEXTS] * 6, st.just("right"), NUMBERS, *[st.none() | NUMBERS] * 3, TEXTS, TEXTS, NUMBERS))
def test_lines_read_back(m: Measurement) -> None:
    assert database.read(database.line(m) + "\n\n", "x") == [m]


@pytest.mark.parametrize("text", ["{", '{"identity": "a"}', database.line(ONE).replace("right", "good"), "[1]", '{"what": 1}',
                                  database.line(ONE).replace('"aa11"', "3"), database.line(ONE._replace(us=None))])
def test_lines_that_are_none_are_named(text: str) -> None:
    with pytest.raises(EmmyError, match="my.jsonl, line 2 is no measurement"):
        database.read(f"{database.line(ONE)}\n{text}", "my.jsonl")


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMMY_TUNE_DB", "off")
    with pytest.raises(EmmyError, match="EMMY_TUNE_DB is off"):
        database.default()
    monkeypatch.setenv("EMMY_TUNE_DB", str(tmp_path / "mine.db"))
    assert database.default().path == tmp_path / "mine.db"
    monkeypatch.delenv("EMMY_TUNE_DB")
    monkeypatch.setenv("EMMY_CACHE", str(tmp_path / "cache"))
    assert database.default_path() == tmp_path / "cache" / "tune.db"


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    path.write_text("not one, and longer than a page header of SQLite would be " * 20)
    with pytest.raises(EmmyError, match="cannot be used"):
        Database(path).put(ONE)


def test_the_revision_names_the_version() -> None:
    assert database.revision().startswith("0.1.0")
