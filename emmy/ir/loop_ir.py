"""Loop IR: a tensor is a body at a point.

A `Definition` gives the value of a tensor at the point (p0, p1, …) as scalar operators over loads, with reductions and
scans over axes.  An axis is a constant with one extent (`Program.axes`); two reductions over the same stretch of the
program share it, so that their bodies can be shared.  A reduction never binds an axis that its operand's point could
mention from outside, so substitution captures nothing (see `emmy.lower.tensor_to_loop`).

Scalars have compute dtypes: loading a half type widens it, and `Cast`/`Round` to a half type round the value and keep
it widened.  `Cast` is the program's, `Round` the rounding that torch does between two operations.
"""

from __future__ import annotations

from functools import cached_property
from operator import attrgetter

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix, leaves
from emmy.ir.node import IRError, Node, members, postorder
from emmy.ir.operators import MONOIDS, result_dtype
from emmy.ir.tensor_ir import Input, Shape


class Value(Node):
    """Base: a scalar at a point.  `operands` are the values it is made of: those among its fields, and those that its index terms use.
    `dtype` is a compute type, that of the first operand where a node does not say otherwise.

    What is read off operands is cached: a DAG has exponentially many paths."""

    @cached_property
    def dtype(self) -> DType:
        return self.operands[0].dtype

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        found = tuple(members(self))
        return *(x for x in found if isinstance(x, Value)), *indices(*(x for x in found if isinstance(x, Ix)))

    @property
    def binds(self) -> int | None:
        """The axis it reduces over, if it is a reduction of any kind."""
        return None


class IxOf(Ix):
    """A value used as an index: gather.  The value is an i64 inside the dimension it indexes."""

    value: Value

    def __str__(self) -> str:
        return f"[{self.value}]"


def indices(*terms: Ix) -> tuple[Value, ...]:
    """The values that index terms use as indices."""
    return tuple(leaf.value for x in terms for leaf in sorted(leaves(x), key=str) if isinstance(leaf, IxOf))


class Load(Value):
    """An element of an input or of another definition, stored as `element`."""

    tensor: str
    element: DType
    point: tuple[Ix, ...]

    @cached_property
    def dtype(self) -> DType:
        return self.element.compute


class Const(Value):
    element: DType
    bits: int

    @cached_property
    def dtype(self) -> DType:
        return self.element


class IndexOf(Value):
    """An index as a value, i64."""

    at: Ix

    @cached_property
    def dtype(self) -> DType:
        return dt.i64


class Apply(Value):
    """A scalar operator of emmy.ir.operators."""

    op: str
    args: tuple[Value, ...]

    def __post_init__(self) -> None:
        result_dtype(self.op, tuple(a.dtype for a in self.args))

    @cached_property
    def dtype(self) -> DType:
        return result_dtype(self.op, tuple(a.dtype for a in self.args))

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        return self.args


class Conversion(Value):
    """Base: `x` as a value of `element`, kept widened if that is a half type."""

    element: DType
    x: Value

    @cached_property
    def dtype(self) -> DType:
        return self.element.compute


class Cast(Conversion):
    """A conversion that the program asks for."""


class Round(Conversion):
    """The rounding to a half type between two operations."""


class Reduction(Value):
    """Base of what binds an axis: subclasses have a field `axis`."""

    @property
    def binds(self) -> int:
        return int(getattr(self, "axis"))  # noqa: B009  the field is the subclass's


class Reduce(Reduction):
    """The monoid's product of x over `axis`."""

    monoid: str
    axis: int
    x: Value

    def __post_init__(self) -> None:
        if self.monoid not in MONOIDS:
            raise IRError(f"unknown monoid {self.monoid!r}")


class Scan(Reduction):
    """The monoid's product of x over `axis` from 0 up to and with `at`."""

    monoid: str
    axis: int
    at: Ix
    x: Value


class Pivot(Reduction):
    """The pivot of a twisted reduction: the maximum of `score` over `axis` (recipes "softmax" and "first") or its mean
    ("moments")."""

    recipe: str
    axis: int
    score: Value


