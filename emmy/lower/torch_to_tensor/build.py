"""Smart constructors of Tensor IR: broadcasting, torch's type conversion, composed views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from math import prod

import torch

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.dtype import DType
from emmy.ir.index import Ix, IxConst, Pos
from emmy.ir.tensor_ir import Cast, Constant, Elementwise, Gather, IndexMap, IndexValue, Reduce, Shape, Tensor

FROM_TORCH: dict[torch.dtype, DType] = {getattr(torch, d.torch_name): d for d in dt.DTYPES.values()}
Number = int | float | bool
Operand = Tensor | int | float


def constant(element: DType, value: Number) -> Constant:
    """A scalar, shape ()."""
    return Constant(element, dt.bits(element, value))


def cast(element: DType, x: Tensor) -> Tensor:
    """`x` as `element`.  Widening a half type is exact, so it moves below an index map: one spelling of a widened view."""
    if x.dtype is element:
        return x
    if isinstance(x, IndexMap) and x.dtype.compute is element:
        return IndexMap(x.dims, x.at, cast(element, x.x))
    return Cast(element, x)


def widen(x: Tensor) -> Tensor:
    """`x` in the type that arithmetic on it happens in."""
    return cast(x.dtype.compute, x)


def convert(x: Operand, element: DType) -> Tensor:
    """An operand of an operator whose common type is `element`, in its compute type.

    A tensor is rounded to `element` first; a Python number is not (torch keeps it in the compute type)."""
    return widen(cast(element, x)) if isinstance(x, Tensor) else constant(element.compute, x)


def remap(x: Tensor, dims: Sequence[int], at: Sequence[Ix]) -> Tensor:
    """y[p] = x[at(p)]: simplified, composed with the map that `x` is, and `x` itself where it is the identity."""
    dims = tuple(dims)

    def extent(leaf: Ix) -> int:
        return max(dims[leaf.k], 1) if isinstance(leaf, Pos) else 1

    def compose(inner: Ix) -> Ix:
        return ix.simplify(ix.substitute(inner, lambda p: at[p.k] if isinstance(p, Pos) else p), extent)

    if isinstance(x, IndexMap):
        return remap(x.x, dims, [compose(i) for i in x.at])
    if isinstance(x, IndexValue):
        return IndexValue(dims, compose(x.at))
    point = tuple(ix.simplify(i, extent) for i in at)
    if dims == x.shape and point == identity(dims):
        return x
    return IndexMap(dims, point, x)


def identity(dims: Sequence[int]) -> tuple[Ix, ...]:
    """The simplified coordinates of a tensor of shape `dims`."""
    return tuple(IxConst(0) if n == 1 else Pos(k) for k, n in enumerate(dims))


def broadcast(x: Tensor, shape: Sequence[int]) -> Tensor:
    """torch's broadcast of `x` to `shape`."""
    lead = len(shape) - len(x.shape)
    return remap(x, shape, [IxConst(0) if n == 1 else Pos(lead + k) for k, n in enumerate(x.shape)])


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in row-major order."""
    return remap(x, shape, ix.unflatten(ix.flatten([Pos(k) for k in range(len(shape))], shape), x.shape))


def permute(x: Tensor, order: Sequence[int]) -> Tensor:
    """Dimension k of the result is dimension order[k] of `x`."""
    place = {d: k for k, d in enumerate(order)}
    return remap(x, [x.shape[d] for d in order], [Pos(place[d]) for d in range(len(order))])


def broadcast_shape(*shapes: Shape) -> Shape:
    """The common shape."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(fold(lambda a, b: b if a == 1 else a, column) for column in zip(*padded, strict=True))


def apply(op: str, *args: Operand) -> Tensor:
    """A scalar operator on operands broadcast to one shape; numbers take the type of the last tensor."""
    element = next(a.dtype for a in reversed(args) if isinstance(a, Tensor))
    tensors = [a if isinstance(a, Tensor) else constant(element, a) for a in args]
    shape = broadcast_shape(*(t.shape for t in tensors))
    return Elementwise(op, tuple(broadcast(t, shape) for t in tensors))


def add(x: Operand, y: Operand) -> Tensor:
    return apply("add", x, y)


def sub(x: Operand, y: Operand) -> Tensor:
    return apply("sub", x, y)


def mul(x: Operand, y: Operand) -> Tensor:
    return apply("mul", x, y)


def div(x: Operand, y: Operand) -> Tensor:
    return apply("div", x, y)


def select(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    return apply("select", condition, x, y)


def sigmoid(x: Tensor) -> Tensor:
    return apply("recip", add(apply("exp", apply("neg", x)), 1))


def axis(dim: int, rank: int) -> int:
    """A dimension counted from the front; of a 0-d tensor, 0."""
    return dim % max(rank, 1)


def axes(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions from the front, ascending; None and () mean all of them."""
    chosen = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return tuple(sorted({d % rank for d in chosen})) if rank else ()


def reduce(monoid: str, x: Tensor, over: Sequence[int], keepdim: bool = False) -> Tensor:
    """A reduction of `x` over axes (`axes` made them); over none, `x` itself."""
    out = Reduce(monoid, tuple(over), x) if over else x
    return reshape(out, [1 if k in over else n for k, n in enumerate(x.shape)]) if keepdim else out


def mean(x: Tensor, over: Sequence[int], keepdim: bool = False, correction: float = 0) -> Tensor:
    """The sum over axes times 1 / (n - correction)."""
    count = max(prod(x.shape[a] for a in over) - correction, 0)
    return mul(reduce("add", x, over, keepdim), 1 / count if count else float("inf"))


def position(dims: Sequence[int], k: int) -> Tensor:
    """The k-th coordinate of each element, i64."""
    return IndexValue(tuple(dims), Pos(k))


def gather(x: Tensor, along: int, index: Tensor, at: Callable[[int], Ix]) -> Tensor:
    """y[p] = x[at(p)] with coordinate `along` replaced by index[p] (i64, of y's shape)."""
    return Gather(along, tuple(IxConst(0) if k == along or n == 1 else at(k) for k, n in enumerate(x.shape)), x, index)
