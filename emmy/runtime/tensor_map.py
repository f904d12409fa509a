"""Tensor maps on the host: 128 bytes that the driver makes of a map and the address of its tensor, passed to kernels by value."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from emmy.errors import EmmyError
from emmy.ir.kernel_ir import TensorMap

SIZE, ALIGNMENT = 128, 64       # bytes
KEPT = 64       # addresses whose maps are kept
# CUtensorMapDataType and CUtensorMapSwizzle; parts of 128 bytes are fetched to L2 (CUtensorMapL2promotion 2)
_TYPES = {"bool": 0, "i8": 0, "u8": 0, "e4m3": 0, "e5m2": 0, "i32": 3, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11}
_SWIZZLES, _PROMOTION = {0: 0, 32: 1, 64: 2, 128: 3}, 2


@cache
def driver_library() -> Any:
    """The CUDA driver's library; EmmyError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EmmyError(f"there is no CUDA driver: {error}", "Run on a machine with an NVIDIA GPU and its driver.") from error


class HostMap:
    """A map as a launch passes it: at `address`, for the tensor that `point` was told last.

    Making one takes the driver some microseconds, so those of the last addresses are kept: tensors come back to the same ones."""

    def __init__(self, tensor: TensorMap) -> None:
        memory = bytearray(SIZE + ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.address = -(-start // ALIGNMENT) * ALIGNMENT
        self._bytes = memoryview(memory)[self.address - start:][:SIZE]      # a view is written to in a tenth of the time of ctypes.memmove
        self.tensor, self._pointer, self._made = tensor, 0, dict[int, bytes]()
        # the driver counts dimensions from the innermost one, and strides in bytes from the second
        shape, strides = tensor.shape[::-1], [n * tensor.element.bytes for n in tensor.strides[::-1]]
        rank = len(shape)
        self._extents, self._strides = (ctypes.c_uint64 * rank)(*shape), (ctypes.c_uint64 * max(1, rank - 1))(*strides[1:])
        self._box, self._steps = (ctypes.c_uint32 * rank)(*tensor.box[::-1]), (ctypes.c_uint32 * rank)(*[1] * rank)
        if tensor.windows is not None:
            lower, upper = tensor.windows.lower[::-1], tensor.windows.upper(tensor.shape)[::-1]
            self._lower, self._upper = ((ctypes.c_int * len(lower))(*corner) for corner in (lower, upper))
            self._steps[1:-1] = [*tensor.windows.steps[::-1]]

    def point(self, pointer: int) -> None:
        """Describes the tensor at that address of device memory."""
        if pointer == self._pointer:
            return
        if (made := self._made.get(pointer)) is None:
            if len(self._made) >= KEPT:
                self._made.clear()
            made = self._made[pointer] = self._make(pointer)
        self._bytes[:] = made
        self._pointer = pointer

    def _make(self, pointer: int) -> bytes:
        tensor = (ctypes.c_void_p(self.address), _TYPES[self.tensor.element.name], len(self._extents),
                  ctypes.c_void_p(pointer + self.tensor.start * self.tensor.element.bytes), self._extents, self._strides)
        layout = self._steps, 0, _SWIZZLES[self.tensor.swizzle], _PROMOTION, 0
        if self.tensor.windows is None:
            status = driver_library().cuTensorMapEncodeTiled(*tensor, self._box, *layout)
        else:
            channels, windows = (ctypes.c_uint32(self.tensor.box[k]) for k in (-1, 0))
            status = driver_library().cuTensorMapEncodeIm2col(*tensor, self._lower, self._upper, channels, windows, *layout)
        if status:
            raise EmmyError(f"CUDA cannot describe {self.tensor.buffer} ({self.tensor.element}{list(self.tensor.shape)}) in tiles "
                            f"{self.tensor.box}: error {status}", "Compile for this GPU, or pin a schedule that copies no tiles.")
        return bytes(self._bytes)
