"""Measure a pack on this machine's GPU, which takes neither rules, e-graphs nor nvcc:

    python3 -m emmy.tune.worker PACK --output DB.jsonl

writes a measurement a line, for `emmy tune import DB.jsonl` where the compiler is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from emmy.errors import EmmyError
from emmy.runtime.process import Died, TimedOut, Worker
from emmy.tune import measure, pack
from emmy.tune.candidate import Compiled, Problem
from emmy.tune.database import Measurement, line
from emmy.tune.measure import Result

READY_S = 120.0     # for a process to start, and to make a kernel's tensors and reference


def guarded(worker: Worker, problem: Problem, compiled: Compiled, device: str, timeout: float) -> Result:
    """A candidate measured in a process of its own, so that a crash or a hang costs that candidate alone."""
    try:
        worker.call(measure.ready, device, problem, timeout=READY_S)
        return worker.call(measure.device(device), problem, compiled, timeout=timeout)
    except TimedOut as error:
        return Result("timeout", note=error.message)
    except Died as error:
        return Result("crash", note=error.message)
    except EmmyError as error:
        return Result("crash", note=error.message)


def device_name(device: str, target: str) -> str:
    """The name under which what a device measures is filed: the GPU's, as extract/hardware has it where it has it."""
    from extract import hardware

    if device != "cuda":
        return f"{hardware.for_target(target).name} {device}"
    import torch

    from emmy.runtime.launch import cuda_device

    return hardware.named_like(torch.cuda.get_device_name(cuda_device()))


def filed(problem: Problem, compiled: Compiled, result: Result, device: str, compiler: str, revision: str) -> Measurement:
    """A result as a measurement of today."""
    c = compiled.candidate
    return Measurement(c.identity, device, problem.target, c.row, compiler, problem.math, result.status, result.us, result.spread_us,
                       result.error, c.predicted_us, result.note, revision, time.time())


def measured(packed: pack.Pack, device: str, timeout: float) -> Iterator[Measurement]:
    """The candidates of a pack, one after another."""
    worker = Worker(measure.synchronize)
    name = worker.call(device_name, device, packed.target, timeout=READY_S)
    try:
        for problem, candidates in packed.kernels:
            rows: dict[str, Measurement] = {}
            for compiled in candidates:
                result = guarded(worker, problem, compiled, device, timeout)
                rows[compiled.candidate.row] = found = filed(problem, compiled, result, name, packed.compiler, packed.revision)
                yield found
                if result.overturned in rows:
                    yield rows[result.overturned]._replace(status="wrong", us=None, spread_us=None, at=time.time(),
                                                           note=f"differs from {compiled.candidate.row}, which is right there")
    finally:
        worker.close()


def main(words: list[str] | None = None) -> int:
    """The command; 0 if everything was measured, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python3 -m emmy.tune.worker", description="Measure a pack of candidates on this machine's GPU.")
    parser.add_argument("pack", type=Path, help="what emmy tune --pack wrote")
    parser.add_argument("--output", type=Path, required=True, help="the file of measurements to write")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds for one candidate")
    parser.add_argument("--device", default="cuda", help="cuda, or stand-in to try it without a GPU")
    given = parser.parse_args(words)
    try:
        packed = pack.load(given.pack)
        total, done = sum(len(cs) for _, cs in packed.kernels), 0
        with given.output.open("w") as file:
            for m in measured(packed, given.device, given.timeout):
                file.write(line(m) + "\n")
                file.flush()    # what is measured outlives what fails
                done += 1
                said = f"{m.us:9.2f} µs, predicted {m.predicted_us:9.2f}" if m.us is not None else f"{m.status}: {m.note[:100]}"
                print(f"{done:4}/{total}  {m.identity}  {m.row:60}  {said}", flush=True)
    except (EmmyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
