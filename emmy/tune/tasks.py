"""What there is to tune in a program: its distinct kernels, their legal rows, and tensors like those they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from emmy.egraph.schedule import schedules
from emmy.evaluate.drawn import Drawn, draw
from emmy.evaluate.points import imagine
from emmy.ir import tile_ir as tile
from emmy.runtime.arrays import element_of, to_numpy
from emmy.tune.candidate import Candidate, Problem, candidate, problem
from emmy.tune.census import Census
from emmy.tune.features import features
from extract import cost
from extract.cost import Features
from extract.hardware import Hardware

if TYPE_CHECKING:
    from emmy.pipeline import Program


class Option(NamedTuple):
    """A legal schedule of a kernel, what it does, and the seconds predicted."""

    schedule: tile.Schedule
    features: Features
    seconds: float

    @property
    def row(self) -> str:
        return str(self.schedule.row)


class Task(NamedTuple):
    """A kernel to tune: its problem, the kernel as the program calls it first, its options (the cheapest predicted first, each row once),
    and how often the program launches it."""

    problem: Problem
    kernel: tile.Kernel
    options: tuple[Option, ...]
    calls: int

    def candidate(self, option: Option) -> Candidate:
        """An option as a candidate."""
        return candidate(self.problem.identity, self.kernel.replace(schedule=option.schedule), option.seconds * 1e6)


def options(kernel: tile.Kernel, target: str, math: str, gpu: Hardware, pins: str = "",
            extra: Iterable[tuple[str, str]] = ()) -> tuple[Option, ...]:
    """The legal schedules of a kernel, the cheapest predicted first.  Of several that one row spells, the cheapest."""
    kernel = kernel.replace(schedule=None)
    census = Census(kernel)
    found = [Option(s, f, cost.seconds(f, gpu)) for s in schedules(kernel, target, math, pins, extra) for f in (features(census, s),)]
    cheapest = {o.row: o for o in sorted(found, key=lambda o: -o.seconds)}
    return tuple(cheapest[row] for row in dict.fromkeys(o.row for o in sorted(found, key=lambda o: o.seconds)))


def tasks(program: Program) -> tuple[Task, ...]:
    """The distinct kernels of a program's calls that have something to do, in the order of their first launch."""
    from extract import hardware

    gpu, choice = hardware.for_target(program.target), program.choice
    calls = Counter(choice.scheduled[k.name].identity for k in choice.program.kernels if not tile.is_once(k))
    drawn = examples(program)
    found: dict[str, Task] = {}
    for identity, kernel in ((s.identity, s.kernel) for s in choice.scheduled.values()):
        if identity not in found and calls[identity] and 0 not in kernel.shape:
            made = problem(identity, kernel, tuple(drawn[t.name] for t in kernel.tensors), program.target, program.math)
            legal = options(kernel, program.target, program.math, gpu, "", program.rules["tile"])
            found[identity] = Task(made, kernel, legal, calls[identity])
    return tuple(found.values())


def examples(program: Program) -> Mapping[str, Drawn]:
    """Tensors like those of the program's example, by name: its own by a sample of their values, those between kernels by a sample of
    what their kernel makes of the others."""
    drawn: dict[str, Drawn] = {}
    for seed, (name, x) in enumerate(program.captured.tensors.items()):
        values = x if isinstance(x, np.ndarray) else x.detach()
        drawn[name] = draw(tuple(x.shape), element_of(x), to_numpy(values.reshape(-1)), seed)
    read = {t.name for k in program.choice.program.kernels for t in k.tensors}
    for seed, kernel in enumerate(program.choice.program.kernels, len(drawn)):
        if any(t.name in read for t in kernel.outputs):
            drawn |= {t.name: x for t, x in zip(kernel.outputs, imagine(kernel, drawn, seed), strict=True)}
    return drawn
