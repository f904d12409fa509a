"""Derivations: from the program as written to the program extracted, one rule at a time.

The members of a class are joined by matches of rules (`emmy.egraph.provenance`).  To turn one tree into another of its class, walk from
root to root along those matches, before each of them making its nested pattern true in the operands, and then turn operand by operand.
What instantiates templates and replaces axes is bookkeeping, done at once: no step of its own.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from emmy.egraph.forest import Forest, Trees
from emmy.egraph.pattern import Bindings, Form, Hole, Pattern, subforms
from emmy.egraph.provenance import Edge, ENode
from emmy.egraph.trees import Tree, replaced, replaced_at, walk
from extract.partition import Kernel

FUSE = "fuse"
FUEL, DEPTH = 4_000, 60        # moves of one derivation, and patterns within patterns
FORWARD, BACKWARD, ANY = 2, 3, 6


class Step(NamedTuple):
    """One application of a rule in the body of `tensor`: each tree of `changes` for another, wherever it stands, or at one place if the
    rule opens any value.  `forward` if from the rule's premise to its action; `rule` is "" where several steps could not be put in order.
    `bodies`: every tensor's body after it."""

    rule: str
    forward: bool
    tensor: str
    changes: Mapping[Tree, Tree]
    bodies: Mapping[str, Tree]


class Derivation(NamedTuple):
    """The bodies of the tensors as written, and the steps."""

    written: Mapping[str, Tree]
    steps: tuple[Step, ...]


class Lost(Exception):
    """No way was found within the budget."""


class _Way(NamedTuple):
    """An edge in one direction."""

    edge: Edge
    forward: bool
    start: ENode | None     # None: any member of the class
    end: ENode | None


