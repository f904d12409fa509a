"""`emmy extract`: the best programs, the first of which is compiled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from emmy.pipeline import compile_snippet
from tests.said import Said

FEW = "F.softmax(torch.randn(64, 512), -1)"
MANY = "x = torch.randn(4, 64); F.softmax(F.layer_norm(F.gelu(F.softmax(x, -1)), (64,)).cumsum(-1), -1)"


def programs(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Said("extract", *arguments, "--json", "-").well())["programs"]
    return found


@pytest.mark.parametrize("snippet", [FEW, MANY])
def test_the_best_programs_are_distinct_and_ordered_and_the_first_is_compiled(snippet: str) -> None:
    found = programs("-c", snippet, "--top", "3")
    assert len(found) == 3
    weights = [program["weighed_us"] for program in found]
    assert weights == sorted(weights)
    assert len({tuple(sorted(k["identity"] for k in program["kernels"])) for program in found}) == len(found)
    for program in found:
        assert program["predicted_us"] == pytest.approx(sum(k["predicted_us"] for k in program["kernels"]))
        assert program["predicted_us"] <= program["weighed_us"] * (1 + 1e-9)
        written = [set(k["writes"]) for k in program["kernels"]]
        assert all(not set(k["reads"]) & set().union(*written[n:]) for n, k in enumerate(program["kernels"]))
    compiled = compile_snippet(snippet)
    assert [(k["kernel"], k["writes"], k["row"]) for k in found[0]["kernels"]] == [
        (k.name, [t.name for t in k.outputs], str(k.schedule.row)) for k in compiled.tile.kernels if k.schedule]


def test_the_text_says_each_program_and_its_kernels() -> None:
    text = Said("extract", "-c", FEW, "--top", "2", "--target", "sm_80", "--math", "exact").well()
    heads = re.findall(r"^(\d)\. (\d) kernels?, predicted [\d.]+ µs, weighed [\d.]+ µs$", text, re.M)
    assert [n for n, _ in heads] == ["1", "2"]
    assert len(re.findall(r"^\w+_([0-9a-f]{12}) +\1 +WORK=\S+ +\w+ +[\d.]+ µs$", text, re.M)) == sum(int(kernels) for _, kernels in heads)


def test_a_count_below_one_is_refused() -> None:
    said = Said("extract", "-c", FEW, "--top", "0")
    assert said.code == 2 and "--top" in said.err
