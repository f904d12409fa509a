"""What saturation finds, and what it must not, by the class of rules admitted."""

from __future__ import annotations

import pytest

from emmy.check.programs import along, apply, product
from emmy.egraph.saturate import output_axes, saturate
from emmy.egraph.terms import Region
from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import tensor_ir as tir
from emmy.ir.index import Pos
from emmy.ir.tensor_ir import Tensor
from emmy.lower.tensor_to_loop import lower


def attention(n: int = 16, d: int = 8, layers: int = 1) -> tir.Program:
    x: Tensor = tir.Input("x", (n, d), dt.f32)
    for _ in range(layers):
        score = product(x, tir.IndexMap((d, n), (Pos(1), Pos(0)), x))
        weight = apply("exp", apply("sub", score, along(tir.Reduce("max", (1,), score), (n, n), (0,))))
        x = product(apply("div", weight, along(tir.Reduce("add", (1,), weight), (n, n), (0,))), x)
    return tir.Program((("y", x),))


def kinds(region: Region) -> set[str]:
    return {term.kind for terms in region.terms.values() for term in terms}


def test_attention_becomes_channels_of_one_pivot() -> None:
    region = saturate(lower(attention()))
    assert {"Pivot", "Channel"} <= kinds(region)
    channels = {(t.axis, t.kids[0]) for ts in region.terms.values() for t in ts if t.kind == "Channel"}
    assert len(channels) == 1, "the denominator and the weighted sum share their score and axis"


def test_exact_arithmetic_finds_no_twist_and_reorders_nothing() -> None:
    region = saturate(lower(attention()), "exact")
    assert not {"Pivot", "Channel"} & kinds(region)
    assert not any(count for rule, count in region.fired.items() if rule in ("factor-out", "softmax-channel", "keep-precision"))


def test_inlining_is_linear_in_the_number_of_layers() -> None:
    sizes = [sum(map(len, saturate(lower(attention(layers=n)), "exact").terms.values())) for n in (1, 2, 3)]
    assert sizes[2] - sizes[1] <= 1.5 * (sizes[1] - sizes[0])


def test_output_axes_are_shared_and_bound_by_no_reduction() -> None:
    source = lower(attention())
    axes = output_axes(source)
    assert {a for own in axes.values() for a in own}.isdisjoint(source.extents)
    assert len({own[0] for own in axes.values()}) == 1, "every tensor has rows of the same extent"


def test_an_unknown_math_names_those_there_are() -> None:
    with pytest.raises(EmmyError, match="exact, fast"):
        saturate(lower(attention()), "careless")


def test_a_malformed_rule_file_is_named() -> None:
    with pytest.raises(EmmyError, match="mend mine.egg"):
        saturate(lower(attention()), extra=[("mine.egg", "(rewrite (Unary")])
