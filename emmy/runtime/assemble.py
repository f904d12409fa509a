"""A compiled program as a launch plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Kernel, TensorMap
from emmy.runtime.plan import Buffer, Launch, Plan, Role
from emmy.tune.features import Census, operations

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
    for t in produced:
        kind: Role = "output" if t.name in results else "workspace"
        buffers.append(Buffer(t.name, t.element, t.shape, kind))
    functions = {kernel.name: kernel for kernel in program.kernels}
    launches = tuple(launch(functions[k.name], k, program) for k in choice.program.kernels if k.name in functions)
    name = "_".join(dict.fromkeys(choice.scheduled)) or "empty"
    return Plan(name, tuple(buffers), launches, tuple(captured.inputs), results, program.cuda, program.target, program.math)


def unread(name: str, program: Program) -> Buffer:
    """The buffer of an argument that the program does not read."""
    from emmy.capture.export import dtype_of

    tensor = program.captured.inputs[name]
    return Buffer(name, dtype_of(tensor.dtype, f"input {name}"), tuple(tensor.shape), "input")


def launch(kernel: Kernel, tiled: tile.Kernel, program: Program) -> Launch:
    """The launch of one kernel, with what the model says of it."""
    assert tiled.schedule is not None
    scheduled = program.choice.scheduled[tiled.name]
    arguments = tuple(t.name for t in (*tiled.tensors, *tiled.outputs))
    return Launch(kernel.name, arguments, kernel.grid, kernel.block, kernel.dynamic_shared_bytes, scheduled.identity,
                  str(tiled.schedule.row), int(Census(tiled).dram), float(operations(tiled)), scheduled.seconds * 1e6,
                  maps(kernel, arguments))


def maps(kernel: Kernel, arguments: tuple[str, ...]) -> tuple[TensorMap, ...]:
    """The kernel's tensor maps, of the buffers that a launch passes to it."""
    passed = dict(zip((p.name for p in kernel.parameters), arguments, strict=True))
    return tuple(m.replace(buffer=passed[m.buffer]) for m in kernel.maps)
