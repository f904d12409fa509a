"""Corner programs as machine code and plain data, to be run where there is a GPU: with nvcc here, by what a file brings there.

Every kind of row of a kernel runs on the values that it has in the program, poisoned memory before it; the first is judged at the end of
the program, against eager in float64, the others against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from emmy.cli.outcome import judged
from emmy.evaluate.error import Error, compare, tolerance
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import torch_ir
from emmy.runtime.launch import Executable
from emmy.runtime.plan import Plan

if TYPE_CHECKING:
    from tests.corners import Corner

PIECE = 2 ** 27     # elements that are compared at once


class Built(NamedTuple):
    """A program as data: its Torch IR, its plan (JSON), and of each kernel the plans (JSON) and cubin of the kinds of its rows."""

    torch: str
    plan: str
    steps: tuple[tuple[tuple[str, ...], bytes], ...]
    inputs: dict[str, Any]


def built(corner: Corner, most: float = 1.0) -> Built:
    """A corner compiled: each kind of row that is predicted to take less than `most` seconds.  Inputs on "meta" stay without values."""
    from emmy.tune.candidate import build, candidate
    from tests.corners import TARGET, kinds

    program = corner.program()
    steps = []
    for kernel in program.tile.kernels:
        if 0 not in kernel.shape:
            made = build([candidate(kernel.name[-12:], kernel.replace(schedule=s), 0.0) for s in kinds(kernel, most)], TARGET, "fast")
            steps.append((tuple(c.plan.to_json() for c in made), made[0].cubin))
    tensors = program.captured.tensors
    return Built(torch_ir.print_program(program.torch), program.plan.to_json(), tuple(steps), tensors)


def offset(x: Tensor) -> Tensor:
    """The same values, one element behind an aligned address."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)


def pitched(x: Tensor) -> Tensor:
    """The same values in lines that are one element apart."""
    return torch.empty((*x.shape[:-1], x.shape[-1] + 1), dtype=x.dtype, device=x.device)[..., :-1].copy_(x) if x.dim() else x


def filled(x: Tensor, device: str) -> Tensor:
    """Values for a tensor on a device."""
    if x.device.type != "meta":
        return x.to(device)
    if x.dtype.is_floating_point:
        return torch.empty(x.shape, dtype=x.dtype, device=device).normal_()
    return torch.ones(x.shape, dtype=x.dtype, device=device)


def run(made: Built, place: Callable[[Tensor], Tensor] = lambda x: x, device: str = "cuda") -> dict[str, str]:
    """What is wrong, by row or output."""
    program, plan = torch_ir.parse(made.torch), Plan.from_json(made.plan)
    tensors = {name: filled(x, device) for name, x in made.inputs.items()}      # eager has them aligned, which its attention relies on
    memory, wrong = {name: place(x) for name, x in tensors.items()}, dict[str, str]()
    memory |= {b.name: torch.zeros(b.shape, dtype=getattr(torch, b.element.torch_name), device=device)
               for b in plan.of("output", "workspace") if 0 in b.shape}
    for plans, cubin in made.steps:
        first: dict[str, Tensor] = {}
        for kernel in map(Plan.from_json, plans):
            execute = Executable(kernel, cubin, {})
            found = dict(zip(kernel.outputs, execute(*(memory[n] for n in kernel.inputs), out=execute.poisoned()), strict=True))
            for name, x in found.items():
                error = apart(x, first.get(name, x))
                if not error.within(tolerance(kernel.buffer(name).element)):
                    wrong[kernel.launches[0].row] = f"{name}: {error}"
            first = first or found
        memory |= first
    def eager(wide: bool) -> dict[str, Tensor]:
        return dict(zip(plan.outputs, evaluate_torch(program, tensors, float64=wide), strict=True))

    wide = eager(wide=True)
    if all(memory[name].numel() < PIECE for name in plan.outputs):
        verdicts = judged(plan, memory, wide, eager(wide=False))
        return wrong | {name: str(v.error) for name, v in verdicts.items() if not v.right}
    errors = {name: apart(memory[name], wide[name]) for name in plan.outputs}
    return wrong | {name: str(e) for name, e in errors.items() if not e.within(tolerance(plan.buffer(name).element))}


def apart(x: Tensor, y: Tensor) -> Error:
    """The greatest error of a piece of a tensor against another's."""
    pieces = zip(x.reshape(-1).split(PIECE), y.reshape(-1).split(PIECE), strict=True)
    found = (compare(a, b.double() if b.dtype.is_floating_point else b) for a, b in pieces)
    return max(found, key=lambda e: (e.mismatched_nonfinite, e.relative), default=Error(0.0, 0.0, 0))
