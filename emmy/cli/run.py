"""`emmy run`: a program or a bundle on its example inputs, its numbers judged, its kernels told one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli import options
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from emmy.cli.outcome import Outcome

DEVICES = ("numpy", "simulate", "cuda")
SUFFIX = ".emmy"

File = Annotated[str | None, typer.Argument(metavar="FILE.py:NAME | BUNDLE.emmy", show_default=False,
                                            help="A function, module or class of a file, or a bundle.")]
Device = Annotated[str | None, typer.Option(show_default=False, help="numpy (evaluates the Tile IR), simulate (runs each kernel thread by "
                                            "thread) or cuda. By default cuda where there is a GPU, else numpy.")]
Force = Annotated[bool, typer.Option("--force", help="Simulate however long it takes.")]


def command(file: File = None, snippet: options.Snippet = None, device: Device = None, target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "",
            measured: options.Measured = True, json: options.Json = None, force: Force = False) -> None:
    """Run on the example inputs and compare with eager computed in float64.  Times are told only of right numbers."""
    if device not in (None, *DEVICES):
        raise EmmyError(f"unknown device {device!r}", f"the devices are {', '.join(DEVICES)}")
    out = options.console(stderr=json is not None and str(json) == "-")
    if file is not None and snippet is None and file.endswith(SUFFIX):
        outcome = run_bundle(Path(file), device, compiled=target is None and math == "fast" and not rules and not knobs and not budget)
    else:
        outcome = run_program(file, snippet, device, target, math, knobs, rules, budget, measured, force, out)
    show(outcome, out)
    if json is not None:
        options.write_json(json, outcome.fields())
    if not outcome.correct:
        wrong = ", ".join(f"{name} is off by {r.error.relative:.3g} (tolerance {r.tolerance:g}), {r.error.mismatched_nonfinite} NaN or "
                          "infinities misplaced" for name, r in outcome.results.items() if not r.right)
        typer.echo(f"wrong numbers: {wrong}\n  remedy: report it with the program; --math exact or another row may be right", err=True)
        raise typer.Exit(1)


def run_program(file: str | None, snippet: str | None, device: str | None, target: str | None, math: str, knobs: str, rules: options.Rules,
                budget: str, measured: bool, force: bool, out: Console) -> Outcome:
    """Compile and run; without a device, on the GPU if there is one."""
    from emmy.cli import outcome

    options.check(target or options.DEFAULT_TARGET, math, knobs, rules, budget)
    alone = device is None and not outcome.gpu_is_there()
    if device in (None, "cuda") and not alone:
        return outcome.on_cuda(options.program(snippet, file, outcome.gpu_target(target), math, knobs, rules, budget, measured=measured))
    program = options.program(snippet, file, target, math, knobs, rules, budget, measured=measured)
    _ = program.plan
    if alone:
        out.print("no GPU here: running on the NumPy device")
    return outcome.on_cpu(program, device == "simulate", force, out)


def run_bundle(path: Path, device: str | None, compiled: bool) -> Outcome:
    """Run a bundle, which takes a GPU but neither the compiler nor nvcc."""
    from emmy.cli import outcome
    from emmy.runtime.bundle import load

    bundle = load(path)
    if device not in (None, "cuda"):
        raise EmmyError(f"{path} holds machine code for {', '.join(bundle.cubins)}, which the device {device} does not run",
                        "run it with --device cuda, or compile its program here: emmy run -c …")
    if not compiled:
        raise EmmyError(f"{path} is compiled already, so --target, --math, --knobs, --rules and --budget do not apply",
                        "give the first four to emmy build")
    if not outcome.gpu_is_there():
        raise EmmyError(f"{path} holds machine code for {', '.join(bundle.cubins)}, and there is no GPU here",
                        "run it where there is one, or compile its program here: emmy run -c …")
    return outcome.of_bundle(bundle)


def show(outcome: Outcome, out: Console) -> None:
    """The errors, the kernels, and the times."""
    for name, result in outcome.results.items():
        beside = f", eager's is {result.eager.relative:.2e}" if result.eager else ""
        out.print(f"{name}: {'right' if result.right else 'WRONG'}, relative error {result.error.relative:.2e} against float64{beside} "
                  f"(tolerance {result.tolerance:g})", markup=False, soft_wrap=True)
    out.print(table(outcome))
    total = f"device {outcome.device}: {options.kernels(outcome.kernels)}, predicted {outcome.predicted_us:.2f} µs"
    if outcome.device_us is not None:
        total += f", measured {outcome.device_us:.2f} µs (cold L2, CUDA graph)"
    if outcome.call_us is not None:
        total += f"; a call takes {outcome.call_us:.1f} µs of the host"
    out.print(total, markup=False, soft_wrap=True)


def table(outcome: Outcome) -> Table:
    """The kernels in launch order; registers, shared memory and times where a GPU ran them."""
    from rich.table import Table

    built = any(k.registers is not None for k in outcome.kernels)
    timed = any(k.measured_us is not None for k in outcome.kernels)
    columns = ["kernel", "identity", "row", "grid × block", "bytes", "operations", "predicted"]
    columns += ["registers", "shared"] * built + ["measured"] * timed
    shown = Table(box=None, pad_edge=False)
    for k, column in enumerate(columns):
        shown.add_column(column, justify="left" if k < 4 else "right", overflow="fold")
    for kernel in outcome.kernels:
        x = kernel.launch
        grid = "·".join(map(str, x.grid)).removesuffix("·1").removesuffix("·1")
        cells = [x.kernel, x.identity, x.row, f"{grid} × {x.block}", options.si(x.bytes, "B"), options.si(x.flops)]
        cells += [f"{x.predicted_us:.2f} µs"]
        cells += [str(kernel.registers), f"{kernel.shared_bytes} B"] if built else []
        cells += [f"{kernel.measured_us:.2f} µs" if kernel.measured_us is not None else ""] if timed else []
        shown.add_row(*cells)
    return shown
