"""Kernel IR to CUDA C++."""

from __future__ import annotations

import re
from collections.abc import Iterable

from emmy.instructions.arithmetic import TYPES, prelude
from emmy.instructions.control import indented
from emmy.instructions.warpgroup import SetRegisters
from emmy.ir.kernel_ir import GlobalBuffer, Kernel, verify, walk


def emit(kernel: Kernel) -> str:
    """The kernel as a translation unit of its own; IRError if it is malformed."""
    return emit_module((kernel,))


def emit_module(kernels: Iterable[Kernel]) -> str:
    """One translation unit of several kernels of different names."""
    body = "\n\n".join(map(_kernel, kernels))
    return "\n\n".join(filter(None, (prelude(body), body))) + "\n"


def _kernel(kernel: Kernel) -> str:
    verify(kernel)
    body = indented(kernel.body, kernel.types)
    parameters = ", ".join((*map(_parameter, kernel.parameters), *(f"const __grid_constant__ emmy_map {m.name}" for m in kernel.maps)))
    # registers move between warps only where the block is known to be alone on its multiprocessor
    alone = ", 1" * any(isinstance(s, SetRegisters) for s in walk(kernel.body))
    cluster = f" __cluster_dims__({kernel.cluster}, 1, 1)" * (kernel.cluster != 1)
    head = f'extern "C" __global__ void __launch_bounds__({kernel.block}{alone}){cluster} {kernel.name}({parameters}) {{'
    return "\n".join([head, *_indices("\n".join(body)), *_shared(kernel), *body, "}"])


def _parameter(b: GlobalBuffer) -> str:
    # what is read late changes while the kernel runs, and so does what blocks exchange: nothing promises that it does not
    fixed = b.access == "write" or not b.late and b.access not in ("exchange", "signals")
    return f"{'const ' * (b.access == 'read')}{TYPES[b.element]}* {'__restrict__ ' * fixed}{b.name}"


def _indices(body: str) -> list[str]:
    """Names for the indices that the body reads."""
    names = {"thread": "threadIdx.x"} | {f"block_{x}": f"blockIdx.{x}" for x in "xyz"}
    return [f"  const int {name} = {value};" for name, value in names.items() if re.search(rf"\b{name}\b", body)]


def _shared(kernel: Kernel) -> list[str]:
    """The shared buffers: declared one by one, or parts of one array where they lie over each other, or exceed what may be declared."""
    if not kernel.dynamic_shared_bytes and all(b.start is None for b in kernel.shared):
        return [f"  __shared__ __align__({b.alignment}) {TYPES[b.element]} {b.name}[{max(b.length, 1)}];" for b in kernel.shared]
    most = max(b.alignment for b in kernel.shared)
    extern, length = ("extern ", "") if kernel.dynamic_shared_bytes else ("", max(kernel.shared_bytes, 1))
    lines = [f"  {extern}__shared__ __align__({most}) unsigned char shared_memory[{length}];"]
    for b, offset in zip(kernel.shared, kernel.shared_offsets, strict=False):
        lines.append(f"  {TYPES[b.element]}* const {b.name} = reinterpret_cast<{TYPES[b.element]}*>(shared_memory + {offset});")
    return lines
