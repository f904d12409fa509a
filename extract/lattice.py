"""Partition as a shortest path: a state is the set of tensors written so far, a step the kernel that writes one more.

Every partition is a path, since a kernel reads what was written before it, so the search is exhaustive.  Prices are asked lazily: of the
cheapest paths under what is known (prices, else floors), the kernels that have none yet; when those paths are priced throughout, nothing
can be cheaper.  The least that the missing outputs cost guides the search (A*).
"""

from __future__ import annotations

import heapq

from extract.kernels import Kernels
from extract.problem import Kernel, Solution, launches


def ranked(kernels: Kernels, count: int) -> tuple[Solution, ...]:
    """The `count` best sets of written tensors whose cheapest kernels read all of it, outputs aside, with these kernels."""
    while True:
        paths = _paths(kernels, count)
        unknown = next((u for _, path, _ in paths if (u := [k for k in path if not kernels.known(k)])), None)
        if unknown is None:
            return tuple(Solution(seconds, launches(kernels.problem, path)) for seconds, path, whole in paths if whole)
        for k in unknown:
            kernels.priced(k)


def tensors(kernels: Kernels) -> list[str]:
    """The tensors that some kernel on the way to the outputs could read, and the outputs."""
    found: set[str] = set()
    stack = list(kernels.problem.outputs)
    while stack:
        if (w := stack.pop()) not in found:
            found.add(w)
            stack += kernels.met(w, frozenset()) & kernels.problem.home.keys()
    return sorted(found)


def _paths(kernels: Kernels, count: int) -> list[tuple[float, tuple[Kernel, ...], bool]]:
    """The cheapest paths by `Kernels.estimate` to different sets, cheapest first, with whether what they write is read or an output;
    as many as it takes for `count` to be so."""
    names = tensors(kernels)
    outputs = frozenset(kernels.problem.outputs)
    start = frozenset[str]()
    ahead = sum(kernels.least[w] for w in outputs)
    heap: list[tuple[float, int, tuple[str, ...], float, frozenset[str], Kernel | None]] = [(ahead, 0, (), 0.0, start, None)]
    step: dict[frozenset[str], Kernel | None] = {}
    found: list[tuple[float, tuple[Kernel, ...], bool]] = []
    while heap and sum(whole for _, _, whole in found) < count:
        _, _, _, spent, written, last = heapq.heappop(heap)
        if written in step:
            continue
        step[written] = last
        if outputs <= written:
            path = _path(step, written)
            found.append((spent, path, written <= outputs.union(*(k.reads for k in path))))
        for w in names:
            if w not in written and written | {w} not in step and (k := kernels.kernel(w, written)) is not None:
                more, total = written | {w}, spent + kernels.estimate(k)
                ahead = sum(kernels.least[o] for o in outputs - more)
                heapq.heappush(heap, (total + ahead, len(more), tuple(sorted(more)), total, more, k))
    return found


def _path(step: dict[frozenset[str], Kernel | None], written: frozenset[str]) -> tuple[Kernel, ...]:
    path: list[Kernel] = []
    while (k := step[written]) is not None:
        path.append(k)
        written -= set(k.writes)
    return tuple(reversed(path))
