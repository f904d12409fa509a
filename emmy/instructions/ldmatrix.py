"""Loads of matrix fragments: a warp reads 8 x 8 matrices of half elements from shared memory, spread over its lanes as mma takes them."""

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
    from emmy.evaluate.machine import Machine, Step, Warp

LANE = np.arange(32)


class LoadMatrix(Stmt):
    """`width` / 2 matrices (1, 2 or 4) into `array` from `offset` on: lane 8i + r gives in `index` where row r of matrix i begins.

    Lane l receives, as elements 2i and 2i + 1, those of row l / 4 of matrix i in columns 2 (l % 4) and the next; if `transposed`,
    those of column l / 4 in these rows.  All 32 lanes take part.
    """

    array: str
    offset: Expr
    width: int
    buffer: str
    index: Expr
    transposed: bool = False
    syntax = "load_matrix {array}[{offset} +: {width}] = {buffer}[{index}]{transposed}"

    def check(self, scope: Scope) -> None:
        found = scope.buffer(self.buffer, SharedBuffer)
        if found.element not in (dt.f16, dt.bf16):
            raise IRError(f"{self.buffer} holds {found.element}; matrices are of f16 or bf16")
        if self.width not in (2, 4, 8):
            raise IRError(f"{self.width} elements of a lane; 1, 2 or 4 matrices give it 2, 4 or 8")
        scope.elements(self.array, found.element, self.offset, self.width)
        scope.expr(self.index, dt.i32, dt.i64)
        scope.assigned.add(self.array)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        name = "emmy_load_transposed" if self.transposed else "emmy_load_matrix"
        return [f"{name}<{self.width // 2}>(&{self.array}[{spell(self.offset)}], &{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        slot, offset, index = machine.slot(self.array), machine.value(self.offset), machine.value(self.index)
        used = None if self.width == 8 else LANE < 4 * self.width

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            rows = w.memory[self.buffer].read(w, index(w), used, 8)
            at = int(offset(w))
            for k in range(self.width):
                line, along = LANE // 4, 2 * (LANE % 4) + k % 2
                row, column = (along, line) if self.transposed else (line, along)
                w.registers[slot].set(w, at + k, rows[column, 8 * (k // 2) + row])
        return run
