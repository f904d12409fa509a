"""Loads of matrix fragments: a warp reads matrices of 8 rows of 16 bytes from shared memory, spread over its lanes as mma takes them."""

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


class LoadMatrix(Stmt):
    """1, 2 or 4 matrices, a word of 4 bytes of `width` elements each, into `array` from `offset` on: lane 8i + r gives in `index` where
    row r of matrix i begins.

    Lane l receives as word i that of number l % 4 of row l / 4 of matrix i; if `transposed`, of halves, the elements of column l / 4 in
    rows 2 (l % 4) and the next.  All 32 lanes take part.
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
        if found.element.kind != "float" or found.element.bytes > 4 or self.transposed and found.element.bytes != 2:
            raise IRError(f"{self.buffer} holds {found.element}; matrices are of f32, of a byte's types, or of f16 or bf16, which may be "
                          "transposed")
        n = 4 // found.element.bytes
        if self.width not in (n, 2 * n, 4 * n):
            raise IRError(f"{self.width} elements of a lane; 1, 2 or 4 matrices of {found.element} give it {n}, {2 * n} or {4 * n}")
        scope.elements(self.array, found.element, self.offset, self.width)
        scope.expr(self.index, dt.i32, dt.i64)
        scope.assigned.add(self.array)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        name = "emmy_load_transposed" if self.transposed else "emmy_load_matrix"
        words = self.width * types[self.buffer].bytes // 4
        return [f"{name}<{words}>(&{self.array}[{spell(self.offset)}], &{self.buffer}[{spell(self.index)}]);"]

    def meaning(self, machine: Machine) -> Step:
        slot, offset, index = machine.slot(self.array), machine.value(self.offset), machine.value(self.index)
        n = 4 // machine.kernel.types[self.buffer].bytes
        used = None if self.width == 4 * n else LANE < 8 * self.width // n

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            rows = w.memory[self.buffer].read(w, index(w), used, 4 * n)
            at = int(offset(w))
            for k in range(self.width):
                line, along = LANE // 4, n * (LANE % 4) + k % n
                row, column = (along, line) if self.transposed else (line, along)
                w.registers[slot].set(w, at + k, rows[column, 8 * (k // n) + row])
        return run
