"""A layered layout of classes: a class lies above those that its members are made of.

An order of the classes makes the drawing acyclic where the e-graph is not: an edge that leads forward in it decides the layers, one
that leads back does not.  Within its layer a class lies as near as it can to the mean of its neighbours, by sweeps that each solve a
least-squares problem with the cards kept apart (isotonic regression by pooling adjacent violators).  Heavy edges that pass a layer get
a *lane* through it, one for all that lead to the same class, so that they run between the cards.  `page/place.js` is the same procedure
for the classes that are on the screen.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

SWEEPS, STRAIGHT = 12, 8       # passes over the layers; how much more a lane wants to be straight than an edge to be short
Kids = Mapping[int, Sequence[Sequence[int]]]
"""The children of each member of each class."""


class Edge(NamedTuple):
    """From a class to a child of one of its members; `weight` is how much the edge wants to be short, and over 1 it gets lanes."""

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


class Places(NamedTuple):
    """The upper left corners of the cards; the layer of each class; (middle, top, bottom) of the lane to a class through a layer."""

    corners: dict[int, tuple[float, float]]
    layer: dict[int, int]
    lanes: dict[tuple[int, int], tuple[float, float, float]]

    def between(self, source: int, target: int) -> tuple[tuple[float, float, float], ...]:
        """The lanes of an edge, from its source down; none unless they are there all the way."""
        by = [self.lanes.get((target, n)) for n in range(self.layer[source] + 1, self.layer[target])]
        return tuple(lane for lane in by if lane is not None) if None not in by else ()


def place(height: Mapping[int, float], edges: Sequence[Edge], rank: Mapping[int, int], width: float, lane: float, apart: float,
          gap: float) -> Places:
    """Cards of `width` and the height of each class, and lanes as wide as `lane`, `apart` within a layer; layers are a `gap` apart."""
    rows = layers(height, edges, rank)
    layer = {c: n for n, row in enumerate(rows) for c in row}
    size = dict.fromkeys(height, width)
    near: dict[int, list[tuple[int, float]]] = {c: [] for c in height}
    lanes: dict[tuple[int, int], int] = {}
    fresh = itertools.count(1 + max(height, default=-1))

    def join(a: int, b: int, weight: float) -> None:
        near[a].append((b, weight))
        near[b].append((a, weight))

    def into(target: int, n: int, weight: float) -> int:
        """The lane to a class through layer n, led on to the class; the class itself in its own layer."""
        last = target
        for m in range(layer[target] - 1, n - 1, -1):
            if (target, m) not in lanes:
                lanes[target, m] = made = next(fresh)
                size[made], near[made] = lane, []
                rows[m].append(made)
                join(made, last, weight if last == target else weight * STRAIGHT)
            last = lanes[target, m]
        return last

    for source, target, weight in edges:
        passes = weight > 1 and layer[source] < layer[target]
        join(source, into(target, layer[source] + 1, weight) if passes else target, weight)
    middle: dict[int, float] = {}
    for row in rows:      # first as they come, each below its users as far as these are placed
        _settle(row, {c: _mean(near[c], middle, 0.0) for c in row}, size, apart, middle)
    for sweep in range(SWEEPS):
        for row in rows[::-1] if sweep % 2 == 0 else rows:
            _settle(row, {c: _mean(near[c], middle, middle[c]) for c in row}, size, apart, middle)
    tops = [0.0]
    for row in rows:
        tops.append(tops[-1] + max(height[c] for c in row if c in height) + gap)
    return Places({c: (middle[c] - width / 2, tops[layer[c]]) for c in height}, layer,
                  {(target, n): (middle[c], tops[n], tops[n + 1] - gap) for (target, n), c in lanes.items()})


def _mean(near: Sequence[tuple[int, float]], middle: Mapping[int, float], otherwise: float) -> float:
    """The weighted mean of the neighbours that are placed, added up in order: `sum` would compensate, which the page's script does not."""
    total = weighted = 0.0
    for c, weight in near:
        if c in middle:
            total += weight
            weighted += middle[c] * weight
    return weighted / total if total else otherwise


def _settle(row: list[int], wanted: Mapping[int, float], size: Mapping[int, float], apart: float, middle: dict[int, float]) -> None:
    """Order a layer by the wanted middles and give each the nearest one to it that keeps all apart, in least squares."""
    row.sort(key=wanted.__getitem__)
    offset: list[float] = []                    # of each middle from the first, were all packed
    blocks: list[tuple[float, int]] = []        # of those that touch: the sum of where each wants the first, and how many
    for k, c in enumerate(row):
        offset.append(offset[-1] + (size[row[k - 1]] + size[c]) / 2 + apart if k else 0.0)
        total, count = wanted[c] - offset[k], 1
        while blocks and blocks[-1][0] * count >= total * blocks[-1][1]:
            before, others = blocks.pop()
            total, count = total + before, count + others
        blocks.append((total, count))
    k = 0
    for total, count in blocks:
        for c in row[k:k + count]:
            middle[c] = total / count + offset[k]
            k += 1
