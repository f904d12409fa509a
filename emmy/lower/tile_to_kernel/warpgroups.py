"""Blocks of Hopper's forms: a first group of 128 threads that copies, and others that multiply what it has brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.instructions import Assign, If, SetRegisters
from emmy.ir.kernel_ir import Stmt, Thread, int32
from emmy.ir.node import Node
from emmy.lower.tile_to_kernel.scalar import Emitter

GROUP, WARPS = 128, 4           # threads and warps that multiply together


class Groups(Node):
    """How the threads of a block are shared out: `groups` that multiply, each 64 rows so many times as `rows` says, and one that copies."""

    groups: int
    rows: int

    @property
    def height(self) -> int:
        """Rows of a block's tile."""
        return 64 * self.groups * self.rows

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    def part(self, scope: Emitter, registers: Mapping[int, tuple[int, int]], copying: Sequence[Stmt], multiplying: Sequence[Stmt]) -> None:
        """What the group does that copies, and what the others do.  `registers`: of a thread that copies and of one that multiplies, by
        groups that multiply; as many for all where it does not say."""
        share = registers.get(self.groups)
        give, take = ((SetRegisters(share[0], False),), (SetRegisters(share[1], True),)) if share else ((), ())
        scope.emit(If(Thread() < GROUP, (*give, *copying), (*take, *multiplying)))


class Ring:
    """Which stage a thread is at, and the parity of its round."""

    def __init__(self, scope: Emitter, stages: int):
        self.stages, self.slot, self.phase = stages, scope.declare("slot", int32(0)), scope.declare("phase", int32(0))

    def advance(self) -> tuple[Stmt, ...]:
        turn = Assign(self.slot, int32(0)), Assign(self.phase, self.phase ^ 1)
        return Assign(self.slot, self.slot + 1), If(self.slot == self.stages, turn)
