"""Devices for tests, which processes of an executor import by their module."""

from __future__ import annotations

import os
import time

from emmy.tune.candidate import Compiled, Problem
from emmy.tune.measure import Result


def troubled(problem: Problem, compiled: Compiled) -> Result:
    """Crashes, hangs, raises or is wrong by the row's width; takes what is predicted otherwise."""
    row = compiled.candidate.row
    if "TILE=v8" in row:
        os._exit(3)
    if "TILE=v4" in row:
        time.sleep(600)
    if "TILE=v2" in row:
        raise RuntimeError("an illegal memory access was encountered")
    return Result("right", compiled.candidate.predicted_us, 0.0, 0.0)


def note_visible(folder: str) -> None:
    """Leaves a file named by the GPUs that this process sees."""
    with open(os.path.join(folder, os.environ["CUDA_VISIBLE_DEVICES"]), "w") as file:
        file.write("seen")
