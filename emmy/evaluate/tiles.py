"""Tiles of tensors in the simulator: how one lies in shared memory, and which part of the tensor it is."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from emmy.evaluate.products import PIECE, swizzle
from emmy.evaluate.warp import Fault
from emmy.ir import dtype as dt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emmy.evaluate.warp import Array, Warp
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


class WindowTile(Tile):
    """The tiles of a map with windows."""

    def check_windows(self, w: Warp, buffer: str, start: int, corner: Sequence[int], offsets: Sequence[int]) -> None:
        """Fault unless a tile may begin there, and a window lies at `corner` that has something at `offsets`."""
        self.check(w, buffer, start, corner)
        laid = self.map.windows
        assert laid is not None
        on_grid = all((at - first) % step == 0 and 0 <= (at - first) // step < count
                      for at, first, count, step in zip(corner[1:-1], *laid.numbers, strict=True))
        if not on_grid or not all(0 <= k < self.map.window_offsets for k in offsets):
            raise Fault("bounds", f"windows of {self.map.name} from {tuple(corner)} on, at {tuple(offsets)}; they begin at {laid.lower} in "
                                  f"steps of {laid.steps}, {laid.counts} of them", w.active(w.mask))

    def windows(self, data: Array, corner: Sequence[int], offsets: Sequence[int]) -> Array:
        """The elements of the windows from `corner` on, as they lie in shared memory."""
        laid, (many, *_, wide) = self.map.windows, self.map.box
        assert laid is not None
        number = [(at - first) // step for at, first, step in zip(corner[1:-1], laid.lower, laid.steps, strict=True)]
        flat = np.arange(many) + np.ravel_multi_index(number, laid.counts)
        image, *begun = np.unravel_index(flat, (corner[0] + 2 + many, *laid.counts))
        at = [image + corner[0], *(first + k * step + offset
                                   for k, first, step, offset in zip(begun, laid.lower, laid.steps, offsets, strict=True))]
        channel = corner[-1] + np.arange(wide)
        inside = np.all([(0 <= x) & (x < n) for x, n in zip(at, self.map.shape, strict=False)], axis=0)[:, None]
        inside = inside & (0 <= channel) & (channel < self.map.shape[-1])
        steps = np.array(self.map.strides[:-1])
        place = self.map.start + (steps @ np.stack(at))[:, None] + channel
        out = np.zeros(self.count, data.dtype)
        out[self.places] = np.where(inside, data[np.where(inside, place, 0)], data.dtype.type(0)).reshape(-1)
        return out
