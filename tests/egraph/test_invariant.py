"""What is the same at every call, and which tensors of it may stay."""

from __future__ import annotations

from emmy.egraph.invariant import GROWTH, SPARE, invariant, lasting, made_of
from emmy.egraph.saturate import saturate
from emmy.egraph.terms import Region
from emmy.ir.loop_text import parse

PROGRAM = """loop {
  input x : f32[8]
  input w : f32[8, 8]
  input v : f32[8]
  axis a0 < 8
  t0[p0] : f32[8] = reduce.add{a0}(mul(w[p0, a0], exp(v[a0])))
  t1[p0] : f32[8] = add(t0[p0], x[p0])
  t2[p0] : f32[8] = add(t0[p0], t0[p0])
  t3[p0] : i64[8] = index(p0)
  return y = t1, z = t2, n = t3
}"""


def region(weights: str = "wv", text: str = PROGRAM) -> Region:
    return saturate(parse(text), weights=frozenset(weights))


def test_values_of_weights_numbers_and_indices_are_invariant() -> None:
    found = region()
    members = invariant(found)
    assert {n for n, c in found.home.items() if c in members} == {"t0", "t2", "t3"}
    assert made_of(found.home["t0"], members) == {"w", "v"} and made_of(found.home["t3"], members) == set()
    assert {n for n, c in region("w").home.items() if c in invariant(region("w"))} == {"t3"}


def test_a_weight_at_an_index_that_varies_is_none() -> None:
    gathers = """loop {
  input i : i64[8]
  input w : f32[8]
  t0[p0] : f32[8] = w[[i[p0]]]
  return y = t0
}"""
    for weights, fixed in (("w", False), ("wi", True)):
        found = region(weights, gathers)
        assert (found.home["t0"] in invariant(found)) == fixed


def test_what_may_stay() -> None:
    """No result, unless it only passes from one stretch to the next, and nothing much larger than what it is made of."""
    bytes = {"w": 256, "v": 32, "t0": 32, "t1": 32, "t2": 32}
    found = region()
    homes = {n: found.home[n] for n in ("t0", "t1", "t2")}
    assert lasting(found, homes, bytes) == {"w", "v", "t0"}
    assert lasting(found._replace(passed=frozenset(("t2",))), homes, bytes) == {"w", "v", "t0", "t2"}
    limit = int(GROWTH * 288) + SPARE
    assert lasting(found, homes, bytes | {"t0": limit}) == {"w", "v", "t0"}
    assert lasting(found, homes, bytes | {"t0": limit + 1}) == {"w", "v"}
    assert lasting(region(""), homes, bytes) == set()
