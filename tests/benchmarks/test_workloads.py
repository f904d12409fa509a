from __future__ import annotations

import ast
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from benchmarks.workloads import PROGRAMS, SUITES, TORCH_NAME, WORKLOADS, select


def result(source):
    """What the snippet's last expression is."""
    scope = {"torch": torch, "nn": nn, "F": F}
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "<snippet>", "exec"), scope)
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "<snippet>", "eval"), scope)


def convolved(images, height, width, _, channels, window, step, padding):
    return [images, *((n + 2 * padding - window) // step + 1 for n in (height, width)), channels]


def test_every_line_of_a_suite_is_a_workload_of_its_own():
    lines = [line for suite in SUITES.values() for line in suite]
    counts = {suite: sum(len(programs) * len(dtypes) * len(sizes) for programs, dtypes, sizes in of) for suite, of in SUITES.items()}
    assert counts == {suite: len(set(select(suite=suite))) for suite in SUITES}
    assert {name for programs, _, _ in lines for name in programs} == set(PROGRAMS)
    assert all(re.fullmatch(r"[a-z0-9_-]+", stem) for stem in WORKLOADS)


@pytest.mark.parametrize("stem", WORKLOADS)
def test_snippets_run(stem):
    """On the meta device, where no size costs anything."""
    workload = WORKLOADS[stem]
    with torch.device("meta"), torch.no_grad():
        results = result(workload.snippet)
    sizes = [int(n) for n in workload.case.split()[-1].split("x")]
    program = workload.case.split()[0]
    rows, last, third = sizes[:1], [sizes[0], sizes[-1]], sizes[2 % len(sizes)]
    if program.startswith("qkv"):
        assert [list(y.shape) for y in results] == [sizes[:2], [sizes[0], third], [sizes[0], third]]
        return
    grouped = [*sizes[:2], sizes[3 % len(sizes)], sizes[-1]]
    shapes = {**dict.fromkeys(("mirage_gqa", "mirage_qknorm"), [*sizes[:2], sizes[-1]]), "(ab)c": last,
              "lora": [sizes[0], third], "bmm": sizes[:3], **dict.fromkeys(("sdpa_grouped", "sdpa_grouped_causal", "sdpa_paged"), grouped),
              "xw+(xa)b": [sizes[0], third], "x(w+ab)": [sizes[0], third],
              "silu(xg)(xu)": last, "embedding": [third, sizes[1 % len(sizes)]], "permute": [sizes[0], third, *sizes[1:2], *sizes[3:]],
              "conv_channels_first": [sizes[0], sizes[4 % len(sizes)], *sizes[1:3]],
              "conv": convolved(*sizes) if program == "conv" else [], "bottleneck": sizes[:4],
              "maxpool": [*sizes[:2], *(n // 2 for n in sizes[2:])], "avgpool": [*sizes[:2], 1, 1],
              **dict.fromkeys(("attention", "attention_causal", "sdpa", "sdpa_causal", "softcap_attention"), sizes),
              **dict.fromkeys(("varlen_attn", "varlen_attn_causal"), [*sizes[:2], *sizes[3:4]]),
              **dict.fromkeys(("sdpa_documents", "sdpa_offsets"), [1, *sizes[1:2], *sizes[:1], *sizes[3:4]]),
              **dict.fromkeys(("rope", "batchnorm", "groupnorm"), sizes),
              **dict.fromkeys(("logsumexp", "variance", "mean(ab)", "(uv)x", "max(x+y)", "sum", "mean", "var", "argmax"), rows),
              **dict.fromkeys(("cross_entropy", "sum(ab)", "sum_all", "mean_all", "var_all", "argmax_all"), [])}
    dtypes = {**dict.fromkeys(("argmax", "argmax_all"), torch.int64), "scaled_mm": torch.bfloat16}
    dtype = dtypes.get(program, getattr(torch, TORCH_NAME[workload.dtype]))
    for y in results if isinstance(results, tuple) else (results,):
        assert list(y.shape) == shapes.get(program, sizes[:2]) and y.dtype is dtype


def test_selection_by_pattern():
    assert [w.case for w in select("^softmax-16384x4096-bf16$")] == ["softmax 16384x4096"]
    assert len(select("softmax")) == 10
    assert {w.stem for suite in SUITES for w in select(suite=suite)} == set(WORKLOADS)
