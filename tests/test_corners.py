"""Corner inputs on every kind of row: in the simulator, and on the GPU; and that 32 bits are enough wherever they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from emmy.cli.outcome import judged
from emmy.evaluate.error import compare, tolerance
from emmy.evaluate.reference import evaluate_torch
from emmy.evaluate.simulate import simulate
from emmy.instructions.resources import thread_statements
from emmy.pipeline import Program
from emmy.runtime.arrays import to_numpy, to_torch
from tests.corners import CORNERS, EMPTY, LARGE, SCALARS, Corner, kinds, lowered
from tests.ranges import overflows

Arrays = dict[str, np.ndarray[Any, Any]]
SIMULATED = 1_000_000   # thread-statements of a kernel that a test simulates


def simulated(program: Program) -> Arrays:
    """What the kernels leave in memory by the first kind of row of each; the others must leave the same."""
    memory: Arrays = {name: to_numpy(x).reshape(-1) for name, x in program.captured.tensors.items()}
    for kernel in program.tile.kernels:
        left: Arrays = {}
        for schedule in kinds(kernel) if 0 not in kernel.shape else ():
            made = lowered(kernel, schedule)
            if left and thread_statements(made) > SIMULATED:
                continue
            written = {o.name: np.zeros(int(np.prod(o.shape)), o.element.numpy) for o in kernel.outputs}
            tensors = [(memory | written)[t.name] for t in (*kernel.tensors, *kernel.outputs)]
            simulate(made, dict(zip((p.name for p in made.parameters if not p.own), tensors, strict=True)))
            for output in kernel.outputs:
                first = left.setdefault(output.name, written[output.name])
                error = compare(written[output.name], first.astype(np.float64) if output.element.kind == "float" else first)
                assert error.within(tolerance(output.element)), f"{schedule.row} writes another {output.name}: {error}"
        memory |= left or {o.name: np.zeros(0, o.element.numpy) for o in kernel.outputs}
    return memory


def assert_right(program: Program, found: dict[str, Tensor]) -> None:
    wide, plain = (dict(zip(program.plan.outputs, evaluate_torch(program.torch, program.captured.tensors, float64=w), strict=True))
                   for w in (True, False))
    wrong = {name: result for name, result in judged(program.plan, found, wide, plain).items() if not result.right}
    assert not wrong


def assert_right_by_all_kinds(corner: Corner) -> None:
    program = corner.program()
    memory = simulated(program)
    buffers = [program.plan.buffer(name) for name in program.plan.outputs]
    assert_right(program, {b.name: to_torch(memory[b.name].reshape(b.shape), b.element, "cpu") for b in buffers})


@pytest.mark.parametrize("name", CORNERS)
def test_corner(name: str) -> None:
    assert_right_by_all_kinds(CORNERS[name])


@pytest.mark.parametrize("name", EMPTY)
def test_nothing(name: str) -> None:
    assert_right_by_all_kinds(EMPTY[name])


@pytest.mark.parametrize("name", SCALARS)
def test_a_single_number(name: str) -> None:
    assert_right_by_all_kinds(SCALARS[name])


@pytest.mark.parametrize("name", LARGE)
def test_integers_are_wide_enough(name: str) -> None:
    program = LARGE[name].program()
    assert all(program.kernels)
    for kernel in program.tile.kernels:
        for schedule in kinds(kernel):
            assert not overflows(lowered(kernel, schedule)), schedule.row
