"""The profiler's table, and what is said where there is none: ncu itself is a script that a test writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emmy.errors import EmmyError
from emmy.runtime.profile import METRICS, REASONS, STALLS, profile, read

COLUMNS = ["ID", "Kernel Name", *METRICS, *(STALLS.format(r) for r in REASONS)]
UNIT = ["", "", "Mbyte", "us", "%", "byte", *("inst" for _ in REASONS)]
LAUNCH = ["0", "fold_1(const float *, float *)", "244.1", "63.74", "46.2", "4.08e+08", "10.9", "1.5", "0.2", "", "n/a", "0", "3", "2"]


def page(*rows: list[str]) -> str:
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{x}"' for x in row) for row in rows) + "\n"


def test_a_page_is_read_with_its_units() -> None:
    (found,) = read(page(COLUMNS, UNIT, LAUNCH))
    assert (found.us, found.dram_bytes, found.l2_bytes, found.occupancy) == (63.74, pytest.approx(244.1e6), 4.08e8, 46.2)
    assert (found.stall, found.stalled) == ("long scoreboard", 10.9) and found.dram_TBs == pytest.approx(3.83, abs=0.01)
    assert read("no table") == () == read(page(COLUMNS, UNIT))


def ncu(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_the_profiler_prints_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.csv").write_text(page(COLUMNS, UNIT, LAUNCH, LAUNCH))
    ncu(tmp_path, f"echo $@ > {tmp_path}/asked; cat {tmp_path}/page.csv", monkeypatch)
    assert len(profile(tmp_path / "k.emmy")) == 2
    asked = (tmp_path / "asked").read_text()
    assert "dram__bytes.sum" in asked and f"emmy.runtime.profile {tmp_path}/k.emmy" in asked


@pytest.mark.parametrize(("script", "said"), [("echo ==ERROR== ERR_NVGPUCTRPERM", "may not read this GPU's counters"),
                                              ("echo no GPU >&2; exit 1", "counted nothing: no GPU"), ("sleep 9", "within 0.5 s")])
def test_why_it_does_not(script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu(tmp_path, script, monkeypatch)
    with pytest.raises(EmmyError, match=said):
        profile(tmp_path / "k.emmy", timeout=0.5 if "sleep" in script else 20)


def test_there_is_no_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmmyError, match="no ncu on PATH"):
        profile(tmp_path / "k.emmy")
