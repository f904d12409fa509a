"""Values exchanged between the lanes of a warp, bit by bit: every lane ends with what its whole group of lanes has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from emmy.instructions.registers import Assign
from emmy.instructions.shuffle import ShuffleUp, ShuffleXor
from emmy.ir.kernel_ir import Apply, Expr, Var

if TYPE_CHECKING:
    from emmy.lower.tile_to_kernel.scalar import Emitter

WARP = 32


def butterfly(scope: Emitter, operator: str, value: Var, lanes: int) -> None:
    """Combine one value by an operator."""
    exchange(scope, (value,), lanes, lambda other: scope.emit(Assign(value, Apply(operator, (value, *other)))))


def scan(scope: Emitter, operator: str, value: Var, lane: Expr) -> None:
    """Combine one value of each lane of a warp with those of the lanes below."""
    for delta in (1, 2, 4, 8, 16):
        below = Var(scope.name("o"), value.element)
        scope.emit(ShuffleUp(below, value, delta), Assign(value, Apply("select", (lane < delta, value, Apply(operator, (below, value))))))


def exchange(scope: Emitter, state: tuple[Var, ...], lanes: int, merge: Callable[[tuple[Expr, ...]], None]) -> None:
    """Let `merge` combine the state of the lane that differs in one bit into this lane's, for each bit of the group."""
    mask = lanes // 2
    while mask:
        others = tuple(Var(scope.name("o"), s.element) for s in state)
        scope.emit(*(ShuffleXor(o, s, mask) for o, s in zip(others, state, strict=True)))
        merge(others)
        mask //= 2
