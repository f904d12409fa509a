"""Programs that few random ones are like: what split reductions take in pieces, and the corners of single rules."""

from __future__ import annotations

from collections.abc import Iterator

from emmy.check.programs import along, apply, constant, convolution, product, view
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import tensor_ir as tir
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import Tensor


def sums() -> Iterator[tir.Program]:
    """A sum along an axis of every kind of value that a split reduction takes in pieces."""
    n = 4
    x, y = tir.Input("x", (n, n), dt.f32), tir.Input("y", (n, n), dt.f32)
    at, points = tir.Input("i_4", (n, n), dt.i64), (Pos(0), Pos(1))
    edge = apply("lt", tir.IndexValue((n, n), Pos(0)), view(tir.Constant(dt.i64, 2), (n, n), ()))
    weight = apply("exp", apply("sub", x, along(tir.Reduce("max", (1,), x), (n, n), (0,))))
    mirror = ix.add(ix.mul(Pos(0), -1), IxConst(n - 1))
    floats = (apply("exp", x), apply("mul", x, y), apply("select", edge, x, y),
              tir.Cast(dt.f32, tir.Cast(dt.f16, x)), tir.Cast(dt.f32, tir.Round(dt.bf16, x)),
              tir.Gather(0, (IxConst(0), Pos(1)), x, at), tir.Scan("add", 0, x), tir.Scan("add", 1, x), product(weight, y),
              apply("div", x, along(tir.Reduce("add", (1,), weight), (n, n), (0,))), view(x, (n, n), (mirror, Pos(1))))
    places = ix.mul(Pos(0), 3), ix.div(Pos(0), 3), ix.mod(Pos(0), 3), ix.add(*points)
    whole = (apply("add", at, tir.IndexValue((n, n), place)) for place in places)
    for value in (*floats, *whole):
        yield tir.Program((("y", tir.Reduce("add", (0,), value)),))
    yield tir.Program((("y", tir.Reduce("max", (0,), x)),))


def corners() -> Iterator[tir.Program]:
    """What few random programs have: the variance of truths, a maximum turned round, two statistics of rows subtracted, a sum of
    equals, a deviation of a rounded tensor, choices by the order of indices, and a padded convolution."""
    n = 4
    x, y = tir.Input("x", (n, n), dt.f32), tir.Input("y", (n, n), dt.f32)

    def mean(z: Tensor) -> Tensor:
        return apply("mul", tir.Reduce("add", (1,), z), constant(1 / n, (n,), dt.f32))

    truths = tir.Cast(dt.f32, apply("lt", x, y))
    centred = apply("sub", truths, along(mean(truths), (n, n), (0,)))
    half = tir.Cast(dt.bf16, apply("mul", x, y))
    wide = tir.Cast(dt.f32, half)
    scaled = apply("mul", apply("sub", wide, along(mean(wide), (n, n), (0,))), along(mean(y), (n, n), (0,)))
    repeated = along(x, (n, n, 3), (0, 1))
    row, column = tir.IndexValue((n, n), Pos(0)), tir.IndexValue((n, n), Pos(1))
    one, true, false = (view(tir.Constant(t, b), (n, n), ()) for t, b in ((dt.i64, 1), (dt.bool_, 1), (dt.bool_, 0)))
    above = apply("le", apply("add", row, one), column)
    chosen = (apply("select", apply("not", apply("lt", row, column)), x, y), apply("select", apply("select", above, true, false), x, y))
    turned = tir.Reduce("max", (1,), apply("mul", x, constant(-2.0, (n, n), dt.f32)))
    lowered = apply("sub", apply("sub", x, along(tir.Reduce("max", (1,), y), (n, n), (0,))), along(mean(y), (n, n), (0,)))
    image, s, b, w = (tir.Input(name, shape, dt.f32) for name, shape in (("z", (2, 2, 2, 2)), ("s", (2,)), ("b", (2,)), ("w", (2, 2, 2))))
    for outputs in (chosen, (mean(apply("mul", centred, centred)),), (turned,), (lowered,),
                    (tir.Reduce("add", (2,), repeated),), (half, product(scaled, y)),
                    (convolution(image, apply("recip", s), b, w, 1, 1, "add"),)):
        yield tir.Program(tuple((f"y{k}", value) for k, value in enumerate(outputs)))
    yield from twists()
    # right sides by rows, of types that tensor cores take by columns, and of weights of 8 bits
    octets = tir.Cast(dt.f32, tir.Cast(dt.bf16, tir.Input("i_4", (n, n), dt.i8)))
    bytes_by_rows = (tir.Cast(dt.f32, tir.Input(name, (n, n), dt.e4m3)) for name in "pq")
    for factors in (bytes_by_rows, (x, y), (x, octets)):
        yield tir.Program((("y", product(*factors)),))
    # a product over two axes, as of windows of images with channels first
    p, q = (along(tir.Cast(dt.f32, tir.Input(name, (2, 2, 2), dt.bf16)), (2, 2, 2, 2), (k, 2, 3)) for k, name in enumerate("pq"))
    yield tir.Program((("y", tir.Reduce("add", (2, 3), apply("mul", p, q))),))
    # lines of columns that no cluster holds
    yield tir.Program((("y", tir.Reduce("add", (0,), tir.Input("x", (32768, 256), dt.f32))),))


def twists() -> Iterator[tir.Program]:
    """softmax(s[..., rows, keys]) weighting values that several heads share, alone and with the batch in one coordinate, and one head's of
    more rows than a tile has, as they are and scaled by key."""
    def weighted(score: Tensor, values: Tensor) -> Tensor:
        last = len(score.shape) - 1
        shape, where = values.shape, tuple(range(last))
        weight = apply("exp", apply("sub", score, along(tir.Reduce("max", (last,), score), score.shape, where)))
        return tir.Reduce("add", (last,), apply("mul", along(weight, shape, (*where, last)), values))

    heads, batches = tir.Input("s", (4, 2), dt.f32), tir.Input("s", (2, 4, 2), dt.f32)
    shared = view(tir.Input("v", (2, 2, 3), dt.f32), (4, 2, 3), (ix.div(Pos(0), 2), Pos(1), Pos(2)))
    flat = view(tir.Input("v", (4, 2, 3), dt.f32), (2, 4, 2, 3), (ix.add(ix.mul(Pos(0), 2), ix.div(Pos(1), 2)), Pos(2), Pos(3)))
    rows = tir.Input("s", (65, 2), dt.f32)
    plain, scale = along(tir.Input("v", (2, 3), dt.f32), (65, 2, 3), (1, 2)), along(tir.Input("g", (2,), dt.f32), (65, 2, 3), (1,))
    for score, values in ((heads, shared), (batches, flat), (rows, plain), (rows, apply("mul", plain, scale))):
        yield tir.Program((("y", weighted(score, values)),))
