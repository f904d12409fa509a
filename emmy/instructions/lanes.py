"""The meaning of statements that each active thread carries out alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from emmy.ir.kernel_ir import Expr

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp


def lane_by_lane(machine: Machine, expressions: tuple[Expr, ...], one: Callable[..., None]) -> Step:
    """For each active lane in turn `one(w, lane, *values)`, with that lane alone active; the values of `expressions` are Python's numbers,
    computed for all lanes before the first."""
    evaluate = [machine.value(e) for e in expressions]

    def run(w: Warp) -> None:
        outer, values = w.mask, [w.spread(v(w)) for v in evaluate]
        for lane in np.flatnonzero(w.active_of(True)):
            w.mask = np.arange(32) == lane
            one(w, int(lane), *(v[lane].item() for v in values))
        w.mask = outer
    return run
