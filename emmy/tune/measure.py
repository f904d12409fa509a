"""One candidate on a device: its numbers, then its time.

The numbers are checked first.  At sampled points of the output they are compared with the kernel's own meaning, evaluated there on NumPy
with sums in float64 (`emmy.evaluate.points`); everywhere else with the first candidate that was right there.  Where two candidates
differ, element by element, the points of greatest difference are evaluated, and who is off is wrong.  Memory is poisoned
before the run, so that an element nobody wrote is seen.

A device is a function from a problem and a compiled candidate to a `Result`.  `cuda` is the GPU.  The simulator checks the numbers of
small kernels without one; the stand-in does too, and its time is the predicted one, off by an amount that the row alone decides.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from emmy.errors import EmmyError
from emmy.evaluate.drawn import CHUNK
from emmy.evaluate.error import Error, compare, tolerance
from emmy.evaluate.points import evaluate_points, sample
from emmy.evaluate.values import Array
from emmy.tune.candidate import Compiled, Problem

REPEATS, TURN_US = 3, 5000.0        # turns of a candidate, and the device time of each
SLOW_US = 20_000.0                  # a candidate whose first run takes longer is not run again
DOUBTED, FAR = 64, 8                # points that are evaluated where two candidates differ by so many tolerances
SIMULATED = 300_000                 # thread-statements that the stand-in simulates
NOISE = 0.25                        # of the stand-in's times, as a standard deviation of their logarithm


class Result(NamedTuple):
    """What became of a candidate: one of `database.STATUSES`; times in microseconds if it is right and was timed; its error against
    float64; the row that was taken for right before it and is not."""

    status: str
    us: float | None = None
    spread_us: float | None = None
    error: float | None = None
    note: str = ""
    overturned: str = ""


class Verdict(NamedTuple):
    """Whether an output is right, its error at the points looked at, and the row that was taken for right before and is not."""

    right: bool
    error: Error
    overturned: str = ""


class Judge:
    """The numbers of a kernel: what they are at sampled points, and all of those that were right there first."""

    def __init__(self, problem: Problem) -> None:
        self.kernel, self.drawn = problem.kernel, problem.drawn
        self.places = sample(self.kernel)
        self.wanted = self.at(self.places)
        self.allowed = max(tolerance(t.element) for t in self.kernel.outputs)
        self.first: tuple[str, tuple[Any, ...]] | None = None       # a row and its outputs

    def at(self, places: Array) -> tuple[Array, ...]:
        """What the outputs are at flat places, in float64 (whole numbers as they are)."""
        found = evaluate_points(self.kernel, self.drawn, places) if len(places) else (places,) * len(self.kernel.outputs)
        types = (np.float64 if t.element.kind == "float" else np.int64 for t in self.kernel.outputs)
        return tuple(x.astype(t) for x, t in zip(found, types, strict=True))

    def __call__(self, row: str, outputs: Sequence[Any]) -> Verdict:
        """Whether the outputs of a row, torch tensors whose memory was poisoned, are right."""
        flat = tuple(x.reshape(-1) for x in outputs)
        error = self._off(flat, self.places, self.wanted)
        if not self._within(error):
            return Verdict(False, worst(error))
        places = self._doubted(flat)
        if not len(places):
            if self.first is None:
                self.first = row, tuple(x.clone() for x in flat)
            return Verdict(True, worst(error))
        wanted = self.at(places)
        if not self._within(error := self._off(flat, places, wanted)):
            return Verdict(False, worst(error))
        overturned = self.first[0] if self.first and not self._within(self._off(self.first[1], places, wanted)) else ""
        if self.first is None or overturned:
            self.first = row, tuple(x.clone() for x in flat)
        return Verdict(True, worst(error), overturned)

    def _doubted(self, flat: tuple[Any, ...]) -> Array:
        """Places to evaluate: where these outputs differ most from those that were right first or, if they are the first, where they are
        what memory was poisoned with."""
        import torch

        found, most = [], min(DOUBTED, len(self.places))
        for k, x in enumerate(flat):
            if self.first is None:
                at = (torch.isnan(x) if x.dtype.is_floating_point else x == -1).nonzero().reshape(-1)[:most]
            else:
                at = furthest(x, self.first[1][k], most, FAR * tolerance(self.kernel.outputs[k].element))
            found.append(at.cpu().numpy())
        return np.unique(np.concatenate(found))

    @staticmethod
    def _off(flat: tuple[Any, ...], places: Array, wanted: tuple[Array, ...]) -> list[Error]:
        import torch

        return [compare(x[torch.from_numpy(places).to(x.device)], torch.from_numpy(np.ascontiguousarray(w)).to(x.device))
                for x, w in zip(flat, wanted, strict=True)]

    def _within(self, errors: list[Error]) -> bool:
        return all(e.within(tolerance(t.element)) for e, t in zip(errors, self.kernel.outputs, strict=True))


def furthest(x: Any, other: Any, most: int, least: float) -> Any:
    """Where a vector in torch is furthest from another, at most so many places, each further than `least`.  The distance of elements is
    relative to the other's size and root mean square; a NaN or infinity that stands in one only is infinitely far."""
    import torch

    def size(y: Any) -> Any:
        return torch.where(torch.isfinite(y), y.abs(), torch.zeros_like(y))

    pieces = [slice(start, start + CHUNK) for start in range(0, len(x), CHUNK)]
    mean = (sum(float(size(other[p].double()).square().sum()) for p in pieces) / max(len(x), 1)) ** 0.5
    values, places = [torch.zeros(0, dtype=torch.float64, device=x.device)], [torch.zeros(0, dtype=torch.int64, device=x.device)]
    for p in pieces:
        a, b = x[p].double(), other[p].double()
        apart = torch.nan_to_num((a - b).abs() / (size(b) + mean), nan=float("inf"), posinf=float("inf"))
        apart[(a == b) | torch.isnan(a) & torch.isnan(b)] = 0
        top = apart.topk(min(most, len(apart)))
        values.append(top.values)
        places.append(top.indices + p.start)
    value, place = torch.cat(values), torch.cat(places)
    best = value.topk(min(most, len(value)))
    return place[best.indices[best.values > least]]


