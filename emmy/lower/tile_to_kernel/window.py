"""Form "window": a map whose neighbours along the output's last axis fold over overlapping parts of a tensor, as pooling does.

A thread computes a run of `width` neighbours, all their folds written out.  A load of one neighbour that lies where one of another does is
one load, by the normal form of its offset: with a last axis of runs, a window's place in a line is a multiple of the run plus a constant,
and loads of one line whose constants lie in an aligned piece of 16 bytes are one vector.  A condition on an index that holds wherever the
run lies, as that of padding does away from the border, is taken as known.

Row: WORK=t<threads>,TILE=v<width>,REDUCE=window.  The width divides the last axis; a tail of the grid is predicated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from emmy.instructions.control import If
from emmy.instructions.global_memory import LoadGlobalVector, StoreGlobalVector
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxConst
from emmy.ir.kernel_ir import Block, Element, Kernel, Thread, int32
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS
from emmy.lower.tile_to_kernel.address import UNBOUNDED, affine, normal, offset
from emmy.lower.tile_to_kernel.finish import finish
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter


class Vector(NamedTuple):
    """Loads that are one access: of `width` elements of a tensor from offset `start` on, the first of them, and the place of each."""

    tensor: str
    start: Ix
    width: int
    places: tuple[tuple[loop.Load, int], ...]


def lower(kernel: tile.Kernel, schedule: tile.Schedule) -> Kernel:
    """The Kernel IR of a map over windows; IRError where the width does not fit or folds are no reductions."""
    row = schedule.row
    threads, width = row.threads, int(row.tile.removeprefix("v") or 1)
    if row.reduce != "window" or not kernel.outer or kernel.shape[-1] % width or any(f.kind != "reduce" for f in kernel.folds):
        raise IRError(f"{kernel.name}: row {row}: a map over windows is spelled WORK=t128,TILE=v4,REDUCE=window, its width dividing the "
                      "last axis")
    flat = written_out(kernel, width)
    total = prod(flat.shape)
    outer = Emitter(flat)
    position = outer.let("t", outer.whole(Block(0)) * threads + outer.whole(Thread()))
    inner = outer.child()
    inner.place(flat.outer, position)
    for v in vectors(flat):
        array, element = inner.name("x"), v.places[0][0].element
        inner.emit(DeclareArray(array, element.compute, v.width, None), LoadGlobalVector(array, 0, v.tensor, inner.index(v.start), v.width))
        inner.values.update((load, Element(array, element.compute, int32(k))) for load, k in v.places)
    start = inner.let("o", inner.index(normal(ix.mul(ix.flatten(tuple(map(Ax, flat.outer)), flat.shape), width), flat.extents)))
    for n, t in enumerate(kernel.outputs):
        out = inner.name("y")
        inner.emit(DeclareArray(out, t.element.compute, width, None))
        for k, value in enumerate(flat.results[n * width:(n + 1) * width]):
            inner.emit(SetElement(out, t.element.compute, int32(k), inner.value(value)))
        step = gcd(width, VECTOR_BYTES // t.element.bytes)
        inner.emit(*(StoreGlobalVector(t.name, start + k, out, k, step) for k in range(0, width, step)))
    outer.emit(*inner.body) if total % threads == 0 else outer.emit(If(position < total, tuple(inner.body)))
    return finish(kernel, outer, (-(-total // threads), 1, 1), threads)


@lru_cache(maxsize=1 << 8)
def written_out(kernel: tile.Kernel, width: int) -> tile.Kernel:
    """The kernel over runs of its last axis: its results are, output after output, the values of the `width` neighbours of a run, and it
    has no folds."""
    *rest, last = kernel.outer
    run, free = max(kernel.extents) + 1, tile.free_axes(kernel.roots)
    extents = kernel.extents | {run: kernel.extents[last] // width}
    folds = {f.name: f for f in kernel.folds}
    made: dict[tuple[Value, tuple[tuple[int, Ix], ...]], Value] = {}

    def at(v: Value, place: Mapping[int, Ix]) -> Value:
        here = {a: x for a, x in place.items() if a in free[v]}
        key = v, tuple(sorted(here.items(), key=lambda item: item[0]))
        if key not in made:
            made[key] = build(v, here)
        return made[key]

    def build(v: Value, place: Mapping[int, Ix]) -> Value:
        def leaf(x: Ix) -> Ix:
            return place.get(x.a, x) if isinstance(x, Ax) else IxOf(at(x.value, place)) if isinstance(x, IxOf) else x

        def field(x: object) -> object:
            match x:
                case Value(): return at(x, place)
                case Ix(): return normal(ix.substitute(x, leaf), extents)
                case tuple(): return tuple(map(field, x))
            return x

        if isinstance(v, tile.FoldResult):
            f = folds[v.fold]
            return joined(MONOIDS[f.recipe].operator, [at(f.lifts[0], {**place, f.axis: IxConst(k)}) for k in range(extents[f.axis])])
        return settled(type(v)(*(field(getattr(v, f.name)) for f in dataclasses.fields(v))), extents)

    results = tuple(at(v, {last: ix.add(ix.mul(Ax(run), width), IxConst(k))}) for v in kernel.results for k in range(width))
    axes = *((a, kernel.extents[a]) for a in rest), (run, extents[run])
    return kernel.replace(axes=axes, inner=(), folds=(), results=results, schedule=None)


def joined(operator: str, values: list[Value]) -> Value:
    """A product of values, pairwise."""
    while len(values) > 1:
        values = [loop.Apply(operator, tuple(values[k:k + 2])) if k + 1 < len(values) else values[k] for k in range(0, len(values), 2)]
    return values[0]


def settled(v: Value, extents: Mapping[int, int]) -> Value:
    """`v`, or what it is wherever the axes are: comparisons of indices that their bounds decide, and what follows from these."""
    match v:
        case loop.Apply("lt" | "le" as op, (x, y)):
            bounds = interval(x, extents), interval(y, extents)
            if None not in bounds:
                (low, high), (least, most) = bounds  # type: ignore[misc]
                if high < least or op == "le" and high <= least:
                    return truth(True)
                if low > most or op == "lt" and low >= most:
                    return truth(False)
        case loop.Apply("and" | "or" as op, (x, y)):
            neutral = truth(op == "and")
            if x is neutral or y is neutral:
                return y if x is neutral else x
            if truth(op == "or") in (x, y):
                return truth(op == "or")
        case loop.Apply("select", (c, x, y)) if isinstance(c, loop.Const):
            return x if c is truth(True) else y
    return v


def truth(x: bool) -> loop.Const:
    return loop.Const(dt.bool_, dt.bits(dt.bool_, x))


def interval(v: Value, extents: Mapping[int, int]) -> tuple[int, int] | None:
    """The least and the largest value of an index or a whole number; None for others."""
    match v:
        case loop.IndexOf(x): return ix.bounds(x, lambda leaf: extents[leaf.a] if isinstance(leaf, Ax) else UNBOUNDED)
        case loop.Const(dt.i64, _): return (number := int(dt.value(v.element, v.bits))), number
    return None


@lru_cache(maxsize=1 << 8)
def vectors(flat: tile.Kernel) -> tuple[Vector, ...]:
    """The loads of a kernel written out that are vectors: two or more in an aligned piece of 16 bytes, or of less where a line's place is a
    multiple of less."""
    pieces: dict[tuple[str, frozenset[tuple[Ix, int]], int, int], list[tuple[loop.Load, int]]] = {}
    for v in loop.walk(flat.results):
        if isinstance(v, loop.Load) and not v.operands:
            terms, constant = affine(offset(flat, v.tensor, v.point))
            size = next(prod(t.shape) for t in flat.tensors if t.name == v.tensor)
            width = gcd(VECTOR_BYTES // v.element.bytes, size, *terms.values())
            pieces.setdefault((v.tensor, frozenset(terms.items()), constant // width * width, width), []).append((v, constant % width))
    made = []
    for (tensor, _, _, width), found in pieces.items():
        load, place = found[0]
        if width > 1 and len(found) > 1:
            start = normal(ix.add(offset(flat, tensor, load.point), IxConst(-place)), flat.extents)
            made.append(Vector(tensor, start, width, tuple(found)))
    return tuple(made)
