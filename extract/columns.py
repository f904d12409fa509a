"""Partition with kernels as columns: extraction from a graph whose classes are tensors and whose nodes are kernels.

A kernel is a node of the tensor it writes, its children are the tensors it reads, its cost is its price.  Choosing a program is then
choosing a term with shared parts paid once, which `extract.exact` does with a proof.  A column that has no price yet counts at its floor;
prices are asked of those that a best choice holds, and of the likeliest to replace each of its kernels.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from extract import exact
from extract.graph import Choice, Graph, Node
from extract.kernels import Kernels
from extract.problem import Kernel, Key, Solution, launches


class Proof(NamedTuple):
    """The best partition among so many columns, a lower bound of all partitions among them, and whether the two meet."""

    solution: Solution
    bound: float
    proven: bool
    columns: int


def widen(kernels: Kernels, limit: float, most: int) -> None:
    """Extract kernels breadth-first until `most` bodies are known: of the outputs all that may read anything, then without one of the
    tensors that they read, and so on; likewise of each tensor read.  Kernels whose floor exceeds `limit` lead to no others."""
    every = frozenset(kernels.problem.home)
    queue = deque((o, frozenset[str]()) for o in kernels.problem.outputs)
    seen, bodies = set(queue), set(_columns(kernels))
    while queue and len(bodies) < most:
        w, without = queue.popleft()
        k = kernels.kernel(w, every - without - {w})
        if k is not None and k.floor <= limit:
            bodies.add(k.key)
            for step in ((t, some) for r in sorted(k.reads) for t, some in ((r, frozenset[str]()), (w, without | {r}))):
                if step not in seen:
                    seen.add(step)
                    queue.append(step)


def solve(kernels: Kernels, start: Solution, seconds: float = math.inf, rounds: int = 10**6, budget: float = math.inf) -> Proof:
    """The best partition of the kernels extracted so far and those of `start`, where the search begins.  It ends after so many seconds or
    rounds of choosing and pricing, each of a `budget` of deterministic time; without `seconds` it ends alike on every machine."""
    end = time.monotonic() + seconds
    best, bound, proven = start, 0.0, False
    columns = {k.key: k for k in start.kernels} | _columns(kernels)
    while not proven and rounds and (left := end - time.monotonic()) > 0:
        rounds -= 1
        graph, named = _graph(kernels, columns)
        found = exact.extract(graph, _hint(graph, best, named), budget, left)
        bound = max(bound, found.bound)
        chosen = launches(kernels.problem, (named[node.key] for node in found.choice.values()))
        proven = found.proven and all(map(kernels.known, chosen))
        best = min(best, Solution(sum(map(kernels.priced, chosen)), chosen), key=lambda s: s.seconds)
        for k in () if proven else chosen:
            rivals = [r for r in named.values() if r.writes == k.writes and not kernels.known(r) and r.floor < kernels.priced(k)]
            if rivals:
                kernels.priced(min(rivals, key=lambda r: r.floor))
    return Proof(best, min(bound, best.seconds), proven, len(columns))


def _columns(kernels: Kernels) -> dict[Key, Kernel]:
    return {k.key: k for k in kernels.found.values() if k}


def _graph(kernels: Kernels, columns: dict[Key, Kernel]) -> tuple[Graph, dict[str, Kernel]]:
    """The graph in seconds, and the kernel that each node's key stands for."""
    number = {w: n for n, w in enumerate(sorted(kernels.problem.home))}
    named = {str(n): k for n, k in enumerate(columns.values())}
    classes: dict[int, list[Node]] = {c: [] for c in number.values()}
    for name, k in named.items():
        (w,) = k.writes
        classes[number[w]].append(Node(w, tuple(number[t] for t in sorted(k.reads)), kernels.estimate(k), name))
    return Graph({c: tuple(nodes) for c, nodes in classes.items()}, tuple(number[o] for o in kernels.problem.outputs)), named


def _hint(graph: Graph, solution: Solution, named: dict[str, Kernel]) -> Choice:
    held = {k.key for k in solution.kernels}
    return {c: node for c, nodes in graph.classes.items() for node in nodes if named[node.key].key in held}
