"""The compiler's own saturation of a program, judged: every member of every class evaluates alike."""

from __future__ import annotations

from collections.abc import Iterable

from emmy.check.whole import compared
from emmy.egraph.budget import Budget
from emmy.egraph.rulebook import scope
from emmy.egraph.saturate import run
from emmy.evaluate.values import Array
from emmy.ir import loop_ir as loop

BUDGET = Budget(nodes=4_000, rounds=5)


def judge(program: loop.Program, math: str, arrays: dict[str, Array], extra: Iterable[tuple[str, str]] = ()) -> tuple[int, dict[str, int]]:
    """Saturate `program` and compare; (members compared, firings of each rule).  Raises `Disagreement`."""
    extra = tuple(extra)
    with scope("loop", extra) as graph:
        run(program, math, extra, BUDGET, graph=graph)
        return compared(graph.engine, program, "real" if math == "fast" else "exact", arrays), graph.fired
