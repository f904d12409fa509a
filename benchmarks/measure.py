"""One workload on the GPU: numbers first, then times of Emmy, eager and torch.compile, alternated in one process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS
from emmy.errors import EmmyError
from emmy.evaluate.error import Judged, judge
from emmy.runtime.beside import MODES, alternatives, floor_us
from emmy.runtime.bundle import Arrays, Bundle, Example, load
from emmy.runtime.launch import cuda_device
from emmy.runtime.rates import Rates, measure_rates
from emmy.runtime.timing import call_us, device_times, device_us

TUNING = 3      # turns of a row that is weighed against others
Row = dict[str, Any]


def machine() -> Row:
    """The GPU, torch's version, and the measured rates; EmmyError without a GPU."""
    import torch

    cuda_device()
    rates = measure_rates()
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, **{k: round(v, 3) for k, v in rates._asdict().items()}}


def synchronize() -> None:
    """Raises if this process's CUDA context is broken; gives unused memory back."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def label(path: Path) -> Row:
    """The case and dtype of a bundle, by its file's name."""
    workload = WORKLOADS.get(path.stem)
    return {"case": workload.case if workload else path.stem, "dtype": workload.dtype if workload else "", "bundle": path.name}


def measure(path: Path, rates: Rates, compile_mode: str | None, repeats: int) -> Row:
    """The row of a bundle: `err` always, times only where every output is right.  Microseconds; `ratio` is the best alternative over Emmy.

    `compile_mode` is torch.compile's, "both" for its default and max-autotune, or None to leave it out.  A bundle with runners-up has
    `tuned_us` too, of the quickest rows among them and its own.  EmmyError where the numbers are wrong (`emmy.evaluate.error.judge`)."""
    import torch

    synchronize()
    bundle = load(path)
    plan, device = bundle.plan, cuda_device()
    example = bundle.example(device)
    arguments = tuple(example.inputs[n] for n in plan.inputs)
    run = bundle.executable(example.weights, device)
    reports = bundle.reports.get(plan.target, {})
    own = [reports[x.kernel] for x in plan.launches if x.kernel in reports]
    row = {**label(path), "floor_us": floor_us(plan, rates), "row": " | ".join(x.row for x in plan.launches),
           "kernels": len(plan.calls), "predicted_us": sum(x.predicted_us for x in plan.calls),
           "registers": max((r["registers"] for r in own), default=None), "spill_bytes": sum(r["spill_bytes"] for r in own)}
    with torch.no_grad():
        others, notes = alternatives_to(bundle, example, snippet_of(path, bundle), device, compile_mode)
        eager = dict(zip(plan.outputs, others["eager"](*arguments), strict=True)) if others else None
        verdicts = verdicts_on(run, arguments, example.references, eager)
        for name, v in verdicts.items():
            if not v.right:
                raise EmmyError(f"output {name!r} is wrong: relative error {v.error.relative:.3g} (tolerance {v.tolerance:.3g}), largest "
                                f"difference {v.error.max_abs:.3g}, {v.error.mismatched_nonfinite} misplaced NaN or inf",
                                "Compare the kernel with the simulator before timing it.")
        row["err"] = max((v.error.relative for v in verdicts.values()), default=0.0)
        if eager is not None:
            row["eager_err"] = max((v.eager.relative for v in verdicts.values() if v.eager), default=0.0)
        candidates = {"emmy": run, **others}
        if any(bundle.runners):
            candidates["tuned"] = quickest(bundle, run, example, arguments, eager)
            row["tuned_row"] = " | ".join(x.row for x in candidates["tuned"].plan.launches)
        timings = device_times({name: functools.partial(f, *arguments) for name, f in candidates.items()}, repeats=repeats)
        row |= notes | {f"{n}_us": t.us for n, t in timings.items()}
        row |= {"spread_us": timings["emmy"].spread_us, "call_us": call_us(functools.partial(run, *arguments))}
    best = min((timings[n].us for n in others), default=None)
    return row | {"ratio": None if best is None else best / timings["emmy"].us}


def verdicts_on(run: Any, arguments: tuple[Any, ...], references: Arrays, eager: Arrays | None) -> dict[str, Judged]:
    """Each output of an executable judged; memory is poisoned first, so that an element nobody wrote is seen."""
    found = dict(zip(run.plan.outputs, run(*arguments, out=run.poisoned()), strict=True))
    return {n: judge(x, references[n], eager and eager[n], run.plan.buffer(n).element, run.plan.math) for n, x in found.items()}


def quickest(bundle: Bundle, run: Any, example: Example, arguments: tuple[Any, ...], eager: Arrays | None) -> Any:
    """The executable of a bundle with the quickest right row at each launch, one launch after another."""
    best, least = run, device_us(functools.partial(run, *arguments), repeats=TUNING)
    for k, instead in enumerate(bundle.runners):
        for x in instead:
            launches = best.plan.launches
            try:
                other = bundle.executable(example.weights, run.device, (*launches[:k], x, *launches[k + 1:]))
                if all(v.right for v in verdicts_on(other, arguments, example.references, eager).values()):
                    us = device_us(functools.partial(other, *arguments), repeats=TUNING)
                    best, least = (other, us) if us < least else (best, least)
            except EmmyError:       # a row that this GPU refuses is none of the quickest
                continue
    return best


def snippet_of(path: Path, bundle: Bundle) -> str | None:
    """The snippet that a bundle was built from, where it is known."""
    return bundle.recipe or (WORKLOADS[path.stem].snippet if path.stem in WORKLOADS else bundle.meta.get("snippet"))


def alternatives_to(bundle: Bundle, example: Example, snippet: str | None, device: Any,
                    compile_mode: str | None) -> tuple[dict[str, Any], Row]:
    """Eager and torch.compile as callables of the plan's inputs, and what is to be noted about them."""
    from emmy.capture.snippet import capture_snippet

    if snippet is None:
        return {}, {"note": "no snippet to run by other means"}
    program = example.program or capture_snippet(snippet).program
    arguments = tuple(example.inputs[n] for n in bundle.plan.inputs)
    modes = MODES if compile_mode == "both" else {"compile": None if compile_mode == "default" else compile_mode} if compile_mode else {}
    return alternatives(program, bundle.plan, example.weights, arguments, device, modes)
