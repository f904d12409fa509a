"""Random programs through every stage, in both maths.  HYPOTHESIS_PROFILE=deep looks longer."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from emmy.evaluate.error import compare, tolerance
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.reference import evaluate_tensor, evaluate_torch
from emmy.pipeline import compile
from emmy.runtime import execute
from emmy.runtime.arrays import to_numpy
from tests.random_programs import Source, programs
from tests.test_programs import work

EXAMPLES = max(30, settings.default.max_examples * 2 // 5) if settings.default else 40
SIMULATED = 60_000


def check(source: Source, math: str) -> None:
    """Every stage is near float64: within twice eager's error and a few roundings of the largest value met."""
    program = compile(source.function, *source.inputs, math=math)
    arrays = execute.arguments(program)
    exact = [to_numpy(x) for x in evaluate_torch(program.torch, program.captured.tensors, float64=True)]
    eager = [to_numpy(x) for x in evaluate_torch(program.torch, program.captured.tensors)]
    stages: dict[str, Any] = {"tensor": evaluate_tensor(program.tensor, arrays), "loop": evaluate_loop(program.loop, arrays),
                              "tile": list(execute.on_numpy(program, arrays).values())}
    if work(program) <= SIMULATED:
        stages["kernel"] = list(execute.on_simulator(program, arrays).values())
    outputs = list(dict.fromkeys(program.plan.outputs))
    position = [program.plan.outputs.index(name) for name in outputs]
    coarse = max((tolerance(program.plan.buffer(name).element) for name in program.plan.outputs), default=0.0)
    for stage, results in stages.items():
        by_name = dict(zip(outputs if stage in ("tile", "kernel") else program.plan.outputs, results, strict=True))
        for k, name in zip(position, outputs, strict=True):
            found, floating = compare(by_name[name], exact[k]), program.plan.buffer(name).element.kind == "float"
            allowed = 2 * compare(eager[k], exact[k]).max_abs + (10 * coarse * source.scale ** 2 if floating else 0)
            assert not found.mismatched_nonfinite and found.max_abs <= allowed, f"{stage} of {name}: {found}, allowed {allowed:.1e}"


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from(["fast", "exact"]))
def test_random_programs(source: Source, math: str) -> None:
    note(source.text)
    note("  ".join(f"{x.dtype}{list(x.shape)}" for x in source.inputs) + f"  math={math}")
    assume(np.isfinite(source.scale))
    check(source, math)
