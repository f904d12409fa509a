"""A compiled program as a launch plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Kernel, TensorMap
from emmy.runtime.plan import Buffer, Launch, Plan, Role
from emmy.tune.beside import read_again
from emmy.tune.census import Census
from emmy.tune.operations import operations

if TYPE_CHECKING:
    from emmy.pipeline import Program


def assemble(program: Program) -> Plan:
    """The plan: buffers, launches in order (none for an empty output), and the CUDA text."""
    captured, choice = program.captured, program.choice
    produced = [t for k in choice.program.kernels for t in k.outputs]
    results = tuple(tensor for _, tensor in choice.program.outputs)
    buffers: list[Buffer] = []
    read = {i.name: i for i in program.tensor.inputs}
    for role, group in (("input", captured.inputs), ("weight", captured.weights), ("constant", captured.constants)):
        for name in group:
            if name in read:
                buffers.append(Buffer(name, read[name].element, read[name].dims, role))    # type: ignore[arg-type]
            elif role == "input":
                buffers.append(unread(name, program))
    held = {t.name for k in choice.program.kernels if tile.is_once(k) for t in k.outputs}
    held &= {t.name for k in choice.program.kernels if not tile.is_once(k) for t in k.tensors}
    for t in produced:
        kind: Role = "output" if t.name in results else "held" if t.name in held else "workspace"
        buffers.append(Buffer(t.name, t.element, t.shape, kind))
    functions = {kernel.name: kernel for kernel in program.kernels}
    launches = tuple(launch(functions[tile.launch_name(kernels)], kernels, "+".join(choice.scheduled[k.name].identity for k in kernels),
                            choice.seconds(kernels), n in choice.early) for n, kernels in enumerate(choice.launches))
    buffers += [b for k in functions.values() for b in own(k)]
    name = "_".join(dict.fromkeys(choice.scheduled)) or "empty"
    return Plan(name, tuple(buffers), launches, tuple(captured.inputs), results, program.cuda, program.target, program.math)


def unread(name: str, program: Program) -> Buffer:
    """The buffer of an argument that the program does not read."""
    from emmy.capture.export import dtype_of

    tensor = program.captured.inputs[name]
    return Buffer(name, dtype_of(tensor.dtype, f"input {name}"), tuple(tensor.shape), "input")


def launch(function: Kernel, kernels: tuple[tile.Kernel, ...], identity: str, seconds: float, early: bool = False) -> Launch:
    """One launch, with what the model says of it and `seconds` that it is expected to take."""
    rows = " ".join(str(k.schedule.row) for k in kernels if k.schedule is not None)
    arguments = *tile.arguments(kernels), *(b.name for b in own(function))
    moved, work = sum(Census(k).dram for k in kernels) - read_again(kernels), sum(map(operations, kernels))
    return Launch(function.name, arguments, function.grid, function.block, function.dynamic_shared_bytes, identity, rows, int(moved),
                  float(work), seconds * 1e6, maps(function, arguments), early, tile.is_once(kernels[0]))


def alone(kernel: Kernel, tiled: tile.Kernel, identity: str, seconds: float, target: str, math: str, source: str) -> Plan:
    """The plan of a program that is one kernel, whose module has the CUDA text `source`."""
    reads, writes = (tuple(t.name for t in of) for of in (tiled.tensors, tiled.outputs))
    buffers = [Buffer(t.name, t.element, t.shape, "input") for t in tiled.tensors]
    buffers += [Buffer(t.name, t.element, t.shape, "output") for t in tiled.outputs]
    buffers += own(kernel)
    return Plan(kernel.name, tuple(buffers), (launch(kernel, (tiled,), identity, seconds),), reads, writes, source, target, math)


def own(kernel: Kernel) -> list[Buffer]:
    """The buffers of a kernel's own, which come after its other parameters."""
    return [Buffer(f"{kernel.name}.{p.name}", p.element, (p.length,), p.access) for p in kernel.parameters
            if p.access != "read" and p.access != "write"]


def maps(kernel: Kernel, arguments: tuple[str, ...]) -> tuple[TensorMap, ...]:
    """The kernel's tensor maps, of the buffers that a launch passes to it."""
    passed = dict(zip((p.name for p in kernel.parameters), arguments, strict=True))
    return tuple(m.replace(buffer=passed[m.buffer]) for m in kernel.maps)
