from __future__ import annotations

import ast
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from benchmarks.workloads import PROGRAMS, SPINE, TORCH_NAME, WORKLOADS, select


def result(source):
    """What the snippet's last expression is."""
    scope = {"torch": torch, "nn": nn, "F": F}
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "<snippet>", "exec"), scope)
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<snippet>", "eval"), scope)


def test_every_line_of_the_spine_is_a_workload_of_its_own():
    assert len(WORKLOADS) == sum(len(programs) * len(dtypes) * len(sizes) for programs, dtypes, sizes in SPINE)
    assert {name for programs, _, _ in SPINE for name in programs} == set(PROGRAMS)
    assert all(re.fullmatch(r"[a-z0-9_-]+", stem) for stem in WORKLOADS)


@pytest.mark.parametrize("stem", WORKLOADS)
def test_snippets_run(stem):
    """On the meta device, where no size costs anything."""
    workload = WORKLOADS[stem]
    with torch.device("meta"), torch.no_grad():
        y = result(workload.snippet)
    sizes = [int(n) for n in workload.case.split()[-1].split("x")]
    program = workload.case.split()[0]
    shape = {"(ab)c": [sizes[0], sizes[-1]], "attention": sizes}.get(program, sizes[:2])
    assert list(y.shape) == shape and y.dtype is getattr(torch, TORCH_NAME[workload.dtype])


def test_selection_by_pattern():
    assert [w.case for w in select("^softmax-16384x4096-bf16$")] == ["softmax 16384x4096"]
    assert len(select("softmax")) == 10
    assert select() == tuple(WORKLOADS.values())
