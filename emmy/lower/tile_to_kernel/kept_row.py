"""Form "fold" with STAGE=smem and one row a block: what the threads read of the row for several stages stays in shared memory.

Each thread copies the runs that it will itself read, 16 bytes at a time, so that it waits for its own copies and for no other thread's.
Softmax folds are taken apart (`untwist`).

Row: WORK=t<threads>,TILE=v<width>,REDUCE=coop,STAGE=smem, the width being the elements of 16 bytes; it divides the row.
Shared bytes: length * (bytes of an element of each tensor so kept), and 4 or 8 for each fold and warp.
"""

from __future__ import annotations

from emmy.ir.kernel_ir import Expr, SharedBuffer, int32
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter
from emmy.lower.tile_to_kernel.strip import Share, part_of, stage, strip_loads


def keep(scope: Emitter, columns: tuple[int, ...], lane: Expr, threads: int, width: int) -> list[SharedBuffer]:
    """Copy the thread's runs of the row and wait for them; the loads are then read from the buffers."""
    kernel = scope.kernel
    found = strip_loads(kernel, None, columns)
    if not found or columns not in ((), kernel.outer[-1:]) or any(
            VECTOR_BYTES // v.element.bytes != width or kernel.extents[a] % width for v, a in found):
        raise IRError(f"{kernel.name}: runs of {width} of no row that several stages read; a row in shared memory is written along the "
                      "last axis, and kept in runs of 16 bytes that divide it")
    share = Share(lane * width, threads * width, width, 1, int32(0))
    return stage(scope, None, columns, part_of(scope, kernel.extents[found[0][1]], 1), share)
