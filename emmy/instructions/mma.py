"""Products of matrices on tensor cores: a warp multiplies a 16 x k by a k x 8 matrix and adds in fp32; k is what 32 bytes hold.

Lanes hold words of 4 bytes: 2 halves, 4 elements of a byte, or one of tf32, which is f32 with the low 13 bits of the mantissa unread.
With g = lane / 4 and t the elements of word lane % 4 of a row, a lane holds of the left matrix rows g (words 0, 2) and g + 8 (1, 3), in
columns t (words 0, 1) and 16 bytes further on (2, 3); of the right one column g, rows t (word 0) and 16 bytes further on (1); of the sum
rows g (elements 0, 1) and g + 8 (2, 3), columns 2 (lane % 4) and the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Expr, Scope, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import RegisterArray, Step, Warp

M, N = 16, 8
TYPES = (dt.f16, dt.bf16, dt.tf32, dt.e4m3, dt.e5m2)
_GROUP, _WORD = np.arange(32) // 4, np.arange(32) % 4
Places = list[tuple[np.ndarray, np.ndarray]]


def depth(element: DType) -> int:
    """k of one product: what 32 bytes hold."""
    return 32 // element.bytes


def word(element: DType) -> int:
    """Elements of a word of 4 bytes."""
    return 4 // element.bytes


@cache
def left_places(element: DType) -> Places:
    """For each element that a lane holds of the left matrix: its row and its column, by lane."""
    n = word(element)
    return [(_GROUP + 8 * (e // n % 2), n * _WORD + e % n + 4 * n * (e // n // 2)) for e in range(4 * n)]


@cache
def right_places(element: DType) -> Places:
    """The same of the right matrix."""
    n = word(element)
    return [(n * _WORD + e % n + 4 * n * (e // n), _GROUP) for e in range(2 * n)]


LEFT = left_places(dt.f16)
SUM: Places = [(_GROUP + 8 * (e // 2), 2 * _WORD + e % 2) for e in range(4)]


class MultiplyMatrices(Stmt):
    """The fragment of four elements of `into` from `at` on grows by the product of the fragments `left` (4 words) and `right` (2).

    Products are exact in fp32.  The simulator adds them and the old element in fp64 and rounds once to fp32; a GPU may add them in any
    order and drop low bits on the way.
    """

    element: DType
    into: str
    at: Expr
    left: str
    left_at: Expr
    right: str
    right_at: Expr
    syntax = "mma_m16n8 {element} {into}[{at}] += {left}[{left_at}] * {right}[{right_at}]"

    def check(self, scope: Scope) -> None:
        if self.element not in TYPES:
            raise IRError(f"matrices of {self.element}; tensor cores multiply {', '.join(map(str, TYPES))}")
        scope.elements(self.into, dt.f32, self.at, len(SUM))
        scope.elements(self.left, self.element.stored, self.left_at, 4 * word(self.element))
        scope.elements(self.right, self.element.stored, self.right_at, 2 * word(self.element))
        scope.assigned.add(self.into)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        parts = ((self.into, self.at), (self.left, self.left_at), (self.right, self.right_at))
        return [f"emmy_mma_{self.element}({', '.join(f'&{array}[{spell(at)}]' for array, at in parts)});"]

    def meaning(self, machine: Machine) -> Step:
        into, left, right = map(machine.slot, (self.into, self.left, self.right))
        at, left_at, right_at = map(machine.value, (self.at, self.left_at, self.right_at))
        k, read = depth(self.element), dt.truncated if self.element is dt.tf32 else np.asarray

        def run(w: Warp) -> None:
            w.require_all("shuffle", "needs all 32 lanes of the warp", lanes=32)
            a, b = (gather(w, w.registers[s], int(o(w)), places, shape, read) for s, o, places, shape in (
                (left, left_at, left_places(self.element), (M, k)), (right, right_at, right_places(self.element), (k, N))))
            first = int(at(w))
            c = gather(w, w.registers[into], first, SUM, (M, N)) + a @ b
            for e, place in enumerate(SUM):
                w.registers[into].set(w, first + e, c[place].astype(np.float32))
        return run

    @property
    def flops(self) -> float:
        return 2 * M * N * depth(self.element) / 32


def gather(w: Warp, array: RegisterArray, first: int, places: Places, shape: tuple[int, int],
           read: Callable[[np.ndarray], np.ndarray] = np.asarray) -> np.ndarray:
    """The matrix whose elements at `places` the lanes hold in `array` from `first` on, as products `read` them, in fp64."""
    out = np.empty(shape)
    for e, place in enumerate(places):
        out[place] = read(w.spread(array.get(w, first + e))).astype(np.float64)
    return out
