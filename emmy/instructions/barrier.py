"""The barrier of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Scope, Stmt

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine, Step, Warp


class Barrier(Stmt):
    """Every thread of the block arrives before any goes on; orders their accesses to memory."""

    syntax = "barrier"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["__syncthreads();"]

    def meaning(self, machine: Machine) -> Step:
        site = machine.site()

        def run(w: Warp) -> Iterator[object]:
            w.require_all("barrier", "is reached by a part of a warp only")
            yield site
        return run
