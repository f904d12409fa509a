"""Stores of matrix fragments: a warp writes 8 x 8 matrices of half elements, held as tensor cores leave them, to shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp

LANE = np.arange(32)


class StoreMatrices(Stmt):
    """`width` / 2 matrices (1, 2 or 4) from `array[offset]` on: lane 8i + r gives in `index` where row r of matrix i begins.

    Lane l gives, as elements 2i and 2i + 1, those of row l / 4 of matrix i in columns 2 (l % 4) and the next; if `transposed`, those of
    column l / 4 in these rows.  The array holds the buffer's dtype, or f32 and is rounded to it.  All 32 lanes take part.
    """

    buffer: str
    index: Expr
    array: str
    offset: Expr
    width: int
    transposed: bool = False
    syntax = "store_matrices {buffer}[{index}] = {array}[{offset} +: {width}]{transposed}"

    def check(self, scope: Scope) -> None:
        found = scope.buffer(self.buffer, SharedBuffer)
        if found.element not in (dt.f16, dt.bf16):
            raise IRError(f"{self.buffer} holds {found.element}; matrices are of f16 or bf16")
        if self.width not in (2, 4, 8):
            raise IRError(f"{self.width} elements of a lane; 1, 2 or 4 matrices take 2, 4 or 8")
        held = scope.register(self.array, "array").dtype
        scope.elements(self.array, dt.f32 if held is dt.f32 else found.element, self.offset, self.width)
        scope.expr(self.index, dt.i32, dt.i64)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        name = f"emmy_store_{'transposed' if self.transposed else 'matrices'}_{types[self.buffer]}"
        return [f"{name}<{self.width // 2}>(&{self.buffer}[{spell(self.index)}], &{self.array}[{spell(self.offset)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.machine import converter

        slot, offset, index = machine.slot(self.array), machine.value(self.offset), machine.value(self.index)
        convert = converter(machine.arrays[self.array], machine.kernel.types[self.buffer])
        used = None if self.width == 8 else LANE < 4 * self.width
        # the piece (i, r, c) of the rows that lane 8i + r writes is held by lane 4r + c / 2, or 4c + r / 2, as element 2i + c % 2, or r % 2
        i, r, c = LANE // 8, LANE % 8, np.arange(8)[:, None]
        line, along = (c, r) if self.transposed else (r, c)

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            at, array = int(offset(w)), w.registers[slot]
            held = np.zeros((8, 32), convert(np.zeros(1, machine.arrays[self.array].numpy)).dtype)
            for k in range(self.width):
                held[k] = w.spread(convert(array.get(w, at + k)))
            w.memory[self.buffer].write(w, index(w), held[2 * i + along % 2, 4 * line + along // 2], used, 8)
        return run
