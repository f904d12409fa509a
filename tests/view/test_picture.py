"""A picture has the whole region: classes, members with costs, the extracted bodies, the rules that made what."""

from __future__ import annotations

import math

import pytest

from emmy.egraph.canonical import canonical
from emmy.egraph.problem import mirrored
from emmy.view.picture import Operand
from tests.view.pictures import BLOCK, CHAIN, drawn, program, with_rules


@pytest.mark.parametrize("source", [CHAIN, BLOCK])
def test_every_class_with_a_finite_term_is_there_with_every_member(source: str) -> None:
    found, outlined = drawn(source), program(source).choice.outlined
    assert found.classes.keys() == canonical(outlined.region).keys()
    for c, x in found.classes.items():
        finite = [t for t in outlined.terms[c] if all(k in found.classes for k in t.kids)]
        assert sorted(m.kids for m in x.members) == sorted(t.kids for t in finite)
        unpriced = [t for t in finite if t.kind == "Sum" or mirrored(t, outlined.terms[c])]
        assert sum(m.seconds is None for m in x.members) == len(unpriced)
        assert all(k in found.classes for m in x.members for k in m.kids) and 0 <= x.form < len(x.members)
        assert {axis for axis in x.axes} <= found.extents.keys()


@pytest.mark.parametrize("source", [CHAIN, BLOCK])
def test_the_extracted_bodies_are_marked(source: str) -> None:
    found, choice = drawn(source), program(source).choice
    assert [k.name for k in found.kernels] == [k.name for k in choice.program.kernels] and len(found.kernels) > 1
    assert math.isclose(sum(k.seconds for k in found.kernels), sum(choice.scheduled[k.name].seconds for k in choice.program.kernels))
    for n, extracted in enumerate(choice.kernels):
        marked = {c: m for c, x in found.classes.items() for m in x.members if n in m.kernels}
        assert marked.keys() == {c for c, _ in extracted.body}
        assert all(m.kids == marked[c].kids and m.tensor == marked[c].tensor for c, m in extracted.body)
        assert found.kernels[n].roots == extracted.roots
        assert all(w in found.classes[c].keeps for w, c in zip(extracted.writes, extracted.roots, strict=True))


def test_chosen_members_come_first_and_then_the_cheapest() -> None:
    for x in drawn(BLOCK).classes.values():
        keys = [(not m.kernels, math.inf if m.seconds is None else m.seconds) for m in x.members]
        assert keys == sorted(keys)


def test_members_read_like_loop_ir() -> None:
    found = drawn(CHAIN)
    texts = {m.text for x in found.classes.values() for m in x.members}
    assert {"a[i2, r1]", "t0[i2, i3]", "b[r1, i3]"} <= texts
    ((_, result),) = found.outputs
    chosen = next(m for m in found.classes[result].members if m.kernels)
    (product,) = chosen.kids
    assert chosen.text == f"reduce.add{{r0}}(%{product})" and found.extents["r0"] == 64
    assert found.classes[result].element == "f32" and found.classes[result].axes == ("i2", "i4")


def test_the_rules_that_made_a_member_are_with_it() -> None:
    outlined = program(CHAIN).choice.outlined
    c, t = next((c, t) for c, ts in outlined.terms.items() for t in ts if mirrored(t, outlined.terms[c]))
    found = with_rules(CHAIN, {(c, t): ("commute", "another")})
    assert [(k, m.kids) for k, x in found.classes.items() for m in x.members if m.rules == ("commute", "another")] == [(c, t.kids)]
    assert drawn(CHAIN).fired["commute"] > 0 and 0 not in drawn(CHAIN).fired.values()


def test_an_operand_has_the_type_of_its_class() -> None:
    found = drawn("x = torch.randn(4, 4); x.argmax(1) * 2 + (x > 0).sum(1)")
    elements = {x.element for x in found.classes.values()}
    assert {"f32", "i64"} <= elements
    dtype = program(CHAIN).choice.outlined.tensors["a"].element
    assert Operand(3, dtype).dtype is dtype