class Deriver:
    """Turns bodies into others of their classes, step by step."""

    def __init__(self, forest: Forest, written: Mapping[str, Tree]):
        self.forest, self.provenance = forest, forest.provenance
        self.bodies = dict(written)
        self.steps: list[Step] = []
        self.fuel = FUEL
        self.known: dict[int, dict[ENode | None, list[_Way]]] = {}

    def derive(self, tensor: str, goal: Tree) -> None:
        """Turn a tensor's body into `goal`; where no order of steps is found, in one step without a rule."""
        self.fuse(tensor, frozenset(self.forest.loads((goal,))))
        self.fuel = FUEL
        begin, done = self.bodies[tensor], len(self.steps)
        try:
            self.reach(tensor, (), goal)
        except (Lost, RecursionError):
            del self.steps[done:]
            self.bodies[tensor] = begin
            self.take("", True, tensor, {begin: goal})

    def fuse(self, tensor: str, kept: frozenset[str]) -> None:
        """Put the bodies of the tensors that a body loads and that are not `kept` in their place, one tensor a step."""
        for name in reversed([t for t in self.forest.bodies if t not in kept]):      # users before what they use
            loads = [t for t in walk((self.bodies[tensor],)) if t.node.op == "Tensor" and t.node.args[0] == name]
            fusions = {t: self.forest.fused(t) for t in loads}
            if fusions:
                self.take(FUSE, True, tensor, fusions)

    def take(self, rule: str, forward: bool, tensor: str, changes: Mapping[Tree, Tree], place: tuple[int, ...] | None = None) -> None:
        """Record a step, at one place or everywhere."""
        self.bodies[tensor] = replaced(self.bodies[tensor], changes) if place is None else replaced_at(self.bodies[tensor], place, changes)
        copies = self.forest.region.copies.keys() & set(self.forest.loads(changes.values()))
        self.bodies |= {name: self.forest.copied(name) for name in sorted(copies)}
        self.steps.append(Step(rule, forward, tensor, changes, dict(self.bodies)))

    def keep(self, tensor: str, body: Tree) -> None:
        """Keep a value in a tensor of its own where bodies have it, if one does."""
        reads = self.forest.reads.get(tensor, {})
        met = {name: [t for t in walk((tree,)) if t in reads] for name, tree in self.bodies.items() if name != tensor}
        changes = {t: reads[t] for trees in met.values() for t in trees}
        if changes:
            self.bodies |= {name: replaced(self.bodies[name], changes) for name, trees in met.items() if trees}
            self.bodies.setdefault(tensor, body)
            rule = next(iter(self.provenance.keeps.get(self.forest.home(body), ())), "")
            self.steps.append(Step(rule, True, tensor, changes, dict(self.bodies)))

    def at(self, tensor: str, place: tuple[int, ...]) -> Tree:
        """The subtree at a place, which is the way down to it."""
        tree = self.bodies[tensor]
        for k in place:
            tree = tree.kids[k]
        return tree

    # -- turning trees ------------------------------------------------------------------------------------------
    def reach(self, tensor: str, place: tuple[int, ...], goal: Tree) -> None:
        """Turn the subtree at a place into `goal`: of the roots that differ the one of the largest tree first, for what a rule matches
        there may share what is smaller."""
        for _ in range(4):
            if self.at(tensor, place) is goal:
                return
            heap, met = [(0, place, goal)], set[tuple[Tree, Tree]]()
            while heap:
                _, where, wanted = heapq.heappop(heap)
                now = self.at(tensor, where)
                if now is not wanted and (now, wanted) not in met:
                    met.add((now, wanted))      # the same elsewhere turns with it
                    self.turn(tensor, where, wanted.node)
                    for k, kid in enumerate(wanted.kids):
                        heapq.heappush(heap, (-self.at(tensor, (*where, k)).size, (*where, k), kid))
        raise Lost

    def turn(self, tensor: str, place: tuple[int, ...], root: ENode) -> None:
        """Give the subtree at a place the root `root`."""
        if len(place) > DEPTH:
            raise Lost
        while (tree := self.at(tensor, place)).node != root:
            self.fuel -= 1
            if self.fuel < 0:
                raise Lost
            way = self.first(tree, root)
            if way is None:
                self.turn_image(tensor, place, root)
                return
            start, end = (way.edge.left, way.edge.right) if way.forward else (way.edge.right, way.edge.left)
            trees = self.fit(tensor, place, start, way.edge.bindings)
            before, after = self.at(tensor, place), self.forest.instance(end, way.edge.bindings, trees)
            if after is before:
                raise Lost
            at = place if way.start is None else None       # not everywhere: what it makes has what it opens
            self.take(way.edge.rule.name, way.forward, tensor, {before: after}, at)

    def turn_image(self, tensor: str, place: tuple[int, ...], root: ENode) -> None:
        """`turn` where both roots are images, of members of another class, and rules joined those."""
        tree = self.at(tensor, place)
        for image in self.forest.images(self.forest.home(tree)):
            before, wanted = self.forest.unpushed(tree, image), self.forest.sources(image, root)
            if before is None or not wanted:
                continue
            inner = Deriver(self.forest, {tensor: before})
            inner.turn(tensor, (), wanted[0])
            for step in inner.steps:
                changes = {self.forest.image(image, a): self.forest.image(image, b) for a, b in step.changes.items()}
                self.take(step.rule, step.forward, tensor, changes)
            if self.at(tensor, place).node == root:
                return
        raise Lost

    def fit(self, tensor: str, place: tuple[int, ...], pattern: Pattern, env: Bindings) -> Trees:
        """Make the subtree at a place an instance of `pattern`; what its variables are there."""
        for _ in range(4):
            self.make(tensor, place, pattern, env, {})
            trees = self.forest.match(pattern, env, self.at(tensor, place))
            if trees is not None:
                return trees
        raise Lost

    def make(self, tensor: str, place: tuple[int, ...], pattern: Pattern, env: Bindings, met: dict[str, tuple[int, ...]]) -> None:
        """Turn the subtree at a place into an instance of `pattern`, whose variables were `met` at some places before; of two trees for
        one variable, the larger into the smaller."""
        match pattern:
            case Hole(name) if name in met:
                first, second = ((tree.size, where, tree) for where in (met[name], place) for tree in [self.at(tensor, where)])
                smaller, larger = (first, second) if first[0] <= second[0] else (second, first)
                self.reach(tensor, larger[1], smaller[2])
            case Hole(name):
                met[name] = place
            case Form(op) if op in self.forest.administrative:
                self.reach(tensor, place, self.forest.instance(pattern, env, {name: self.at(tensor, where) for name, where in met.items()}))
            case Form(op, args, name):
                self.turn(tensor, place, self.provenance.node(pattern, env))
                for k, position in enumerate(self.provenance.values[op]):
                    self.make(tensor, (*place, k), args[position], env, met)
                if name:
                    met[name] = place

    # -- from root to root --------------------------------------------------------------------------------------
    def first(self, tree: Tree, root: ENode) -> _Way | None:
        """The first edge of the shortest way from a tree to a member of its class; None if its edges lead to none."""
        ways = self.ways(self.provenance.home[root])
        serial = count()
        heap: list[tuple[int, int, ENode | None, _Way | None]] = [(0, next(serial), tree.node, None)]
        settled: set[ENode | None] = set()
        while heap:
            cost, _, here, begun = heapq.heappop(heap)
            if here in settled:
                continue
            settled.add(here)
            if here == root and begun is not None:
                return begun
            if here is None:        # what a variable stands for may be turned into any member
                heapq.heappush(heap, (cost + ANY, next(serial), root, begun))
                continue
            for way in (*ways.get(here, ()), *ways.get(None, ())):
                end = way.end
                if end is None and begun is None:
                    start = way.edge.left if way.forward else way.edge.right
                    trees = self.forest.match(start, way.edge.bindings, tree)
                    variable = way.edge.right if way.forward else way.edge.left
                    assert isinstance(variable, Hole)
                    inner = trees[variable.name] if trees and variable.name in trees else None
                    end = inner.node if isinstance(inner, Tree) and inner.node != here else None
                heapq.heappush(heap, (cost + (FORWARD if way.forward else BACKWARD), next(serial), end, begun or way))
        return None

    def ways(self, c: int) -> dict[ENode | None, list[_Way]]:
        """The edges of a class by where they start, both directions, bookkeeping left out."""
        if c not in self.known:
            made: dict[ENode | None, list[_Way]] = defaultdict(list)
            for edge in self.provenance.edges.get(c, ()):
                if self.forest.bookkeeping(edge.rule):
                    continue
                source, target = (self.forest.pushed(n) if n else None for n in (edge.source, edge.target))
                if source == target:
                    continue
                made[source].append(_Way(edge, True, source, target))
                if all(f.op not in self.forest.administrative or not self.provenance.values[f.op] for f in subforms(edge.right)):
                    made[target].append(_Way(edge, False, target, source))
            self.known[c] = made
        return self.known[c]


def derivation(forest: Forest, kernels: dict[str, Kernel]) -> Derivation:
    """From the program as written to `kernels`, by the tensor that each writes, in launch order."""
    deriver = Deriver(forest, forest.bodies)
    for tensor in kernels:
        if tensor in forest.bodies:
            deriver.derive(tensor, forest.goal(kernels, tensor))
            for other in reversed(kernels):      # readers before what they read
                if other not in forest.bodies:
                    deriver.keep(other, forest.goal(kernels, other))
    return Derivation(forest.bodies, tuple(deriver.steps))
