"""A kernel whose outputs are the rows of a matrix that it folds: one axis along what each row has, as it lies in memory.

An output of shape (n, channels, height, width) that is normalised by groups of channels lies in memory as a matrix of n * groups rows, each
as long as what is folded for it.  Over the axes of that matrix a block can hold its row from the fold to the writing; over the output's own
axes the row has neither an axis for its number (a group is a quotient of the channel) nor one for the place in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import prod

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.lower.tile_to_kernel.address import normal

type Kernel = tuple[tuple[Value, ...], tuple[int, ...], dict[int, int]]     # bodies, the axes of the outputs, the extents of all axes


def as_matrix(bodies: tuple[Value, ...], axes: tuple[int, ...], extents: Mapping[int, int]) -> Kernel:
    """`bodies` at every point of `axes` (row-major), these axes, and the extents of all axes; where the outputs are rows, over the axes of
    the rows and one more, in the same places of memory.

    They are where every reduction that depends on output axes alone, and on at least one, depends on the axes before some axis a, on a // n
    for one n, and on no other, and has as many elements as there are points for each setting of these.
    """
    extents = dict(extents)
    free = loop.free_axes(bodies)
    folds = [v for v in loop.walk(bodies) if isinstance(v, loop.Reduction) and free[v] <= set(axes)]
    used = frozenset[int]().union(*(free[v] for v in folds))
    if not used or any(isinstance(v, loop.Scan) for v in folds):
        return bodies, axes, extents
    last = max(axes.index(a) for a in used)
    before, split, after = axes[:last], axes[last], axes[last + 1:]
    row, place = max(extents) + 1, max(extents) + 2
    behind = prod(extents[a] for a in after)
    for n in sorted(divisors(folds, split) | {1}, reverse=True):
        length = n * behind
        if extents[split] % n or any(extents[v.binds] != length for v in folds) or (n == 1 and len(after) < 2) or not set(before) <= used:
            continue
        within = ix.unflatten(Ax(place), (n, *(extents[a] for a in after)))
        at = dict(zip((split, *after), within, strict=True)) | {split: ix.add(ix.mul(Ax(row), n), within[0])}
        wider = extents | {row: extents[split] // n, place: length}
        made = moved(bodies, at, wider)
        here = loop.free_axes(tuple(made.values()))
        if all(place not in here[made[v]] for v in folds):
            return tuple(made[b] for b in bodies), (*before, row, place), wider
    return bodies, axes, extents


def divisors(roots: Sequence[Value], axis: int) -> set[int]:
    """By what index terms below `roots` divide what depends on `axis`."""
    found: set[int] = set()

    def enter(x: Ix) -> None:
        match x:
            case ix.IxDiv(a, n):
                found.update([n] if Ax(axis) in ix.leaves(a) else [])
                enter(a)
            case ix.IxAdd(a, b):
                enter(a)
                enter(b)
            case ix.IxMul(a, _) | ix.IxMod(a, _): enter(a)

    for v in loop.walk(tuple(roots)):
        for x in v.point if isinstance(v, loop.Load) else (v.at,) if isinstance(v, loop.IndexOf) else ():
            enter(x)
    return found


def moved(roots: Sequence[Value], at: Mapping[int, Ix], extents: dict[int, int]) -> dict[Value, Value]:
    """Each value below `roots` with an index term, in normal form, in the place of every axis of `at`."""
    made: dict[Value, Value] = {}

    def leaf(x: Ix) -> Ix:
        return at.get(x.a, x) if isinstance(x, Ax) else IxOf(made[x.value]) if isinstance(x, IxOf) else x

    def field(x: object) -> object:
        match x:
            case Value(): return made[x]
            case Ix(): return normal(ix.substitute(x, leaf), extents)
            case tuple(): return tuple(map(field, x))
        return x

    for v in loop.walk(tuple(roots)):
        made[v] = type(v)(*(field(getattr(v, f.name)) for f in dataclasses.fields(v)))
    return made
