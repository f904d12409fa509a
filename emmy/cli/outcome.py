"""Runs of a program on each device, and what they found."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.cli import options
from emmy.errors import EmmyError
from emmy.evaluate.error import Judged, judge
from emmy.instructions.resources import thread_statements
from emmy.runtime.arrays import to_torch
from emmy.runtime.plan import OWN, Launch, Plan, Role

if TYPE_CHECKING:
    from rich.console import Console

    from emmy.ir import torch_ir
    from emmy.ir.kernel_ir import Kernel
    from emmy.pipeline import Program
    from emmy.runtime.beside import Beside
    from emmy.runtime.bundle import Bundle
    from emmy.runtime.profile import Counters

SIMULATED = 100_000_000     # thread-statements that the simulator runs unasked: a minute or two


class KernelRun(NamedTuple):
    """A launch; registers of a thread and bytes of shared memory of a block where it was built, microseconds where it was timed."""

    launch: Launch
    registers: int | None = None
    shared_bytes: int | None = None
    measured_us: float | None = None

    def fields(self) -> dict[str, Any]:
        """The launch as JSON values."""
        x = self.launch
        return {"name": x.kernel, "identity": x.identity, "row": x.row, "once": x.once, "grid": x.grid, "block": x.block, "bytes": x.bytes,
                "operations": x.flops, "predicted_us": x.predicted_us, "registers": self.registers, "shared_bytes": self.shared_bytes,
                "measured_us": self.measured_us}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run found.  `predicted_us` is of the launches of a call, `once_us` of those that are done once for all calls; `device_us` a
    call's time on the GPU, `call_us` that of the host; None unless measured.  `bench`: the times of others beside it; `counters`: what the
    profiler counted of each launch of a call, or why it did not."""

    device: str
    results: dict[str, Judged]
    kernels: tuple[KernelRun, ...]
    device_us: float | None = None
    call_us: float | None = None
    bench: Beside | None = None
    counters: tuple[Counters, ...] = ()
    uncounted: str = ""

    @property
    def correct(self) -> bool:
        return all(r.right for r in self.results.values())

    @property
    def predicted_us(self) -> float:
        return sum(k.launch.predicted_us for k in self.kernels if not k.launch.once)

    @property
    def once_us(self) -> float:
        return sum(k.launch.predicted_us for k in self.kernels if k.launch.once)

    def fields(self) -> dict[str, Any]:
        """The outcome as JSON values; what was not asked for has no key."""
        errors = {name: r.error._asdict() | {"tolerance": r.tolerance, "eager_relative": r.eager and r.eager.relative, "correct": r.right}
                  for name, r in self.results.items()}
        timing = {"predicted_us": self.predicted_us, "once_us": self.once_us, "device_us": self.device_us, "call_us": self.call_us}
        return {"error": max((r.error.relative for r in self.results.values()), default=0.0), "errors": errors, "correct": self.correct,
                "device": self.device, "kernels": [k.fields() for k in self.kernels], "timing": timing,
                **({"bench": self.bench.fields()} if self.bench else {}),
                **({"counters": [c._asdict() for c in self.counters]} if self.counters else {}),
                **({"uncounted": self.uncounted} if self.uncounted else {})}


def judged(plan: Plan, outputs: Mapping[str, Any], references: Mapping[str, Any], eager: Mapping[str, Any] | None) -> dict[str, Judged]:
    """Each output against its reference in float64, all torch tensors on one device."""
    return {name: judge(outputs[name], references[name], eager and eager[name], plan.buffer(name).element, plan.math)
            for name in dict.fromkeys(plan.outputs)}


