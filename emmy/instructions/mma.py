"""Products of matrices on tensor cores: a warp multiplies a 16 x 16 by a 16 x 8 matrix of half elements and adds in fp32.

With g = lane / 4 and t = 2 (lane % 4), a lane holds of the left matrix rows g (elements 0, 1, 4, 5) and g + 8 (2, 3, 6, 7) in columns
t, t + 1 (0 to 3) and t + 8, t + 9 (4 to 7); of the right one column g, rows t, t + 1, t + 8, t + 9; of the sum rows g (0, 1) and
g + 8 (2, 3), columns t, t + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Scope, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine, RegisterArray, Step, Warp

M, N, K = 16, 8, 16
_GROUP, _PAIR = np.arange(32) // 4, 2 * (np.arange(32) % 4)


def _places(of: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each element that a lane holds of the left or right matrix or the sum: its row and its column, by lane."""
    if of == "left":
        return [(_GROUP + 8 * (e // 2 % 2), _PAIR + e % 2 + 8 * (e // 4)) for e in range(8)]
    if of == "right":
        return [(_PAIR + e % 2 + 8 * (e // 2), _GROUP) for e in range(4)]
    return [(_GROUP + 8 * (e // 2), _PAIR + e % 2) for e in range(4)]


LEFT, RIGHT, SUM = map(_places, ("left", "right", "sum"))


class MultiplyMatrices(Stmt):
    """The fragment of four elements of `into` from `at` on grows by the product of the fragments `left` (8) and `right` (4).

    Products of halves are exact in fp32.  The simulator adds the 16 of them and the old element in fp64 and rounds once to fp32; a GPU
    may add them in any order and drop low bits on the way.
    """

    element: DType
    into: str
    at: Expr
    left: str
    left_at: Expr
    right: str
    right_at: Expr
    syntax = "mma_m16n8k16 {element} {into}[{at} +: 4] += {left}[{left_at} +: 8] * {right}[{right_at} +: 4]"

    def check(self, scope: Scope) -> None:
        if self.element not in (dt.f16, dt.bf16):
            raise IRError(f"matrices of {self.element}; tensor cores multiply f16 and bf16")
        scope.elements(self.into, dt.f32, self.at, len(SUM))
        scope.elements(self.left, self.element, self.left_at, len(LEFT))
        scope.elements(self.right, self.element, self.right_at, len(RIGHT))
        scope.assigned.add(self.into)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        parts = ((self.into, self.at), (self.left, self.left_at), (self.right, self.right_at))
        return [f"emmy_mma_{self.element}({', '.join(f'&{array}[{spell(at)}]' for array, at in parts)});"]

    def meaning(self, machine: Machine) -> Step:
        into, left, right = map(machine.slot, (self.into, self.left, self.right))
        at, left_at, right_at = map(machine.value, (self.at, self.left_at, self.right_at))

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            a, b = (gather(w, w.registers[s], int(o(w)), places, shape) for s, o, places, shape in (
                (left, left_at, LEFT, (M, K)), (right, right_at, RIGHT, (K, N))))
            first = int(at(w))
            c = gather(w, w.registers[into], first, SUM, (M, N)) + a @ b
            for e, place in enumerate(SUM):
                w.registers[into].set(w, first + e, c[place].astype(np.float32))
        return run

    @property
    def flops(self) -> float:
        return 2 * M * N * K / 32


def gather(w: Warp, array: RegisterArray, first: int, places: list[tuple[np.ndarray, np.ndarray]], shape: tuple[int, int]) -> np.ndarray:
    """The matrix whose elements at `places` the lanes hold in `array` from `first` on, in fp64."""
    out = np.empty(shape)
    for e, place in enumerate(places):
        out[place] = w.spread(array.get(w, first + e)).astype(np.float64)
    return out
