"""How long the choice of kernels takes, in a process that has done nothing else: frames, caches and heap are a user's."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from benchmarks.decoder import decoder
from emmy.pipeline import Program, compile
from tests.stopwatch import seconds

PROMISED = 2.0      # seconds of processor time


def of_decoder(layers: int) -> float:
    """Seconds of processor time that the choice takes after saturation, of so many layers."""
    model, inputs = decoder(layers)
    return _chosen(lambda: compile(model, *inputs))


def of_chain(shapes: list[tuple[int, int]]) -> float:
    """The same of a chain of matrices of these shapes."""
    inputs = [torch.empty(shape) for shape in shapes]
    return _chosen(lambda: compile(lambda first, *rest: functools.reduce(torch.matmul, rest, first), *inputs))


def _chosen(make: Callable[[], Program]) -> float:
    def saturated() -> Program:
        program = make()
        assert program.loop and program.regions
        return program

    return seconds(saturated, lambda program: program.choice.scheduled, 2 * PROMISED)
