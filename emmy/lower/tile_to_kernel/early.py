"""Kernels that begin while the one before them ends: where each lets the next begin, and where it waits for those before.

A kernel lets the next one begin at once: that one's blocks find room when all of its own have theirs.  The next has its barriers made,
its descriptors near and what no kernel before it writes on its way, and waits where it first meets what they may be at: before it reads
what they write, and before it writes at all, for a workspace may lie where an earlier one's did, and signals may not be awaited yet.  As
every kernel waits before it writes, one that ends has seen all before it end: waiting for the last is waiting for all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from emmy.instructions.control import If
from emmy.instructions.grid import LaunchDependents, WaitKernels
from emmy.ir.kernel_ir import Kernel, Stmt, verify, walk


def leading(kernel: Kernel) -> Kernel:
    """The kernel, which another follows."""
    return kernel.replace(body=(LaunchDependents(), *kernel.body))


def following(kernel: Kernel, written: Collection[str]) -> Kernel:
    """The kernel, launched before those ahead of it have ended; `written`: the parameters that these write."""
    parameters = tuple(p.replace(late=p.name in written or p.access not in ("read", "scratch")) for p in kernel.parameters)
    late = {p.name for p in parameters if p.late}
    late |= {m.name for m in kernel.maps if m.buffer in late}

    def meets(s: Stmt) -> bool:
        return any(x.traffic(kernel) > 0 and any(getattr(x, f.name) in late for f in fields(x) if f.type == "str") for x in walk((s,)))

    def waiting(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], bool]:
        """The statements with waits among them, and whether whoever comes to their end has waited."""
        first = next((k for k, s in enumerate(body) if meets(s)), None)
        if first is None:
            return body, False
        s, rest = body[first], body[first + 1:]
        if not isinstance(s, If):
            return (*body[:first], WaitKernels(), *body[first:]), True
        (then, here), (other, there) = waiting(s.body), waiting(s.orelse)
        if not (here and there):
            rest, here = waiting(rest)
        return (*body[:first], s.replace(body=then, orelse=other), *rest), here

    made = kernel.replace(parameters=parameters, body=waiting(kernel.body)[0])
    verify(made)
    return made
