"""Convolutions by warpgroups: the simulated kernel against sums in float64, where rows are proposed and where they must not be."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.instructions import CopyWindows, StoreTile
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.lower.tile_to_kernel.hopper_windows import nests
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close
from tests.lower.tile_to_kernel.test_hopper import HALF, NARROW, PAIR, SMALL, THREE
from tests.lower.tile_to_kernel.test_tensor_core import wide

N, P, Q, M, R, S, C = range(7)


def number_of(n: int) -> Value:
    return loop.Const(dt.i64, dt.bits(dt.i64, n))


def spread(position: int, step: int, tap: int, dilation: int, more: int = 0) -> Ix:
    """step * position + dilation * tap + more"""
    return ix.add(ix.add(ix.mul(Ax(tap), dilation), ix.mul(Ax(position), step)), ix.IxConst(more))


class Conv:
    """The convolution of images [n, h, w, c] by filters [o, r, s, c]; steps, paddings, dilations along h and w."""

    def __init__(self, image: tuple[int, int, int, int], filters: tuple[int, int, int], step: tuple[int, int] = (1, 1),
                 pad: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1)):
        self.image, self.filters, self.step, self.pad, self.dilation = image, filters, step, pad, dilation
        (n, h, w, c), (o, r, s) = image, filters
        self.places = tuple((size + 2 * b - (k - 1) * d - 1) // t + 1
                            for size, b, k, d, t in zip((h, w), pad, (r, s), dilation, step, strict=True))
        self.extents = {N: n, P: self.places[0], Q: self.places[1], M: o, R: r, S: s, C: c}

    def padded(self, x: Value, condition: Value | None = None) -> Value:
        """x where the window lies in the image, as the lowering of torch's padding writes it."""
        for position, tap, k in ((P, R, 0), (Q, S, 1)):
            size, b = self.image[1 + k], self.pad[k]
            at = loop.IndexOf(spread(position, self.step[k], tap, self.dilation[k]))
            inside = op("and", op("le", number_of(b), at), op("lt", at, number_of(size + b)))
            condition = inside if condition is None else op("and", condition, inside)
        assert condition is not None
        return op("select", condition, x, number(0))

    def at(self, k: int) -> Ix:
        position, tap = ((P, R), (Q, S))[k]
        size, b = self.image[1 + k], self.pad[k]
        inside = spread(position, self.step[k], tap, self.dilation[k], size - b)
        return ix.mod(inside, size) if b else spread(position, self.step[k], tap, self.dilation[k])

    def kernel(self, element: DType = dt.bf16, stored: DType = dt.f32, order: tuple[int, ...] = (C, S, R),
               x: Value | None = None) -> tile.Kernel:
        (n, h, w, c), (o, r, s) = self.image, self.filters
        t = tensors(element, x=(n, h, w, c), w=(o, r, s, c))
        image = x if x is not None else load(t, "x", N, self.at(0), self.at(1), C)
        body = op("mul", load(t, "w", M, R, S, C), self.padded(image) if any(self.pad) and x is None else image)
        for axis in order:
            body = total(axis, body)
        return kernel(body if stored is dt.f32 else loop.Round(stored, body), (N, P, Q, M), self.extents, t, stored)

    def wanted(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        n, o = self.image[0], self.filters[0]
        x = np.pad(x, ((0, 0), *((b, b) for b in self.pad), (0, 0)))
        out = np.zeros((n, *self.places, o))
        for i, j in np.ndindex(*self.filters[1:]):
            lines = zip((i, j), self.dilation, self.places, self.step, strict=True)
            part = [slice(k * d, k * d + (m - 1) * t + 1, t) for k, d, m, t in lines]
            out += x[:, part[0], part[1]] @ w[:, i, j].T
        return out


CASES = {
    "padded": Conv((2, 5, 6, 64), (24, 3, 3), pad=(1, 1)),
    "stepping": Conv((2, 9, 8, 64), (64, 3, 3), (2, 2), (1, 1)),
    "one place": Conv((2, 9, 8, 72), (40, 1, 1), (2, 2)),
    "unlike": Conv((1, 9, 12, 72), (16, 3, 2), (1, 2), (2, 1), (2, 1)),
    "not padded": Conv((3, 6, 7, 64), (16, 3, 3)),
    "few channels": Conv((2, 6, 7, 16), (24, 3, 3), pad=(1, 1)),
    "wide": Conv((1, 6, 6, 136), (16, 5, 5), pad=(2, 2)),
    "one column": Conv((4, 5, 3, 64), (16, 3, 3)),
}


def rows(k: tile.Kernel, target: str = "sm_90a", math: str = "fast", pins: str = "") -> list[tile.Schedule]:
    return [s for s in schedules(k, target, math, pins) if s.row.tile.startswith("wgmma")]


def lowered(k: tile.Kernel, row: str) -> kernel_ir.Kernel:
    (s,) = rows(k, pins=row)
    return lower(k.replace(schedule=s))


def copies(form: kernel_ir.Kernel) -> bool:
    return any(isinstance(s, CopyWindows) for s in kernel_ir.walk(form.body))


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    of = CASES[name]
    k = of.kernel()
    x = wide(k)
    wanted = of.wanted(x["x"], x["w"])
    for row in (SMALL, NARROW.replace("n16", "n8").replace("f1x2", "f1x1")):
        form = lowered(k, row)
        assert copies(form)
        close(run(k, form, random(k)), wanted, 1e-5)


@pytest.mark.parametrize("row", [PAIR, THREE])
def test_halves_are_stored_in_boxes(row: str) -> None:
    of = Conv((3, 9, 8, 128), (72, 3, 3), pad=(1, 1))
    k = of.kernel(dt.f16, dt.f16)
    x, form = wide(k), lowered(k, row.replace("bf16", "f16"))
    close(run(k, form, random(k)), of.wanted(x["x"], x["w"]), 2.0**-10)
    assert any(isinstance(s, StoreTile) for s in kernel_ir.walk(form.body))


@pytest.mark.parametrize("order", [(C, S, R), (S, C, R), (R, S, C)])
def test_in_any_order(order: tuple[int, ...]) -> None:
    of = CASES["padded"]
    k = of.kernel(order=order)
    x = wide(k)
    (nest,) = nests(k)
    assert len(nest) == 3
    close(run(k, lowered(k, SMALL), random(k)), of.wanted(x["x"], x["w"]), 1e-5)


def test_what_follows_a_convolution() -> None:
    of = CASES["padded"]
    t = tensors(dt.bf16, x=of.image, w=(24, 3, 3, 64), bias=(24,), residual=(2, 5, 6, 24))
    y = op("mul", load(t, "w", M, R, S, C), of.padded(load(t, "x", N, of.at(0), of.at(1), C)))
    y = op("add", op("add", total(R, total(S, total(C, y))), load(t, "bias", M)), load(t, "residual", N, P, Q, M))
    k = kernel(loop.Round(dt.bf16, op("max", y, number(0))), (N, P, Q, M), of.extents, t, dt.bf16)
    x = wide(k)
    wanted = np.maximum(of.wanted(x["x"], x["w"]) + x["bias"] + x["residual"], 0)
    close(run(k, lowered(k, SMALL), random(k)), wanted, HALF)


def test_sums_over_several_axes_of_what_lies_in_tiles() -> None:
    """No windows: both operands are tiles of tensors, and an axis of the sum is a coordinate."""
    t = tensors(dt.bf16, a=(40, 3, 64), b=(24, 3, 64))
    k = kernel(total(2, total(3, op("mul", load(t, "a", 0, 2, 3), load(t, "b", 1, 2, 3)))), (0, 1), {0: 40, 1: 24, 2: 3, 3: 64}, t)
    x, form = wide(k), lowered(k, SMALL)
    close(run(k, form, random(k)), np.einsum("mrc,nrc->mn", x["a"], x["b"]), 1e-5)
    assert not copies(form)


def test_rows_are_proposed_where_the_copy_engine_pads_alike() -> None:
    of = CASES["padded"]
    assert rows(of.kernel()) and not rows(of.kernel(), "sm_80") and not rows(of.kernel(), math="exact") and not rows(of.kernel(dt.f32))
    t = tensors(dt.bf16, x=of.image)
    x = load(t, "x", N, of.at(0), of.at(1), C)
    assert rows(of.kernel(x=of.padded(x)))
    inside = op("le", number_of(2), loop.IndexOf(spread(P, 1, R, 1)))
    assert not rows(of.kernel(x=of.padded(x, inside)))                              # the first line is left out
    assert not rows(of.kernel(x=of.padded(x, op("lt", loop.IndexOf(Ax(C)), number_of(32)))))    # and some channels
    assert not rows(of.kernel(x=op("select", op("eq", number_of(2), loop.IndexOf(Ax(P))), x, number(0))))
    other = of.padded(x)
    assert isinstance(other, loop.Apply)
    assert not rows(of.kernel(x=op("select", other.args[0], x, number(1))))         # padded by ones
    assert not rows(of.kernel(x=x))                                                 # images that go on from their other end
    shifted = load(t, "x", N, ix.mod(spread(P, 1, R, 1, 4), 5), of.at(1), C)        # the same place
    assert rows(of.kernel(x=of.padded(shifted)))
    shifted = load(t, "x", N, ix.mod(spread(P, 1, R, 1, 3), 5), of.at(1), C)
    assert not rows(of.kernel(x=of.padded(shifted)))                                # a line before
    assert not rows(Conv((2, 5, 6, 12), (24, 3, 3), pad=(1, 1)).kernel())           # lines of 24 bytes
    far = Conv((2, 5, 300, 64), (24, 1, 3), pad=(0, 140), dilation=(1, 140))
    assert not rows(far.kernel())                                                   # windows begin too far from their image


def test_operands_that_are_none() -> None:
    t = tensors(dt.bf16, x=(2, 64, 5, 6), w=(24, 3, 3, 64))     # channels first
    body = op("mul", load(t, "x", N, C, spread(P, 1, R, 1), spread(Q, 1, S, 1)), load(t, "w", M, R, S, C))
    extents = {N: 2, P: 3, Q: 4, M: 24, R: 3, S: 3, C: 64}
    k = kernel(total(R, total(S, total(C, body))), (N, P, Q, M), extents, t)
    assert not rows(k)
    with pytest.raises(IRError, match="no operands that tensor maps have"):
        lower(k.replace(schedule=schedule("convolution", SMALL, (N, P, Q), (M,))))


def test_the_compiler_keeps_sums_in_registers() -> None:
    forms = [lowered(CASES["stepping"].kernel(stored=dt.bf16), PAIR).replace(name="stepping"),
             lowered(CASES["unlike"].kernel(), THREE).replace(name="unlike")]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= 168, (name, report)
