"""What warps with different parts in a kernel need: registers moved from some to others, and barriers of a part of the block."""

from __future__ import annotations

from collections.abc import Mapping

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, Scope, Stmt
from emmy.ir.node import IRError


class SetRegisters(Stmt):
    """The threads of a warpgroup keep `count` registers each; with `grow` they wait until others have given so many up."""

    count: int
    grow: bool
    syntax = "set_registers {count}{grow}"

    def check(self, scope: Scope) -> None:
        if not 24 <= self.count <= 256 or self.count % 8:
            raise IRError(f"{self.count} registers; a thread has 24 to 256, a multiple of 8")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_{'grow' if self.grow else 'shrink'}_registers<{self.count}>();"]


class NamedBarrier(Stmt):
    """`threads` threads, whole warps, arrive at the barrier `id` (1 to 15) before any goes on; orders their accesses to memory."""

    id: Expr
    threads: int
    syntax = "named_barrier {id} {threads}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.id, dt.i32)
        if isinstance(self.id, Const) and not 1 <= self.id.value <= 15:
            raise IRError(f"barrier {self.id.value}; named ones are 1 to 15")
        if not 32 <= self.threads <= 1024 or self.threads % 32:
            raise IRError(f"a barrier of {self.threads} threads; it takes whole warps")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_named_barrier({spell(self.id)}, {self.threads});"]


class SyncWarp(Stmt):
    """The lanes of a warp wait for each other; orders their accesses to memory."""

    syntax = "sync_warp"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["__syncwarp();"]
