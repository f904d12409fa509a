"""Tensor IR: elementwise, reduce, scan, index map, gather, cast and constants; nothing else.

A node is a whole tensor with a shape and a stored dtype.  Arithmetic takes operands of equal shape and of one compute
dtype: broadcasting is an `IndexMap`, widening a half type a `Cast`, and the rounding that torch does between two
half-type operations a `Round` (which a real-arithmetic rule may drop, while a `Cast` the user wrote stays).
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from operator import attrgetter
from typing import Literal

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Ix, Pos, leaves, upper
from emmy.ir.node import IRError, Node, members, postorder
from emmy.ir.operators import MONOIDS, result_dtype

Role = Literal["input", "weight", "constant"]
Shape = tuple[int, ...]


class Tensor(Node):
    """Base: a node's operands are the tensors among its fields, and where it does not say otherwise it has the shape and the dtype of the
    first.  What is read off operands is cached: a DAG has exponentially many paths."""

    @cached_property
    def shape(self) -> Shape:
        return self.operands[0].shape

    @cached_property
    def dtype(self) -> DType:
        return self.operands[0].dtype

    @cached_property
    def operands(self) -> tuple[Tensor, ...]:
        return tuple(x for x in members(self) if isinstance(x, Tensor))

    @property
    def size(self) -> int:
        return prod(self.shape)


class Input(Tensor):
    """A tensor from outside: an argument, a weight, or a constant tensor of the program."""

    name: str
    dims: Shape
    element: DType
    role: Role = "input"

    @cached_property
    def shape(self) -> Shape:
        return self.dims

    @cached_property
    def dtype(self) -> DType:
        return self.element


class Constant(Tensor):
    """A scalar, shape (), by the bits of its value."""

    element: DType
    bits: int

    @cached_property
    def shape(self) -> Shape:
        return ()

    @cached_property
    def dtype(self) -> DType:
        return self.element


class IndexValue(Tensor):
    """The integer `at` of each element's own coordinates (`Pos`), as i64: arange, masks."""

    dims: Shape
    at: Ix

    @cached_property
    def shape(self) -> Shape:
        return self.dims

    @cached_property
    def dtype(self) -> DType:
        return dt.i64


class Elementwise(Tensor):
    """A scalar operator (emmy.ir.operators) on operands of one shape."""

    op: str
    args: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        result_dtype(self.op, tuple(a.dtype for a in self.args))
        if any(a.shape != self.args[0].shape for a in self.args):
            raise IRError(f"{self.op} of shapes {', '.join(str(a.shape) for a in self.args)}: broadcasting is an index map of its own")

    @cached_property
    def dtype(self) -> DType:
        return result_dtype(self.op, tuple(a.dtype for a in self.args))


class Conversion(Tensor):
    """Base: the elements of `x` as `element`."""

    element: DType
    x: Tensor

    @cached_property
    def dtype(self) -> DType:
        return self.element


class Cast(Conversion):
    """A conversion that the program asks for, or the exact widening of a half type before arithmetic."""


class Round(Conversion):
    """The rounding of a computed value to the half type that its operation returns."""

    def __post_init__(self) -> None:
        if self.element not in (dt.bf16, dt.f16) or self.x.dtype is not dt.f32:
            raise IRError(f"round takes f32 to a half type, not {self.x.dtype} to {self.element}")


class Reduce(Tensor):
    """A reduction by a monoid over `axes` (ascending), which disappear from the shape.  Accumulates in the operand's compute dtype."""

    monoid: str
    axes: tuple[int, ...]
    x: Tensor

    def __post_init__(self) -> None:
        if self.monoid not in MONOIDS:
            raise IRError(f"unknown monoid {self.monoid!r}; the monoids are {', '.join(MONOIDS)}")
        if tuple(sorted(set(self.axes))) != self.axes or not self.axes or not 0 <= self.axes[0] <= self.axes[-1] < len(self.x.shape):
            raise IRError(f"reduce axes {self.axes} of a tensor of shape {self.x.shape}")
        if self.x.dtype.compute is not self.x.dtype:
            raise IRError(f"reduce of {self.x.dtype}: widen it first")

    @cached_property
    def shape(self) -> Shape:
        return tuple(n for k, n in enumerate(self.x.shape) if k not in self.axes)


class Scan(Tensor):
    """The inclusive scan by a monoid along `axis`."""

    monoid: str
    axis: int
    x: Tensor

    def __post_init__(self) -> None:
        if self.monoid not in MONOIDS or not 0 <= self.axis < len(self.x.shape) or self.x.dtype.compute is not self.x.dtype:
            raise IRError(f"scan {self.monoid} along {self.axis} of {self.x.dtype}{self.x.shape}")


class IndexMap(Tensor):
    """y[p] = x[at(p)]: views, transposes, broadcasts, slices, flips.  `at` has one index term of `Pos` for each dimension of x."""

    dims: Shape
    at: tuple[Ix, ...]
    x: Tensor

    def __post_init__(self) -> None:
        check_point(self.at, self.dims, self.x.shape)

    @cached_property
    def shape(self) -> Shape:
        return self.dims


class Gather(Tensor):
    """y[p] = x[at(p)] with coordinate `axis` replaced by index[p]: embedding, index_select, gather.

    `index` (i64) has y's shape; its values lie in [0, x.shape[axis])."""

    axis: int
    at: tuple[Ix, ...]
    x: Tensor
    index: Tensor

    def __post_init__(self) -> None:
        if self.index.dtype is not dt.i64 or not 0 <= self.axis < len(self.x.shape):
            raise IRError(f"gather along {self.axis} of shape {self.x.shape} by an index of {self.index.dtype}")
        check_point(self.at, self.index.shape, self.x.shape, skip=self.axis)

    @cached_property
    def shape(self) -> Shape:
        return self.index.shape


def check_point(at: tuple[Ix, ...], dims: Shape, into: Shape, skip: int = -1) -> None:
    """IRError unless `at`, for p in `dims`, stays inside a tensor of shape `into` (dimension `skip` aside)."""
    if len(at) != len(into):
        raise IRError(f"a point of {len(at)} coordinates into shape {into}")
    for x in at:
        if any(not isinstance(leaf, Pos) or leaf.k >= len(dims) for leaf in leaves(x)):
            raise IRError(f"index {x} is not of the {len(dims)} coordinates of its tensor")
    if prod(dims) == 0:
        return
    for k, (x, n) in enumerate(zip(at, into, strict=True)):
        if k != skip and upper(x, lambda p: dims[p.k] if isinstance(p, Pos) else 0) >= n:
            raise IRError(f"index {x} reaches past extent {n} of shape {into}")


class Program(Node):
    """A Tensor IR program: `outputs` by name, in the order they are returned."""

    outputs: tuple[tuple[str, Tensor], ...]

    @property
    def nodes(self) -> tuple[Tensor, ...]:
        """Every node, operands before users."""
        return postorder((t for _, t in self.outputs), attrgetter("operands"))

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Input))
