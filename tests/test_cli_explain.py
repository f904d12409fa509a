"""`emmy explain`: the page, the reasons, the data, and the notation they are written in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from emmy.cli.notation import shared, short
from emmy.ir import loop_text
from emmy.ir.loop_ir import Value
from tests.said import Said, assert_bad, no_gpu

__all__ = ["no_gpu"]    # a fixture of every test here
RMSNORM = "nn.RMSNorm(64)(torch.randn(2, 64))"


def test_explain(golden: Callable[[str, str], None]) -> None:
    golden("explain/softmax.txt", Said("explain", "-c", "F.softmax(torch.randn(4096, 4096), -1)").well())


def test_explain_with_rules_and_rows() -> None:
    text = Said("explain", "-c", RMSNORM, "--rows", "3", "--rules-fired", "--alternatives", "0").well()
    rows = [line for line in text.partition("\nkernel fold_")[2].splitlines() if "WORK=" in line]
    assert re.search(r"^fuse +exact +[1-9]", text, re.M) and re.search(r"\d+ legal rows", text)
    assert len(rows) == 3 and rows[0].startswith("*"), "the chosen row is the fastest"
    assert [float(line.split()[-2]) for line in rows] == sorted(float(line.split()[-2]) for line in rows)
    assert "keep t0" not in text and "were not asked about" in text


def test_explain_shows_swaps_when_asked() -> None:
    program = "x, y = torch.randn(8, 4), torch.randn(8, 4); x + x + y"
    plain, whole = (Said("explain", "-c", program, *more).well() for more in ((), ("--all-steps",)))
    assert not re.search(r"^ +\d+  commute ", plain, re.M) and "--all-steps" in plain
    assert re.search(r"^ +\d+  commute ", whole, re.M) and "--all-steps" not in whole


def test_explain_as_data() -> None:
    (found,) = json.loads(Said("explain", "-c", RMSNORM, "--json", "-").well())["regions"]
    assert [w["tensor"] for w in found["written"]] == ["t0", "rms_norm"] and found["steps"][0]["rule"] == "fuse"
    assert found["steps"][-1]["us"] == pytest.approx(sum(k["us"] for k in found["kernels"]))
    (kept,) = (a for a in found["alternatives"] if a["tensor"] == "t0")
    assert kept["kept"] and kept["us"] > found["weighed_us"]
    forms = {f["form"]: f for f in found["kernels"][0]["forms"]}
    assert forms["map"]["us"] > forms["fold"]["us"] and forms["twist"]["reasons"][0]["premises"]


def test_explain_why_not() -> None:
    linear = ("explain", "-c", "F.linear(torch.randn(2, 8), torch.randn(4, 8))", "--why-not")
    said = Said(*linear, "factor-out").well()
    assert "sum_a x*y = x * sum_a y" in said and "(set-not-contains d a) fails" in said and re.search(r"x = x[01]\[a\d, a0\]", said)
    assert "it matches" in Said(*linear, "commute").well()
    assert 'twist-sides: (Fold f "twist" "softmax" a) fails' in Said(*linear, "twist").well()
    assert "--math exact does not admit" in Said(*linear, "factor-out", "--math", "exact").well()
    (answer,) = json.loads(Said(*linear, "factor-out", "--json", "-").well())["answers"]
    assert answer["reason"]["premises"] == ["(set-not-contains d a)"] and answer["reason"]["found"]["a"] == "0"
    assert_bad(Said(*linear, "factor-in"), "factor-in", "factor-out")


def test_explain_tells_of_a_repeated_layer_once() -> None:
    layers = "nn.Sequential(*[nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)) for _ in range(4)])(torch.randn(4, 8))"
    text = Said("explain", "-c", layers, "--alternatives", "0").well()
    assert text.startswith("region 1 of 1, used 4 times\n") and text.count("as written") == 1


# -- notation -------------------------------------------------------------------------------------------------------
def value(text: str) -> Value:
    head = "loop {\n input x : f32[4, 8]\n axis a0 < 8\n y[p0] : f32[4] = "
    return loop_text.parse(f"{head}{text}\n return y = y\n}}").definitions[0].body


def test_a_value_is_written_as_deep_as_fits() -> None:
    v = value("reduce.add{a0}(exp(mul(x[p0, a0], neg(x[p0, a0]))))")
    whole = "reduce.add{b}(exp(mul(x[p0, b], neg(x[p0, b]))))"
    assert short(v, {0: "b"}, len(whole)) == whole
    assert short(v, {}, 29) == "reduce.add{a0}(exp(…))"
    assert short(v, {}, 18) == "reduce.add{a0}(…)" and short(v, {}, 5) == "redu…"


def test_letters_stand_for_the_largest_values_that_both_sides_have() -> None:
    before, after = value("reduce.add{a0}(mul(exp(neg(x[p0, a0])), x[p0, 0]))"), value("mul(x[p0, 0], reduce.add{a0}(exp(neg(x[p0, a0]))))")
    names = shared(before, after)
    assert names == {value("reduce.add{a0}(exp(neg(x[p0, a0])))").operands[0]: "A"}
    assert short(before, {}, 100, names) == "reduce.add{a0}(mul(A, x[p0, 0]))"
    assert short(after, {}, 100, names) == "mul(x[p0, 0], reduce.add{a0}(A))"
