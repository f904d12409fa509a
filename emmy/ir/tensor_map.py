"""Tensor maps: how the copy engine sees a tensor, and which tiles of it one copy moves."""

from __future__ import annotations

from math import prod

from emmy.ir.dtype import DType
from emmy.ir.node import IRError, Node


class Windows(Node):
    """How the windows of a tensor begin along each of its dimensions but the first and the last, outermost first: at `lower`, where it
    may be negative, and then every `steps`, `counts` times.  (PTX ISA, "im2col mode".)"""

    lower: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        return self.lower, self.counts, self.steps

    def upper(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Where the last windows begin, counted from the last element of each dimension of a tensor."""
        last = [first + (n - 1) * step for first, n, step in zip(self.lower, self.counts, self.steps, strict=True)]
        return tuple(k - (n - 1) for k, n in zip(last, shape[1:-1], strict=True))


class TensorMap(Node):
    """A parameter of a kernel that tells the copy engine how the tensor in the global buffer `buffer` lies.

    The tensor has the extents `shape`, outermost first, begins at element `start` of the buffer, and is row-major or has `pitches`: how
    many elements apart neighbours of each dimension lie.  One copy moves a tile of the extents `box`: what lies outside the tensor is
    read as zeros and not written.  In shared memory the tile is row-major.  Where its rows have `swizzle` (128, 64 or 32, not 0) bytes,
    their 16-byte pieces change places: bits 4 and on of an address are xored with bits 7 and on, 3, 2 or 1 of them.

    With `windows`, a tile is not of neighbours: the first extent of `box` counts windows, row-major over all of the tensor, the last one
    elements of the last dimension, and the others are 1.  A copy reads what lies in each window at offsets that it is told.

    A map of tf32 rounds f32 to it as it copies, to the nearest and ties to even (as measured on an H200).
    """

    name: str
    buffer: str
    element: DType
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    start: int = 0
    pitches: tuple[int, ...] = ()
    windows: Windows | None = None

    def __post_init__(self) -> None:
        inner, item = self.box[-1] * self.element.bytes if self.box else 0, self.element.bytes
        if not 1 <= len(self.shape) == len(self.box) <= 5 or min(self.shape) < 1 or not all(1 <= n <= 256 for n in self.box):
            raise IRError(f"map {self.name} of a tensor {self.shape} in tiles {self.box}: 1 to 5 extents each, those of a tile up to 256")
        if self.swizzle not in (0, 32, 64, 128) or self.swizzle and inner != self.swizzle:
            raise IRError(f"map {self.name}: rows of {inner} bytes, swizzled by {self.swizzle}; "
                          "that is 128, 64 or 32, as long as a row, or 0")
        if len(self.strides) != len(self.shape) or self.strides[-1] != 1 or min(self.strides) < 1 or self.start < 0:
            raise IRError(f"map {self.name} from {self.start} on in steps of {self.strides}: "
                          "a tensor is contiguous along its last dimension")
        if inner % 16 or any(n * item % 16 for n in (self.start, *self.strides[:-1])):
            rows = [n * item for n in self.strides[:-1]]
            raise IRError(f"map {self.name} from {self.start * item} on, rows of {rows} and {inner} bytes; "
                          "the start and the rows of tensor and tile are multiples of 16")
        if self.windows is not None:
            self._check_windows(self.windows)

    def _check_windows(self, w: Windows) -> None:
        """IRError unless the copy engine knows such windows: along 1 to 3 dimensions, the first and the last near the tensor's ends."""
        if len(self.shape) < 3 or any(len(numbers) != len(self.shape) - 2 for numbers in w.numbers) or set(self.box[1:-1]) != {1}:
            raise IRError(f"map {self.name}: windows {w.lower}, {w.counts}, {w.steps} of a tensor {self.shape} in tiles {self.box}")
        least = -self.window_offsets // 2
        near = all(least <= n < -least for n in (*w.lower, *w.upper(self.shape)))
        if not near or not all(1 <= n <= 8 for n in w.steps) or min(w.counts) < 1:
            raise IRError(f"map {self.name}: windows from {w.lower} to {w.upper(self.shape)} from the end, in steps of {w.steps}; "
                          f"they begin within {-least} of both ends, in steps up to 8")

    @property
    def window_offsets(self) -> int:
        """How many offsets into a window a copy can tell along each dimension."""
        return {3: 1 << 16, 4: 1 << 8, 5: 1 << 5}[len(self.shape)]

    @property
    def strides(self) -> tuple[int, ...]:
        """How many elements apart neighbours of each dimension lie, outermost first."""
        return self.pitches or tuple(prod(self.shape[k:]) for k in range(1, len(self.shape) + 1))

    @property
    def reach(self) -> int:
        """How many elements of the buffer lie before the tensor's end."""
        return self.start + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> int:
        """The size of a tile."""
        return prod(self.box) * self.element.bytes

    @property
    def alignment(self) -> int:
        """What a tile in shared memory is aligned to: the swizzle's period, and at least 128 bytes."""
        return max(8 * self.swizzle, 128)
