"""What the threads of form "fold" keep in registers from one stage to the next.

The stages are the levels of folds, and then the writing of the columns.  Where every stage walks the same positions, a value that
one stage computes and a later one asks for, at the position along its own axis, is kept: a row's elements after its maximum, their
exponentials after the sum of these.  Of two such values, one below the other, the later stage needs the upper one only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from emmy.instructions.global_memory import LoadGlobalVector
from emmy.instructions.registers import DeclareArray
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Expr
from emmy.ir.loop_ir import Value
from emmy.lower.tensor_to_loop import rename
from emmy.lower.tile_to_kernel.address import vectorises
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter


def levels(kernel: tile.Kernel) -> list[list[tile.Fold]]:
    """The folds that the threads run together, by how many folds come before each.  A fold that depends on another's axis is
    not among them: it is nested in that one, and each thread runs it alone."""
    folds = {f.name: f for f in kernel.folds}
    outer = set(kernel.outer)
    depth: dict[str, int] = {}
    for f in kernel.folds:
        below = [v.fold for v in loop.walk(f.lifts) if isinstance(v, tile.FoldResult)]
        depth[f.name] = 1 + max((depth[n] for n in below if folds[n].span <= outer), default=-1)
    together = [f for f in kernel.folds if f.span <= outer]
    return [[f for f in together if depth[f.name] == d] for d in sorted({depth[f.name] for f in together})]


def stages(kernel: tile.Kernel, columns: tuple[int, ...]) -> list[list[tuple[tuple[Value, ...], int]]]:
    """What the threads compute one stage after the other, with the axis that is walked: the lifts of each level's folds, then the results
    along the columns."""
    return [*([(f.lifts, f.axis) for f in level] for level in levels(kernel)), [(kernel.results, a) for a in columns]]


class Kept(NamedTuple):
    """For each value that is kept, by position: the stage that computes it, and the last that asks for it."""

    stages: dict[Value, tuple[int, int]]

    @property
    def most(self) -> int:
        """How many are kept at once, at most."""
        return max((sum(first <= t < last for first, last in self.stages.values()) for t, _ in self.stages.values()), default=0)


@lru_cache(maxsize=1 << 12)
def kept(kernel: tile.Kernel, columns: tuple[int, ...]) -> Kept:
    """What the stages of `kernel` have in common where the result is written along `columns`."""
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for t, stage in enumerate(stages(kernel, columns)):
        met: list[Value] = []
        for roots, axis in stage:
            free = tile.free_axes(roots)
            last.update((at_position(v, axis), t) for v in along(roots, axis, lambda p: p in first) if at_position(v, axis) in first)
            met += [at_position(v, axis) for v in free if eligible(v, axis, free)]
        for p in met:
            first.setdefault(p, t)
    return Kept({p: (first[p], t) for p, t in last.items()})


def along(roots: tuple[Value, ...], axis: int, stop: Callable[[Value], bool]) -> Iterator[Value]:
    """The values below `roots` that may be kept, users first, and none below one at whose position `stop` holds."""
    free = tile.free_axes(roots)
    seen, stack = set[Value](), list(roots)
    while stack:
        v = stack.pop()
        if v in seen or axis not in free[v]:
            continue
        seen.add(v)
        if eligible(v, axis, free):
            yield v
            if stop(at_position(v, axis)):
                continue
        stack.extend(v.operands)


def eligible(v: Value, axis: int, free: dict[Value, frozenset[int]]) -> bool:
    """Whether `v` is a number computed at each position of `axis`, from that position alone."""
    if axis not in free[v] or v.dtype is dt.bool_ or not isinstance(v, loop.Load | loop.Apply | loop.Conversion):
        return False
    return not any(isinstance(w, tile.FoldResult) and axis in w.needs or isinstance(w, loop.Load) and w.operands for w in loop.walk((v,)))


@lru_cache(maxsize=1 << 14)
def at_position(v: Value, axis: int) -> Value:
    """`v` with `axis` made nameless, so that values along different axes compare."""
    return rename(v, {axis: -1})


class Held:
    """The register arrays of what a thread keeps, by position and number of the run."""

    def __init__(self, kernel: tile.Kernel, columns: tuple[int, ...]):
        self.kept = kept(kernel, columns).stages
        self.arrays: dict[tuple[Value, int], str] = {}

    def run(self, scope: Emitter, body: Emitter, roots: tuple[Value, ...], axis: int, start: Expr, width: int,
            number: int) -> tuple[dict[Value, str], dict[Value, str]]:
        """For run `number` of `roots` along `axis`, the arrays of values that are kept: those that are known, loads that lie in runs
        being read in `body`, and those that the run is to set."""
        known: dict[Value, str] = {}
        fresh: dict[Value, str] = {}
        for v in along(roots, axis, lambda p: (p, number) in self.arrays):
            key = at_position(v, axis), number
            if key in self.arrays:
                known[v] = self.arrays[key]
            elif key[0] in self.kept:
                fresh[v] = scope.name("x")
                scope.emit(DeclareArray(fresh[v], v.dtype, width, None))
        self.arrays |= {(at_position(v, axis), number): array for v, array in fresh.items()}
        loads = [v for v in fresh if isinstance(v, loop.Load) and v not in body.places]
        for v in loads:
            if width > 1 and not vectorises(body.kernel, v, axis, width):
                continue
            known[v] = fresh.pop(v)
            first = body.child()
            first.axes[axis] = start
            offset = first.offset(v.tensor, v.point)
            step = min(width, VECTOR_BYTES // v.element.bytes)
            body.emit(*first.body, *(LoadGlobalVector(known[v], k, v.tensor, offset + k, step) for k in range(0, width, step)))
        return known, {v: fresh[v] for v in loop.walk(roots) if v in fresh}
