"""What the rows of a kernel are judged by: the values it computes, how often, and the bytes and instruction slots that one takes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from math import prod
from typing import NamedTuple

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.ir.operators import OPERATORS, TWISTS
from emmy.lower.tile_to_kernel.address import LONG, by_runs, repeats, stride, usual_step
from emmy.lower.tile_to_kernel.held import Kept, at_position, kept, levels, stages
from emmy.lower.tile_to_kernel.shared_keys import seen_by
from emmy.lower.tile_to_kernel.untwist import untwisted
from extract.cost import NESTED_STEP_US, STEP_US

SECTOR = 32       # bytes that one access moves at least


class Part(NamedTuple):
    """What lanes along `axis` (none where it is negative) compute in a stage: `roots`, for each setting of the axes `over`."""

    roots: tuple[Value, ...]
    axis: int
    over: tuple[int, ...]


class Census:
    """The values of a kernel: how often each is computed when it is computed once for each setting of the axes in scope."""

    def __init__(self, kernel: tile.Kernel):
        self.kernel = kernel
        self.extents = kernel.extents
        self.tensors = {t.name: t for t in kernel.tensors}
        self.free = tile.free_axes(kernel.roots)
        self.written = sum(prod(t.shape) * t.element.bytes for t in kernel.outputs)
        self.dram = sum(self.touched().values()) + self.written

    def size(self, axes: Iterable[int]) -> int:
        return self.box(frozenset(axes))

    @cache  # noqa: B019  a census lives as long as the choice of one kernel's row
    def box(self, axes: frozenset[int]) -> int:
        return prod(self.extents[a] for a in axes)

    def touched(self) -> dict[str, float]:
        """Bytes of each tensor that are read at all."""
        out: dict[str, float] = {}
        for v in self.free:
            if isinstance(v, loop.Load):
                t = self.tensors[v.tensor]
                out[v.tensor] = max(out.get(v.tensor, 0), min(prod(t.shape), self.size(self.free[v])) * t.element.bytes)
        return out

    @cache  # noqa: B019
    def slots(self, roots: tuple[Value, ...], *always: int) -> float:
        """Instruction slots of all threads for `roots`, each value once for each setting of its axes and of `always`; folds below are
        not entered."""
        return sum(slots(v) * self.size(self.free[v] | set(always)) for v in loop.walk(roots))

    @cache  # noqa: B019
    def loads(self, roots: tuple[Value, ...]) -> list[loop.Load]:
        return [v for v in loop.walk(roots) if isinstance(v, loop.Load)]

    @cache  # noqa: B019
    def stride(self, load: loop.Load, axis: int) -> int | None:
        return stride(self.kernel, load, axis)

    def sectors(self, load: loop.Load, lane: int, width: int) -> float:
        """Bytes that one element of a load moves when neighbouring threads are neighbours along axis `lane`."""
        step, size = self.stride(load, lane), self.tensors[load.tensor].element.bytes
        if step == 0:
            return size / 8
        if each := repeats(self.kernel, load, lane, width):
            return size / each
        if (each := self.alike(load, lane, width)) > 1:
            return size / each
        # element by element, neighbouring threads are `width` elements apart
        return min(SECTOR, size * max(1, abs(usual_step(self.kernel, load, lane) if step is None else step) * width))

    @cache  # noqa: B019
    def alike(self, value: Value, axis: int, width: int) -> int:
        """How many neighbours along `axis` a thread that walks it in runs of `width` computes `value` once for."""
        return width if width > LONG and axis in self.free[value] and by_runs(self.kernel, (value,), axis, width) else 1

    @cache  # noqa: B019
    def position(self, value: Value, axis: int) -> Value:
        return at_position(value, axis)

    def seen_by(self, schedule: tile.Schedule) -> Census:
        """That of the kernel that has the axes of a schedule."""
        kernel = seen_by(self.kernel, schedule)
        return self if kernel is self.kernel else census_of(kernel)

    @cache  # noqa: B019
    def kept(self, columns: tuple[int, ...]) -> Kept:
        """What a row in registers computes once, by position."""
        return kept(self.kernel, columns)

    def asked(self, roots: tuple[Value, ...], axis: int, known: Container[Value]) -> list[Value]:
        """The values that computing `roots` asks for, those at a `known` position of `axis` being there already."""
        seen: dict[Value, None] = {}
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v not in seen and not (known and axis in self.free[v] and self.position(v, axis) in known):
                seen[v] = None
                stack.extend(v.operands)
        return list(seen)

    def stages(self, columns: tuple[int, ...]) -> list[list[Part]]:
        """The stages of the kernel's folding and writing (`held.stages`)."""
        return [[Part(roots, axis, (axis,)) for roots, axis in stage] for stage in stages(self.kernel, columns)]

    def walk(self, stages: Sequence[Sequence[Part]], scope: Iterable[int],
             kept: Container[Value] = ()) -> Iterator[tuple[int, Part, Value, int]]:
        """The values that each stage asks for: its number, the part, the value, and how many settings its axes, `scope` and those of the
        part have.  Values at a `kept` position are asked for by the first stage alone that does."""
        always, known = frozenset(scope), set[Value]()
        for k, stage in enumerate(stages):
            found = set[Value]()
            for part in stage:
                for v in self.asked(part.roots, part.axis, known):
                    found.add(self.position(v, part.axis))
                    yield k, part, v, self.size(self.free[v] | always.union(part.over))
            known |= {p for p in found if p in kept}

    @cached_property
    def untwisted(self) -> Census:
        """Of the kernel with its softmax folds taken apart."""
        return Census(untwisted(self.kernel))

    @cached_property
    def levels(self) -> list[list[tile.Fold]]:
        return levels(self.kernel)

    @cached_property
    def around(self) -> dict[str, tuple[int, ...]]:
        """The axes of the folds inside whose loops each fold is run, by its name, outermost first."""
        found: dict[str, tuple[int, ...]] = dict.fromkeys((f.name for f in self.kernel.folds), ())
        spans = {f.name: f.span for f in self.kernel.folds}
        for f in reversed(self.kernel.folds):
            loops = *found[f.name], f.axis
            for v in loop.walk(f.lifts):
                if isinstance(v, tile.FoldResult):
                    inside = max((k for k, a in enumerate(loops, 1) if a in spans[v.fold]), default=0)
                    found[v.fold] = max(found[v.fold], loops[:inside], key=lambda axes: self.size(axes))
        return found

    def steps(self, f: tile.Fold) -> frozenset[int]:
        """The axes whose points are the steps that a fold takes, all of its runs together."""
        return f.span.union(self.around[f.name], (f.axis,))

    @cached_property
    def nested(self) -> list[Part]:
        """What the folds inside others compute, which each thread runs alone."""
        together = {f for level in self.levels for f in level}
        return [Part(f.lifts, -1, (f.axis, *self.around[f.name])) for f in self.kernel.folds if f not in together]

    @cached_property
    def nested_steps(self) -> float:
        """Dependent rounds of loads that folds inside others take of a thread."""
        outer = set(self.kernel.outer)
        return sum(self.size(self.steps(f) - outer) * NESTED_STEP_US / STEP_US for f in self.kernel.folds if not f.span <= outer)


