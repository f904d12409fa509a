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
    from emmy.runtime.beside import Beside

DEVICES = ("numpy", "simulate", "cuda")
SUFFIX = ".emmy"

File = Annotated[str | None, typer.Argument(metavar="FILE.py:NAME | BUNDLE.emmy", show_default=False,
                                            help="A function, module or class of a file, or a bundle.")]
Device = Annotated[str | None, typer.Option(show_default=False, help="numpy (evaluates the Tile IR), simulate (runs each kernel thread by "
                                            "thread) or cuda. By default cuda where there is a GPU, else numpy.")]
Force = Annotated[bool, typer.Option("--force", help="Simulate however long it takes.")]
Bench = Annotated[bool, typer.Option("--bench", help="Time eager, torch.compile and max-autotune beside it, in turns. Takes a GPU.")]
Profile = Annotated[bool, typer.Option("--profile", help="Have ncu count bytes, occupancy and stalls. Takes a GPU, and ncu.")]


def command(file: File = None, snippet: options.Snippet = None, device: Device = None, target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "",
            measured: options.Measured = True, json: options.Json = None, force: Force = False, bench: Bench = False,
            profile: Profile = False) -> None:
    """Run on the example inputs and compare with eager computed in float64.  Times are told only of right numbers."""
    if device not in (None, *DEVICES):
        raise EmmyError(f"unknown device {device!r}", f"the devices are {', '.join(DEVICES)}")
    if bench or profile:
        needs_gpu(device, "--bench" if bench else "--profile")
    out = options.console(stderr=json is not None and str(json) == "-")
    if file is not None and snippet is None and file.endswith(SUFFIX):
        compiled = target is None and math == "fast" and not rules and not knobs and not budget
        outcome = run_bundle(Path(file), device, compiled, bench, profile)
    else:
        outcome = run_program(file, snippet, device, target, math, knobs, rules, budget, measured, force, bench, profile, out)
    show(outcome, out)
    if json is not None:
        options.write_json(json, outcome.fields())
    if not outcome.correct:
        wrong = ", ".join(f"{name} is off by {r.error.relative:.3g} (tolerance {r.tolerance:g}), {r.error.mismatched_nonfinite} NaN or "
                          "infinities misplaced" for name, r in outcome.results.items() if not r.right)
        typer.echo(f"wrong numbers: {wrong}\n  remedy: report it with the program; --math exact or another row may be right", err=True)
        raise typer.Exit(1)


def run_program(file: str | None, snippet: str | None, device: str | None, target: str | None, math: str, knobs: str, rules: options.Rules,
                budget: str, measured: bool, force: bool, bench: bool, profile: bool, out: Console) -> Outcome:
    """Compile and run; without a device, on the GPU if there is one."""
    from emmy.cli import outcome

    options.check(target or options.DEFAULT_TARGET, math, knobs, rules, budget)
    alone = device is None and not outcome.gpu_is_there()
    if device in (None, "cuda") and not alone:
        program = options.program(snippet, file, outcome.gpu_target(target), math, knobs, rules, budget, measured=measured)
        return outcome.counted(outcome.on_cuda(program, bench), program, snippet) if profile else outcome.on_cuda(program, bench)
    program = options.program(snippet, file, target, math, knobs, rules, budget, measured=measured)
    _ = program.plan
    if alone:
        out.print("no GPU here: running on the NumPy device")
    return outcome.on_cpu(program, device == "simulate", force, out)


def needs_gpu(device: str | None, option: str) -> None:
    """EmmyError unless there is a GPU to run on."""
    from emmy.cli import outcome

    if device not in (None, "cuda") or not outcome.gpu_is_there():
        why = "torch finds none on this machine" if device in (None, "cuda") else f"{device} is none"
        raise EmmyError(f"{option} takes a GPU, and {why}", f"run where there is one, or without {option}")


def run_bundle(path: Path, device: str | None, compiled: bool, bench: bool = False, profile: bool = False) -> Outcome:
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
    found = outcome.of_bundle(bundle, bench)
    return outcome.with_counters(found, path) if profile else found


def show(outcome: Outcome, out: Console) -> None:
    """The errors, the kernels, and the times."""
    for name, result in outcome.results.items():
        beside = f", eager's is {result.eager.relative:.2e}" if result.eager else ""
        out.print(f"{name}: {'right' if result.right else 'WRONG'}, relative error {result.error.relative:.2e} against float64{beside} "
                  f"(tolerance {result.tolerance:g})", markup=False, soft_wrap=True)
    out.print(table(outcome))
    total = f"device {outcome.device}: {options.kernels(outcome.kernels)}, predicted {outcome.predicted_us:.2f} µs"
    total += options.once(outcome.once_us)
    if outcome.device_us is not None:
        total += f", measured {outcome.device_us:.2f} µs (cold L2, CUDA graph)"
    if outcome.call_us is not None:
        total += f"; a call takes {outcome.call_us:.1f} µs of the host"
    out.print(total, markup=False, soft_wrap=True)
    if outcome.bench is not None:
        out.print(bench_table(outcome.bench))
        for name, note in outcome.bench.notes.items():
            out.print(f"{name} did not run: {note}", markup=False, soft_wrap=True)
        out.print(f"floor {outcome.bench.floor_us:.2f} µs; clocks before: {outcome.bench.clocks[0]}; after: {outcome.bench.clocks[1]}",
                  markup=False, soft_wrap=True)
    if outcome.counters:
        out.print(counters_table(outcome))
    elif outcome.uncounted:
        out.print(f"no counters: {outcome.uncounted}", markup=False, soft_wrap=True)


def bench_table(bench: Beside) -> Table:
    """The times of all that compute the same, the quickest first."""
    from rich.table import Table

    shown = Table("", box=None, pad_edge=False)
    for column in ("measured", "spread", "over emmy", "of floor", "error"):
        shown.add_column(column, justify="right")
    own = bench.times["emmy"].us
    for name, t in sorted(bench.times.items(), key=lambda item: item[1].us):
        error = f"{bench.errors[name]:.1e}" if name in bench.errors else ""
        shares = f"{t.us / own:.2f}", f"{bench.floor_us / t.us:.2f}"
        shown.add_row(name.replace("_", "-"), f"{t.us:.2f} µs", f"{t.spread_us:.2f} µs", *shares, error)
    return shown


def counters_table(outcome: Outcome) -> Table:
    """What the profiler counted of each launch, the model's number beside it."""
    from rich.table import Table

    shown = Table("kernel", box=None, pad_edge=False)
    for column in ("time", "predicted", "device memory", "predicted", "bandwidth", "occupancy", "L2"):
        shown.add_column(column, justify="right")
    shown.add_column("most warps wait for", overflow="fold")
    for c, k in zip(outcome.counters, (k for k in outcome.kernels if not k.launch.once), strict=False):
        x = k.launch
        shown.add_row(x.kernel, f"{c.us:.2f} µs", f"{x.predicted_us:.2f} µs", options.si(c.dram_bytes, "B"), options.si(x.bytes, "B"),
                      f"{c.dram_TBs:.2f} TB/s", f"{c.occupancy:.0f} %", options.si(c.l2_bytes, "B"), f"{c.stall} ({c.stalled:.1f})")
    return shown


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
