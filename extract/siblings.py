"""Siblings: kernels of a partition that become one kernel, which writes what they wrote and reads what they share once.

Kernels can be merged whose tensors have one shape, unless one waits for another through a third: the launches stay without cycles.
One may read another's tensor: it then computes what it read, in the same place.  A tensor that only the merged kernel read is not
written at all, so kernels whose tensors vanish may be of any shape; two tensors or more remain, for which one value alone is kept is not
decided here.  The bodies are extracted anew together, shared parts paid once, and
the merged kernel is priced by the caller as any other is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from extract.kernels import Kernels
from extract.problem import Kernel, Solution

EXHAUSTIVE = 6          # kernels of a partition all of whose groupings are looked at; of more, pair after pair is merged
WORTH = 1 - 1e-6

Group = frozenset[int]


def merged(kernels: Kernels, solution: Solution) -> Solution:
    """The partition with kernels merged where that costs less: the best grouping of few kernels, a local optimum of many."""
    if len(solution.kernels) <= EXHAUSTIVE:
        return Siblings(kernels, solution).best()
    while not kernels.over and (better := Siblings(kernels, solution).step()) is not None:
        solution = better
    return solution


class Siblings:
    """What the kernels of a partition can be merged to."""

    def __init__(self, kernels: Kernels, solution: Solution):
        self.kernels, self.problem, self.solution = kernels, kernels.problem, solution
        self.every = solution.kernels
        writer = {w: n for n, k in enumerate(self.every) for w in k.writes}
        self.reads = [frozenset(writer[r] for r in k.reads) for k in self.every]
        self.above: list[Group] = []        # what each kernel waits for, which comes before it
        for reads in self.reads:
            self.above.append(reads.union(*(self.above[r] for r in reads)))
        self.made: dict[Group, Kernel | None] = {}

    def needed(self, group: Group) -> tuple[str, ...]:
        """The tensors that a group must write: outputs, and what kernels outside read."""
        read = frozenset(self.problem.outputs).union(*(k.reads for n, k in enumerate(self.every) if n not in group))
        return tuple(w for n in sorted(group) for w in self.every[n].writes if w in read)

    def kernel(self, group: Group) -> Kernel | None:
        """The kernel of a group; None if it writes one tensor only or several shapes, or waits for itself through a kernel outside."""
        if len(group) == 1:
            return self.every[next(iter(group))]
        if group not in self.made:
            self.made[group] = self._kernel(group)
        return self.made[group]

    def _kernel(self, group: Group) -> Kernel | None:
        writes = self.needed(group)
        below = frozenset(n for n, above in enumerate(self.above) if above & group) - group
        if len(writes) < 2 or len({self.problem.shapes.get(w, w) for w in writes}) > 1 or any(self.above[n] & below for n in group):
            return None
        hidden = {w for n in group | below for w in self.every[n].writes}
        return self.kernels.together(writes, self.solution.kept - hidden)

    # -- few kernels --------------------------------------------------------------------------------------------
    def best(self) -> Solution:
        """The partition of the best grouping.  Prices are asked of the groups of the best one by what is known, prices or else floors,
        until that is priced throughout."""
        groupings = [g for g in partitions(range(len(self.every))) if all(map(self.kernel, g)) and self.ordered(g) is not None]
        while True:
            made = [[k for g in grouping if (k := self.kernel(g)) is not None] for grouping in groupings]
            costs = [sum(map(self.kernels.estimate, ks)) for ks in made]
            best = min(range(len(groupings)), key=lambda n: (costs[n], len(groupings[n]), n))
            if costs[best] >= self.solution.seconds * WORTH:
                return self.solution
            unknown = [k for k in made[best] if not self.kernels.known(k)]
            if not unknown:
                ordered = self.ordered(groupings[best])
                assert ordered is not None
                return Solution(costs[best], ordered)
            for k in unknown:
                self.kernels.priced(k)

    def ordered(self, grouping: Iterable[Group]) -> tuple[Kernel, ...] | None:
        """The kernels of a grouping in launch order; None if they wait for each other in a cycle, or for what none writes."""
        left = [k for g in sorted(grouping, key=max) if (k := self.kernel(g)) is not None]
        pending = {w for k in left for w in k.writes}
        if any(not k.reads <= pending for k in left):
            return None
        order: list[Kernel] = []
        while left:
            ready = next((k for k in left if not k.reads & pending), None)
            if ready is None:
                return None
            left.remove(ready)
            pending -= set(ready.writes)
            order.append(ready)
        return tuple(order)

    # -- many kernels -------------------------------------------------------------------------------------------
    def step(self) -> Solution | None:
        """The partition with a pair merged: the first that saves, in the order of what floors say that it saves; None if none does."""
        alone = [k.floor for k in self.every]
        pairs = [(alone[a] + alone[b] - k.floor, pair, k) for a, b in combinations(range(len(self.every)), 2)
                 for pair in [frozenset((a, b))] if self.close(a, b) and (k := self.kernel(pair)) is not None]
        for _, pair, k in sorted(pairs, key=lambda p: (-p[0], sorted(p[1]))):
            apart = sum(self.kernels.priced(self.every[n]) for n in pair)
            if self.kernels.estimate(k) < apart * WORTH and self.kernels.priced(k) < apart * WORTH:
                made = self.ordered([pair, *(frozenset((n,)) for n in range(len(self.every)) if n not in pair)])
                assert made is not None, "no kernel is between the two"
                return Solution(self.solution.seconds - apart + self.kernels.priced(k), made)
        return None

    def close(self, a: int, b: int) -> bool:
        """Whether two kernels can share more than a launch: one reads the other's tensor, or both read one."""
        loads = [{m.tensor for _, m in self.every[n].body if m.tensor} for n in (a, b)]
        return a in self.reads[b] or b in self.reads[a] or bool(loads[0] & loads[1])


def partitions(items: Iterable[int]) -> Iterator[tuple[Group, ...]]:
    """All ways to part items into groups."""
    first, *rest = items
    if not rest:
        yield (frozenset((first,)),)
        return
    for groups in partitions(rest):
        yield (frozenset((first,)), *groups)
        for n, group in enumerate(groups):
            yield (*groups[:n], group | {first}, *groups[n + 1:])
