"""The nouns of partition: a program's values and how each can be computed, a kernel, a solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple


class Member(NamedTuple):
    """One way to compute a class.

    `parts` are the costs it adds, each by a key under which it is paid once a kernel: (key, seconds, "memory" | "work").
    `tensor` is what it loads if it is a load; `spelling` orders equal members.  `loop` is the axis that it runs over, if it folds; it
    `holds` if what is folded inside its loop can be computed for many of its points at once.
    """

    spelling: str
    kids: tuple[int, ...]
    parts: tuple[tuple[str, float, str], ...]
    tensor: str = ""
    loop: int | None = None
    holds: bool = False


class Problem(NamedTuple):
    """`home`: the class a tensor's kernel computes; `traffic`: seconds to write a tensor; `named`: tensors of the program;
    `outputs`: those that must be kept; `inputs`: those that always can be read; `solid`: those that cost more to compute again than to
    read; `launch`: seconds a kernel costs at least; `rent`: what keeping a tensor between kernels costs besides the kernels, as (seconds,
    times its traffic): one launch more for the host, and the room it takes from other data in caches and memory.  `axes` are those that a
    class with loops depends on, `extents` their lengths; `step`: the least seconds that one step of a loop takes.  `shapes`: the points at
    which a tensor is computed: those of one shape can be written by one kernel.  `beside`: further classes that a tensor's kernel computes,
    components of it that are written and read with it.  `copies`: tensors that hold what an input does, in another order.  `lasting`:
    tensors that stay as they are from call to call: a kernel that reads such alone, and writes such, runs once for all calls, so that one
    of its `calls` pays a part of its seconds and rent."""

    members: dict[int, tuple[Member, ...]]
    home: dict[str, int]
    traffic: dict[str, float]
    named: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: frozenset[str]
    solid: frozenset[str]
    launch: float
    rent: tuple[float, float] = (0.0, 0.0)
    axes: Mapping[int, frozenset[int]] = {}
    extents: Mapping[int, int] = {}
    step: float = 0.0
    shapes: Mapping[str, tuple[int, ...]] = {}
    beside: Mapping[str, tuple[int, ...]] = {}
    copies: frozenset[str] = frozenset()
    lasting: frozenset[str] = frozenset()
    calls: int = 1

    def once(self, writes: Iterable[str], body: Iterable[Member]) -> bool:
        """Whether a kernel runs once for all calls."""
        loads = {m.tensor for m in body if m.tensor}
        return bool(loads) and self.lasting.issuperset(loads) and self.lasting.issuperset(writes)

    def size(self, axes: Iterable[int]) -> float:
        """Points of a box."""
        return prod((self.extents[a] for a in axes), start=1.0)


class Body(tuple[tuple[int, Member], ...]):
    """One member a class, in the order of the classes, hashed once."""

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = super().__hash__()
        return known


Key = tuple[tuple[str, ...], Body]
"""What a kernel writes and its body."""


class Kernel(NamedTuple):
    """A kernel: the tensors it writes, the class of each, its body (one member a class, from these roots down), what it reads, its least
    seconds; `beside`: the further classes of what it writes, roots as well."""

    writes: tuple[str, ...]
    roots: tuple[int, ...]
    body: Body
    reads: frozenset[str]
    floor: float
    beside: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        return self.writes, self.body

    def root(self, tensor: str) -> int:
        """The class of a tensor that it writes."""
        return self.roots[self.writes.index(tensor)]


class Solution(NamedTuple):
    """Kernels in launch order and the seconds they are priced at."""

    seconds: float
    kernels: tuple[Kernel, ...]

    @property
    def kept(self) -> frozenset[str]:
        """The tensors that it writes."""
        return frozenset(w for k in self.kernels for w in k.writes)


def launches(problem: Problem, kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Kernels in launch order: the outputs in theirs, each after what it reads by name."""
    writer = {w: k for k in kernels for w in k.writes}
    order: dict[Key, Kernel] = {}
    stack = [(o, False) for o in reversed(problem.outputs)]
    while stack:
        w, ready = stack.pop()
        k = writer[w]
        if ready:
            order.setdefault(k.key, k)
        elif k.key not in order:
            stack += [(w, True), *((r, False) for r in sorted(k.reads, reverse=True))]
    return tuple(order.values())
