"""The barrier of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from emmy.ir.kernel_ir import Bare

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


class Barrier(Bare):
    """Every thread of the block arrives before any goes on; orders their accesses to memory."""

    syntax = "barrier"
    call = "__syncthreads();"

    def meaning(self, machine: Machine) -> Step:
        site = machine.site()

        def run(w: Warp) -> Iterator[object]:
            w.require_all("barrier", "is reached by a part of a warp only")
            yield site
        return run
