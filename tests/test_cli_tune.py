"""The command line of schedules: emmy schedules, tune, propose, calibrate, and run --bench."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from emmy.cli import tune as command
from emmy.egraph.schedule import PREMISES
from emmy.errors import EmmyError
from emmy.tune import database
from emmy.tune.database import Measurement
from tests.said import Said, assert_bad, no_gpu

__all__ = ["no_gpu"]    # a fixture of every test here
SOFTMAX = "torch.randn(64, 128).softmax(-1)"
FILE = """import torch

def one():
    return torch.randn(4, 32).exp()

def two():
    return torch.randn(4, 32).sum(-1)
"""


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    """The environment of a database."""
    return {"EMMY_TUNE_DB": str(tmp_path / "tune.db")}


def tune(*words: str | Path, env: dict[str, str]) -> Said:
    return Said("tune", *words, "--device", "stand-in", "--processes", "2", "--budget", "40s", env=env)


# -- schedules ------------------------------------------------------------------------------------------------------
def test_schedules_lists_legal_rows_the_best_first() -> None:
    found = json.loads(Said("schedules", "-c", SOFTMAX, "--json", "-").well())
    (kernel,) = found["kernels"]
    times = [r["predicted_us"] for r in kernel["rows"]]
    assert found["target"] == "sm_90a" and times == sorted(times) and kernel["legal"] == len(times) > 40
    assert [r["chosen"] for r in kernel["rows"]].index(True) == 0 and "ruled_out" not in kernel
    shown = Said("schedules", "-c", SOFTMAX).well()
    assert kernel["signature"] in shown and f"*  {kernel['rows'][0]['row']}" in shown and f"{len(times)} legal rows" in shown


def test_all_tells_the_premises_that_rule_rows_out() -> None:
    snippet = "torch.randn(64, 130, dtype=torch.float32).softmax(-1)"
    (kernel,) = json.loads(Said("schedules", "-c", snippet, "--all", "--json", "-", "--target", "sm_89").well())["kernels"]
    ruled_out = {r["row"]: r for r in kernel["ruled_out"]}
    assert ruled_out["WORK=t64,TILE=v4"]["premises"] == ["Divides"] and all(r["premises"] for r in ruled_out.values())
    assert ruled_out["WORK=t64,TILE=v4"]["reasons"] == [PREMISES["Divides"]]
    assert not {r["row"] for r in kernel["rows"] if r["form"] == "map"} & {r["row"] for r in ruled_out.values() if r["form"] == "map"}
    shown = Said("schedules", "-c", snippet, "--all", "--target", "sm_89").well()
    assert "ruled out" in shown and "Divides: " in shown


def test_schedules_tells_measured_times(kept: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = json.loads(Said("schedules", "-c", SOFTMAX, "--json", "-").well())["kernels"]
    slow, wrong = kernel["rows"][-1]["row"], kernel["rows"][0]["row"]
    monkeypatch.setattr("emmy.runtime.build.compiler", lambda: "c")
    kind = kernel["identity"], "h200", "sm_90a"
    database.Database(Path(kept["EMMY_TUNE_DB"])).put(Measurement(*kind, slow, "c", "fast", "right", 1.5),
                                                     Measurement(*kind, wrong, "c", "fast", "wrong", note="off"))
    (kernel,) = json.loads(Said("schedules", "-c", SOFTMAX, "--json", "-", env=kept).well())["kernels"]
    assert (kernel["rows"][0]["row"], kernel["rows"][0]["measured_us"], kernel["rows"][0]["chosen"]) == (slow, 1.5, True)
    assert (kernel["rows"][-1]["row"], kernel["rows"][-1]["status"]) == (wrong, "wrong")
    assert "1.50 µs" in Said("schedules", "-c", SOFTMAX, env=kept).well()
    assert slow in Said("compile", "-c", SOFTMAX, "--ir", "tile", env=kept).well()
    assert slow not in Said("compile", "-c", SOFTMAX, "--ir", "tile", "--predicted", env=kept).well()


def test_knobs_of_one_kernel() -> None:
    snippet = "x, y = torch.randn(64, 128), torch.randn(40, 96); (x.exp(), y.softmax(-1))"
    text = Said("compile", "-c", snippet, "--ir", "tile", "--knobs", "WORK@softmax=w8,TILE@map=v2").well()
    assert "row WORK=w8" in text and "TILE=v2 form map" in text
    assert_bad(Said("compile", "-c", snippet, "--knobs", "WORK@exp=t2048"), "WORK=t2048", "FitsThreads")
    assert_bad(Said("compile", "-c", snippet, "--knobs", "WORK@nowhere=t64"), "no kernel is at 'nowhere'")
    assert_bad(Said("compile", "-c", snippet, "--knobs", "WORK@=t64"), "names no site")


# -- tune -----------------------------------------------------------------------------------------------------------
def test_tune_measures_once_and_a_second_run_nothing(kept: dict[str, str], tmp_path: Path) -> None:
    first = tune("-c", SOFTMAX, "--json", tmp_path / "a.json", "--plot", tmp_path / "a.svg", env=kept)
    found = json.loads((tmp_path / "a.json").read_text())["programs"][0]
    (kernel,) = found["kernels"]
    assert "1 kernel; the program takes" in first.well() and kernel["measured"] >= 24 and kernel["us"] == found["after_us"]
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    tune("-c", SOFTMAX, "--json", tmp_path / "b.json", "--plot", tmp_path / "b.svg", env=kept).well()
    again = json.loads((tmp_path / "b.json").read_text())["programs"][0]["kernels"][0]
    assert again["measured"] == kernel["measured"] and again["reason"] == kernel["reason"]
    assert "candidates: 0" in (tmp_path / "b.svg").read_text(), "a picture of nothing"

    shown = json.loads(Said("tune", "show", "--json", "-", env=kept).well())
    assert len(shown) == kernel["measured"] and {m["device"] for m in shown} == {"h200 stand-in"}
    assert kernel["row"] in Said("tune", "show", env=kept).well()
    assert "status" in Said("tune", "show", "--kernel", kernel["identity"][:5], env=kept).well()

    lines = Said("tune", "export", "-", "--kernel", kernel["identity"][:5], env=kept).well()
    assert len(lines.splitlines()) == kernel["measured"]
    assert f"{kernel['measured']} measurements" in Said("tune", "export", tmp_path / "all.jsonl", env=kept).well()
    other = {"EMMY_TUNE_DB": str(tmp_path / "other.db")}
    read, new = f"{kernel['measured']} measurements read", f"{kernel['measured']} new or later"
    said = Said("tune", "import", tmp_path / "all.jsonl", env=other).well()
    assert read in said and new in said
    assert "0 new or later" in Said("tune", "import", tmp_path / "all.jsonl", env=other).well()
    assert Said("tune", "show", "--kernel", "zzz", env=other).well() == "nothing is known of a kernel zzz…\n"
    assert Said("tune", "export", "-", env=other).well() == (tmp_path / "all.jsonl").read_text()


def test_a_file_and_a_folder_are_all_their_programs(kept: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FILE)
    names = [name for name, _ in command.programs(str(tmp_path), None)]
    assert names == [f"{tmp_path}/model.py:one", f"{tmp_path}/model.py:two"]
    assert [name for name, _ in command.programs(str(tmp_path / "model.py"), None)] == names
    assert [name for name, _ in command.programs(names[0], None)] == names[:1]
    (tmp_path / "nothing").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "some.py").write_text(FILE + "\ndef three():\n    raise ValueError('no')\n")
    assert [name.rpartition(":")[2] for name, _ in command.programs(str(tmp_path / "broken"), None)] == ["one", "two"]
    with pytest.raises(EmmyError, match="has no program"):
        next(command.programs(str(tmp_path / "nothing"), None))


def test_a_pack_is_written_and_its_measurements_come_home(kept: dict[str, str], tmp_path: Path) -> None:
    from emmy.tune import worker

    pack = tmp_path / "k.pack"
    said = Said("tune", "-c", SOFTMAX, "--pack", pack, "--most", "3", "--processes", "1", env=kept).well()
    assert "3 candidates of 1 kernel" in said
    assert worker.main([str(pack), "--output", str(tmp_path / "db.jsonl"), "--device", "stand-in"]) == 0
    assert "3 measurements read, 3 new" in Said("tune", "import", tmp_path / "db.jsonl", env=kept).well()


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("60", 60), ("1.5m", 90), ("1h", 3600), (" 2 m ", 120)])
def test_durations(text: str, seconds: float) -> None:
    assert command.duration(text) == seconds


def test_what_tune_cannot_do_is_told(kept: dict[str, str], tmp_path: Path) -> None:
    assert_bad(Said("tune", "-c", SOFTMAX, env=kept), "torch finds no GPU")
    assert_bad(tune("-c", SOFTMAX, "--plot", tmp_path / "a.png", env=kept), "no picture", ".svg")
    assert_bad(tune("-c", SOFTMAX, env={"EMMY_TUNE_DB": "off"}), "EMMY_TUNE_DB is off")
    assert_bad(tune("-c", SOFTMAX, "--executor", "slurm", env=kept), "unknown executor 'slurm'")
    assert_bad(Said("tune", "-c", SOFTMAX, "--budget", "soon", env=kept), "'soon' is no time")
    assert_bad(Said("tune", "-c", SOFTMAX, "--device", "tpu", env=kept), "unknown device 'tpu'")
    (tmp_path / "bad.jsonl").write_text("{}")
    assert_bad(Said("tune", "import", tmp_path / "bad.jsonl", env=kept), "line 1 is no measurement")


# -- propose --------------------------------------------------------------------------------------------------------
def propose(tmp_path: Path, rows: str, snippet: str = "torch.randn(4, 32).softmax(-1)", **more: Any) -> Said:
    (tmp_path / "rows.txt").write_text(rows)
    return Said("propose", "-c", snippet, "--rows", tmp_path / "rows.txt", "--json", tmp_path / "out.json", **more)


def test_proposals_are_judged_simulated_and_ranked(tmp_path: Path) -> None:
    said = propose(tmp_path, "WORK=t64,REDUCE=coop\nfold: WORK=w4,TILE=v4,REDUCE=warp # by hand\nWORK=t64,TILE=v3\nWORK=t2048\n").well()
    (kernel,) = json.loads((tmp_path / "out.json").read_text())["kernels"]
    rows = {r["line"]: r for r in kernel["rows"]}
    assert rows[1]["status"] == rows[2]["status"] == "right" and rows[1]["error"] < 1e-6 and rows[1]["measured_us"] is None
    assert not rows[3]["legal"] and "Divides" in rows[3]["says"] and not rows[4]["legal"] and "FitsThreads" in rows[4]["says"]
    assert kernel["rows"][0]["predicted_us"] <= kernel["rows"][1]["predicted_us"] and [r["line"] for r in kernel["rows"]][2:] == [3, 4]
    assert "the model's own pick is WORK=" in said and "illegal: fails FitsThreads" in said


def test_no_legal_proposal_is_exit_code_1_and_a_bad_line_2(tmp_path: Path) -> None:
    assert propose(tmp_path, "WORK=t2048").code == 1
    assert "unchecked: too large to simulate" in propose(tmp_path, "WORK=t128,REDUCE=coop", "torch.randn(64, 128).softmax(-1)").well()
    assert_bad(propose(tmp_path, "WORK"), "rows.txt, line 1")
    assert_bad(propose(tmp_path, "# none\n"), "proposes no row")
    assert_bad(propose(tmp_path, "cross: WORK=t64"), "no kernel is at 'cross'")


# -- a GPU is wanted ------------------------------------------------------------------------------------------------
def test_what_takes_a_gpu_says_so(tmp_path: Path) -> None:
    for option in ("--bench", "--profile"):
        assert_bad(Said("run", "-c", SOFTMAX, option), f"{option} takes a GPU", "finds none on this machine")
    assert_bad(Said("run", "-c", SOFTMAX, "--bench", "--device", "numpy"), "--bench takes a GPU, and numpy is none")
    assert_bad(Said("calibrate", "-o", tmp_path / "x.toml"), "torch finds no GPU")
    assert not (tmp_path / "x.toml").exists()


def test_a_gpu_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from emmy.runtime import launch, rates
    from tests.tune.test_calibrate import PROPERTIES

    monkeypatch.setattr(launch, "cuda_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: PROPERTIES)
    for name in ("copy_TBs", "fma_TFLOPs", "special_TOPs", "launch_us"):
        monkeypatch.setattr(rates, name, lambda: 4.0)
    monkeypatch.setattr(rates, "product_TFLOPs", lambda dtype: 700.0)
    path = tmp_path / "mine.toml"
    said = Said("calibrate", "-o", path, "--name", "mine", "--json", tmp_path / "mine.json")
    assert "fp32_TFLOPs is 0.07 times what extract/hardware says of sm_90a" in said.well()
    assert 'name = "mine"' in path.read_text() and json.loads((tmp_path / "mine.json").read_text())["bandwidth_TBs"] == 4.0
    assert_bad(Said("calibrate", "-o", path), "mine.toml is there already", "--force")
    assert "NVIDIA H200" in path.read_text() and Said("calibrate", "-o", path, "--force").code == 0
    assert 'name = "h200"' in path.read_text()
    assert_bad(Said("calibrate", "--name", "a/b"), "no name for a GPU's file")


def test_times_beside_others_and_counters_are_shown() -> None:
    from rich.console import Console

    from emmy.cli import run
    from emmy.cli.outcome import KernelRun, Outcome
    from emmy.runtime.beside import Beside
    from emmy.runtime.plan import Launch
    from emmy.runtime.profile import Counters
    from emmy.runtime.timing import Timing

    launch = Launch("fold_1", ("x",), (4, 1, 1), 128, 0, "1", "WORK=t128", 268_000_000, 4e8, 76.7)
    bench = Beside({"emmy": Timing(68.0, 0.1), "eager": Timing(81.0, 0.2), "max_autotune": Timing(65.0, 0.2)}, {"eager": 1.6e-3},
                   {"compile": "RuntimeError: no"}, 63.1, ("1515 MHz", "1965 MHz"))
    counted = Counters("fold_1", 63.7, 244e6, 408e6, 46.2, "long scoreboard", 10.9)
    outcome = Outcome("cuda", {}, (KernelRun(launch, 61, 16, 67.6),), 67.6, 15.0, bench, (counted,))
    console = Console(width=160, file=io.StringIO())
    run.show(outcome, console)
    lines = console.file.getvalue().splitlines()      # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines if " µs" in line][2:5] == ["max-autotune", "emmy", "eager"], "the quickest first"
    text = "\n".join(lines)
    assert "compile did not run: RuntimeError: no" in text and "floor 63.10 µs; clocks before: 1515 MHz; after: 1965 MHz" in text
    assert "3.83 TB/s" in text and "long scoreboard (10.9)" in text and "244 MB" in text
    assert outcome.fields()["bench"]["ratio"] == pytest.approx(65 / 68) and outcome.fields()["counters"][0]["stall"] == "long scoreboard"
    assert "bench" not in Outcome("numpy", {}, ()).fields()
    run.show(Outcome("cuda", {}, (), uncounted="there is no ncu on PATH"), console)
    assert "no counters: there is no ncu on PATH" in console.file.getvalue()      # type: ignore[attr-defined]
