"""What other programs would cost than the one chosen, by the model that chose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emmy.egraph.forest import Forest
from emmy.egraph.problem import bodies, outline, problem
from emmy.egraph.rows import FORMS
from emmy.egraph.rulefile import Rule
from emmy.egraph.schedule import saturated, schedules
from emmy.egraph.terms import Region
from emmy.egraph.trees import Tree
from emmy.egraph.why_not import Reason, why_not
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.tune.census import Census
from emmy.tune.choose import Rows, Scheduled
from emmy.tune.features import features
from extract import cost, partition


class Alternative(NamedTuple):
    """The best program in which one tensor is kept in memory that the chosen one computes anew, or the other way round: its kernels, and
    the seconds it was weighed at, which count what a tensor between kernels costs besides them.  None: there is no such program."""

    tensor: str
    kept: bool
    seconds: float | None
    kernels: int


class FormOf(NamedTuple):
    """A form of a kernel: its best row and seconds, or why no rule derives it, one reason for each rule that could."""

    form: str
    row: tile.Row | None
    seconds: float | None
    reasons: tuple[Reason, ...]


class Ledger:
    """Prices of bodies, programs and partitions of a region, and the partition chosen.  Kernels of one identity are scheduled once, in
    `rows`; `pins` fixes fields of the rows of the kernels chosen."""

    def __init__(self, region: Region, rows: Rows, pins: str = ""):
        self.outlined, self.rows = outline(region), rows
        self.problem = problem(self.outlined, rows.gpu, rows.math)
        (self.weighed, self.chosen), = rows.extract(self.outlined, 1, pins)
        if pins:
            chosen = {k.writes: self.best(k) for k in self.chosen.kernels}
            written = ((s.identity, t) for writes, s in chosen.items() for t in writes)
            rows.found |= rows.pinned({s.identity: s for s in chosen.values()}, pins, written)

    def best(self, kernel: partition.Kernel) -> Scheduled:
        """A kernel with its best row."""
        return self.scheduled(kernel.writes, bodies(self.outlined, kernel))

    def scheduled(self, writes: Sequence[str], values: Sequence[Value]) -> Scheduled:
        """The kernel that writes tensors by bodies, with its best row."""
        return self.rows.found[self.rows.computed(self.outlined, writes, values).identity]

    def kernels(self, forest: Forest, bodies: Mapping[str, Tree]) -> dict[str, float | None]:
        """Seconds of the kernel of each tensor that the outputs need, by its body; None where a body is no Loop IR."""
        found: dict[str, float | None] = {}
        pending = [t for _, t in self.outlined.region.program.outputs if t in bodies]
        while pending:
            tensor = self.outlined.stands(pending.pop())
            if tensor not in found:
                trees = [bodies[part] for part in self.outlined.whole((tensor,))]
                found[tensor] = self.of_trees(forest, tensor, trees)
                pending += forest.loads(trees)
        return found

    def of_trees(self, forest: Forest, tensor: str, trees: Sequence[Tree]) -> float | None:
        try:
            return self.scheduled((tensor,), tuple(map(forest.value, trees))).seconds
        except KeyError:
            return None

    # -- other partitions ---------------------------------------------------------------------------------------
    def price(self, kernel: partition.Kernel) -> float:
        return self.best(kernel).seconds

    def alternative(self, tensor: str) -> Alternative:
        """The best program that keeps a tensor which the chosen one does not, or that does not keep one which it does."""
        keep = all(tensor not in k.writes for k in self.chosen.kernels)
        p = self.problem
        if keep:
            fixed, share = p.rent
            rent = (fixed + share * p.traffic[tensor]) / (p.calls if tensor in p.lasting else 1)
            other = p._replace(outputs=(*p.outputs, tensor))
        else:
            home, named = {t: c for t, c in p.home.items() if t != tensor}, tuple(t for t in p.named if t != tensor)
            members = {c: tuple(m for m in ms if m.tensor != tensor) for c, ms in p.members.items()}
            other, rent = p._replace(members=members, home=home, named=named), 0.0
        try:
            found = partition.search(other, self.price)
        except ValueError:
            return Alternative(tensor, keep, None, 0)
        return Alternative(tensor, keep, self.rows.launched(self.outlined, found)[0] + rent, len(found.kernels))

    # -- forms --------------------------------------------------------------------------------------------------
    def forms(self, scheduled: Scheduled) -> list[FormOf]:
        """The form that a kernel takes, then the others that it could, the cheapest first, then those that no rule derives."""
        assert scheduled.kernel.schedule is not None
        own, kernel = scheduled.kernel.schedule, scheduled.kernel.replace(schedule=None)
        census = Census(kernel)
        rows: dict[str, tuple[float, int, tile.Row]] = {}
        for k, s in enumerate(schedules(kernel, self.rows.target, self.rows.math, "", self.rows.extra)):
            priced = cost.seconds(features(census, s), self.rows.gpu), k, s.row
            rows[s.form] = min(rows.get(s.form, priced), priced)
        others = sorted((seconds, form, row) for form, (seconds, _, row) in rows.items() if form != own.form)
        found = [FormOf(own.form, own.row, scheduled.seconds, ()), *(FormOf(form, row, seconds, ()) for seconds, form, row in others)]
        with saturated(kernel, self.rows.target, self.rows.math, tile.Row(), self.rows.extra) as graph:
            for constructor, form in FORMS.items():
                makers = [r for r in graph.rules if form not in rows and _makes(r, constructor)]
                found += [FormOf(form, None, None, tuple(filter(None, (why_not(graph, r) for r in makers))))] if makers else []
        return found


def _makes(rule: Rule, form: str) -> bool:
    """Whether a rule derives that a kernel has a form."""
    return any(str(action).startswith(f"(HasForm ({form}") for action in rule.actions)
