"""Programs given as FILE.py:NAME, and what is wrong with those that cannot be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.said import Said, assert_bad, no_gpu

__all__ = ["no_gpu"]    # a fixture of every test here
FILE = """import torch

def made():
    return torch.randn(3, 5).relu()

def sized(n=3):
    return torch.randn(n, n).relu()

def takes(x):
    return x.relu()

def leaves():
    raise SystemExit(3)

seven = 7
"""
EXAMPLES = "example_inputs = torch.randn(2, 4)\n"


def spec(folder: Path, name: str, text: str) -> str:
    (folder / "file.py").write_text(text)
    return f"{folder / 'file.py'}:{name}"


@pytest.mark.parametrize("text, name, shape", [(FILE, "made", "f32[3, 5]"), (FILE, "sized", "f32[3, 3]"),
                                               (FILE + EXAMPLES, "made", "f32[3, 5]"), (FILE + EXAMPLES, "takes", "f32[2, 4]")])
def test_a_function_has_the_examples_of_the_file_if_it_takes_any(text: str, name: str, shape: str, tmp_path: Path) -> None:
    said = Said("compile", spec(tmp_path, name, text), "--ir", "torch").well()
    assert re.search(rf"aten\.relu\.default\(%x0?\) : {re.escape(shape)}", said)


@pytest.mark.parametrize("name, named", [("takes", ("no example inputs for takes", "define example_inputs")),
                                         ("seven", ("seven", "int", "function")),
                                         ("leaves", ("leaves", "SystemExit: 3", "raise SystemExit(3)"))])
def test_bad_names(name: str, named: tuple[str, ...], tmp_path: Path) -> None:
    assert_bad(Said("compile", spec(tmp_path, name, FILE)), *named)
