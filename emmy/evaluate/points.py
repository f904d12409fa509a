"""Evaluation of a Tile IR kernel at some points of its output, whatever its size: what a kernel too large for NumPy is checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from emmy.evaluate.drawn import Drawn, draw
from emmy.evaluate.tile import unfold
from emmy.evaluate.values import Array, Space, evaluate
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix

WORK = 1 << 22          # elements that the folds of all points run over
POINTS = 16, 256        # fewest and most points


class _Points(Space):
    """The output axes share the first dimension, along which the points lie; each axis of a fold has its own."""

    def __init__(self, kernel: tile.Kernel, points: Array):
        super().__init__({None: len(points), **{Ax(a): n for a, n in kernel.inner}})     # type: ignore[dict-item]
        self.points = {Ax(a): points[:, k] for k, a in enumerate(kernel.outer)}
        self.dimension |= dict.fromkeys(self.points, 0)

    def coordinate(self, leaf: Ix) -> Array:
        return self.full(self.points[leaf]) if leaf in self.points else super().coordinate(leaf)

    def load(self, tensor: Any, point: Sequence[Array]) -> Array:
        shape = np.broadcast_shapes((1,) * self.rank, *(c.shape for c in point))
        if not tensor.size:
            return np.zeros(shape, tensor.element.numpy)
        flat = sum((np.asarray(c, np.int64) * prod(tensor.shape[k + 1:]) for k, c in enumerate(point)), np.zeros(1, np.int64))
        return np.asarray(tensor.at(np.broadcast_to(flat, shape)))


def evaluate_points(kernel: tile.Kernel, tensors: Mapping[str, Drawn], places: Array) -> tuple[Array, ...]:
    """The kernel's outputs at flat places: elementwise steps in the types of the IR, sums in float64, nothing rounded at the end."""
    space = _Points(kernel, np.stack(np.unravel_index(places, kernel.shape or (1,)), axis=1))
    values = (evaluate(value, space, tensors) for value in unfold(kernel))     # type: ignore[arg-type]
    return tuple(np.broadcast_to(made.reshape(made.shape[0]), len(places)) for made in values)


def sample(kernel: tile.Kernel, seed: int = 0) -> Array:
    """Flat places of the output to look at: the corners, and others at random, as many as their folds leave time for."""
    size = prod(kernel.shape)
    count = min(max(WORK // max(prod(n for _, n in kernel.inner), 1), POINTS[0]), POINTS[1])
    if size <= count:
        return np.arange(size)
    return np.unique(np.concatenate([[0, size - 1], np.random.default_rng(seed).integers(0, size, count - 2)]))


def imagine(kernel: tile.Kernel, tensors: Mapping[str, Drawn], seed: int = 0) -> tuple[Drawn, ...]:
    """Tensors like the kernel's outputs: a sample of their values, all of them where they are few."""
    places = sample(kernel, seed)
    with np.errstate(all="ignore"):
        values = evaluate_points(kernel, tensors, places) if len(places) else (places,) * len(kernel.outputs)
    return tuple(draw(t.shape, t.element, x.astype(t.element.numpy), seed) for t, x in zip(kernel.outputs, values, strict=True))
