"""One workload on the GPU: numbers first, then times of Emmy, eager and torch.compile, alternated in one process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS
from emmy.errors import EmmyError
from emmy.evaluate.error import compare, tolerance
from emmy.runtime.beside import MODES, alternatives, floor_us
from emmy.runtime.bundle import Bundle, Example, check, load
from emmy.runtime.launch import cuda_device
from emmy.runtime.rates import Rates, measure_rates
from emmy.runtime.timing import call_us, device_times

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

    `compile_mode` is torch.compile's, "both" for its default and max-autotune, or None to leave it out.  EmmyError where the numbers are
    wrong: neither within the tolerance of their type nor, with at most twice its error, as near as eager's."""
    import torch

    synchronize()
    bundle = load(path)
    plan, device = bundle.plan, cuda_device()
    example = bundle.example(device)
    arguments = tuple(example.inputs[n] for n in plan.inputs)
    run = bundle.executable(example.weights, device)
    errors = check(run, arguments, example.references)[1]
    torch.cuda.synchronize()
    reports = bundle.reports.get(plan.target, {}).values()
    row = {**label(path), "floor_us": floor_us(plan, rates), "row": " | ".join(x.row for x in plan.launches),
           "kernels": len(plan.launches), "err": max((e.relative for e in errors.values()), default=0.0),
           "predicted_us": sum(x.predicted_us for x in plan.launches),
           "registers": max((r["registers"] for r in reports), default=None), "spill_bytes": sum(r["spill_bytes"] for r in reports)}
    with torch.no_grad():
        others, notes = alternatives_to(bundle, example, snippet_of(path, bundle), device, compile_mode)
        for name, error in errors.items():
            if not error.within(limit := max(tolerance(plan.buffer(name).element, plan.math), 2 * notes.get("eager_err", 0.0))):
                raise EmmyError(f"output {name!r} is wrong: relative error {error.relative:.3g} (limit {limit:.3g}), largest difference "
                                f"{error.max_abs:.3g}, {error.mismatched_nonfinite} misplaced NaN or inf",
                                "Compare the kernel with the simulator before timing it.")
        candidates = {name: functools.partial(function, *arguments) for name, function in {"emmy": run, **others}.items()}
        timings = device_times(candidates, repeats=repeats)
        row |= notes | {f"{n}_us": t.us for n, t in timings.items()}
        row |= {"spread_us": timings["emmy"].spread_us, "call_us": call_us(candidates["emmy"])}
    best = min((t.us for n, t in timings.items() if n != "emmy"), default=None)
    return row | {"ratio": None if best is None else best / timings["emmy"].us}


def snippet_of(path: Path, bundle: Bundle) -> str | None:
    """The snippet that a bundle was built from, where it is known."""
    return bundle.recipe or (WORKLOADS[path.stem].snippet if path.stem in WORKLOADS else bundle.meta.get("snippet"))


def alternatives_to(bundle: Bundle, example: Example, snippet: str | None, device: Any,
                    compile_mode: str | None) -> tuple[dict[str, Any], Row]:
    """Eager and torch.compile as callables of the plan's inputs, and what is to be noted about them."""
    from emmy.capture.snippet import capture_snippet

    if snippet is None:
        return {}, {"note": "no snippet to run by other means"}
    program, plan = example.program or capture_snippet(snippet).program, bundle.plan
    arguments = tuple(example.inputs[n] for n in plan.inputs)
    modes = MODES if compile_mode == "both" else {"compile": None if compile_mode == "default" else compile_mode} if compile_mode else {}
    found, notes = alternatives(program, plan, example.weights, arguments, device, modes)
    outputs = dict(zip(plan.outputs, found["eager"](*arguments), strict=True))
    return found, notes | {"eager_err": max((compare(x, example.references[n]).relative for n, x in outputs.items()), default=0.0)}
