"""What a kernel uses, by its text alone."""

from __future__ import annotations

from typing import NamedTuple

from emmy.ir.kernel_ir import Apply, Kernel, Stmt, subexpressions
from emmy.ir.operators import OPERATORS


class Resources(NamedTuple):
    """Shared memory of a block, registers of a thread (32 bits each); global traffic and fp32-equivalent operations of the launch.

    Loops count as often as their constant stop and step say, from 0 if the start is not constant, and once otherwise.
    Guards are taken to hold, and of a branch both sides count.  Integer operations are not counted.
    """

    shared_bytes: int
    registers_estimate: int
    global_bytes: int
    flops: float


def resources(kernel: Kernel) -> Resources:
    """The resources that the statements of `kernel` count."""
    def count(body: tuple[Stmt, ...]) -> tuple[int, float, float]:
        own, nested, moved, flops = 0, 0, 0.0, 0.0
        for s in body:
            inner = [count(b) for b in s.bodies]
            own += s.words
            nested = max([nested, *(i[0] for i in inner)])
            moved += s.traffic(kernel) + s.trips * sum(i[1] for i in inner)
            flops += s.flops + sum(_flops(e) for e in s.expressions if isinstance(e, Apply)) + s.trips * sum(i[2] for i in inner)
        return own + nested, moved, flops

    registers, moved, flops = count(kernel.body)
    return Resources(kernel.shared_bytes, registers, round(moved * kernel.threads), flops * kernel.threads)


def thread_statements(kernel: Kernel) -> int:
    """The statements that all threads of a launch run, loops of unknown length counted once: what the simulator has to do."""
    def count(body: tuple[Stmt, ...]) -> int:
        return sum(1 + s.trips * sum(map(count, s.bodies)) for s in body)

    return kernel.threads * count(kernel.body)


def _flops(e: Apply) -> float:
    return sum(OPERATORS[x.op].flops * (2 if x.op == "fma" else 1) for x in subexpressions(e)
               if isinstance(x, Apply) and x.args[-1].dtype.kind == "float")