def worst(errors: list[Error]) -> Error:
    """The largest of the errors of several outputs."""
    return max(errors, key=lambda e: (e.mismatched_nonfinite > 0, e.relative))


def wrong(error: Error, allowed: float) -> Result:
    """The result of a candidate whose numbers are off."""
    note = f"relative error {error.relative:.3g} (tolerance {allowed:g}), {error.mismatched_nonfinite} NaN or infinities misplaced"
    return Result("wrong", error=error.relative, note=note)


class Bench:
    """A problem on the GPU of this process: its tensors there, and its judge."""

    def __init__(self, problem: Problem) -> None:
        from emmy.runtime.launch import cuda_device

        self.device = cuda_device()
        self.judge = Judge(problem)
        self.tensors = tuple(x.tensor(self.device) for x in problem.tensors)

    def measure(self, compiled: Compiled) -> Result:
        """Check, then time."""
        import functools

        import torch

        from emmy.runtime.launch import Executable
        from emmy.runtime.timing import device_times

        run = Executable(compiled.plan, compiled.cubin, {}, self.device)
        out, start, stop = run.poisoned(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        outputs = run(*self.tensors, out=out)
        stop.record()
        stop.synchronize()
        once = float(start.elapsed_time(stop)) * 1000
        verdict = self.judge(compiled.candidate.row, outputs)
        if not verdict.right:
            return wrong(verdict.error, self.judge.allowed)
        if once > SLOW_US:
            return Result("right", once, None, verdict.error.relative, "of one run", verdict.overturned)
        timing = device_times({"": functools.partial(run, *self.tensors)}, repeats=REPEATS, turn_us=TURN_US)[""]
        return Result("right", timing.us, timing.spread_us, verdict.error.relative, overturned=verdict.overturned)


_bench: tuple[str, Bench] | None = None     # of this process: the problem that it measured last


def bench(problem: Problem) -> Bench:
    """The bench of a problem, made unless it is the one that was asked for last."""
    global _bench
    if _bench is None or _bench[0] != problem.identity:
        _bench = None       # its memory first
        _bench = problem.identity, Bench(problem)
    return _bench[1]


def cuda(problem: Problem, compiled: Compiled) -> Result:
    """Measure on the GPU of this process.  EmmyError where there is none; a kernel that faults raises what torch or CUDA do."""
    return bench(problem).measure(compiled)


def warm() -> None:
    """Load torch, and make this process's CUDA context."""
    import torch

    torch.zeros(1, device="cuda")


def ready(device: str, problem: Problem) -> None:
    """Make what the candidates of a problem share on a device."""
    if device == "cuda":
        bench(problem)


def synchronize() -> None:
    """Raises if this process's CUDA context, if it has one, is broken; gives unused memory back."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def simulator(problem: Problem, compiled: Compiled) -> Result:
    """Check without a GPU, in the simulator if the kernel is small; nothing is timed."""
    error = simulated(problem, compiled)
    allowed = max(tolerance(compiled.plan.buffer(name).element, compiled.plan.math) for name in compiled.plan.outputs)
    if error is None:
        return Result("right", note="too large to simulate")
    return Result("right", error=error.relative) if error.within(allowed) else wrong(error, allowed)


def stand_in(problem: Problem, compiled: Compiled) -> Result:
    """Measure without a GPU: numbers by the simulator, time by the model and the row."""
    seed = int.from_bytes(hashlib.sha256(f"{problem.identity} {compiled.candidate.row}".encode()).digest()[:8], "big")
    noise = float(np.random.default_rng(seed).normal(0, NOISE))
    us = compiled.candidate.predicted_us * float(np.exp(noise))
    found = simulator(problem, compiled)
    return found._replace(us=us, spread_us=0.01 * us) if found.status == "right" else found


def simulated(problem: Problem, compiled: Compiled) -> Error | None:
    """The error of the kernel's run in the simulator against its Tile IR on NumPy; None if that would take long."""
    from emmy.evaluate.simulate import simulate
    from emmy.evaluate.tile import evaluate_kernel
    from emmy.instructions.resources import thread_statements
    from emmy.ir.tile_text import parse_kernel
    from emmy.lower import tile_to_kernel

    lowered = tile_to_kernel.lower(parse_kernel(compiled.candidate.text))
    if thread_statements(lowered) > SIMULATED:
        return None
    kernel, arrays = problem.kernel, {name: x.array() for name, x in problem.drawn.items()}
    wanted = evaluate_kernel(kernel, arrays)
    written = [np.zeros(x.size, x.dtype) for x in wanted]
    memory = [*(arrays[t.name].reshape(-1).copy() for t in kernel.tensors), *written]
    given = [p for p in lowered.parameters if not p.own]
    simulate(lowered, {p.name: x for p, x in zip(given, memory, strict=True)})
    errors = [compare(x.reshape(w.shape), w if w.dtype.kind in "biu" else w.astype(np.float64))
              for x, w in zip(written, wanted, strict=True)]
    return worst([e if e.within(tolerance(t.element)) else e._replace(mismatched_nonfinite=max(e.mismatched_nonfinite, 1))
                  for e, t in zip(errors, kernel.outputs, strict=True)])


Device = Callable[[Problem, Compiled], Result]
DEVICES: dict[str, Device] = {"cuda": cuda, "stand-in": stand_in, "simulator": simulator}
TIMED = ("cuda", "stand-in")


def device(name: str) -> Device:
    """The device of that name; EmmyError if there is none."""
    if name not in DEVICES:
        raise EmmyError(f"unknown device {name!r} to measure on", f"the devices are {', '.join(TIMED)}")
    return DEVICES[name]
