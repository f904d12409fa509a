"""Sorting by counting: the rank of an element is how many stand before it, and the element at a place is the one of that rank.

Each element meets each other of its row, with no step that waits for another, which is fast for the rows of hundreds that models sort:
experts, beams, candidates.  The best few of a long row are found one after the other.
"""

from __future__ import annotations

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir.index import Pos
from emmy.ir.operators import unit
from emmy.ir.tensor_ir import Scan, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import apply, axis, broadcast, cast, constant, gather, position, reduce, remap, reshape, select, widen
from emmy.lower.torch_to_tensor.reductions import extreme
from emmy.lower.torch_to_tensor.registry import lowers
from emmy.lower.torch_to_tensor.views import concatenate

LONGEST = 8192      # elements of a row whose pairs are compared: 2**26 comparisons
SHORT, FEW = 512, 8     # a row of more elements than `SHORT` is not sorted for the best `FEW`


def _before(a: Tensor, b: Tensor, descending: bool) -> Tensor:
    """Whether a comes before b by value: NaN is the greatest, and no NaN comes before another."""
    less = apply("lt", b, a) if descending else apply("lt", a, b)
    if a.dtype.kind != "float":
        return less
    nan_first, nan_last = (a, b) if descending else (b, a)
    return apply("or", less, apply("and", apply("isnan", nan_first), apply("not", apply("isnan", nan_last))))


def ranks(x: Tensor, along: int, descending: bool) -> Tensor:
    """How many elements of its row come before each, i64: equal ones in the order they stand in."""
    rank, n = len(x.shape), x.shape[along]
    if n > LONGEST:
        raise EmmyError(f"sorting rows of {n} elements compares each with each, and takes rows of up to {LONGEST}",
                        f"sort fewer, or take the best few: topk with k up to {FEW}")
    wide = (*x.shape, n)
    own = remap(x, wide, [Pos(k) for k in range(rank)])
    other = remap(x, wide, [Pos(rank) if k == along else Pos(k) for k in range(rank)])
    tie = apply("lt", position(wide, rank), position(wide, along))
    first = _before(other, own, descending)
    neither = apply("not", apply("or", first, _before(own, other, descending)))
    return reduce("add", cast(dt.i64, apply("or", first, apply("and", neither, tie))), (rank,))


def order(x: Tensor, along: int, descending: bool, start: int, count: int) -> Tensor:
    """The places of the elements of ranks start .. start + count - 1, i64, along the dimension."""
    rank, n = len(x.shape), x.shape[along]
    wide = (*(count if k == along else m for k, m in enumerate(x.shape)), n)
    own = remap(ranks(x, along, descending), wide, [Pos(rank) if k == along else Pos(k) for k in range(rank)])
    place = position(wide, along)
    wanted = apply("eq", own, apply("add", place, start) if start else place)
    return reduce("add", select(wanted, position(wide, rank), 0), (rank,))


def _greatest(x: Tensor, along: int, count: int) -> Tensor:
    """The places of the greatest `count` elements, the greatest first: each time the first of those that are left."""
    found: list[Tensor] = []
    place = position(x.shape, along)
    taken = broadcast(constant(dt.bool_, False), x.shape)
    for _ in range(count):
        most = broadcast(reduce("max", select(taken, unit("max", x.dtype), x), (along,), keepdim=True), x.shape)
        hit = apply("eq", x, most)
        hit = apply("or", hit, apply("isnan", x)) if x.dtype.kind == "float" else hit
        hit = apply("and", apply("not", taken), hit)
        found.append(reduce("min", select(hit, place, x.shape[along] - 1), (along,), keepdim=True))
        taken = apply("or", taken, apply("eq", place, broadcast(found[-1], x.shape)))
    return concatenate(found, along)


def _sorted(x: Tensor, dim: int, descending: bool, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Values and places of `count` elements from rank `start` on."""
    value = widen(x)
    if not x.shape:
        return value, constant(dt.i64, 0)
    along = axis(dim, len(x.shape))
    many = x.shape[along] > SHORT and descending and not start and count <= FEW
    places = _greatest(value, along, count) if many else order(value, along, descending, start, count)
    return gather(value, along, places, Pos), places


@lowers("aten.sort.default")
def _sort(out: tuple[Type, Type], x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending, 0, x.shape[dim] if x.shape else 1)


@lowers("aten.sort.stable")
def _stable_sort(out: tuple[Type, Type], x: Tensor, *, stable: bool | None = None, dim: int = -1,
                 descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(out, x, dim, descending)


@lowers("aten.argsort.default")
def _argsort(out: Type, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sorted(x, dim, descending, 0, x.shape[dim] if x.shape else 1)[1]


@lowers("aten.argsort.stable")
def _stable_argsort(out: Type, x: Tensor, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Tensor:
    return _argsort(out, x, dim, descending)


@lowers("aten.topk.default")
def _topk(out: tuple[Type, Type], x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """In order, whether that is asked for or not."""
    return _sorted(x, dim, largest, 0, k)


@lowers("aten.kthvalue.default")
def _kthvalue(out: tuple[Type, Type], x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    value, place = _sorted(x, dim, False, k - 1, 1)
    return reshape(value, out[0].shape), reshape(place, out[1].shape)


@lowers("aten.median.dim")
def _median(out: tuple[Type, Type], x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of the two in the middle; a NaN if there is any."""
    if not x.shape:
        return widen(x), constant(dt.i64, 0)
    along = axis(dim, len(x.shape))
    value, place = _sorted(x, along, False, (x.shape[along] - 1) // 2, 1)
    if x.dtype.kind == "float":
        missing = reduce("or", apply("isnan", widen(x)), (along,), keepdim=True)
        value, place = select(missing, float("nan"), value), select(missing, extreme("max", widen(x), along, True)[1], place)
    return reshape(value, out[0].shape), reshape(place, out[1].shape)


@lowers("aten.median.default")
def _median_of_all(out: Type, x: Tensor) -> Tensor:
    whole = Type(dt.i64, ())
    return _median((out, whole), reshape(x, (x.size,)), 0)[0]


@lowers("aten.cummax.default", "aten.cummin.default")
def _cumulative_extreme(out: tuple[Type, Type], x: Tensor, dim: int, *, op: str) -> tuple[Tensor, Tensor]:
    """The extreme so far, and the last place that had it; the first NaN stays, and of NaN the last place."""
    value, monoid = widen(x), "max" if op == "aten.cummax.default" else "min"
    if not x.shape:
        return value, constant(dt.i64, 0)
    along = axis(dim, len(x.shape))
    best = Scan(monoid, along, value)
    hit = apply("eq", value, best)
    hit = apply("or", hit, apply("isnan", value)) if value.dtype.kind == "float" else hit
    return best, Scan("max", along, select(hit, position(x.shape, along), 0))
