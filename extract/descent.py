"""Descent over kept sets: drop one, drop a few that one kernel reads, add one, swap two, each taken at once where it helps."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from extract.kernels import Kernels
from extract.problem import Kernel, Solution

FAR = 2.0       # a start that costs more than this times the best result so far is not worth a descent


class Descent:
    """The best partitions met, one for each set of tensors that is written, of which `count` are wanted."""

    def __init__(self, kernels: Kernels, count: int = 1):
        self.kernels, self.problem, self.count = kernels, kernels.problem, count
        self.seen: dict[frozenset[str], tuple[float, Solution | None]] = {}
        self.met: dict[frozenset[str], Solution] = {}

    def ranked(self, starts: Iterable[frozenset[str]]) -> tuple[Solution, ...]:
        """The best local optimum reached from `starts`, then the other partitions met, cheapest first."""
        reached: list[Solution] = []
        for kept in starts:
            worse = min((s.seconds for s in reached), default=float("inf")) * FAR
            if (self.program(kept, worse) is not None) and (s := self.descend(kept)) is not None:
                reached.append(s)
                if self.kernels.over:
                    break
        if not reached:
            return ()
        first = min(reached, key=lambda s: s.seconds)
        return first, *[s for s in self.cheapest() if s.kept != first.kept][:self.count - 1]

    def cheapest(self) -> list[Solution]:
        """What has been met; ties go to fewer kernels, then by name."""
        return sorted(self.met.values(), key=lambda s: (s.seconds, len(s.kernels), sorted(s.kept)))

    def worth(self) -> float:
        """What a partition may cost that is among the wanted ones besides the best."""
        if self.count == 1:
            return 0.0
        return self.cheapest()[self.count - 1].seconds if len(self.met) >= self.count else float("inf")

    def program(self, kept: frozenset[str], limit: float) -> Solution | None:
        """The kernels for a kept set, in order; None if they cannot cost less than `limit`."""
        tried, found = self.seen.get(kept, (-1.0, None))
        most = max(limit, self.worth())
        if found is None and most > tried:
            found = self._program(kept, most)
            self.seen[kept] = most, found
            if found is not None and (found.kept not in self.met or found.seconds < self.met[found.kept].seconds):
                self.met[found.kept] = found
        return found if found is not None and found.seconds < limit else None

    def _program(self, kept: frozenset[str], limit: float) -> Solution | None:
        """`program` without memory.  A kernel may not read what waits for it."""
        order: dict[str, Kernel] = {}

        def visit(w: str, waiting: frozenset[str]) -> bool:
            if w in order:
                return True
            k = self.kernels.kernel(w, kept - waiting - {w})
            if k is None or not all(visit(r, waiting | {w}) for r in sorted(k.reads)):
                return False
            order[w] = k
            return True

        if not all(visit(o, frozenset()) for o in self.problem.outputs):
            return None
        least = sum(self.kernels.estimate(k) for k in order.values())
        for k in sorted((k for k in order.values() if not self.kernels.known(k)), key=lambda k: -k.floor):
            if least >= limit:
                return None
            least += self.kernels.priced(k) - k.floor
        return Solution(least, tuple(order.values())) if least < limit else None

    def descend(self, kept: frozenset[str]) -> Solution | None:
        """The local optimum reached from a kept set: passes over the moves until one finds no move that helps, or the search is over."""
        best = self.program(kept, float("inf"))
        while best is not None:
            before = best
            live = best.kept
            for drop, add in self.moves(live, best.kernels):
                if drop <= live and not add & live:
                    better = self.program((live - drop) | add, best.seconds * (1 - 1e-6))
                    if better is not None:
                        best, live = better, better.kept
                if self.kernels.over:
                    return best
            if best is before:
                return best
        return None

    def moves(self, live: frozenset[str], kernels: tuple[Kernel, ...]) -> list[tuple[frozenset[str], frozenset[str]]]:
        """(dropped, added): drop one, drop two or three that one kernel reads, add one, swap one for another that its writer or its
        readers can load."""
        spare = sorted(live - frozenset(self.problem.outputs))
        writer = {w: k for k in kernels for w in k.writes}
        least = self.kernels.least
        gain = {w: self.kernels.priced(k) - least[w] for w, k in writer.items()}    # the most that a better body saves

        def worth(kept: frozenset[str], writers: Iterable[str], saved: float) -> list[str]:
            """Tensors that some of `writers` could load and whose own kernel may cost less than what it saves."""
            saves: dict[str, float] = {}
            for w in writers:
                for t in self.kernels.met(w, kept - {w}) - live:
                    saves[t] = saves.get(t, saved) + gain[w]
            return sorted(t for t, most in saves.items() if least[t] < most)

        none = frozenset[str]()
        out = [(frozenset((t,)), none) for t in spare]
        few = (c for k in kernels for n in (2, 3) for c in combinations(sorted(k.reads & set(spare)), n))
        out += dict.fromkeys((frozenset(c), none) for c in few)
        out += [(none, frozenset((u,))) for u in worth(live, live, 0.0)]
        for t in spare:
            readers = [w for k in kernels if t in k.reads for w in k.writes]
            out += [(frozenset((t,)), frozenset((u,))) for u in worth(live - {t}, [t, *readers], self.kernels.priced(writer[t]))]
        return out
