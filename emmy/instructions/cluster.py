"""Clusters: blocks that run at once, meet at a barrier of their own, and read each other's shared memory.

A block's rank is its index along x modulo the size of its cluster.  Between a write of shared memory and another block's read of it, all
threads arrive and wait; and no block ends before those that read its memory have: they arrive when they have read, it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import TYPES, spell
from emmy.instructions.registers import words
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, Register, Scope, SharedBuffer, Stmt, Var
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine, Step, Warp


class ClusterArrive(Stmt):
    """Every thread of the cluster arrives; what it did before is seen by those who wait.  Whole warps arrive."""

    asynchronous = True
    syntax = "cluster_arrive"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["emmy_cluster_arrive();"]

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("barrier", "is reached by a part of a warp only")
            w.engine.gathering.arrive(w)
        return run


class ClusterWait(Stmt):
    """A thread, which has arrived, waits until all threads of the cluster have."""

    asynchronous = True
    syntax = "cluster_wait"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["emmy_cluster_wait();"]

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> Iterator[object]:
            w.require_all("barrier", "is reached by a part of a warp only")
            yield from w.engine.gathering.wait(w)
        return run


class LoadCluster(Stmt):
    """An element of a shared buffer of the block of `rank` in the cluster, of the buffer's dtype."""

    var: Var
    buffer: str
    index: Expr
    rank: Expr
    asynchronous = True
    syntax = "load_cluster {var:new} = {buffer}[{index}] of {rank}"

    def check(self, scope: Scope) -> None:
        found = scope.buffer(self.buffer, SharedBuffer)
        scope.expr(self.index, dt.i32, dt.i64)
        scope.expr(self.rank, dt.i32)
        if self.var.element is not found.element or found.element.compute is not found.element:
            raise IRError(f"{self.buffer} holds {found.element}, which registers of {self.var.element} do not take from another block")
        if isinstance(self.rank, Const) and not 0 <= self.rank.value < 8:
            raise IRError(f"block {self.rank.value} of a cluster, which has at most 8")
        scope.define(self.var.name, Register("let", self.var.element))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        source = f"&{self.buffer}[{spell(self.index)}], {spell(self.rank)}"
        return [f"const {TYPES[self.var.element]} {self.var.name} = emmy_load_cluster({source});"]

    def meaning(self, machine: Machine) -> Step:
        slot, index, rank = machine.slot(self.var.name), machine.value(self.index), machine.value(self.rank)

        def run(w: Warp) -> None:
            ranks, at, active = w.spread(rank(w)), w.spread(index(w)), w.active_of(True)
            value = np.zeros(32, machine.kernel.types[self.buffer].numpy)
            for one in np.unique(ranks[active]):
                lanes = active & (ranks == one)
                value[lanes] = w.engine.peer(w, int(one)).shared[self.buffer].read(w, at, lanes)[lanes]
            w.registers[slot] = value
        return run

    @property
    def words(self) -> int:
        return words(self.var.element)
