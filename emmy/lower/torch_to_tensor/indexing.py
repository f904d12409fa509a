"""Reading at indices that are values: embeddings, gathers, advanced indexing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir.index import Pos
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import add, apply, axis, broadcast, broadcast_shape, cast, gather, mul, permute, reshape, select
from emmy.lower.torch_to_tensor.registry import lowers


def take(x: Tensor, along: int, index: Tensor) -> Tensor:
    """x with dimension `along` replaced by the dimensions of `index` (i64), reading there."""
    rank = len(index.shape)
    dims = (*x.shape[:along], *index.shape, *x.shape[along + 1:])
    spread = broadcast(reshape(index, (*index.shape, *[1] * (len(x.shape) - along - 1))), dims)
    return gather(x, along, spread, lambda k: Pos(k if k < along else k + rank - 1))


def wrapped(index: Tensor, n: int) -> Tensor:
    """Places among n, those of negative indices counted from the end."""
    return select(apply("lt", index, 0), add(index, n), index)


def pick(x: Tensor, along: int, index: Tensor) -> Tensor:
    """One element of x along `along` for each element of `index` (i64, of x's shape without that dimension)."""
    return gather(x, along, index, lambda k: Pos(k - (k > along)))


@lowers("aten.embedding.default")
def _embedding(out: Type, weight: Tensor, index: Tensor, *_: object) -> Tensor:
    return take(weight, 0, cast(dt.i64, index))


@lowers("aten.index_select.default")
def _index_select(out: Type, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.shape:
        return x
    return take(x, axis(dim, len(x.shape)), cast(dt.i64, reshape(index, (index.size,))))


@lowers("aten.gather.default", "aten.take_along_dim.default")
def _gather(out: Type, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False, op: str) -> Tensor:
    if op == "aten.take_along_dim.default":
        dim, index = index, dim  # type: ignore[assignment]
        shape = broadcast_shape(x.shape[:dim] + (1,) + x.shape[dim + 1:], index.shape) if dim >= 0 else out.shape
        index = broadcast(index, shape)
    return gather(x, axis(dim, len(x.shape)), cast(dt.i64, index), Pos) if x.shape else x


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(out: Type, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x[i, :, j]."""
    if any(i.dtype is dt.bool_ for i in indices if i is not None):
        raise EmmyError("indexing by a boolean mask has a shape that depends on data", "use torch.where or a multiplication by the mask")
    _, first, wide, flat = merged(x, indices)
    return take(wide, first, flat)


def merged(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], int, Tensor, Tensor]:
    """What x[i, :, j] reads: the indexed dimensions move together and merge into one, read at the row-major place; a negative index wraps.

    The order that x's dimensions take, the place of the first of those merged, x so arranged, and the index into the merged one."""
    places = [k for k, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    shape = broadcast_shape(*(i.shape for i in given))
    flat: Tensor | None = None
    for k, i in zip(places, given, strict=True):
        at = wrapped(broadcast(cast(dt.i64, i), shape), x.shape[k])
        flat = at if flat is None else add(mul(flat, x.shape[k]), at)
    assert flat is not None
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    rest = [k for k in range(len(x.shape)) if k not in places]
    order = [*rest[:first], *places, *rest[first:]]
    moved = permute(x, order)
    wide = (*moved.shape[:first], prod(x.shape[k] for k in places), *moved.shape[first + len(places):])
    return order, first, reshape(moved, wide), flat
