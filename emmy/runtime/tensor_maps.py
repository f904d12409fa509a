"""Tensor maps: what a kernel's copy engine is told of a tensor, 128 bytes that the driver writes for an address."""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod
from typing import Any

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.runtime.plan import Map

BYTES, ALIGNMENT = 128, 64
# CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of the CUDA driver API
TYPES = {dt.i32: 3, dt.i64: 5, dt.f16: 6, dt.f32: 7, dt.f64: 8, dt.bf16: 9}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTION = 2       # lines of 128 bytes


class Encoded:
    """A map in memory of its own, written anew where its tensor has moved."""

    def __init__(self, of: Map):
        self.of, self.pointer = of, 0
        self._memory = (ctypes.c_uint8 * (BYTES + ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        n = len(of.shape)
        sizes = of.shape[::-1]      # the driver counts dimensions from the innermost one
        pitches = [prod(sizes[:k]) * of.element.bytes for k in range(1, n)]
        self._arguments = ((ctypes.c_uint64 * n)(*sizes), (ctypes.c_uint64 * max(1, n - 1))(*pitches),
                           (ctypes.c_uint32 * n)(*of.box[::-1]), (ctypes.c_uint32 * n)(*[1] * n))

    def point(self, pointer: int) -> None:
        """Describe the tensor at a device pointer; EmmyError if the driver refuses."""
        if pointer == self.pointer:
            return
        of = self.of
        status = _encode()(ctypes.c_void_p(self.address), TYPES[of.element], len(of.shape), ctypes.c_void_p(pointer), *self._arguments,
                           0, SWIZZLES[of.swizzle], PROMOTION, 0)
        if status:
            raise EmmyError(f"CUDA refused a map of {of.element}{list(of.shape)} in boxes {list(of.box)} at {pointer:#x}: error {status}",
                            "Align the tensor to 16 bytes, or pin a schedule without tensor maps.")
        self.pointer = pointer

    def bytes(self) -> bytes:
        """The map as it stands."""
        return ctypes.string_at(self.address, BYTES)


@cache
def _encode() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise EmmyError("the CUDA driver has no tensor maps", "Update it to one for CUDA 12 or newer.") from error
