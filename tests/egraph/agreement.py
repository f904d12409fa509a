"""Every member of every class evaluates alike: the judge of all rules at once.

A saturated graph is evaluated bottom up, each row of each table from the values of its operands' classes; two rows of one class
must agree, and a class must not vary along an axis outside its `Deps`.  Values are arrays with one dimension an axis, so a
mistake of scope shows.  Under "exact" arithmetic is in the stored precisions and agreement is of bits (NaN = NaN).  Under "fast"
it is in float64, where `Round` is the identity, and agreement within 1e-6 of the class's scale wherever both sides are finite; a
`Cast` to a half type is a clamp there, which is idempotent as rounding is and no other function, but amplifies no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from emmy.egraph.budget import Budget
from emmy.egraph.saturate import output_axes, run
from emmy.evaluate.values import Array, Space, convert
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.loop_text import print_program
from emmy.ir.operators import apply, result_dtype

CLAMP = {dt.bf16: 1.25, dt.f16: 2.5}
TOLERANCE, NOISE = 1e-6, 1e-7
BUDGET = Budget(nodes=4_000, rounds=5)
Key = tuple[str, Any]       # sort, class


class Disagreement(AssertionError):
    """Two members of one class differ; the message has both, and the program."""


class Held(NamedTuple):
    """The value of a class, its compute dtype, the size of the numbers it was made from, and the member it came from."""

    value: Array
    dtype: DType
    scale: float
    source: str


def judge(program: loop.Program, math: str, arrays: dict[str, Array], extra: Iterable[tuple[str, str]] = ()) -> tuple[int, dict[str, int]]:
    """Saturate `program` and compare; (members compared, firings of each rule).  Raises `Disagreement`."""
    graph = run(program, math, extra, BUDGET).graph
    court = Court(program, math == "fast", arrays, graph, output_axes(program))
    court.hear()
    return court.compared, graph.fired


class Court:
    """The frozen tables of a graph, and the values of its classes as far as they are known."""

    def __init__(self, program: loop.Program, fast: bool, arrays: dict[str, Array], graph: Any, axes: dict[str, tuple[int, ...]]):
        self.program, self.fast, self.engine = program, fast, graph.engine
        self.tables = graph.engine.freeze().functions
        number = self.engine.value_to_i64
        self.space = Space({Ax(number(r.inputs[0])): number(r.output) for r in self.tables["Extent"].rows})
        self.tensors = {i.name: arrays[i.name].astype(self.compute(i.element).numpy) for i in program.inputs}
        self.elements = {t.name: t.element.compute for t in (*program.inputs, *program.definitions)}
        self.values: dict[Key, Held] = {}
        self.indices: dict[Key, Array] = {}
        self.points: dict[Key, tuple[Array, ...]] = {}
        self.compared = 0
        self.homes = {d.name: (axes[d.name], self.home(axes[d.name])) for d in program.definitions}

    def compute(self, element: DType) -> DType:
        """The type that values of a stored type are held in."""
        return dt.f64 if self.fast and element.kind == "float" else element.compute

    def home(self, at: Sequence[int]) -> Any:
        """The class of the point over these axes."""
        number = self.engine.value_to_i64
        axis = {number(r.inputs[0]): r.output for r in self.tables["Axis"].rows}
        point = self.tables["End"].rows[0].output
        for a in reversed(at):
            point = next(r.output for r in self.tables["Coordinate"].rows if tuple(r.inputs) == (axis[a], point))
        return point

    def hear(self) -> None:
        """Evaluate row after row until none can be; compare each with its class."""
        evaluators = {"Index": self.index, "Point": self.point, "Value": self.value}
        tables = {name: t for name, t in self.tables.items() if t.output_sort in evaluators}
        pending = [(name, t.input_sorts, t.output_sort, r) for name, t in tables.items() for r in t.rows]
        progress = True
        while progress:
            progress, rest = False, []
            for name, sorts, sort, row in pending:
                try:
                    arguments = [self.argument(s, v) for s, v in zip(sorts, row.inputs, strict=True)]
                    evaluators[sort](name, arguments, (sort, row.output))
                    progress = True
                except KeyError:        # an operand has no value yet
                    rest.append((name, sorts, sort, row))
            pending = rest
        for row in self.tables["Deps"].rows:
            if ("Value", row.inputs[0]) in self.values:
                held = self.values["Value", row.inputs[0]]
                inside = {self.engine.value_to_i64(a) for a in self.engine.value_to_set(row.output)}
                outside = [k for leaf, k in self.space.dimension.items() if isinstance(leaf, Ax) and leaf.a not in inside]
                first = held.value[tuple(slice(0, 1) if k in outside else slice(None) for k in range(self.space.rank))]
                same = np.broadcast_to(first, held.value.shape)
                self.compare(held, held._replace(value=same, source=f"the same at 0 of axes outside {sorted(inside)}"))

    def argument(self, sort: str, value: Any) -> Any:
        match sort:
            case "i64": return self.engine.value_to_i64(value)
            case "String": return self.engine.value_to_string(value)
            case "Index": return self.indices[sort, value]
            case "Point": return self.points[sort, value]
            case "Value": return self.values[sort, value]
            case "BigRat": return self.engine.value_to_bigrat(value)
            case "Values": return [self.values["Value", v] for v in self.engine.value_to_multiset(value)]
        raise KeyError(sort)

    # -- one row
    def index(self, name: str, args: list[Any], key: Key) -> None:
        match name, args:
            case "Axis", [a]: made = self.space.coordinate(Ax(a))
            case "IndexConst", [n]: made = self.space.full(n)
            case "IndexAdd", [x, y]: made = x + y
            case "IndexMul", [x, n]: made = x * n
            case "IndexDiv", [x, n]: made = x // n
            case "IndexMod", [x, n]: made = x % n
            case "IndexOfValue", [v]: made = v.value
            case "IndexReplace", [x, a, i]: made = self.replace(x, a, i)
            case _: raise KeyError(name)
        self.compared += 1
        if key in self.indices and (made != self.indices[key]).any():
            raise Disagreement(f"index {name} is {_show(made)}, its class {_show(self.indices[key])}\n{print_program(self.program)}")
        self.indices.setdefault(key, made)

    def point(self, name: str, args: list[Any], key: Key) -> None:
        match name, args:
            case "End", []: made: tuple[Array, ...] = ()
            case "Coordinate", [x, rest]: made = (x, *rest)
            case "PointReplace", [p, a, i]: made = tuple(self.replace(x, a, i) for x in p)
            case _: raise KeyError(name)
        known = self.points.setdefault(key, made)
        if len(known) != len(made) or any((x != y).any() for x, y in zip(known, made, strict=True)):
            raise Disagreement(f"two points of one class: {known}, {made}\n{print_program(self.program)}")

    def value(self, name: str, args: list[Any], key: Key) -> None:
        if name in ("Input", "Tensor") and args[0] not in self.tensors:
            raise KeyError(args[0])
        with np.errstate(all="ignore"):
            made = self.member(name, args)
        if _largest(made.value) < NOISE * made.scale:
            raise KeyError("what cancels to nothing is noise: neither it nor what is made of it can be compared")
        held = self.values.setdefault(key, made)
        self.compare(held, made)
        for row in self.tables["Tensor"].rows if held is made else ():
            tensor = self.engine.value_to_string(row.inputs[0])
            if row.output == key[1] and row.inputs[1] == self.homes[tensor][1]:
                self.keep(tensor, held.value, self.homes[tensor][0])

    def keep(self, tensor: str, value: Array, at: Sequence[int]) -> None:
        """The definition `tensor` as an array, from its element at its own axes."""
        dims = [self.space.dimension[Ax(a)] for a in at]
        wide = self.space.spread(value, dims)
        rest = [d for d in range(wide.ndim) if d not in dims]
        self.tensors[tensor] = wide.transpose(*dims, *rest)[(..., *(0 for _ in rest))]

    def member(self, name: str, args: list[Any]) -> Held:
        """The value of a term on the values of its operands."""
        def held(value: Array, element: DType, scale: float | None = None) -> Held:
            value = value.astype(self.compute(element).numpy, copy=False)
            return Held(value, element, max(_largest(value), scale or 0.0), f"{name} {_label(args)}")

        match name, args:
            case "Input" | "Tensor", [t, point]: return held(self.space.load(self.tensors[t], point), self.elements[t])
            case "Const", [element, bits]:
                element = dt.named(element)
                return held(self.space.full(dt.value(element, bits % (1 << 8 * element.bytes))), element)
            case "Number", [element, q]: return held(self.space.full(float(q)), dt.named(element))
            case "Difference", [_, x, y]: return self.apply("sub", [x, y], held)
            case "IndexValue", [at]: return held(at.astype(np.int64), dt.i64)
            case "Unary" | "Binary" | "Ternary", [op, *xs]: return self.apply(op, xs, held)
            case "Replace", [x, a, i]: return held(self.replace(x.value, a, i), x.dtype, x.scale)
            case "Sum", [op, xs]: return reduce(lambda x, y: self.apply(op, [x, y], held), xs)
            case "Round", [half, x]: return held(x.value if self.fast else convert(x.value, dt.named(half)), dt.f32, x.scale)
            case "Cast", [element, x]:
                element = dt.named(element)
                if not self.fast:
                    return held(convert(x.value, element), element.compute)
                limit = CLAMP.get(element, np.inf)
                return held(np.clip(x.value, -limit, limit) if element in CLAMP else x.value, element.compute)
        if name not in ("Reduce", "Scan", "Pivot", "Channel"):
            raise KeyError(name)
        x, dim = args[-1], self.space.dimension[Ax(args[1])]
        element, n = self.compute(x.dtype), self.space.extents[dim]
        match name, args:
            case "Scan", [monoid, _, at, _]: return held(self.space.scan(monoid, dim, at, x.value, element), x.dtype, x.scale)
            case "Pivot", [recipe, *_]: return held(self.space.pivot(recipe, dim, x.value, element), x.dtype, x.scale)
            case "Channel", [recipe, _, score, _]:
                scale = n * x.scale * (score.scale ** 2 if recipe == "moments" else 1)
                return held(self.space.channel(recipe, dim, score.value, [x.value], element), x.dtype, scale)
        return held(self.space.reduce(args[0], [dim], [x.value], element), x.dtype, n * x.scale if args[0] == "add" else None)

    def replace(self, x: Array, axis: int, at: Array) -> Array:
        """`x` where the coordinate of `axis` is `at`, which does not vary along `axis`."""
        where = [self.space.full(np.arange(n), d) for d, n in enumerate(x.shape)]
        dim = self.space.dimension[Ax(axis)]
        where[dim] = at if x.shape[dim] > 1 else where[dim]
        return x[tuple(where)]

    def apply(self, op: str, xs: list[Held], held: Any) -> Held:
        scales = [x.scale for x in xs]
        scale = max(scales) if op in ("add", "sub") else prod(scales) if op == "mul" else None
        return held(apply(op, *(x.value for x in xs)), result_dtype(op, tuple(x.dtype for x in xs)), scale)

    def compare(self, held: Held, made: Held) -> None:
        self.compared += 1
        a, b = np.broadcast_arrays(held.value, made.value)
        if self.fast and a.dtype.kind == "f":
            with np.errstate(all="ignore"):
                wrong = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) > TOLERANCE * max(held.scale, made.scale))
        elif a.dtype.kind == "f":
            bits = [np.ascontiguousarray(x).view(f"i{x.itemsize}") for x in (a, b)]
            wrong = (bits[0] != bits[1]) & ~(np.isnan(a) & np.isnan(b))
        else:
            wrong = a != b
        if held.dtype is not made.dtype or wrong.any():
            sides = (f"{side.source} : {side.dtype}, {_show(x[wrong])}" for side, x in ((held, a), (made, b)))
            raise Disagreement("\n".join((*sides, print_program(self.program))))


def _largest(x: Array) -> float:
    """The largest finite magnitude in `x`."""
    return float(np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0).max(initial=0))


def _label(args: list[Any]) -> str:
    parts = (str(x) if isinstance(x, str | int) else f"<{x.source}>" if isinstance(x, Held) else "…" for x in args)
    return " ".join(parts)[:400]


def _show(x: Array) -> str:
    return str(np.asarray(x).ravel()[:4])
