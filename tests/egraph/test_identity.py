"""Identities of kernels with several outputs: the same whatever order the outputs are told in."""

from __future__ import annotations

import itertools

from emmy.egraph.identity import identify
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.loop_ir import Apply, Value

NAMES = "abcdefgh"


def load(name: str, *axes: int) -> Value:
    return loop.Load(name, dt.f32, tuple(map(Ax, axes)))


def of(values: dict[str, Value], elements: dict[str, dt.DType] | None = None) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """(digest, inputs read, outputs written) over all orders in which the outputs could be told."""
    shapes = {n: (4, 8) for n in NAMES}
    tensors = {n: tile.Tensor(n, s, dt.f32) for n, s in shapes.items()}
    found = set()
    for order in itertools.permutations(values):
        outputs = [tile.Tensor(n, (4, 8), (elements or {}).get(n, dt.f32)) for n in order]
        digest, reads, places = identify([values[n] for n in order], outputs, (0, 1), {0: 4, 1: 8, 2: 8}, tensors)
        found.add((digest, tuple(reads), tuple(order[k] for k in places)))
    return found


def test_the_order_of_outputs_does_not_matter() -> None:
    product, total = Apply("mul", (load("a", 0, 1), load("b", 0, 1))), Apply("add", (load("a", 0, 1), load("b", 0, 1)))
    ((digest, reads, writes),) = of({"x": product, "y": total})
    assert reads == ("a", "b") and {*writes} == {"x", "y"}
    ((other, _, _),) = of({"x": product, "y": total}, {"x": dt.bf16})
    assert other != digest
    ((single, _, _),) = of({"x": product})
    assert single != digest


def test_outputs_that_are_spelled_alike_but_share_unlike() -> None:
    """a - b, b - a and -a: whichever difference comes first, the text is one."""
    values = {"p": Apply("sub", (load("a", 0, 1), load("b", 0, 1))), "q": Apply("sub", (load("b", 0, 1), load("a", 0, 1))),
              "r": Apply("neg", (load("a", 0, 1),))}
    ((digest, _, writes),) = of(values)
    swapped = {n: Apply(v.op, tuple(load({"a": "b", "b": "a"}[x.tensor], 0, 1) for x in v.args)) for n, v in values.items()}
    ((same, _, others),) = of(swapped)
    assert same == digest and writes == others == ("r", "p", "q")


def test_many_outputs_alike_are_one_walk() -> None:
    values = {f"y{n}": Apply("mul", (load("a", 0, 2), load(n, 0, 2))) for n in NAMES[1:]}
    outputs = [tile.Tensor(n, (4, 8), dt.f32) for n in values]
    tensors = {n: tile.Tensor(n, (4, 8), dt.f32) for n in NAMES}
    sums, extents = [loop.Reduce("add", 2, v) for v in values.values()], {0: 4, 1: 8, 2: 8}
    found = {identify(sums[k:] + sums[:k], outputs[k:] + outputs[:k], (0, 1), extents, tensors).digest for k in range(7)}
    assert len(found) == 1
