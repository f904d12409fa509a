"""Kernels for sm_90a written by hand that copy windows of images: what lies in shared memory then."""

from __future__ import annotations

from math import prod

from emmy.instructions import (
    Barrier,
    CopyWindows,
    ExpectBytes,
    FenceBarriers,
    If,
    InitBarrier,
    LoadShared,
    StoreGlobal,
    WaitBarrier,
)
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import GlobalBuffer, Kernel, SharedBuffer, TensorMap, Thread, Var, Windows, int32
from tests.hopper_kernels import count, i32


def windows_probe(shape: tuple[int, ...], windows: Windows, box: tuple[int, int], corner: tuple[int, ...], offsets: tuple[int, ...], *,
                  swizzle: int = 128, name: str = "windows_probe") -> Kernel:
    """`box` windows and channels of a, from `corner` on and at `offsets`, as they lie in shared memory, go to raw."""
    t, at, x, zero = Thread(), i32("at"), Var("x", dt.bf16), int32(0)
    of = TensorMap("map_a", "a", dt.bf16, shape, (box[0], *(1 for _ in windows.counts), box[1]), swizzle, windows=windows)
    copy = CopyWindows("tile", zero, "map_a", tuple(map(int32, corner)), tuple(map(int32, offsets)), "full", zero)
    return Kernel(name, (GlobalBuffer("a", dt.bf16, prod(shape), "read"), GlobalBuffer("raw", dt.bf16, prod(box), "write")),
        (SharedBuffer("tile", dt.bf16, prod(box), 1024), SharedBuffer("full", dt.i64, 1)), (1, 1, 1), 32, (
        If(t == 0, (InitBarrier("full", zero, 1), FenceBarriers())), Barrier(),
        If(t == 0, (ExpectBytes("full", zero, 2 * prod(box)), copy)),
        WaitBarrier("full", zero, zero),
        count(at, t, prod(box), 32, LoadShared(x, "tile", at), StoreGlobal("raw", at, x))), (of,))


EVERY = (
    windows_probe((2, 5, 6, 64), Windows((-1, -1), (5, 6), (1, 1)), (24, 64), (0, 2, 3, 0), (0, 2), name="windows_padded"),
    windows_probe((3, 7, 6, 72), Windows((-2, -1), (4, 3), (2, 3)), (32, 64), (1, 4, 2, 8), (1, 1), name="windows_apart"),
    windows_probe((2, 9, 64), Windows((0,), (4,), (2,)), (16, 32), (0, 4, 32), (2,), swizzle=64, name="windows_1d"),
    windows_probe((2, 3, 4, 5, 16), Windows((0, -1, -2), (2, 4, 5), (1, 1, 1)), (40, 16), (1, 1, 0, -2, 0), (1, 2, 3), swizzle=32,
                  name="windows_3d"),
)
