"""Stores of matrix fragments: a warp writes 8 x 8 matrices of half elements, held as tensor cores leave them, to shared memory."""

from __future__ import annotations

from collections.abc import Mapping

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError


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
