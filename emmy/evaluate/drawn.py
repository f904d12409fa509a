"""Tensors that stand for others: a table of values and a rule that lays them out, so that any element is known without the rest.

A small tensor is its own table, in order.  A large one has at each place a value of its table that a hash of the place picks: integers
stay within what they index, probabilities within 0 and 1.  NumPy and torch compute the same elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from emmy.evaluate.values import Array
from emmy.ir.dtype import DType

TABLE = {"float": 1 << 12, "int": 1 << 15, "bool": 1 << 12}     # values of a table, by the kind of its elements
CHUNK = 1 << 24     # elements that are laid out at a time
_MASK = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Drawn:
    """A tensor of `shape` whose elements are those of `table` (a vector of the element's NumPy type), laid out by `seed`."""

    shape: tuple[int, ...]
    element: DType
    table: Array
    seed: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    def places(self, at: Any) -> Any:
        """Where in the table the elements at flat places `at` are: int64 in NumPy or torch, no step of it overflows."""
        if len(self.table) == self.size:
            return at
        at = (at ^ (at >> 31)) & _MASK
        at = (at * 0x2C1B3C6D + (self.seed * 0x9E3779B1 & _MASK)) & _MASK
        at = at ^ (at >> 15)
        at = (at * 0x297A2D39) & _MASK
        return (at ^ (at >> 14)) % len(self.table)

    def at(self, places: Array) -> Array:
        """The elements at flat places."""
        return self.table[self.places(np.asarray(places, np.int64))]

    def array(self) -> Array:
        """The whole tensor on NumPy."""
        return self.at(np.arange(self.size)).reshape(self.shape)

    def tensor(self, device: Any) -> Any:
        """The whole tensor in torch, on a device."""
        import torch

        from emmy.runtime.arrays import to_torch

        table = to_torch(self.table, self.element, device)
        out = torch.empty(self.size, dtype=table.dtype, device=device)
        for start in range(0, self.size, CHUNK):
            stop = min(start + CHUNK, self.size)
            out[start:stop] = table[self.places(torch.arange(start, stop, dtype=torch.int64, device=device))]
        return out.reshape(self.shape)


def draw(shape: tuple[int, ...], element: DType, values: Array, seed: int = 0) -> Drawn:
    """A tensor like `values` (flat): they themselves where they fill a table or less, else a sample of them."""
    most = TABLE[element.kind if element.kind in TABLE else "float"]
    whole = len(values) == prod(shape) <= most
    if not whole and len(values) > most:
        values = values[np.random.default_rng(seed).integers(0, len(values), most)]
    if not whole and len(values) == prod(shape):     # a table as long as the tensor is the tensor
        values = values[:-1] if len(values) > 1 else values
    return Drawn(shape, element, np.ascontiguousarray(values, element.numpy), seed)
