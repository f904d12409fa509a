"""Which keys count for a tile of rows: against all rows and keys, one by one; what licenses leaving keys out, and what does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, IxDiv
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.key_tiles import KeyTiles, Order
from emmy.lower.tile_to_kernel.live import ALL, Live, Span, live
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, tensors, total
from tests.lower.tile_to_kernel.test_twist_tile import B, D, J, M, N, softmax

HEAD = 5
LOW = number(float("-inf"))


def at(axis: int) -> Value:
    return loop.IndexOf(Ax(axis))


def whole(n: int) -> Value:
    return loop.Const(dt.i64, dt.bits(dt.i64, n))


def attention(score: Callable[[Value], Value], m: int = 100, j: int = 150, heads: int = 1) -> tile.Kernel:
    """Attention over keys with some function of the products as scores; with heads, the rows of all heads read one head of keys."""
    t = tensors(dt.f32, q=(2, heads, m, 8), k=(2, j, 8), v=(2, j, 8), there=(m, j), length=(2,))
    products = total(D, op("mul", load(t, "q", B, HEAD, M, D), load(t, "k", B, J, D)))
    return kernel(softmax(score(products), load(t, "v", B, J, N)), (B, HEAD, M, N), {B: 2, HEAD: heads, M: m, N: 8, J: j, D: 8}, t)


def found(k: tile.Kernel, height: int, rows: tuple[int, ...] = (M,)) -> Live:
    return live(k, next(f for f in k.folds if f.kind == "twist"), rows, height)


def keys(span: Span, row: int, extent: int) -> range:
    """The keys of a span for a tile of rows."""
    def values(terms: frozenset[ix.Ix]) -> list[int]:
        return [ix.evaluate(x, lambda leaf: row) for x in terms]

    return range(max([0, *values(span.lows)]), max(0, min([extent, *values(span.highs)])))


MASKS: dict[str, tuple[Callable[[Value], Value], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "causal": (lambda s: op("select", op("le", at(J), at(M)), s, LOW), lambda i, j: j <= i),
    "written": (lambda s: op("select", op("lt", at(M), at(J)), LOW, s), lambda i, j: j <= i),
    "added": (lambda s: op("add", s, op("mul", number(2), op("select", op("le", at(J), at(M)), number(0), LOW))), lambda i, j: j <= i),
    "shifted": (lambda s: op("select", op("lt", op("sub", at(J), at(M)), whole(40)), s, LOW), lambda i, j: j - i < 40),
    "ahead": (lambda s: op("select", op("not", op("le", at(J), op("add", at(M), whole(7)))), s, LOW), lambda i, j: j > i + 7),
    "window": (lambda s: op("select", op("and", op("le", at(J), at(M)), op("lt", op("sub", at(M), at(J)), whole(33))), s, LOW),
               lambda i, j: (j <= i) & (i - j < 33)),
    "around": (lambda s: op("select", op("lt", whole(12), op("abs", op("sub", at(M), at(J)))), LOW, s), lambda i, j: abs(i - j) <= 12),
    "far": (lambda s: op("select", op("le", op("abs", op("sub", at(M), at(J))), whole(12)), LOW, s), lambda i, j: abs(i - j) > 12),
    "two masks": (lambda s: op("select", op("lt", at(J), op("sub", at(M), whole(20))), LOW, op("select", op("le", at(J), at(M)), s, LOW)),
                  lambda i, j: (j <= i) & (j >= i - 20)),
    "either": (lambda s: op("select", op("or", op("lt", at(J), whole(16)), op("le", at(M), at(J))), s, LOW),
               lambda i, j: (j < 16) | (i <= j)),
    "twice": (lambda s: op("select", op("le", at(J), op("mul", at(M), whole(2))), s, LOW), lambda i, j: j <= 2 * i),
    "none of one sign": (lambda s: op("select", op("le", at(M), whole(50)), s, LOW), lambda i, j: (i <= 50) & (j >= 0)),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("height", [1, 16, 64, 192])
def test_every_row_and_key(name: str, height: int) -> None:
    """No key that counts is outside the first interval, and in the second the mask holds for every row."""
    score, counts = MASKS[name]
    k = attention(score)
    got = found(k, height)
    there = counts(np.arange(100)[:, None], np.arange(150)[None, :])
    for r in range(-(-100 // height)):
        rows = there[r * height: (r + 1) * height]
        some, held = keys(got.some, r, 150), keys(got.whole, r, 150)
        assert set(np.flatnonzero(rows.any(0))) <= set(some)
        if got.whole != ALL:
            assert rows[:, list(held)].all()
        if name in ("causal", "shifted", "window"):
            assert len(some) == len(np.flatnonzero(rows.any(0))) or r == -(-100 // height) - 1    # the last tile has rows beyond the end
        for width in (16, 64):
            tiles = KeyTiles(k, next(f for f in k.folds if f.kind == "twist"), (M,), height, width, True)
            assert tiles.counts[r] >= len({j // width for j in np.flatnonzero(rows.any(0))})


def test_the_score_where_the_mask_holds() -> None:
    products = attention(lambda s: s).folds[-1].lifts[0]
    for name in ("causal", "written", "window", "around", "two masks"):
        got = found(attention(MASKS[name][0]), 64)
        assert got.whole != ALL and got.score is products, name
    added = found(attention(MASKS["added"][0]), 64)
    assert not any(isinstance(v, loop.IndexOf) for v in loop.walk((added.score,)))
    beside = found(attention(lambda s: op("select", op("and", op("le", at(J), at(M)), op("lt", number(0), load_there())), s, LOW)), 64)
    assert beside.score is op("select", op("lt", number(0), load_there()), products, LOW)      # what memory says stays


def load_there() -> Value:
    return loop.Load("there", dt.f32, (Ax(M), Ax(J)))


@pytest.mark.parametrize("score", [
    lambda s: s,
    lambda s: op("select", op("lt", number(0), load_there()), s, LOW),                                  # a mask in memory
    lambda s: op("select", op("le", at(J), at(M)), s, number(-1e30)),                                   # no weight of zero
    lambda s: op("select", op("le", at(J), at(M)), s, op("mul", number(2), s)),
    lambda s: op("mul", number(-1), op("select", op("le", at(J), at(M)), s, LOW)),                      # +inf
    lambda s: op("tanh", op("select", op("le", at(J), at(M)), s, LOW)),                                 # -1
    lambda s: op("select", op("le", op("mul", at(J), at(J)), at(M)), s, LOW),                           # not linear
    lambda s: op("select", op("le", op("mul", at(J), whole(2)), at(M)), s, LOW),                        # the key not by itself
    lambda s: op("select", op("le", loop.IndexOf(IxDiv(Ax(J), 4)), at(M)), s, LOW),
    lambda s: op("select", op("eq", at(J), at(M)), s, LOW),
    lambda s: op("select", op("le", loop.Cast(dt.i32, at(J)), loop.Cast(dt.i32, at(M))), s, LOW),       # may wrap
    lambda s: op("select", op("or", op("le", at(J), at(M)), op("lt", number(0), load_there())), s, LOW),
])
def test_what_leaves_no_key_out(score: Callable[[Value], Value]) -> None:
    assert found(attention(score), 64).some == ALL


def test_rows_of_several_axes() -> None:
    """Rows of one head after the other: a tile inside a head has an interval of its rows, one across heads has all."""
    causal = MASKS["causal"][0]
    k = attention(causal, 128, 128, 3)
    assert [len(keys(found(k, 64, (HEAD, M)).some, r, 128)) for r in range(6)] == [64, 128] * 3
    assert [len(keys(found(k, 48, (HEAD, M)).some, r, 128)) for r in range(8)] == [128] * 8
    by_head = attention(lambda s: op("select", op("le", at(J), op("mul", at(HEAD), whole(30))), s, LOW), 128, 128, 3)
    assert [len(keys(found(by_head, 64, (HEAD, M)).some, r, 128)) for r in range(6)] == [1, 1, 31, 31, 61, 61]


def test_blocks_share_out_uneven_tiles() -> None:
    k = attention(MASKS["causal"][0], 4096, 4096)
    counts = KeyTiles(k, k.folds[-1], (M,), 128, 128, True).counts
    assert counts == list(range(1, 33))
    even, uneven = Order(32, 64, 1, 132, False), Order(32, 64, 1, 132, True)
    assert sum(even.loads(counts)) == sum(uneven.loads(counts)) == 64 * 33 * 16
    assert max(uneven.loads(counts)) < 1.04 * 64 * 33 * 16 / 132 < 0.95 * max(even.loads(counts))