def references(program: Program, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs of eager in float64, and of eager."""
    from emmy.evaluate.reference import evaluate_torch

    names, torch_program = program.plan.outputs, program.torch
    double, plain = (evaluate_torch(torch_program, tensors, float64=wide) for wide in (True, False))
    return dict(zip(names, double, strict=True)), dict(zip(names, plain, strict=True))


def on_cpu(program: Program, simulate: bool, force: bool, out: Console) -> Outcome:
    """Run on NumPy, or in the simulator with a bar of its progress through the kernels."""
    from emmy.runtime import execute

    plan, arrays = program.plan, execute.arguments(program)
    wanted = references(program, program.captured.tensors)      # first: what eager refuses is the user's to mend
    if simulate:
        functions = {k.name: k for k in program.kernels}
        expect([functions[x.kernel] for x in plan.launches], force, out)
        found = execute.on_simulator(program, arrays, options.track(plan.launches, "simulating kernels", out))
    else:
        found = execute.on_numpy(program, arrays)
    outputs = {name: to_torch(x, plan.buffer(name).element, "cpu").reshape(plan.buffer(name).shape) for name, x in found.items()}
    results = judged(plan, outputs, *wanted)
    return Outcome("simulate" if simulate else "numpy", results, tuple(map(KernelRun, plan.launches)))


def expect(kernels: Sequence[Kernel], force: bool, out: Console) -> None:
    """Say how much there is to simulate; EmmyError if it is too much and not forced."""
    work = sum(map(thread_statements, kernels))
    if work > SIMULATED and not force:
        raise EmmyError(f"the simulator would run {work:.1e} thread-statements, more than {SIMULATED:.0e}",
                        "take smaller inputs or --device numpy, or add --force and wait")
    if work > SIMULATED / 10:
        out.print(f"simulating {work:.1e} thread-statements takes a while")


# -- on a GPU -------------------------------------------------------------------------------------------------------
def gpu_is_there() -> bool:
    """Whether torch finds a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def gpu_target(wanted: str | None) -> str:
    """The target to compile for: `wanted`, or the best for this GPU.  EmmyError without a GPU, or if its code does not run here."""
    from emmy.egraph.rulebook import targets
    from emmy.runtime.bundle import pick
    from emmy.runtime.launch import cuda_device

    device = cuda_device("cuda")
    import torch

    capability = torch.cuda.get_device_capability(device)
    known = {name: None for name in ([wanted] if wanted else targets())}
    try:
        return pick(known, capability)
    except EmmyError as error:
        raise EmmyError(f"code for {', '.join(known)} does not run on this GPU, an sm_{capability[0]}{capability[1]}",
                        "leave --target out, or run on --device numpy") from error


def on_cuda(program: Program, bench: bool = False) -> Outcome:
    """Build with nvcc, run and judge on the GPU, and time what is right; `bench`: beside eager and torch.compile."""
    from emmy.runtime.build import build
    from emmy.runtime.launch import cuda_device

    device = cuda_device("cuda")
    plan, captured = program.plan, program.captured
    built = build(plan.source, program.target)
    tensors = {name: x.detach().to(device) for name, x in captured.tensors.items()}
    inputs = {name: tensors[name] for name in captured.inputs}
    reports = {name: dataclasses.asdict(r) for name, r in built.functions.items()}
    return launched(plan, built.cubin, reports, inputs, tensors, references(program, tensors), program.torch if bench else None)


def of_bundle(bundle: Bundle, bench: bool = False) -> Outcome:
    """Run a bundle on the GPU, judge and time it; `bench`: beside eager and torch.compile."""
    from emmy.runtime.bundle import pick
    from emmy.runtime.launch import cuda_device

    device = cuda_device("cuda")
    import torch

    target = pick(bundle.cubins, torch.cuda.get_device_capability(device))
    example = bundle.example(device)
    tensors = example.inputs | example.weights
    eager = None
    if example.program is not None:
        from emmy.evaluate.reference import evaluate_torch

        eager = dict(zip(bundle.plan.outputs, evaluate_torch(example.program, tensors), strict=True))
    wanted = example.references, eager
    other = example.program
    if bench and other is None:
        snippet = bundle.recipe or bundle.meta.get("case")
        if not isinstance(snippet, str) or not snippet.strip():
            raise EmmyError("the bundle does not say which program it is, so nothing can run beside it",
                            "run the program itself: emmy run -c …")
        from emmy.capture.snippet import capture_snippet

        other = capture_snippet(snippet).program
    return launched(bundle.plan, bundle.cubins[target], bundle.reports.get(target, {}), example.inputs, tensors, wanted,
                    other if bench else None)


def launched(plan: Plan, cubin: bytes, reports: Mapping[str, Mapping[str, int]], inputs: Mapping[str, Any], tensors: Mapping[str, Any],
             wanted: tuple[Mapping[str, Any], Mapping[str, Any] | None], other: torch_ir.Program | None = None) -> Outcome:
    """Run a plan on the GPU that `tensors` are on; beside the program `other` as torch runs it, if it is given."""
    from emmy.runtime.beside import beside
    from emmy.runtime.launch import Executable
    from emmy.runtime.timing import call_us, device_us

    run = Executable(plan, cubin, {b.name: tensors[b.name] for b in plan.of("weight", "constant")})
    arguments = tuple(inputs[name] for name in plan.inputs)
    outputs = dict(zip(plan.outputs, run(*arguments, out=run.poisoned()), strict=True))
    results = judged(plan, outputs, *wanted)
    times: dict[int, float] = {}
    whole = call = bench = None
    if all(r.right for r in results.values()) and plan.launches:
        once = functools.partial(run, *arguments)
        whole, call = device_us(once), call_us(once)
        bench = beside(run, other, tensors, arguments, wanted[0]) if other is not None else None
        times = {0: whole} if len(plan.launches) == 1 else kernel_times(plan, cubin, tensors)
    kernels: list[KernelRun] = []
    for k, x in enumerate(plan.launches):
        report = reports.get(x.kernel, {})
        shared = report["shared_bytes"] + x.shared_bytes if report else None
        kernels.append(KernelRun(x, report.get("registers"), shared, times.get(k)))
    return Outcome("cuda", results, tuple(kernels), whole, call, bench)


def kernel_times(plan: Plan, cubin: bytes, tensors: Mapping[str, Any]) -> dict[int, float]:
    """Microseconds of each launch alone, on the values that it has in the program."""
    from emmy.runtime.launch import Executable
    from emmy.runtime.timing import device_us

    held, times = dict(tensors), {}
    own = plan.of(*OWN)
    for k, x in enumerate(plan.launches):
        written = tuple(name for name in x.arguments if name not in held and plan.buffer(name) not in own)
        reads = tuple(dict.fromkeys(name for name in x.arguments if name in held))
        roles: dict[str, Role] = {**dict.fromkeys(reads, "input"), **dict.fromkeys(written, "output")}
        buffers = *(dataclasses.replace(plan.buffer(name), role=role) for name, role in roles.items()), *own
        launches = (dataclasses.replace(x, early=False, once=False),)
        by_itself = dataclasses.replace(plan, buffers=buffers, launches=launches, inputs=reads, outputs=written)
        run = Executable(by_itself, cubin, {})
        arguments = tuple(held[name] for name in reads)
        held |= zip(written, run(*arguments), strict=True)
        times[k] = device_us(functools.partial(run, *arguments))
    return times


def counted(outcome: Outcome, program: Program, snippet: str | None) -> Outcome:
    """The outcome of a program's run with what the profiler counts of it, as a bundle."""
    import tempfile

    from emmy.pipeline import write_bundle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profiled.emmy"
        write_bundle(program, path, [program.target], recipe=snippet)
        return with_counters(outcome, path)


def with_counters(outcome: Outcome, bundle: Path) -> Outcome:
    """The outcome with what the profiler counts of a bundle, or why it does not."""
    from emmy.runtime.profile import profile

    try:
        return dataclasses.replace(outcome, counters=profile(bundle))
    except EmmyError as error:
        return dataclasses.replace(outcome, uncounted=error.message)
