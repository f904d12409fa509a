"""A layered layout of classes: a class lies above those that its members are made of.

An order of the classes makes the drawing acyclic where the e-graph is not: an edge that leads forward in it decides the layers, one
that leads back does not.  Within its layer a class lies as near as it can to the mean of its neighbours, by sweeps that each solve a
least-squares problem with the cards kept apart (isotonic regression by pooling adjacent violators).  `page/place.js` is the same
procedure for the classes that are on the screen.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

SWEEPS = 12
Kids = Mapping[int, Sequence[Sequence[int]]]
"""The children of each member of each class."""


class Edge(NamedTuple):
    """From a class to a child of one of its members; `weight` is how much the edge wants to be short."""

    source: int
    target: int
    weight: float


def order(kids: Kids, chosen: Kids) -> list[int]:
    """Every class of `kids`, users before what they use as far as cycles admit.

    Strong components come in topological order; within one, classes come by descending height.  So every edge of a chosen member leads
    forward, but for those that close a cycle of chosen members."""
    classes = list(kids)
    number = {c: k for k, c in enumerate(classes)}
    ends = sorted({(number[c], number[k]) for c, members in kids.items() for below in members for k in below})
    sources, targets = [s for s, _ in ends], [t for _, t in ends]
    graph = coo_array(([True] * len(ends), (sources, targets)), shape=(len(classes), len(classes)))
    component = [int(k) for k in connected_components(graph, directed=True, connection="strong")[1]] if classes else []
    users: dict[int, set[int]] = {k: set() for k in component}
    for s, t in ends:
        if component[s] != component[t]:
            users[component[t]].add(component[s])
    position = {k: n for n, k in enumerate(TopologicalSorter(users).static_order())}
    height = heights(kids, chosen)
    return sorted(classes, key=lambda c: (position[component[number[c]]], -height.get(c, 0), c))


def heights(kids: Kids, chosen: Kids) -> dict[int, int]:
    """The height of every class with a finite term: of its `chosen` members over their children, and elsewhere of its lowest term."""
    height = _longest(chosen)
    users: dict[int, list[tuple[int, Sequence[int]]]] = {}
    ready: list[tuple[int, int]] = [(h, c) for c, h in height.items()]
    for c, members in kids.items():
        for below in members:
            for k in set(below):
                users.setdefault(k, []).append((c, below))
            if not below and c not in height:
                ready.append((0, c))
    heapq.heapify(ready)
    settled = set[int]()
    while ready:
        h, c = heapq.heappop(ready)
        if c in settled:
            continue
        settled.add(c)
        height.setdefault(c, h)
        for user, below in users.get(c, ()):
            if user not in height and all(k in settled for k in below):
                heapq.heappush(ready, (1 + max(height[k] for k in below), user))
    return height


def _longest(chosen: Kids) -> dict[int, int]:
    """The longest path below every class of `chosen`, found depth first; an edge back to a class whose search is open does not count."""
    height: dict[int, int] = {}
    opened = set[int]()
    stack = [(c, False) for c in sorted(chosen, reverse=True)]
    while stack:
        c, done = stack.pop()
        below = sorted({k for member in chosen.get(c, ()) for k in member})
        if done:
            height[c] = 1 + max((height[k] for k in below if k in height), default=-1)
        elif c not in opened:
            opened.add(c)
            stack.append((c, True))
            stack.extend((k, False) for k in reversed(below) if k not in opened)
    return height


def layers(classes: Collection[int], edges: Sequence[Edge], rank: Mapping[int, int]) -> list[list[int]]:
    """The classes of each layer by `rank`, their place in the order: each lies one after the last of those that lead forward to it."""
    depth = dict.fromkeys(classes, 0)
    below: dict[int, list[int]] = {}
    for edge in edges:
        if rank[edge.source] < rank[edge.target]:
            below.setdefault(edge.source, []).append(edge.target)
    found: list[list[int]] = []
    for c in sorted(classes, key=rank.__getitem__):
        for k in below.get(c, ()):
            depth[k] = max(depth[k], depth[c] + 1)
        found += [[] for _ in range(depth[c] + 1 - len(found))]
        found[depth[c]].append(c)
    return found


def place(height: Mapping[int, float], edges: Sequence[Edge], rank: Mapping[int, int], pitch: float,
          gap: float) -> dict[int, tuple[float, float]]:
    """(left, top) of a card of each class of `height`: `pitch` apart at least within a layer, and layers `gap` apart."""
    rows = layers(height, edges, rank)
    near: dict[int, list[tuple[int, float]]] = {c: [] for c in height}
    for edge in edges:
        near[edge.source].append((edge.target, edge.weight))
        near[edge.target].append((edge.source, edge.weight))
    left: dict[int, float] = {}
    for row in rows:      # first as they come, each below its users as far as these are placed
        _settle(row, {c: _mean(near[c], left, 0.0) for c in row}, pitch, left)
    for sweep in range(SWEEPS):
        for row in rows[::-1] if sweep % 2 == 0 else rows:
            _settle(row, {c: _mean(near[c], left, left[c]) for c in row}, pitch, left)
    placed: dict[int, tuple[float, float]] = {}
    top = 0.0
    for row in rows:
        placed |= {c: (left[c], top) for c in row}
        top += max(height[c] for c in row) + gap
    return placed


def _mean(near: Sequence[tuple[int, float]], left: Mapping[int, float], otherwise: float) -> float:
    """The weighted mean of the neighbours that are placed, added up in order: `sum` would compensate, which the page's script does not."""
    total = weighted = 0.0
    for c, weight in near:
        if c in left:
            total += weight
            weighted += left[c] * weight
    return weighted / total if total else otherwise


def _settle(row: list[int], wanted: Mapping[int, float], pitch: float, left: dict[int, float]) -> None:
    """Order a layer by the wanted places and give each class the nearest one to it that keeps the cards apart, in least squares."""
    row.sort(key=wanted.__getitem__)
    blocks: list[tuple[float, int]] = []        # of cards that touch: the sum of where each wants the first of the layer, and how many
    for k, c in enumerate(row):
        total, count = wanted[c] - k * pitch, 1
        while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:
            before, others = blocks.pop()
            total, count = total + before, count + others
        blocks.append((total, count))
    k = 0
    for total, count in blocks:
        for c in row[k:k + count]:
            left[c] = total / count + k * pitch
            k += 1
