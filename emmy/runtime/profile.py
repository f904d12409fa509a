"""What NVIDIA's profiler counts of a plan's kernels: `ncu` runs this module on a bundle, and its table is read back."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from emmy.errors import EmmyError

STALLS = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = ("long_scoreboard", "short_scoreboard", "barrier", "math_pipe_throttle", "mio_throttle", "lg_throttle", "wait", "not_selected")
METRICS = {"dram__bytes.sum": "dram_bytes", "gpu__time_duration.sum": "us",
           "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy", "lts__t_bytes.sum": "l2_bytes"}
UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3,
         "ms": 1e3}


class Counters(NamedTuple):
    """A launch as the profiler counts it: microseconds, bytes that device memory and the second-level cache moved, per cent of the warps
    that a multiprocessor can hold, and the reason for which most warps wait, with how many do for each that issues."""

    kernel: str
    us: float
    dram_bytes: float
    l2_bytes: float
    occupancy: float
    stall: str
    stalled: float

    @property
    def dram_TBs(self) -> float:
        return self.dram_bytes / self.us / 1e6 if self.us else 0.0


def profile(bundle: Path, timeout: float = 120.0) -> tuple[Counters, ...]:
    """The counters of each launch of a bundle's plan; EmmyError where there is no `ncu`, or it may not read them."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise EmmyError("there is no ncu on PATH to count with", "install Nsight Compute, or run without --profile")
    metrics = ",".join([*METRICS, *(STALLS.format(r) for r in REASONS)])
    # the clocks are those that kernels are timed at
    command = [ncu, "--csv", "--page", "raw", "--metrics", metrics, "--profile-from-start", "off", "--target-processes", "all",
               "--clock-control", "none", sys.executable, "-m", "emmy.runtime.profile", str(bundle)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise EmmyError(f"ncu has counted nothing within {timeout:g} s", "run without --profile") from error
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        raise EmmyError("ncu may not read this GPU's counters (ERR_NVGPUCTRPERM)",
                        "have the administrator allow it (NVreg_RestrictProfilingToAdminUsers=0), or run without --profile")
    found = read(done.stdout)
    if not found:
        raise EmmyError(f"ncu counted nothing: {' '.join(said.split())[-300:]}", "see whether ncu runs by itself, or run without --profile")
    return found


def read(text: str) -> tuple[Counters, ...]:
    """The launches in the raw page that ncu prints as CSV, whose second line has the units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if len(rows) < 2:
        return ()
    units, *launches = rows
    return tuple(_counters(row, units) for row in launches)


def _counters(row: Mapping[str, str], units: Mapping[str, str]) -> Counters:
    def number(metric: str) -> float:
        text = (row.get(metric) or "").replace(",", "")
        return float(text) * UNITS.get(units.get(metric) or "", 1.0) if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", text) else 0.0

    values = {field: number(metric) for metric, field in METRICS.items()}
    stalls = {reason: number(STALLS.format(reason)) for reason in REASONS}
    most = max(stalls, key=lambda reason: stalls[reason])
    return Counters(row.get("Kernel Name", ""), values["us"], values["dram_bytes"], values["l2_bytes"], values["occupancy"],
                    most.replace("_", " "), stalls[most])


def main(path: str) -> None:
    """Run a bundle once to warm up, and once between the profiler's marks."""
    import torch

    from emmy.runtime.bundle import load
    from emmy.runtime.launch import cuda_device

    bundle, device = load(path), cuda_device()
    example = bundle.example(device)
    run = bundle.executable(example.weights, device)
    arguments = tuple(example.inputs[n] for n in bundle.plan.inputs)
    run(*arguments)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    run(*arguments)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1])
