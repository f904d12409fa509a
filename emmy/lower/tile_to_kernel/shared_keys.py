"""Heads of queries that share keys: an output axis that keys are read at the quotient of, as the two axes that it is made of.

Where a = g * o + i and keys and values are read at o = a // g alone, the g points of i are rows of one tile of scores: a block then reads
its keys once for all of them.  So a twist sees a kernel whose score has fewer other rows than an instruction multiplies; with more, each
point of i fills tiles of its own.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import prod

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxDiv
from emmy.ir.loop_ir import IxOf, Value
from emmy.lower.tile_to_kernel.address import normal

FEW = 16        # rows of one instruction


@lru_cache(maxsize=1 << 10)
def packed(kernel: tile.Kernel) -> tile.Kernel:
    """The same kernel with such an axis as two, outermost first, or itself where a twist has rows enough without."""
    twists = [f for f in kernel.folds if f.kind == "twist"]
    if len(twists) != 1 or len(twists[0].lifts) < 2:
        return kernel
    (score, *values), free = twists[0].lifts, tile.free_axes(kernel.roots)
    others = free[score].difference({twists[0].axis}, *(free[v] for v in values))
    quotients = {(leaf.x.a, leaf.n) for v in loop.walk(kernel.roots) if isinstance(v, loop.Load) for x in v.point for leaf in _quotients(x)
                 if isinstance(leaf.x, Ax) and leaf.x.a in kernel.outer}
    parts = [(a, n) for a, n in sorted(quotients) if 1 < n < kernel.extents[a] and kernel.extents[a] % n == 0]
    if prod(kernel.extents[a] for a in others) >= FEW or len(parts) != 1:
        return kernel
    return split(kernel, *parts[0])


def seen_by(kernel: tile.Kernel, schedule: tile.Schedule) -> tile.Kernel:
    """The kernel that has the axes of a schedule."""
    return kernel if {*schedule.rows, *schedule.columns, *schedule.batch} <= kernel.extents.keys() else packed(kernel)


def _quotients(x: Ix) -> list[IxDiv]:
    match x:
        case IxDiv(y, _): return [x, *_quotients(y)]
        case ix.IxAdd(y, z): return _quotients(y) + _quotients(z)
        case ix.IxMul(y, _) | ix.IxMod(y, _): return _quotients(y)
    return []


def split(kernel: tile.Kernel, axis: int, size: int) -> tile.Kernel:
    """The kernel with an output axis as two, axis = size * outer + inner: the same elements in the same order.  All output axes are
    numbered anew, in their order."""
    fresh = count(max(kernel.extents) + 1)
    axes: list[tuple[int, int]] = []
    to: dict[Ix, Ix] = {}
    for a, n in kernel.axes:
        axes += [(next(fresh), n)] if a != axis else [(next(fresh), n // size), (next(fresh), size)]
        to[Ax(a)] = Ax(axes[-1][0]) if a != axis else ix.add(ix.mul(Ax(axes[-2][0]), size), Ax(axes[-1][0]))
    extents = kernel.extents | dict(axes)
    made: dict[Value, Value] = {}

    def leaf(x: Ix) -> Ix:
        return IxOf(made[x.value]) if isinstance(x, IxOf) else to.get(x, x)

    def at(x: Ix) -> Ix:
        return normal(ix.substitute(x, leaf), extents)

    def rebuilt(root: Value) -> Value:
        for v in loop.walk((root,)):
            if v not in made:
                made[v] = loop.Load(v.tensor, v.element, tuple(map(at, v.point))) if isinstance(v, loop.Load) else (
                    loop.IndexOf(at(v.at)) if isinstance(v, loop.IndexOf) else with_operands(v, made))
        return made[root]

    folds: list[tile.Fold] = []
    for f in kernel.folds:
        lifts = tuple(map(rebuilt, f.lifts))
        upto = at(f.upto) if f.upto is not None else None
        free = tile.free_axes(lifts)
        shared = free[lifts[0]] if f.kind == "twist" else frozenset[int]()
        ends = loop.axes_of(upto, free) if upto is not None else frozenset[int]()
        folds.append(f.replace(lifts=lifts, upto=upto, needs=tuple((free[x] | shared) - {f.axis} | ends for x in lifts)))
        made.update((f.result(c), folds[-1].result(c)) for c in range(len(f.lifts)))
    outputs = tuple(t.replace(shape=tuple(n for _, n in axes)) for t in kernel.outputs)
    return kernel.replace(axes=tuple(axes), outputs=outputs, folds=tuple(folds), results=tuple(map(rebuilt, kernel.results)))


def with_operands(v: Value, made: dict[Value, Value]) -> Value:
    """`v` on what its operands were made to; a load or an index is itself."""
    match v:
        case loop.Apply(op, args): return loop.Apply(op, tuple(made[x] for x in args))
        case loop.Cast(element, x): return loop.Cast(element, made[x])
        case loop.Round(element, x): return loop.Round(element, made[x])
    return v
