"""Canonical forms: one text however a program is written, another for another program."""

from __future__ import annotations

import pytest

from emmy.egraph.canonical import digest, forms
from emmy.egraph.saturate import saturate
from emmy.ir.loop_text import parse

ROWS = """loop {
  input x : f32[8, 16]
  input w : f32[16]
  axis a0 < 16
  y[p0, p1] : f32[8, 16] = EXPRESSION
  return y = y
}"""


def form(expression: str, math: str = "fast", **names: str) -> str:
    text = ROWS.replace("EXPRESSION", expression)
    for old, new in names.items():
        text = text.replace(f"{old} ", f"{new} ").replace(f"{old}[", f"{new}[")
    return forms(saturate(parse(text), math))["y"]


def test_names_of_tensors_and_axes_do_not_matter() -> None:
    expression = "mul(x[p0, p1], reduce.add{a0}(x[p0, a0]))"
    assert form(expression) == form(expression, x="activations")
    assert form(expression) == forms(saturate(parse(ROWS.replace("EXPRESSION", expression).replace("a0", "a7"))))["y"]


@pytest.mark.parametrize(("left", "right"), [
    ("add(x[p0, p1], w[p1])", "add(w[p1], x[p0, p1])"),
    ("div(x[p0, p1], w[p1])", "mul(recip(w[p1]), x[p0, p1])"),
    ("add(add(x[p0, p1], w[p1]), w[p0])", "add(x[p0, p1], add(w[p0], w[p1]))"),
    ("reduce.add{a0}(mul(x[p0, a0], w[p1]))", "mul(w[p1], reduce.add{a0}(x[p0, a0]))"),
])
def test_two_spellings_in_one_program_are_one_class_with_one_form(left: str, right: str) -> None:
    text = ROWS.replace("EXPRESSION", f"{left}\n  z[p0, p1] : f32[8, 16] = {right}").replace("return y = y", "return y = y, z = z")
    region = saturate(parse(text))
    assert region.home["y"] == region.home["z"]
    assert forms(region)["y"] == forms(region)["z"]


def test_operands_of_a_sum_have_no_order() -> None:
    assert form("add(x[p0, p1], w[p1])") == form("add(w[p1], x[p0, p1])")


@pytest.mark.parametrize(("left", "right"), [
    ("sub(x[p0, p1], w[p1])", "sub(w[p1], x[p0, p1])"),
    ("reduce.add{a0}(mul(x[p0, a0], w[a0]))", "mul(w[p1], reduce.add{a0}(x[p0, a0]))"),
    ("reduce.add{a0}(x[p0, a0])", "reduce.max{a0}(x[p0, a0])"),
    ("add(x[p0, p1], const{f32}(0.0))", "add(x[p0, p1], const{f32}(-0.0))"),
])
def test_different_values_are_different_forms(left: str, right: str) -> None:
    assert form(left) != form(right)


def test_exact_arithmetic_keeps_the_bracketing() -> None:
    left, right = "add(add(x[p0, p1], w[p1]), w[p0])", "add(x[p0, p1], add(w[p0], w[p1]))"
    assert form(left, "exact") != form(right, "exact")
    assert form("add(x[p0, p1], w[p1])", "exact") == form("add(w[p1], x[p0, p1])", "exact")


def test_the_form_is_the_same_from_run_to_run() -> None:
    weight = "exp(sub(x[p0, AXIS], reduce.max{a0}(x[p0, a0])))"
    text = form(f"mul({weight.replace('AXIS', 'p1')}, recip(reduce.add{{a0}}({weight.replace('AXIS', 'a0')})))")
    assert text.splitlines()[0].startswith("x0: f32[8, 16]") and "channel.softmax" in text
    assert digest(text) == digest(str(text)) and len(digest(text)) == 12
