"""Trees over the e-nodes of a traced region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import attrgetter

from emmy.egraph.provenance import ENode
from emmy.ir.node import Node, postorder


class Tree(Node):
    """A term: an e-node, and for each class of Value among its arguments a tree of that class."""

    node: ENode
    kids: tuple[Tree, ...]

    @cached_property
    def size(self) -> int:
        """How many nodes it has, shared ones counted each time."""
        return 1 + sum(k.size for k in self.kids)


def walk(roots: Iterable[Tree]) -> tuple[Tree, ...]:
    """Every tree below the roots once, operands before users."""
    return postorder(roots, attrgetter("kids"))


def replaced(tree: Tree, changes: Mapping[Tree, Tree]) -> Tree:
    """`tree` with other trees for every occurrence of some."""
    made: dict[Tree, Tree] = {}
    for t in walk((tree,)):
        made[t] = changes[t] if t in changes else Tree(t.node, tuple(made[k] for k in t.kids))
    return made[tree]


def replaced_at(tree: Tree, place: tuple[int, ...], changes: Mapping[Tree, Tree]) -> Tree:
    """`tree` with another tree for the one at a place."""
    if not place:
        return changes[tree]
    kids = (replaced_at(kid, place[1:], changes) if k == place[0] else kid for k, kid in enumerate(tree.kids))
    return Tree(tree.node, tuple(kids))
