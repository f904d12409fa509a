"""Calling a compiled program: on NumPy, in the simulator, or on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.runtime.arrays import to_numpy, to_torch

if TYPE_CHECKING:
    from emmy.capture.export import Captured
    from emmy.pipeline import Program
    from emmy.runtime.plan import Launch

Arrays = dict[str, np.ndarray]
DEVICES = ("numpy", "simulate", "cuda")


def execute(program: Program, tensors: Sequence[Any]) -> Any:
    """The program's results as the captured function returns them, of tensors that are not on a GPU: by NumPy."""
    plan = program.plan
    if len(tensors) != len(plan.inputs):
        raise EmmyError(f"the program takes {len(plan.inputs)} tensors ({', '.join(plan.inputs)}), not {len(tensors)}",
                        "pass those it was compiled with")
    ordered = given(program.captured, tensors)
    for name, x in zip(plan.inputs, ordered, strict=True):
        check(plan.buffer(name), x)
    arrays = on_numpy(program, arguments(program, ordered) | held(program, ordered))
    results = tuple(to_torch(arrays[name], plan.buffer(name).element, "cpu").reshape(plan.buffer(name).shape) for name in plan.outputs)
    return returned(program.captured, results, tensors)


def given(captured: Captured, tensors: Sequence[Any]) -> Sequence[Any]:
    """Arguments with their dimensions in the order of memory; what is no tensor, or has another number of dimensions, as it is."""
    if not captured.orders:
        return tensors
    orders = [captured.orders.get(name, ()) for name in captured.inputs]
    return [x.permute(*order) if order and hasattr(x, "permute") and x.dim() == len(order) else x
            for x, order in zip(tensors, orders, strict=False)]


def returned(captured: Captured, results: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """What the function returns, with dimensions in their own order and the strides that eager gives them.  Of `tensors`, its arguments,
    those that it writes to are written."""
    if captured.orders:
        orders = [captured.orders.get(k, ()) for k in range(len(results))]
        results = [x.permute(*sorted(range(len(order)), key=order.__getitem__)) if order else x
                   for x, order in zip(results, orders, strict=True)]
    results = tuple(map(restride, results, captured.strides))
    names, written = [*captured.inputs], len(captured.mutated)
    for name, new in zip(captured.mutated, results[:written], strict=True):
        tensors[names.index(name)].detach().copy_(new)
    return captured.packed(results[written:])


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor, as torch makes them."""
    return tuple(prod(max(n, 1) for n in shape[k + 1:]) for k in range(len(shape)))


def restride(x: Any, strides: Sequence[int]) -> Any:
    """`x` with the strides that eager gives the result."""
    if x.stride() == strides:
        return x
    import torch

    # of a dimension that eager expands, one element is kept
    shape = [1 if step == 0 else n for n, step in zip(x.shape, strides, strict=True)]
    kept = torch.empty_strided(shape, tuple(strides), dtype=x.dtype, device=x.device)
    return kept.copy_(x[tuple(slice(n) for n in shape)]).expand(x.shape)


def check(buffer: Any, x: Any) -> None:
    """EmmyError unless the tensor is what the program was compiled for."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise EmmyError(f"argument {buffer.name} is {type(x).__name__}, not a tensor", "pass tensors like those it was compiled with")
    shape, dtype = tuple(x.shape), str(x.dtype).removeprefix("torch.")
    if shape != buffer.shape or dtype != buffer.element.torch_name:
        wanted = f"{buffer.element.torch_name}{list(buffer.shape)}"
        raise EmmyError(f"argument {buffer.name} is {dtype}{list(shape)}; the program was compiled for {wanted}",
                        "compile again for this shape and dtype")


def arguments(program: Program, tensors: Sequence[Any] | None = None) -> Arrays:
    """The arrays a program reads: `tensors` (by default the captured examples), its weights and constants."""
    captured = program.captured
    given = dict(zip(captured.inputs, tensors, strict=True)) if tensors is not None else captured.inputs
    return {name: to_numpy(x) for name, x in {**captured.weights, **captured.constants, **given}.items()}


def held(program: Program, tensors: Sequence[Any]) -> Arrays:
    """What the kernels write that run once for all calls, kept with the program until a weight that they read, or one of the arguments
    `tensors`, lies elsewhere or is written to."""
    once = [k for k in program.tile.kernels if tile.is_once(k)]
    if not once:
        return {}
    from emmy.evaluate.tile import evaluate_kernels
    from emmy.runtime.launch import state

    captured = program.captured
    given = {**captured.weights, **captured.constants, **dict(zip(captured.inputs, tensors, strict=True))}
    read = {t.name: given[t.name] for k in once for t in k.tensors if t.name in given}
    made_of = state((), [*read.values()])
    known, arrays, _ = vars(program).get("held", (None, {}, ()))
    if made_of is None or made_of != known:
        made = evaluate_kernels(once, {name: to_numpy(x) for name, x in read.items()})
        arrays = {name: x for name, x in made.items() if name not in read}
        # what they were is kept, so that no other tensor comes to lie there
        vars(program)["held"] = made_of, arrays, [x.detach() for x in read.values()]
    return dict(arrays)


def on_numpy(program: Program, arrays: Arrays) -> Arrays:
    """Every result by its tensor's name, by evaluating the Tile IR; what of it is among `arrays` is not evaluated."""
    from emmy.evaluate.tile import evaluate_tile

    return dict(zip(program.plan.outputs, evaluate_tile(program.tile, arrays), strict=True))


def on_simulator(program: Program, arrays: Arrays, launches: Iterable[Launch] | None = None) -> Arrays:
    """Every result by its tensor's name, by running each launch in the simulator.  `launches`: those of the plan, if they are watched."""
    from emmy.evaluate.simulate import simulate

    memory = {name: x.reshape(-1).copy() for name, x in arrays.items()}
    plan = program.plan
    kernels = {k.name: k for k in program.kernels}
    for b in plan.of("output", "workspace", "held"):
        memory[b.name] = np.zeros(prod(b.shape), b.element.numpy)
    for x in launches if launches is not None else plan.launches:
        kernel = kernels[x.kernel]
        given = zip(kernel.parameters, x.arguments, strict=True)
        simulate(kernel, {p.name: memory[name] for p, name in given if not p.own})
    return {name: memory[name].reshape(plan.buffer(name).shape) for name in plan.outputs}


def on_gpu(program: Program) -> Callable[..., Any]:
    """A call of the program, loaded on the current GPU.  The program keeps what is loaded as its `executable`."""
    from emmy.runtime.build import build
    from emmy.runtime.launch import Executable

    captured, plan = program.captured, program.plan
    lies = all(contiguous(plan.buffer(name).shape) == captured.strides[k] for k, name in enumerate(plan.outputs))
    ready = lies and not captured.orders and not captured.mutated and (captured.is_flat or captured.tree.is_leaf())
    run = Executable(plan, build(plan.source, program.target).cubin, {**captured.weights, **captured.constants},
                     alone=ready and not captured.is_flat)
    call: Callable[..., Any] = run
    if not ready:
        def call(*tensors: Any) -> Any:
            return returned(captured, run(*given(captured, tensors)), tensors)

    vars(program)["executable"] = run
    return call
