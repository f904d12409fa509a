"""Why a program became what it did, as data: its derivation with the cost after each step, and what else it could have been."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from emmy.egraph.derivation import Derivation, derivation
from emmy.egraph.forest import Forest
from emmy.egraph.terms import Region
from emmy.tune.alternatives import Alternative, FormOf, Ledger
from emmy.tune.as_written import as_written
from emmy.tune.choose import Rows, Scheduled

Costs = Mapping[str, float | None]      # seconds of the kernel of each tensor that is in memory; None: not known


class Explanation(NamedTuple):
    """Of one region.  `costs`: of the program as written and after each step; `alternatives`: the tensors that could be kept or fused
    instead, the chosen program being weighed at `weighed` seconds; `kernels`: those chosen, by the tensors
    that each writes, in launch order, and the `forms` that each could take; `once`: those that run once for all calls."""

    forest: Forest
    derivation: Derivation
    costs: tuple[Costs, ...]
    weighed: float
    alternatives: tuple[Alternative, ...]
    unasked: int
    kernels: Mapping[tuple[str, ...], Scheduled]
    forms: Mapping[tuple[str, ...], list[FormOf]]
    launches: tuple[tuple[tuple[tuple[str, ...], ...], float], ...]
    once: frozenset[tuple[str, ...]] = frozenset()

    @property
    def predicted(self) -> float:
        """The seconds of the launches of a call."""
        return sum(seconds for kernels, seconds in self.launches if self.once.isdisjoint(kernels))


def explain(region: Region, rows: Rows, pins: str = "", most: int = 8) -> Explanation:
    """The explanation of a traced region, with at most so many `alternatives`: each is a search of its own.  Tensors that are kept come
    first, then those that the program names, then those that the rules let be kept, the smallest first; outputs have no alternative."""
    ledger = Ledger(region, rows, pins)
    forest = Forest(ledger.outlined)
    kernels = {w: k for k in ledger.chosen.kernels for w in k.writes}
    found = derivation(forest, kernels)
    costs: tuple[Costs, ...] = (as_written(region.program, rows), *(ledger.kernels(forest, s.bodies) for s in found.steps))
    outputs = {tensor for _, tensor in region.program.outputs}
    may = sorted(ledger.problem.home, key=lambda t: (ledger.problem.traffic[t], t))
    asked = [t for t in dict.fromkeys((*kernels, *found.written, *may)) if t not in outputs]
    chosen = {k.writes: ledger.best(k) for k in ledger.chosen.kernels}
    forms = {writes: ledger.forms(s) for writes, s in chosen.items()}
    alternatives = tuple(map(ledger.alternative, asked[:most]))
    writes = iter(k.writes for k in ledger.chosen.kernels)
    launches = tuple((tuple(islice(writes, len(launch.kernels))), launch.seconds) for launch in ledger.chosen.launches)
    once = frozenset(w for (of, _), launch in zip(launches, ledger.chosen.launches, strict=True) if launch.once for w in of)
    return Explanation(forest, found, costs, ledger.weighed, alternatives, len(asked[most:]), chosen, forms, launches, once)
