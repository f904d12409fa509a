"""A compiled program beside what else computes the same: eager and torch.compile, alternated in one process."""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from emmy.evaluate.error import compare
from emmy.ir import torch_ir
from emmy.runtime.plan import Launch, Plan
from emmy.runtime.rates import Rates, measure_rates
from emmy.runtime.timing import Timing, device_times

Function = Callable[..., Any]
MODES: Mapping[str, str | None] = {"compile": None, "max_autotune": "max-autotune-no-cudagraphs"}    # the harness captures graphs itself
CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


class Beside(NamedTuple):
    """`times` of Emmy, eager and each mode of torch.compile, in microseconds; the relative `errors` of the others; `notes` on what did not
    work; `floor_us` that no program goes below; `clocks` before and after, in MHz, W and °C as nvidia-smi says them."""

    times: Mapping[str, Timing]
    errors: Mapping[str, float]
    notes: Mapping[str, str]
    floor_us: float
    clocks: tuple[str, str]

    def fields(self) -> dict[str, Any]:
        """As JSON values: microseconds and spread of each, `ratio` the best other's time over Emmy's."""
        others = [t.us for name, t in self.times.items() if name != "emmy"]
        found: dict[str, Any] = {f"{name}_us": t.us for name, t in self.times.items()}
        found |= {f"{name}_spread_us": t.spread_us for name, t in self.times.items()} | {f"{n}_error": e for n, e in self.errors.items()}
        ratio = min(others) / self.times["emmy"].us if others else None
        return found | {"floor_us": self.floor_us, "ratio": ratio, "notes": dict(self.notes), "clocks": list(self.clocks)}


def floor_us(plan: Plan, rates: Rates) -> float:
    """A lower bound on the plan's time: compulsory traffic at a copy's rate, or its operations at the rate of the unit fit for them.

    Traffic is every input, weight and output once, or what the launches move where that is less.  Operations are those of the
    form extracted; a launch that touches a half type is granted the tensor cores' rate, and half of it one of fp32 where tf32 is allowed;
    any other the fp32 units'."""
    elements = {b.name: b.element for b in plan.buffers}

    def work_us(x: Launch) -> float:
        half = any(elements[a].compute is not elements[a] for a in x.arguments)
        return x.flops / (rates.bf16_TFLOPs if half else rates.bf16_TFLOPs / 2 if plan.math == "tf32" else rates.fp32_TFLOPs) / 1e6

    moved = sum(x.bytes for x in plan.calls)
    compulsory = sum(prod(b.shape) * b.element.bytes for b in plan.of("input", "weight", "constant", "output"))
    return max(min(moved or compulsory, compulsory) / rates.copy_TBs / 1e6, sum(map(work_us, plan.calls)))


@contextlib.contextmanager
def allowing_tf32(allowed: bool) -> Iterator[None]:
    """Torch's products of fp32 may round their factors to tf32, or may not."""
    import torch

    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def alternatives(program: torch_ir.Program, plan: Plan, weights: Mapping[str, Any], arguments: Sequence[Any], device: Any,
                 modes: Mapping[str, str | None] = MODES) -> tuple[dict[str, Function], dict[str, Any]]:
    """Eager, and torch.compile in `modes` by name, as functions of the plan's inputs (`arguments`); and what is to be noted of each:
    seconds that it took to compile, or why it did not."""
    import torch

    from emmy.runtime.eager import module

    order = [plan.inputs.index(x.target) for x in program.inputs if x.role == "input"]
    graph = module(program, weights, device)

    def positional(function: Function) -> Function:
        def run(*xs: Any) -> Any:
            with allowing_tf32(plan.math == "tf32"):
                return function(*(xs[k] for k in order))
        return run

    found, notes = {"eager": positional(graph)}, dict[str, Any]()
    for name, mode in modes.items():
        torch._dynamo.reset()
        started = time.perf_counter()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                compiled = positional(torch.compile(graph, mode=mode, dynamic=False))
                compiled(*arguments)
            found[name] = compiled
        except Exception as error:  # whatever torch.compile raises is a fact about it, and the others are timed all the same
            notes[f"{name}_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        notes[f"{name}_s"] = time.perf_counter() - started
    return found, notes


def clocks() -> str:
    """The GPU's clocks, power and temperature, as nvidia-smi says them; what is missing where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: there is no nvidia-smi"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else f"unknown: {done.stderr.strip()[:100]}"


def beside(run: Any, program: torch_ir.Program, weights: Mapping[str, Any], arguments: Sequence[Any],
           references: Mapping[str, Any]) -> Beside:
    """Time an `Executable` whose numbers are right beside the others, all in turns.  `references`: its outputs in float64."""
    import torch

    with torch.no_grad():
        found, notes = alternatives(program, run.plan, weights, arguments, run.device)
        errors = {}
        for name, function in found.items():
            outputs = dict(zip(run.plan.outputs, function(*arguments), strict=True))
            errors[name] = max((compare(x, references[n]).relative for n, x in outputs.items()), default=0.0)
        rates, before = measure_rates(), clocks()
        times = device_times({name: functools.partial(f, *arguments) for name, f in {"emmy": run, **found}.items()})
    said = {name.removesuffix("_error"): str(note) for name, note in notes.items() if name.endswith("_error")}
    return Beside(times, errors, said, floor_us(run.plan, rates), (before, clocks()))
