"""Where a load lies in memory: row-major offsets in a normal form, their strides along an axis, and runs that are one access.

A reshape leaves quotients and remainders in a point, (r // n, r % n), that cancel in the offset, n * (r // n) + r % n = r.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import Value

LONG = 8                    # elements of a run beyond which it is worth finding what is alike in all of it, and what is known at each place
RUN, LANE = -1, -2          # axes that no kernel has: the number of a run, and the place in it
UNBOUNDED = 1 << 62         # what a value that is used as an index is below


@lru_cache(maxsize=1 << 14)
def offset(kernel: tile.Kernel, tensor: str, point: tuple[Ix, ...]) -> Ix:
    """The row-major offset of a point of a tensor of `kernel`."""
    shape = next((t.shape for t in kernel.tensors if t.name == tensor), kernel.shape)
    return normal(ix.flatten(point, shape), kernel.extents)


def lies_as_output(kernel: tile.Kernel, load: loop.Load) -> bool:
    """Whether a load of `kernel` is made where the outputs are written: at the same offset, for every point."""
    return offset(kernel, load.tensor, load.point) is offset(kernel, kernel.outputs[0].name, tuple(map(Ax, kernel.outer)))


def lies_in_rows(kernel: tile.Kernel, load: loop.Load, rows: tuple[int, ...], axis: int) -> bool:
    """Whether a load of `kernel` along `axis` lies as a tensor of rows, one for each point of `rows`, each as long as the axis."""
    axes = *(a for a in kernel.outer if a in rows), axis
    place = normal(ix.flatten(tuple(map(Ax, axes)), tuple(kernel.extents[a] for a in axes)), kernel.extents)
    return offset(kernel, load.tensor, load.point) is place


def normal(x: Ix, extents: dict[int, int]) -> Ix:
    """An equal term, in normal form unless that divides what may be negative, which machines round to zero."""
    def extent(leaf: Ix) -> int:
        return extents[leaf.a] if isinstance(leaf, Ax) else UNBOUNDED

    simple = ix.simplify(x, extent)
    return simple if all(ix.bounds(part, extent)[0] >= 0 for part in divided(simple)) else x


def raised(x: Ix, n: int, extents: dict[int, int]) -> int:
    """How many times n is to be added to `x` so that it is nowhere negative: machines round quotients to zero, and index terms down.
    A value that is used as an index, and an axis that is not among `extents`, is taken to be nowhere subtracted."""
    least, _ = ix.bounds(x, lambda leaf: extents.get(leaf.a, 1) if isinstance(leaf, Ax) else 1)
    return max(-(least // n), 0)


def in_runs(kernel: tile.Kernel, x: Ix, axis: int, width: int) -> Ix:
    """`x` with the axis as (number of a run of `width`, place in it), axes RUN and LANE."""
    run = ix.add(ix.mul(Ax(RUN), width), Ax(LANE))
    extents = kernel.extents | {RUN: -(-kernel.extents[axis] // width), LANE: width}
    return normal(ix.substitute(x, lambda leaf: run if leaf is Ax(axis) else leaf), extents)


def at_place(kernel: tile.Kernel, x: Ix, axis: int, width: int, place: int) -> Ix:
    """`x` where the axis is at a place of a run of `width`: a constant if that tells it, else `x`."""
    told = normal(ix.substitute(in_runs(kernel, x, axis, width), lambda leaf: ix.IxConst(place) if leaf is Ax(LANE) else leaf),
                  kernel.extents | {RUN: -(-kernel.extents[axis] // width)})
    return told if isinstance(told, ix.IxConst) else x


def by_runs(kernel: tile.Kernel, roots: tuple[Value, ...], axis: int, width: int) -> bool:
    """Whether values read alike at all places of a run of `width` along `axis`: they depend on the number of the run alone."""
    terms = [offset(kernel, v.tensor, v.point) for v in loop.walk(roots) if isinstance(v, loop.Load)]
    terms += [v.at for v in loop.walk(roots) if isinstance(v, loop.IndexOf)]
    return all(LANE not in loop.axes_of(in_runs(kernel, x, axis, width)) for x in terms)


def divided(x: Ix) -> list[Ix]:
    """What the quotients and remainders in a term divide."""
    match x:
        case ix.IxAdd(a, b): return divided(a) + divided(b)
        case ix.IxMul(a, _): return divided(a)
        case ix.IxDiv(a, _) | ix.IxMod(a, _): return [a, *divided(a)]
    return []


def affine(x: Ix) -> tuple[dict[Ix, int], int]:
    """`x` as (coefficient of each leaf, constant); quotients and remainders count as leaves."""
    match x:
        case ix.IxConst(n): return {}, n
        case ix.IxAdd(a, b):
            (left, m), (right, n) = affine(a), affine(b)
            return {k: left.get(k, 0) + right.get(k, 0) for k in {**left, **right}}, m + n
        case ix.IxMul(a, n):
            inner, m = affine(a)
            return {k: c * n for k, c in inner.items()}, m * n
    return {x: 1}, 0


def step(x: Ix, axis: int) -> int | None:
    """How far apart `x` lies for neighbours along `axis`; None where that varies."""
    terms, _ = affine(x)
    if any(axis in loop.axes_of(leaf) for leaf in terms if not isinstance(leaf, Ax)):
        return None
    return terms.get(Ax(axis), 0)


def stride(kernel: tile.Kernel, load: loop.Load, axis: int) -> int | None:
    """How far apart in memory a load of `kernel` lies for neighbours along `axis`; None where that varies."""
    return step(offset(kernel, load.tensor, load.point), axis)


@lru_cache(maxsize=1 << 14)
def usual_step(kernel: tile.Kernel, load: loop.Load, axis: int) -> int:
    """How far apart a load lies for neighbours in the middle of `axis`, the other axes being there too: its stride but for the places
    where a quotient or remainder begins anew.  A value used as an index counts as any other place."""
    at, extents = offset(kernel, load.tensor, load.point), kernel.extents
    if axis not in extents:
        return UNBOUNDED
    middle = {a: n // 2 for a, n in extents.items()}

    def place(k: int) -> int:
        return int(ix.evaluate(at, lambda leaf: {**middle, axis: k}[leaf.a] if isinstance(leaf, Ax) else k << 20))

    return min((b - a for a, b in pairwise(map(place, range(middle[axis] - 1, middle[axis] + 2)))), key=abs)


def vectorises(kernel: tile.Kernel, load: loop.Load, axis: int, width: int) -> bool:
    """Whether every `width` neighbours along `axis` from a multiple of `width` are one aligned run, for every setting of the other axes."""
    return repeats(kernel, load, axis, width) == 1


@lru_cache(maxsize=1 << 14)
def repeats(kernel: tile.Kernel, load: loop.Load, axis: int, width: int) -> int:
    """How many neighbours along `axis` read one element where every `width` of them, from a multiple of `width`, read one aligned run, for
    every setting of the other axes; 0 where they do not.  It is 1 for elements one after the other, 2 where a byte holds two numbers."""
    if width <= 1 or axis not in kernel.extents:
        return 0
    at = offset(kernel, load.tensor, load.point)
    if any(axis in loop.axes_of(leaf) for leaf in ix.leaves(at) if not isinstance(leaf, Ax)):
        return 0
    terms, constant = affine(in_runs(kernel, at, axis, width))
    match [leaf for leaf in terms if LANE in loop.axes_of(leaf)]:
        case [Ax() as lane]: each = 1
        case [ix.IxDiv(Ax(), each) as lane]: pass
        case _: return 0
    run = width // each
    whole = width % each == 0 and terms.pop(lane) == 1 and constant % run == 0 and all(c % run == 0 for c in terms.values())
    return each if whole else 0
