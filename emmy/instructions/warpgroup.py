"""What warps with different parts in a kernel need: registers moved from some to others, and barriers of a part of the block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from emmy.instructions.arithmetic import spell
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, Scope, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


class SetRegisters(Stmt):
    """The threads of a warpgroup keep `count` registers each; with `grow` they wait until others have given so many up."""

    count: int
    grow: bool
    asynchronous = True
    syntax = "set_registers {count}{grow}"

    def check(self, scope: Scope) -> None:
        if not 24 <= self.count <= 256 or self.count % 8:
            raise IRError(f"{self.count} registers; a thread has 24 to 256, a multiple of 8")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_{'grow' if self.grow else 'shrink'}_registers<{self.count}>();"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.asynchronous import Wait

        site = machine.site()

        def run(w: Warp) -> Iterator[object]:
            w.require_all("warpgroup", "is reached by a part of a warp only", lanes=32)
            if not w.engine.room(w, self.count):
                yield Wait(lambda: w.engine.room(w, self.count), f"{self.count} registers a thread", "registers")
            yield from w.engine.group(w).join(w, site, 4, "warpgroup", "waits for the other warps of its group to move registers",
                                              lambda warps: w.engine.set_registers(warps, self.count, self.grow))
        return run


class NamedBarrier(Stmt):
    """`threads` threads, whole warps, arrive at the barrier `id` (1 to 15) before any goes on; orders their accesses to memory."""

    id: Expr
    threads: int
    asynchronous = True
    syntax = "named_barrier {id} {threads}"

    def check(self, scope: Scope) -> None:
        scope.expr(self.id, dt.i32)
        if isinstance(self.id, Const) and not 1 <= self.id.value <= 15:
            raise IRError(f"barrier {self.id.value}; named ones are 1 to 15")
        if not 32 <= self.threads <= 1024 or self.threads % 32:
            raise IRError(f"a barrier of {self.threads} threads; it takes whole warps")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_named_barrier({spell(self.id)}, {self.threads});"]

    def meaning(self, machine: Machine) -> Step:
        id = machine.value(self.id)

        def run(w: Warp) -> Iterator[object]:
            w.require_all("barrier", "is reached by a part of a warp only", lanes=32)
            yield from w.engine.named_barrier(w, w.uniform(id(w)), self.threads)
        return run


class SyncWarp(Bare):
    """The lanes of a warp wait for each other; orders their accesses to memory."""

    asynchronous = True
    syntax = "sync_warp"
    call = "__syncwarp();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("barrier", "is reached by a part of a warp only")
            w.engine.meet([w])
        return run
