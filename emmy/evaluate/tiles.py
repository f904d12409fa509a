"""Tiles of tensors in the simulator: how one lies in shared memory, and which part of the tensor it is."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from emmy.evaluate.machine import Fault
from emmy.evaluate.products import PIECE, swizzle
from emmy.ir import dtype as dt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emmy.evaluate.machine import Array, Warp
    from emmy.ir.kernel_ir import Kernel


class Tile:
    """The tiles of one of the kernel's maps, of `count` elements each."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        (self.map,) = (m for m in kernel.maps if m.name == name)
        self.count, item = prod(self.map.box), self.map.element.bytes
        self.places = swizzle(np.arange(self.count) * item, self.map.swizzle) // item     # where each element lies, in row-major order

    def check(self, w: Warp, buffer: str, start: int, corner: Sequence[int]) -> None:
        """Fault unless the tile begins where one may, in shared memory and in the tensor."""
        if start * self.map.element.bytes % self.map.alignment:
            raise Fault("alignment", f"a tile at element {start} of {buffer}, which is not a multiple of {self.map.alignment} bytes",
                        w.active(w.mask))
        if corner[-1] * self.map.element.bytes % PIECE:
            raise Fault("alignment", f"a tile of {self.map.name} at element {corner[-1]} of its innermost dimension, "
                                     f"which is not a multiple of {PIECE} bytes", w.active(w.mask))

    def _inside(self, corner: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of the tile at `corner` that lies in the tensor: in the tensor, and in the tile."""
        tensor, tile = [], []
        for first, size, extent in zip(corner, self.map.box, self.map.shape, strict=True):
            low, high = max(first, 0), max(min(first + size, extent), max(first, 0))
            tensor.append(slice(low, high))
            tile.append(slice(low - first, high - first))
        return tuple(tensor), tuple(tile)

    def _elements(self, part: tuple[slice, ...]) -> Array:
        """Which elements of the buffer a part of the tensor is."""
        places = [np.arange(s.start, s.stop) * step for s, step in zip(part, self.map.strides, strict=True)]
        return np.asarray(sum(np.ix_(*places)) + self.map.start)

    def read(self, data: Array, corner: Sequence[int]) -> Array:
        """The tile as it lies in shared memory, with zeros for what is outside of the tensor."""
        tensor, tile = self._inside(corner)
        box = np.zeros(self.map.box, data.dtype)
        box[tile] = data[self._elements(tensor)]
        if self.map.element is dt.tf32:
            box = dt.rounded(box)
        out = np.empty(self.count, data.dtype)
        out[self.places] = box.reshape(-1)
        return out

    def written(self, data: Array, corner: Sequence[int]) -> tuple[Array, Array]:
        """The elements of the tensor that a tile, as it lies in shared memory, covers, and their values."""
        tensor, tile = self._inside(corner)
        return self._elements(tensor).reshape(-1), data[self.places].reshape(self.map.box)[tile].reshape(-1)
