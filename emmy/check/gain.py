"""What rules buy on a program: the kernels and predicted time with them and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from emmy.capture.export import Captured
    from emmy.pipeline import Program


class Gain(NamedTuple):
    """Microseconds predicted and kernels chosen without and with further rules; how often each of the further rules fired; whether the
    program chosen is another."""

    before: float
    after: float
    kernels: tuple[int, int]
    fired: dict[str, int]
    used: bool


def gain(captured: Captured, paths: Sequence[Path], names: Sequence[str], target: str, math: str) -> Gain:
    """Compile a program without and with rule files; `names` are their rules."""
    from emmy.pipeline import Program

    without, with_rules = Program(captured, target, math), Program(captured, target, math, paths)
    chosen = [set(p.choice.scheduled) for p in (without, with_rules)]
    fired = {name: with_rules.region.fired.get(name, 0) for name in names}
    return Gain(predicted(without), predicted(with_rules), (len(chosen[0]), len(chosen[1])), fired, chosen[0] != chosen[1])


def predicted(program: Program) -> float:
    """Microseconds of all its launches."""
    return sum(scheduled.seconds for scheduled in program.choice.scheduled.values()) * 1e6
