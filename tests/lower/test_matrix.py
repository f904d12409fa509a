"""Outputs that are rows of what is folded: over which axes a kernel writes them, and that it writes the same."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix
from emmy.lower import tile_to_kernel
from emmy.lower.loop_to_tile import kernel
from tests.lower.tile_to_kernel.forms import load, op, run, schedule, total

N, C, H, S = 0, 1, 2, 3         # sample, channel, place, place in a group
X = {"x": tile.Tensor("x", (2, 6, 8), dt.f32)}


def grouped(channel: Ix, size: int, rows: Ix | None = None) -> loop.Value:
    """x less the sum of its group of `size` channels, the group being `rows`."""
    group = ix.div(channel, size) if rows is None else rows
    there = load(X, "x", N, ix.add(ix.mul(group, size), ix.div(Ax(S), 8)), ix.mod(Ax(S), 8))
    return op("sub", load(X, "x", N, channel, H), total(S, there))


def made(body: loop.Value, axes: tuple[int, ...], extents: dict[int, int]) -> tile.Kernel:
    return kernel("k", (body,), (tile.Tensor("out", tuple(extents[a] for a in axes), dt.f32),), axes, extents, X)


@pytest.mark.parametrize("size, shape", [(1, (2, 6, 8)), (2, (2, 3, 16)), (3, (2, 2, 24))])
def test_groups_of_channels_are_rows(size: int, shape: tuple[int, ...]) -> None:
    k = made(grouped(Ax(C), size), (N, C, H), {N: 2, C: 6, H: 8, S: size * 8})
    x = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    (out,) = evaluate_kernel(k, {"x": x})
    sums = x.reshape(2, -1, size * 8).sum(2).repeat(size, 1)
    np.testing.assert_allclose(out, x - sums[..., None], rtol=1e-5, atol=1e-5)
    assert k.shape == shape and out.shape == (2, 6, 8)
    s = schedule("fold", "WORK=t32,TILE=v4,REDUCE=coop", k.outer[:-1], k.outer[-1:])
    np.testing.assert_allclose(run(k, tile_to_kernel.lower(k.replace(schedule=s)), {"x": x}), out, rtol=1e-5, atol=1e-5)


def test_places_of_several_axes_are_one() -> None:
    places = {"x": tile.Tensor("x", (5, 4, 3), dt.f32)}
    body = op("sub", load(places, "x", 0, 1, 2), total(3, load(places, "x", 0, ix.div(Ax(3), 3), ix.mod(Ax(3), 3))))
    k = kernel("k", (body,), (tile.Tensor("out", (5, 4, 3), dt.f32),), (0, 1, 2), {0: 5, 1: 4, 2: 3, 3: 12}, places)
    assert k.shape == (5, 12)
    x = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(evaluate_kernel(k, {"x": x})[0], x - x.sum((1, 2), keepdims=True), rtol=1e-5, atol=1e-5)


def unequal(axes: tuple[int, ...]) -> tile.Kernel:
    """Groups of two channels, folded over one and a half."""
    return made(grouped(Ax(C), 2), axes, {N: 2, C: 6, H: 8, S: 12})


@pytest.mark.parametrize("k", [
    unequal((N, C, H)),
    made(grouped(Ax(C), 2), (C, N, H), {N: 2, C: 6, H: 8, S: 16}),                              # the sample lies within the channel
    made(grouped(Ax(C), 2, rows=ix.mod(Ax(C), 3)), (N, C, H), {N: 2, C: 6, H: 8, S: 16}),       # groups of every third channel
    made(op("sub", load(X, "x", N, C, H), total(S, load(X, "x", N, C, S))), (N, C, H), {N: 2, C: 6, H: 8, S: 8}),     # rows as they are
])
def test_what_is_no_matrix_keeps_its_axes(k: tile.Kernel) -> None:
    assert k.shape == k.outputs[0].shape and set(k.outer) == {N, C, H}
