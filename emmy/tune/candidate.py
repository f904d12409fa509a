"""A row of a kernel as plain data, and as machine code: what is handed to processes, hosts and files.

A kernel goes as its Tile IR text, so that a process needs neither rules nor e-graphs to compile or to check it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from emmy.evaluate.drawn import Drawn
from emmy.ir import tile_ir as tile
from emmy.ir.tile_text import parse_kernel, print_kernel
from emmy.runtime.plan import Plan


class Problem(NamedTuple):
    """A kernel to be measured: its `identity`, its Tile IR `text` without a schedule, and what stands for the tensors that it reads, in
    its order."""

    identity: str
    text: str
    tensors: tuple[Drawn, ...]
    target: str
    math: str

    @property
    def kernel(self) -> tile.Kernel:
        return parse_kernel(self.text)

    @property
    def drawn(self) -> dict[str, Drawn]:
        """The tensors by name."""
        return {t.name: x for t, x in zip(self.kernel.tensors, self.tensors, strict=True)}


class Candidate(NamedTuple):
    """A row of the kernel of a problem: `text` is that of the scheduled kernel, `predicted_us` what the model says of it."""

    identity: str
    row: str
    text: str
    predicted_us: float


class Compiled(NamedTuple):
    """A candidate as the plan of one launch, and its cubin; `registers` of a thread and `spill_bytes`, None where nothing was assembled."""

    candidate: Candidate
    plan: Plan
    cubin: bytes
    registers: int | None = None
    spill_bytes: int | None = None


def problem(identity: str, kernel: tile.Kernel, tensors: tuple[Drawn, ...], target: str, math: str) -> Problem:
    """A kernel, whatever its schedule, as a problem."""
    return Problem(identity, print_kernel(kernel.replace(schedule=None)), tensors, target, math)


def candidate(identity: str, kernel: tile.Kernel, predicted_us: float) -> Candidate:
    """A scheduled kernel as a candidate."""
    assert kernel.schedule is not None
    named = kernel.replace(name=function_name(identity, kernel.schedule))
    return Candidate(identity, str(kernel.schedule.row), print_kernel(named), predicted_us)


def function_name(identity: str, schedule: tile.Schedule) -> str:
    """What the function of a kernel with a schedule is called: by form, identity and row."""
    return f"{schedule.form}_{identity}_{hashlib.sha256(str(schedule.row).encode()).hexdigest()[:8]}"


def build(candidates: Sequence[Candidate], target: str, math: str, timeout: float | None = None, assemble: bool = True) -> list[Compiled]:
    """The candidates compiled as one module, or lowered alone (`assemble=False`), which takes no nvcc.  EmmyError if nvcc refuses it."""
    from emmy.lower import kernel_to_cuda, tile_to_kernel
    from emmy.runtime import build as nvcc
    from emmy.runtime.assemble import alone

    kernels = [parse_kernel(c.text) for c in candidates]
    lowered = [tile_to_kernel.lower(k) for k in kernels]
    source = kernel_to_cuda.emit_module(lowered)
    built = nvcc.build(source, target, timeout=timeout) if assemble else None
    made = []
    for c, k, low in zip(candidates, kernels, lowered, strict=True):
        plan = alone(low, k, c.identity, c.predicted_us * 1e-6, target, math, source)
        report = built.functions.get(low.name) if built else None
        counted = (report.registers, report.spill_bytes) if report else (None, None)
        made.append(Compiled(c, plan, built.cubin if built else b"", *counted))
    return made
