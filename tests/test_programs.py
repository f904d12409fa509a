"""Every shared program through every stage: texts against goldens, numbers against float64, machine code for every target."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from emmy.evaluate.error import Error, compare, tolerance
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.reference import evaluate_tensor, evaluate_torch
from emmy.ir import kernel_parser, kernel_text, loop_ir, loop_text, tensor_text, tile_ir, tile_text, torch_ir
from emmy.ir.kernel_ir import Kernel
from emmy.lower import kernel_to_cuda
from emmy.pipeline import STAGES, Program, compile_snippet
from emmy.runtime import execute
from emmy.runtime.arrays import to_numpy
from emmy.runtime.build import TARGETS, build
from tests.conftest import GOLDEN
from tests.programs import DTYPES, PROGRAMS

SIZES = (1, 3, 37, 129, 1000)
GOLDEN_SIZE = 64
SIMULATED = 200_000     # the most (elements of the output) * (elements folded for each) that a test simulates
PINS = {"matmul_chain": "STAGE=d1/smem"}      # short enough to read
ROOT = Path(__file__).parents[1]
INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "uniform": torch.rand_like,
    "large_mean": lambda x: torch.randn_like(x) + 100,
    "heavy_tailed": lambda x: torch.randn_like(x) / torch.rand_like(x).clamp_min(1e-3),
}
each = pytest.mark.parametrize("name, dtype", [(p, d) for p in PROGRAMS for d in DTYPES])


@cache
def compiled(name: str, dtype: str, n: int, pins: str = "") -> Program:
    torch.manual_seed(n)
    return compile_snippet(PROGRAMS[name].snippet(n, dtype), pins=pins)


def golden_program(name: str, dtype: str) -> Program:
    return compiled(name, dtype, GOLDEN_SIZE, PINS.get(name, ""))


@each
def test_golden(golden: Callable[[str, str], None], name: str, dtype: str) -> None:
    program = golden_program(name, dtype)
    for stage in STAGES:
        golden(f"{name}-{dtype}/{stage}.txt", program.ir(stage))


@each
def test_text_parses_back_to_the_same_program(name: str, dtype: str) -> None:
    program = golden_program(name, dtype)
    assert torch_ir.parse(program.ir("torch")) is torch_ir.verify(program.torch)
    assert tensor_text.parse(program.ir("tensor")) is program.tensor
    assert loop_text.parse(program.ir("loop")) is program.loop
    loop_ir.verify(program.loop)
    assert tile_text.parse(program.ir("tile")) is program.tile
    for tiled, kernel in zip(program.tile.kernels, program.kernels, strict=True):
        tile_ir.verify(tiled)
        assert kernel_parser.parse(kernel_text.show(kernel)) is kernel


def errors(program: Program, tensors: dict[str, torch.Tensor], simulated: bool) -> dict[str, list[Error]]:
    """The error of each stage's results, and eager's, against float64."""
    arrays = {name: to_numpy(x) for name, x in tensors.items()}
    exact = [to_numpy(x) for x in evaluate_torch(program.torch, tensors, float64=True)]
    found = {"eager": [to_numpy(x) for x in evaluate_torch(program.torch, tensors)], "tensor": evaluate_tensor(program.tensor, arrays),
             "loop": evaluate_loop(program.loop, arrays), "tile": [execute.on_numpy(program, arrays)[o] for o in program.plan.outputs]}
    if simulated:
        found["kernel"] = [execute.on_simulator(program, arrays)[o] for o in program.plan.outputs]
    return {stage: [compare(out, ref) for out, ref in zip(outs, exact, strict=True)] for stage, outs in found.items()}


def assert_accurate(program: Program, tensors: dict[str, torch.Tensor], simulated: bool = True) -> None:
    """Every stage is within the dtype's tolerance, or at most that further from float64 than twice eager's error."""
    found = errors(program, tensors, simulated)
    for k, name in enumerate(program.plan.outputs):
        allowed = tolerance(program.plan.buffer(name).element) + 2 * found["eager"][k].relative
        wrong = {stage: e[k] for stage, e in found.items() if not e[k].within(allowed)}
        assert not wrong, f"{name}: allowed {allowed:.1e}, eager {found['eager'][k]}, found {wrong}"


def work(program: Program) -> int:
    """Elements the kernels compute, each counted once for every element that its folds run over."""
    return sum(int(np.prod(k.shape)) * max(1, sum(k.extents[f.axis] for f in k.folds)) for k in program.tile.kernels)


@each
@pytest.mark.parametrize("n", SIZES)
def test_stages_agree(name: str, dtype: str, n: int) -> None:
    program = compiled(name, dtype, n)
    assert_accurate(program, program.captured.tensors, work(program) <= SIMULATED)


@each
@pytest.mark.parametrize("inputs", INPUTS)
def test_accurate_on(inputs: str, name: str, dtype: str) -> None:
    program = golden_program(name, dtype)
    torch.manual_seed(0)
    captured = program.captured
    given = {k: INPUTS[inputs](x) for k, x in captured.inputs.items()}
    assert_accurate(program, {**captured.weights, **captured.constants, **given})


def golden_kernels() -> dict[str, Kernel]:
    """The kernels in the goldens by name.  Those of one name differ in the names of their parameters only."""
    found: dict[str, Kernel] = {}
    for path in sorted(GOLDEN.glob("*/kernel.txt")):
        for text in path.read_text().split("\n\n"):
            kernel = kernel_parser.parse(text)
            twin = found.setdefault(kernel.name, kernel)
            assert [(p.element, p.length) for p in twin.parameters] == [(p.element, p.length) for p in kernel.parameters]
            assert len(twin.body) == len(kernel.body)
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_nvcc_compiles_every_golden_kernel_without_spills(target: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on PATH")
    kernels = golden_kernels()
    assert len(kernels) >= len(PROGRAMS)
    reports = build(kernel_to_cuda.emit_module(kernels.values()), target).functions
    assert reports.keys() == kernels.keys()
    assert {name: r.spill_bytes for name, r in reports.items() if r.spill_bytes} == {}


FINGERPRINT = """
import hashlib, sys
from tests.test_programs import compiled, fingerprint
print(*(fingerprint(compiled(name, 'f32', 37)) for name in sys.argv[1:]))
"""
DIVERSE = ("bias_gelu_residual", "softmax", "linear", "rms_norm_linear", "matmul_chain", "attention")


def fingerprint(program: Program) -> str:
    """A digest of all that the compiler decided, and of the identities of the kernels."""
    identities = " ".join(s.identity for s in program.choice.scheduled.values())
    return hashlib.sha256("\n".join([identities, *map(program.ir, STAGES[1:])]).encode()).hexdigest()


def test_compiling_is_deterministic_across_processes() -> None:
    wanted = [fingerprint(compiled(name, "f32", 37)) for name in DIVERSE]
    for seed in "1", "2":
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", FINGERPRINT, *DIVERSE]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == wanted
