"""What a traced e-graph records, and that it records enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from emmy.check.programs import programs
from emmy.egraph.provenance import ENode, Provenance, made_by
from emmy.egraph.rulebook import EGraph
from emmy.egraph.saturate import saturate
from emmy.egraph.terms import Region
from emmy.ir import loop_text
from emmy.ir import tensor_ir as tir
from emmy.lower.tensor_to_loop import lower

SOFTMAX = """loop {
  input x : f32[4, 8]
  axis a0 < 8
  t0[p0] : f32[4] = reduce.max{a0}(x[p0, a0])
  t1[p0, p1] : f32[4, 8] = exp(sub(x[p0, p1], t0[p0]))
  t2[p0] : f32[4] = reduce.add{a0}(t1[p0, a0])
  y[p0, p1] : f32[4, 8] = div(t1[p0, p1], t2[p0])
  return y = y
}"""
LONG = """loop {
  input x : f32[4, 1048576]
  axis a0 < 1048576
  y[p0] : f32[4] = reduce.add{a0}(exp(mul(x[p0, a0], x[p0, a0])))
  return y = y
}"""


def traced(text: str) -> Region:
    return saturate(loop_text.parse(text), traced=True)


def provenance(region: Region) -> Provenance:
    assert region.provenance is not None
    return region.provenance


def parts(p: Provenance, nodes: set[ENode], c: int) -> Iterator[set[ENode]]:
    """The members of a class by what its edges join; an edge whose end is a variable joins its other end to all."""
    joined = [{n for n in (e.source, e.target) if n is not None} if e.source and e.target else nodes for e in p.edges.get(c, ())]
    while nodes:
        part, grown = set[ENode](), {next(iter(nodes))}
        while grown - part:
            part |= grown
            grown = part.union(*(ends for ends in joined if ends & part))
        yield part
        nodes = nodes - part


def assert_connected(region: Region) -> None:
    p = provenance(region)
    classes: dict[int, set[ENode]] = {}
    for node, c in p.home.items():
        if isinstance(c, int):
            classes.setdefault(c, set()).add(node)
    split = {c: found for c, nodes in classes.items() if len(found := list(parts(p, nodes, c))) > 1}
    assert not split, "two members of one class that no recorded match joins"


def test_tracing_changes_nothing() -> None:
    plain = saturate(loop_text.parse(SOFTMAX))
    assert plain.provenance is None and plain.terms == traced(SOFTMAX).terms and plain.may_keep == traced(SOFTMAX).may_keep


def test_recorded_matches_are_outside_of_the_budget() -> None:
    sizes = []
    for graph in (EGraph("loop"), EGraph("loop", traced=True)):
        graph.run('(let $x (Binary "add" (Const "f32" 0) (Const "f32" 1)))')
        graph.schedule(graph.phase("normalize"))
        sizes.append(graph.size())
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("text", [SOFTMAX, LONG], ids=["softmax", "split"])
def test_the_members_of_a_class_are_joined_by_matches(text: str) -> None:
    assert_connected(traced(text))


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(programs())
def test_whatever_the_program(program: tir.Program) -> None:
    assert_connected(saturate(lower(program), traced=True))


def test_a_member_names_the_rules_that_made_it() -> None:
    region = traced(SOFTMAX)
    made = made_by(region)
    by = {term.kind: rules for (_, term), rules in made.items()}
    assert by["Channel"] == ("softmax-denominator",) and by["Pivot"] == ("softmax-pivot",)
    assert all(term in region.terms[c] for c, term in made if term.kind in ("Pivot", "Channel"))
    assert not {"Input", "Tensor"} & by.keys() and ("Binary", "div") not in {(t.kind, t.label) for _, t in made}, "the program says them"


def test_relations_are_followed_to_what_they_were_derived_from() -> None:
    edges = [e for es in provenance(traced(LONG)).edges.values() for e in es if e.rule.name == "in-pieces"]
    assert {(e.source.op, e.target.op) for e in edges if e.source and e.target} == {("Reduce", "Reduce")}


FURTHER = """
(sort Pairs (Vec Value))
(datatype Mood (Calm i64))
(constructor Twin (Value Mood) Value)
(relation twice (Value Mood))
(rule ((= v (Binary "add" x x))) ((twice v (Calm 2))) :ruleset algebra-real :name "twice")
(rule ((twice v m) (= v (Binary "add" x x))) ((union v (Twin x m))) :ruleset algebra-real :name "as-twin")
(rewrite (Unary "neg" (Unary "neg" x)) x :subsume :ruleset algebra-real :name "negate-twice")
(birewrite (Binary "sub" x y) (Binary "add" x (Unary "neg" y)) :ruleset algebra-real :name "subtract")
"""


def test_rules_of_the_users_with_sorts_of_their_own_are_recorded() -> None:
    program = loop_text.parse("loop {\n input x : f32[4]\n y[p0] : f32[4] = sub(add(x[p0], x[p0]), neg(neg(x[p0])))\n return y = y\n}")
    region = saturate(program, "fast", [("further.egg", FURTHER)], traced=True)
    rules = {e.rule.name for es in provenance(region).edges.values() for e in es}
    assert {"as-twin", "negate-twice", "subtract=>"} <= rules
    assert_connected(region)


def test_a_traced_graph_has_the_rules_of_a_plain_one() -> None:
    assert EGraph("tile", traced=True).rulesets == EGraph("tile").rulesets