class Channel(Reduction):
    """A channel of a twisted reduction: the sum over `axis` of exp(score - pivot) * x (recipe "softmax") or, where x is 1,
    of (score - pivot)^2 ("moments"); or the least x where the score is the pivot ("first")."""

    recipe: str
    axis: int
    score: Value
    x: Value

    @cached_property
    def dtype(self) -> DType:
        return self.x.dtype


class Definition(Node):
    """A tensor: `body` is its element at the point (Pos(0), Pos(1), …), stored as `element`."""

    name: str
    shape: Shape
    element: DType
    body: Value


class Program(Node):
    """`definitions` come before their users; `axes` gives each axis its extent; `outputs` are (result name, tensor)."""

    inputs: tuple[Input, ...]
    axes: tuple[tuple[int, int], ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[tuple[str, str], ...]

    @property
    def extents(self) -> dict[int, int]:
        return dict(self.axes)

    @property
    def everything(self) -> tuple[Input | Definition, ...]:
        """Inputs, then definitions."""
        return (*self.inputs, *self.definitions)

    @property
    def tensors(self) -> dict[str, Input | Definition]:
        return {t.name: t for t in self.everything}


def walk(roots: tuple[Value, ...]) -> tuple[Value, ...]:
    """Every value below the roots once, operands before users."""
    return postorder(roots, attrgetter("operands"))


def load_of(v: Value, element: DType) -> Load | None:
    """The load of `element` that `v` is, but for conversions that keep its value."""
    while isinstance(v, Cast | Round) and v.element in (element, dt.f32):
        v = v.x
    return v if isinstance(v, Load) and v.element is element else None


def axes_of(x: Ix, free: dict[Value, frozenset[int]] | None = None) -> frozenset[int]:
    """The axes an index term mentions, those of values used as indices included (from `free`)."""
    found = {leaf.a for leaf in leaves(x) if isinstance(leaf, Ax)}
    for leaf in leaves(x):
        if isinstance(leaf, IxOf):
            found |= (free or free_axes((leaf.value,)))[leaf.value]
    return frozenset(found)


def free_axes(roots: tuple[Value, ...]) -> dict[Value, frozenset[int]]:
    """For each value below the roots, the axes it depends on and does not bind."""
    free: dict[Value, frozenset[int]] = {}
    for v in walk(roots):
        axes = frozenset[int]().union(*(free[x] for x in v.operands))
        if v.binds is not None:
            axes -= {v.binds}
        match v:
            case Load(point=point):
                axes = axes.union(*(axes_of(x, free) for x in point))
            case IndexOf(at) | Scan(at=at):
                axes |= axes_of(at, free)
        free[v] = axes
    return free


def verify(program: Program) -> None:
    """IRError unless loads name earlier tensors with their rank and element, axes have extents, and names are unique."""
    seen: dict[str, Input | Definition] = {}
    extents = program.extents
    for tensor in program.everything:
        if tensor.name in seen:
            raise IRError(f"two tensors are named {tensor.name!r}")
        if isinstance(tensor, Definition):
            verify_body(tensor, seen, extents)
        seen[tensor.name] = tensor
    for _, name in program.outputs:
        if name not in seen:
            raise IRError(f"output {name!r} is not defined")


def verify_body(definition: Definition, seen: dict[str, Input | Definition], extents: dict[int, int]) -> None:
    """IRError unless the body of `definition` is well formed over the tensors `seen` before it."""
    if definition.body.dtype is not definition.element.compute:
        raise IRError(f"{definition.name} stores {definition.element} and its body is {definition.body.dtype}")
    for value in walk((definition.body,)):
        if value.binds is not None and value.binds not in extents:
            raise IRError(f"{definition.name}: axis a{value.binds} has no extent")
        if isinstance(value, Load):
            if value.tensor not in seen:
                raise IRError(f"{definition.name} loads {value.tensor!r}, which is not defined before it")
            source = seen[value.tensor]
            stored = source.element
            shape = source.dims if isinstance(source, Input) else source.shape
            if len(value.point) != len(shape) or value.element is not stored:
                raise IRError(f"{definition.name} loads {value.tensor} as {value.element} at {len(value.point)} coordinates; "
                              f"it is {stored}{list(shape)}")
    free = free_axes((definition.body,))[definition.body]
    if free:
        raise IRError(f"{definition.name}: axes {sorted(free)} are not bound")
