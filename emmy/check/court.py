"""Every member of every class evaluates alike: the judge of rules.

A graph is evaluated bottom up, each row of each table from the values of its operands' classes; two rows of one class must agree,
and what the graph has derived of a class (the axes it depends on, its type, its bounds) must hold.  Values are arrays with one
dimension an axis, so a mistake of scope shows.  "exact" evaluates in the stored precisions and compares bits (NaN = NaN); "real" in
float64, where `Round` is the identity, and compares within 1e-6 of the class's scale wherever both sides are finite.  There a `Cast`
to a half type is a clamp, which is idempotent as rounding is and no other function, but amplifies no error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from emmy.evaluate.values import Array, Space, convert
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.operators import apply, result_dtype

CLAMP = {dt.bf16: 1.25, dt.f16: 2.5}
TOLERANCE = {"real": 1e-6, "approx": 1e-2}      # of a class's scale; other kinds compare bits
NOISE = 1e-7
DERIVED = ("Deps", "IndexDeps", "PointDeps", "Dtype", "Lower", "Upper")
BINDERS = {"Axis": 0, "Reduce": 1, "Scan": 1, "Pivot": 1, "Channel": 1, "BodyReduce": 1, "BodyScan": 1, "Replace": 1, "PointReplace": 1,
           "IndexReplace": 1}       # where each names an axis
Key = tuple[str, Any]       # sort, class


class Made(NamedTuple):
    """The value of a term: an array over the axes, its compute type, the size of the numbers it was made from, and the term itself as a
    constructor on what it was made of."""

    value: Array
    dtype: DType
    scale: float
    name: str
    args: tuple[Any, ...]


class Disagreement(AssertionError):
    """Two sides that should be equal and are not, or what was derived of a value and does not hold."""

    def __init__(self, said: str, left: Made | None, right: Made | None = None):
        super().__init__(said)
        self.said, self.left, self.right = said, left, right


class Tensor(NamedTuple):
    """A tensor of the programs judged: how it is stored, its shape, and a bound below which its whole numbers lie."""

    element: DType
    dims: tuple[int, ...]
    below: int | None = None


class Court:
    """The frozen tables of a graph, and the values of its classes as far as they are known.

    `inputs` and `definitions` are the tensors that its terms read; `arrays` has the inputs' elements, `definitions` come in order."""

    def __init__(self, engine: Any, kind: str, inputs: Mapping[str, Tensor], arrays: Mapping[str, Array],
                 definitions: Mapping[str, Tensor]):
        self.engine, self.kind, self.fast = engine, kind, kind in TOLERANCE
        self.tables = engine.freeze().functions
        number = engine.value_to_i64
        used = {number(r.inputs[BINDERS[name]]) for name in BINDERS for r in self.tables[name].rows}
        extents = {number(r.inputs[0]): number(r.output) for r in self.tables["Extent"].rows}
        self.axes: dict[Ix, int] = {Ax(a): n for a, n in extents.items() if a in used}
        self.space = Space(self.axes)
        self.elements = {name: t.element for name, t in (*inputs.items(), *definitions.items())}
        self.tensors = {name: arrays[name].astype(self.compute(t.element).numpy) for name, t in inputs.items()}
        self.values: dict[Key, Any] = {}
        self.compared = 0
        self.first = self.acyclic()
        bodies = {engine.value_to_string(r.inputs[0]): r.output for r in self.tables["Definition"].rows}
        self.bodies: dict[str, Made] = {}
        for name, t in definitions.items():
            with contextlib.suppress(KeyError):     # what cancels to nothing is no tensor that can be compared
                self.bodies[name] = self.define(name, bodies[name], t.dims)
            self.space = Space(self.axes)

    def compute(self, element: DType) -> DType:
        """The type that values of a stored type are held in."""
        return dt.f64 if self.fast and element.kind == "float" else element.compute

    def rows(self) -> list[tuple[str, list[str], Key, Any]]:
        """Constructor, operand sorts, class and row of every term."""
        return [(name, t.input_sorts, (t.output_sort, r.output), r) for name, t in self.tables.items()
                if t.output_sort in ("Index", "Point", "Value", "Body") and name != "Definition" and not t.is_let_binding for r in t.rows]

    def acyclic(self) -> dict[Key, tuple[str, list[str], Any]]:
        """A row for each class such that no class is below itself."""
        found: dict[Key, tuple[str, list[str], Any]] = {}
        pending = self.rows()
        while True:
            rest = []
            for name, sorts, key, row in pending:
                operands = [(s, v) for s, v in zip(sorts, row.inputs, strict=True) if s in ("Index", "Point", "Value", "Body")]
                if all(k in found for k in operands):
                    found.setdefault(key, (name, sorts, row))
                else:
                    rest.append((name, sorts, key, row))
            if len(rest) == len(pending):
                return found
            pending = rest

    def hear(self) -> None:
        """Evaluate row after row until none can be; compare each with its class, and what is derived of a class with its value."""
        pending = [r for r in self.rows() if r[2][0] != "Body"]
        progress = True
        while progress:
            progress, rest = False, []
            for name, sorts, key, row in pending:
                try:
                    made = self.evaluate(name, self.operands(name, sorts, row.inputs))
                    progress = True
                except KeyError:        # an operand has no value yet
                    rest.append((name, sorts, key, row))
                    continue
                except (TypeError, ValueError, IndexError) as error:    # operands of other types, or a read outside of its tensor
                    raise Disagreement(f"a side has no value: {error}", self.values.get(key)) from error
                known = self.values.setdefault(key, made)
                self.compare(known, made)
            pending = rest
        for name in DERIVED:
            for row in self.tables[name].rows:
                known = self.values.get((self.tables[name].input_sorts[0], row.inputs[0]))
                for made in () if known is None else known if isinstance(known, tuple) and not isinstance(known, Made) else (known,):
                    self.holds(name, made, row.output)

    def holds(self, name: str, made: Made, derived: Any) -> None:
        """Disagreement unless what a function says of a value is so."""
        match name:
            case "Dtype":
                said = self.engine.value_to_string(derived)
                wrong = dt.named(said) is not made.dtype
            case "Lower" | "Upper":
                bound = self.engine.value_to_i64(derived)
                said = f"{bound}, of values {_show(made.value)}"
                wrong = bool((made.value < bound).any() if name == "Lower" else (made.value > bound).any())
            case _:
                inside = {self.engine.value_to_i64(a) for a in self.engine.value_to_set(derived)}
                outside = [k for leaf, k in self.space.dimension.items() if isinstance(leaf, Ax) and leaf.a not in inside]
                first = made.value[tuple(slice(0, 1) if k in outside else slice(None) for k in range(self.space.rank))]
                same = np.broadcast_to(first, made.value.shape) if first.size else made.value
                said = f"axes {sorted(inside)}, but it varies along others"
                wrong = self.differs(made, made._replace(value=same)) is not None
        self.compared += 1
        if wrong:
            raise Disagreement(f"{name} is said to be {said}", made)

    def operands(self, name: str, sorts: list[str], classes: Sequence[Any]) -> list[Any]:
        """The operands of a term: their values, or the class itself of a template."""
        return [v if s == "Body" or (k == 0 and name in ("IndexAt", "PointAt")) else self.argument(s, v)
                for k, (s, v) in enumerate(zip(sorts, classes, strict=True))]

    def argument(self, sort: str, value: Any) -> Any:
        match sort:
            case "i64": return self.engine.value_to_i64(value)
            case "BigRat": return self.engine.value_to_bigrat(value)
            case "String": return self.engine.value_to_string(value)
            case "Index" | "Point" | "Value": return self.values[sort, value]
            case "Values": return [self.values["Value", v] for v in self.engine.value_to_multiset(value)]
        raise KeyError(sort)

    # -- templates: bodies over parameters
    def define(self, name: str, body: Any, dims: Sequence[int]) -> Made:
        """Evaluate a definition at every point; keep its elements as an array."""
        self.space = Space({**self.axes, **{Pos(k): n for k, n in enumerate(dims)}})
        at = tuple(Made(self.space.coordinate(Pos(k)), dt.i64, 0.0, "Parameter", (k,)) for k in range(len(dims)))
        made: Made = self.template(("Body", body), at, {})
        if not made.value.size and 0 not in dims:
            raise KeyError(name)        # it is over an empty axis that nothing binds
        shape = made.value.shape[made.value.ndim - len(dims):] if dims else ()
        self.tensors[name] = np.broadcast_to(made.value.reshape(shape), dims)
        return made

    def template(self, key: Key, at: Sequence[Made], memo: dict[Key, Any]) -> Any:
        """The value of a class with coordinates for its parameters."""
        if key not in memo:
            name, sorts, row = self.first[key]
            if name == "Parameter":
                k = self.engine.value_to_i64(row.inputs[0])
                if k >= len(at):
                    raise KeyError(k)
                return at[k]
            inner = [v if k == 0 and name in ("IndexAt", "PointAt") else self.template((s, v), at, memo) if s in ("Body", "Index", "Point")
                     else self.argument(s, v) for k, (s, v) in enumerate(zip(sorts, row.inputs, strict=True))]
            name = {"BodyIndex": "IndexValue", "IndexOfBody": "IndexOfValue"}.get(name, name.removeprefix("Body"))
            memo[key] = self.evaluate(name, inner)
        return memo[key]

    # -- one term
    def evaluate(self, name: str, args: list[Any]) -> Any:
        """The value of a constructor on the values of its operands; KeyError where it has none."""
        def index(value: Array) -> Made:
            return Made(value, dt.i64, 0.0, name, tuple(args))

        match name, args:
            case "Axis", [a]: return index(self.space.coordinate(Ax(a)))
            case "IndexConst", [n]: return index(self.space.full(n))
            case "IndexAdd", [x, y]: return index(x.value + y.value)
            case "IndexMul", [x, n]: return index(x.value * n)
            case "IndexDiv", [x, n] if n > 0: return index(x.value // n)
            case "IndexMod", [x, n] if n > 0: return index(x.value % n)
            case "IndexOfValue", [v]: return index(v.value)
            case "IndexReplace", [x, a, i]: return index(self.replace(x.value, a, i.value))
            case "IndexAt", [x, at]: return self.template(("Index", x), at, {})
            case "Nth", [at, k] if 0 <= k < len(at): return at[k]
            case "End", []: return ()
            case "Coordinate", [x, rest]: return (x, *rest)
            case "PointAt", [p, at]: return self.template(("Point", p), at, {})
            case "Moved", [p, k, i]: return (*p[:max(k, 0)], *p[k + 1 if k >= 0 else 0:], i)
            case "PointReplace", [p, a, i]: return tuple(self.evaluate("IndexReplace", [x, a, i]) for x in p)
            case "At", [body, at]: made = self.template(("Body", body), at, {})
            case _:
                with np.errstate(all="ignore"):
                    made = self.member(name, args)
        if self.fast and largest(made.value) < NOISE * made.scale:
            raise KeyError("what cancels to nothing is noise: neither it nor what is made of it can be compared")
        return made

    def member(self, name: str, args: list[Any]) -> Made:
        """The value of a term of sort Value on the values of its operands."""
        def made(value: Array, element: DType, scale: float | None = None) -> Made:
            value = value.astype(self.compute(element).numpy, copy=False)
            return Made(value, element, max(largest(value), scale or 0.0), name, tuple(args))

        match name, args:
            case "Input" | "Tensor", [t, point]:
                return made(self.space.load(self.tensors[t], [x.value for x in point]), self.elements[t].compute)
            case "Const", [element, bits]:
                element = dt.named(element)
                return made(self.space.full(dt.value(element, bits % (1 << 8 * element.bytes))), element)
            case "Number", [element, q]:
                element = dt.named(element)
                return made(self.space.full(int(q) if element.kind == "int" else float(q)), element)
            case "Difference", [_, x, y]: return self.apply("sub", [x, y], made)._replace(name=name, args=tuple(args))
            case "IndexValue", [at]: return made(at.value.astype(np.int64), dt.i64)
            case "Unary" | "Binary" | "Ternary", [op, *xs]: return self.apply(op, xs, made)
            case "Replace", [x, a, i]: return made(self.replace(x.value, a, i.value), x.dtype, x.scale)
            case "Sum", [op, [x, *rest]]:
                total: Made = reduce(lambda x, y: self.apply(op, [x, y], made), rest, x)
                return total._replace(name=name, args=tuple(args))
            case "Round", [half, x]: return made(x.value if self.fast else convert(x.value, dt.named(half)), x.dtype, x.scale)
            case "Cast", [element, x]:
                element = dt.named(element)
                if not self.fast or element.kind != "float":
                    return made(convert(x.value, element), element.compute)
                limit = CLAMP.get(element) if x.dtype not in (dt.i8, dt.u8) else None       # these are halves as they are
                return made(np.clip(x.value, -limit, limit) if limit else x.value, element.compute)
        if name not in ("Reduce", "Scan", "Pivot", "Channel"):
            raise KeyError(name)
        x, dim = args[-1], self.space.dimension[Ax(args[1])]
        element, n = self.compute(x.dtype), self.space.extents[dim]
        match name, args:
            case "Scan", [monoid, _, at, _]: return made(self.space.scan(monoid, dim, at.value, x.value, element), x.dtype, n * x.scale)
            case "Pivot", [recipe, *_]: return made(self.space.pivot(recipe, dim, x.value, element), x.dtype, x.scale)
            case "Channel", [recipe, _, score, _]:
                scale = None if recipe == "first" else n * x.scale * (score.scale ** 2 if recipe == "moments" else 1)
                return made(self.channel(recipe, dim, score.value, x.value, element), x.dtype, scale)
        return made(self.space.reduce(args[0], [dim], [x.value], element), x.dtype, n * x.scale if args[0] == "add" else None)

    def channel(self, recipe: str, dim: int, score: Array, x: Array, element: DType) -> Array:
        """As `Space.channel`, its sum in the order of the axis whatever else it varies along, so that bits can be compared."""
        if score.dtype.kind != "f" and recipe == "softmax":
            raise ValueError("a softmax of whole numbers")
        if recipe == "first":
            return self.space.channel(recipe, dim, score, [x], element)
        pivot = self.space.pivot(recipe, dim, score, dt.f64 if score.dtype == np.float64 else dt.f32)
        kept = np.where(np.isneginf(pivot), np.zeros_like(pivot), pivot) if recipe == "softmax" else pivot
        weight = np.exp(score - kept) if recipe == "softmax" else np.square(score - kept)
        return self.space.reduce("add", [dim], [weight * x], element)

    def replace(self, x: Array, axis: int, at: Array) -> Array:
        """`x` where the coordinate of `axis` is `at`, which does not vary along `axis`."""
        where = [self.space.full(np.arange(n), d) for d, n in enumerate(x.shape)]
        dim = self.space.dimension[Ax(axis)]
        where[dim] = at if x.shape[dim] > 1 else where[dim]
        return x[tuple(where)]

    def apply(self, op: str, xs: list[Made], made: Any) -> Made:
        scales = [x.scale for x in xs]
        scale = max(scales) if op in ("add", "sub") else prod(scales) if op == "mul" else None
        found: Made = made(apply(op, *(x.value for x in xs)), result_dtype(op, tuple(x.dtype for x in xs)), scale)
        return found

    # -- two terms
    def compare(self, left: Any, right: Any, ordered: bool = False) -> None:
        """Disagreement unless two terms are equal.  `ordered`: the right one must also be finite where the left one is."""
        if not isinstance(left, Made):
            if len(left) != len(right):
                raise Disagreement(f"points of {len(left)} and {len(right)} coordinates", *left[:1], *right[:1])
            for x, y in zip(left, right, strict=True):
                self.compare(x, y)
            return
        self.compared += 1
        if said := self.differs(left, right, ordered):
            along = [str(leaf) for leaf, k in self.space.dimension.items() if left.value.shape[k] == 1 != right.value.shape[k]]
            beyond = f"; the right side varies along {', '.join(along)}, the left side does not" if along and ordered else ""
            raise Disagreement(said + beyond, left, right)

    def differs(self, left: Made, right: Made, ordered: bool = False) -> str | None:
        """How two terms differ, if they do."""
        if left.dtype is not right.dtype:
            return f"the left side is {left.dtype}, the right side {right.dtype}"
        a, b = np.broadcast_arrays(left.value, right.value)
        if a.dtype.kind != "f":
            wrong = a != b
        elif self.fast:
            with np.errstate(all="ignore"):
                wrong = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) > TOLERANCE[self.kind] * max(left.scale, right.scale))
                undefined = np.isfinite(a) & ~np.isfinite(b) & ordered
            if not wrong.any() and undefined.any():
                return f"the left side is defined where the right side is not: {_show(a[undefined])} and {_show(b[undefined])}"
        else:
            bits = [np.ascontiguousarray(x).view(f"i{x.itemsize}") for x in (a, b)]
            wrong = (bits[0] != bits[1]) & ~(np.isnan(a) & np.isnan(b))
        return f"the left side is {_show(a[wrong])}, the right side {_show(b[wrong])}" if wrong.any() else None

    def pairs(self, relation: str) -> Iterator[tuple[Any, Any]]:
        """The values of both columns of a relation, where both have one.  Disagreement if only the left one has."""
        table = self.tables[relation]
        for row in table.rows:
            keys = list(zip(table.input_sorts, row.inputs, strict=True))
            left, right = map(self.values.get, keys)
            if left is not None and right is not None:
                yield left, right
            elif left is not None and (unbound := self.unbound(keys[1], set())):
                shown = left if isinstance(left, Made) else None
                raise Disagreement(f"the right side is over a{min(unbound)}, an axis that has no extent", shown)
            elif left is not None and not self.fast:        # in float64 what cancels has none
                raise Disagreement("the right side has no value", left if isinstance(left, Made) else None)

    def unbound(self, key: Key, seen: set[Key]) -> set[int]:
        """The axes without an extent in the terms of a class."""
        if key in seen or key not in self.first:
            return set()
        seen.add(key)
        name, sorts, row = self.first[key]
        numbers = [self.engine.value_to_i64(v) for s, v in zip(sorts, row.inputs, strict=True) if s == "i64"]
        own = {n for n in numbers if name in BINDERS and Ax(n) not in self.axes}
        return own.union(*(self.unbound((s, v), seen) for s, v in zip(sorts, row.inputs, strict=True)))


def largest(x: Array) -> float:
    """The largest finite magnitude in `x`."""
    sizes = np.abs(x.astype(np.float64))
    most = sizes.max(initial=0)
    return float(most if np.isfinite(most) else np.where(np.isfinite(sizes), sizes, 0).max(initial=0))


def _show(x: Array) -> str:
    return ", ".join(str(v) for v in np.asarray(x).ravel()[:4])
