"""Packs, and the worker that measures them where there is no compiler."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from emmy.errors import EmmyError
from emmy.pipeline import compile_snippet
from emmy.tune import database, pack, worker
from emmy.tune.candidate import Candidate
from emmy.tune.pack import Pack
from emmy.tune.tasks import Task, tasks
from tests.said import ROOT

SNIPPET = "torch.randn(8, 64).softmax(-1)"


@pytest.fixture(scope="module")
def task() -> Task:
    (task,) = tasks(compile_snippet(SNIPPET))
    return task


@pytest.fixture(scope="module")
def packed(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled, failed = pack.compiled([task], 5, 0, 1)
    assert not failed
    path = tmp_path_factory.mktemp("pack") / "k.pack"
    pack.save(path, Pack("sm_90a", "fast", "emmy, nvcc", "0.1.0", compiled))
    return path


def test_a_pack_reads_back(task: Task, packed: Path) -> None:
    found = pack.load(packed)
    ((problem, candidates),) = found.kernels
    assert (found.target, found.math, found.compiler, found.revision) == ("sm_90a", "fast", "emmy, nvcc", "0.1.0")
    assert problem.kernel is task.problem.kernel and (problem.tensors[0].array() == task.problem.tensors[0].array()).all()
    assert len(candidates) == 5 and candidates[0].candidate.row == task.options[0].row
    assert all(c.cubin[:4] == b"\x7fELF" and c.registers and c.plan.launches[0].row == c.candidate.row for c in candidates)
    with zipfile.ZipFile(packed) as archive:
        assert sum(name.startswith("cubins/") for name in archive.namelist()) == 1, "rows of one module share its code"


def test_the_rows_that_are_drawn(task: Task) -> None:
    first, again, other = (pack.drawn_rows(task, 6, seed) for seed in (0, 0, 1))
    assert first == again != other and first[0].row == other[0].row == task.options[0].row and len({c.row for c in first}) == 6
    assert [c.row for c in pack.drawn_rows(task, 0, 0)] == [o.row for o in task.options]


def test_one_that_does_not_compile_costs_itself_alone(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(candidates: list[Candidate], target: str, math: str) -> list[str]:
        if any(c.row == task.options[1].row for c in candidates):
            raise EmmyError("nvcc does not compile this", "")
        return [c.row for c in candidates]

    monkeypatch.setattr(pack, "build", build)
    right, wrong = pack.batch([task.candidate(o) for o in task.options[:4]], "sm_90a", "fast")
    assert right == [task.options[k].row for k in (0, 2, 3)] and wrong == [(task.options[1].row, "nvcc does not compile this")]


@pytest.mark.parametrize("content", [None, b"nothing", b""])
def test_what_is_no_pack_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "k.pack"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EmmyError, match="there is no pack" if content is None else "is not a whole pack"):
        pack.load(path)


def test_the_worker_measures_a_pack_without_the_compiler(packed: Path, tmp_path: Path) -> None:
    """In a process that cannot import egglog, torch's compiler aside."""
    out = tmp_path / "db.jsonl"
    code = f"""import sys
sys.modules["egglog"] = None
from emmy.tune.worker import main
if __name__ == "__main__":
    code = main([{str(packed)!r}, "--output", {str(out)!r}, "--device", "stand-in"])
    print(sorted(m for m in sys.modules if m.startswith("emmy.egraph")))
    sys.exit(code)"""
    script = tmp_path / "run.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]", "and imports nothing of the rules"
    found = database.read(out.read_text(), "out")
    assert len(found) == 5 and {m.status for m in found} == {"right"} and {m.device for m in found} == {"h200 stand-in"}
    assert {(m.compiler, m.math, m.target) for m in found} == {("emmy, nvcc", "fast", "sm_90a")}
    assert json.loads(out.read_text().splitlines()[0])["row"] == found[0].row


def test_the_worker_tells_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main([str(tmp_path / "none.pack"), "--output", str(tmp_path / "o")]) == 2
    assert "there is no pack" in capsys.readouterr().err


def test_no_gpu_is_told(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert worker.main([str(packed), "--output", str(tmp_path / "o")]) == 2
    assert "torch finds no GPU" in capsys.readouterr().err