def slots(v: Value) -> float:
    """Instruction slots of one value."""
    return OPERATORS[v.op].flops if isinstance(v, loop.Apply) else 1 if isinstance(v, loop.Load | loop.Cast | loop.Round) else 0


@lru_cache(maxsize=8)
def census_of(kernel: tile.Kernel) -> Census:
    return Census(kernel)


def fold_slots(census: Census, f: tile.Fold) -> float:
    """Slots of combining: one an element for a reduce (none where a product precedes a sum: they are one multiply-add), more for a
    twist."""
    n = census.size(census.steps(f))
    if f.kind == "twist":
        score = census.size(census.free[f.lifts[0]] | {f.axis})
        each, values = TWISTS[f.recipe].pivot + TWISTS[f.recipe].weight + 4.2, f.lifts[1:]
        return each * score + sum(census.size(census.free[x] | census.free[f.lifts[0]] | {f.axis}) for x in values)
    fused = f.recipe == "add" and isinstance(f.lifts[0], loop.Apply) and f.lifts[0].op == "mul"
    return 0 if fused else n


def element_bytes(census: Census) -> int:
    """Bytes of the smallest element that the kernel touches."""
    return min((t.element.bytes for t in (*census.kernel.tensors, *census.kernel.outputs)), default=4)


def in_flight(census: Census, width: int) -> float:
    """Bytes of one access of a thread that count as under way: one of more than 16 bytes is several, each of half a sector or less."""
    size = width * element_bytes(census)
    return size if size <= 16 else 8


def width_of(row: tile.Row) -> int:
    return int(row.tile.removeprefix("v") or 1) if not row.tile or row.tile.startswith("v") else 1
