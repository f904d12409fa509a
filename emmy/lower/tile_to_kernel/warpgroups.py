"""Blocks of Hopper's forms: a first group of 128 threads that copies, and others that multiply what it has brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.instructions import Arrive, Assign, If, InitBarrier, SetRegisters, WaitBarrier
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Expr, SharedBuffer, Stmt, Thread, fold, int32
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


class Turns:
    """Groups that multiply one after another: a barrier for each, at which the warps of the group before it arrive."""

    def __init__(self, scope: Emitter, groups: int):
        self.groups, self.barrier = groups, SharedBuffer(scope.name("turn"), dt.i64, groups)

    def made(self) -> tuple[Stmt, ...]:
        """The barriers, by one thread, before all meet."""
        return tuple(InitBarrier(self.barrier.name, int32(g), WARPS) for g in range(self.groups))

    def enter(self, scope: Emitter, group: Expr, lane: Expr) -> None:
        """The first turn is that of the first group."""
        self.group, self.lane, self.round = group, lane, Ring(scope, 1)
        scope.emit(If((lane == 0) & (group == self.groups - 1), (Arrive(self.barrier.name, int32(0)),)))

    def wait(self) -> tuple[Stmt, ...]:
        """Until it is the turn of this group."""
        return WaitBarrier(self.barrier.name, self.group, self.round.phase), *self.round.advance()

    def hand_on(self) -> Stmt:
        """It is the turn of the group that follows."""
        following = fold("select", self.group == self.groups - 1, int32(0), self.group + 1)
        return If(self.lane == 0, (Arrive(self.barrier.name, following),))


class Ring:
    """Which stage a thread is at, and the parity of its round."""

    def __init__(self, scope: Emitter, stages: int):
        self.stages, self.slot, self.phase = stages, scope.declare("slot", int32(0)), scope.declare("phase", int32(0))

    def skip(self, count: int) -> tuple[Stmt, ...]:
        """Leave so many stages to others."""
        rounds, rest = divmod(count, self.stages)
        turn = Assign(self.slot, self.slot - self.stages), Assign(self.phase, self.phase ^ 1)
        return (*([Assign(self.phase, self.phase ^ 1)] if rounds % 2 else []),
                *([Assign(self.slot, self.slot + rest), If(self.slot >= self.stages, turn)] if rest else []))

    def advance(self) -> tuple[Stmt, ...]:
        turn = Assign(self.slot, int32(0)), Assign(self.phase, self.phase ^ 1)
        return Assign(self.slot, self.slot + 1), If(self.slot == self.stages, turn)
