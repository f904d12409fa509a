"""`emmy canon` of files and folders: the partition into equal kernels, and what becomes of programs that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.said import Said, assert_bad, no_gpu

__all__ = ["no_gpu"]    # a fixture of every test here
XY = "x, y = torch.randn(8, 4), torch.randn(8, 4); "
MODELS = """import torch
from torch import nn

class Left(nn.Module):
    def forward(self, x, y):
        return x + x + y

class Sorted(nn.Module):
    def forward(self, x, y):
        return torch.erfinv(x)

def right(x, y):
    return y + (x + x)

def _helper(x, y):
    return x

example_inputs = torch.randn(8, 4), torch.randn(8, 4)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five programs of two kernels; one program that is not covered, one line and one file that are no Python; and other files."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "sums.txt").write_text(f"# sums\n{XY}x + x + y\n\n{XY}x * y\n{XY}y * x\ntorch.randn(\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "broken.py").write_text("def f(:\n")
    (tmp_path / ".hidden").mkdir()
    for other in ("notes.md", ".hidden/more.txt", "deeper/__init__.py"):
        (tmp_path / other).write_text("")
    return tmp_path


def test_the_partition_of_a_folder(folder: Path) -> None:
    said = Said("canon", folder, "--json", folder / "canon.json")
    found = json.loads((folder / "canon.json").read_text())
    sums, products = found["kernels"]
    assert sums["programs"] == [f"{folder}/models.py:Left", f"{folder}/models.py:right", f"{folder}/sums.txt:2"]
    assert products["programs"] == [f"{folder}/sums.txt:4", f"{folder}/sums.txt:5"]
    assert found["identities"] == [sums["identity"]] * 3 + [products["identity"]] * 2 and found["same"] is False
    assert found["forms"] == [sums["form"]] * 3 + [products["form"]] * 2
    assert found["programs"] == sums["programs"] + products["programs"]
    lines = said.out.splitlines()
    assert lines[0] == f"{sums['identity']}  3 programs" and lines[4] == f"{products['identity']}  2 programs"
    assert f"  {folder}/sums.txt:2  {XY}x + x + y" in lines and lines[-1] == "5 programs, 2 kernels, 3 failed"
    assert "add(" not in said.out


def test_programs_that_fail_are_told_with_their_reasons_and_stop_no_other(folder: Path) -> None:
    said = Said("canon", folder, "--json", folder / "canon.json")
    assert said.code == 2 and "Traceback" not in said.err
    failures = {x["program"]: x["reason"] for x in json.loads((folder / "canon.json").read_text())["failures"]}
    wanted = {f"{folder}/deeper/broken.py": "broken.py, line 1", f"{folder}/models.py:Sorted": "aten.erfinv.default",
              f"{folder}/sums.txt:6": "was never closed"}
    assert failures.keys() == wanted.keys()
    assert all(words in failures[name] and f"{name}\nerror: " in said.err for name, words in wanted.items())
    assert said.err.count("  remedy: ") == 3


def test_forms_are_shown_once_a_kernel(folder: Path) -> None:
    text = Said("canon", f"{folder}/models.py:Left", f"{folder}/models.py:right", "-c", XY + "x * y", "--forms").well()
    assert text.count("add(x0") == 1 and text.count("mul(x0") == 1 and text.endswith("\n3 programs, 2 kernels\n")


def test_an_internal_failure_of_one_program_is_told_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from emmy.egraph import canonical

    honest = canonical.forms
    monkeypatch.setattr(canonical, "forms", lambda region: honest(region) if len(region.program.inputs) == 2 else 1 // 0)
    words = ("canon", "-c", XY + "x * y", "-c", "torch.randn(3).exp()")
    said = Said(*words)
    assert said.code == 70 and "internal failure: ZeroDivisionError" in said.err and "mul(" in said.out
    assert "Traceback" in Said("--debug", *words).err


@pytest.mark.parametrize("name, named", [("absent.py", ("there is no file", "absent.py")), ("absent.txt", ("absent.txt", "No such file")),
                                         ("absent", ("absent' is not FILE.py:NAME",)), (".", ("there is no program in", "example_inputs"))])
def test_what_names_no_program(name: str, named: tuple[str, ...], tmp_path: Path) -> None:
    assert_bad(Said("canon", tmp_path / name), *named)


def test_a_failure_among_snippets_leaves_the_others(tmp_path: Path) -> None:
    said = Said("canon", "-c", XY + "x * y", "-c", "nonsense(3)", "-c", XY + "y * x", "--json", tmp_path / "canon.json")
    assert said.code == 2 and said.out.endswith("the same kernel\n") and "NameError" in said.err
    assert json.loads((tmp_path / "canon.json").read_text())["programs"] == [XY + "x * y", XY + "y * x"]
