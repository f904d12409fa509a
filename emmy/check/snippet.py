"""What two sides that differ are: a Loop IR program of both, and Python that prints their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from emmy.check.court import Disagreement, Made, Tensor
from emmy.egraph.arithmetic import nearest
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.values import Array
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.loop_text import print_program
from emmy.ir.node import IRError
from emmy.ir.tensor_ir import Input


class Example(NamedTuple):
    """A program of one output a side, and its inputs."""

    program: loop.Program
    arrays: dict[str, Array]

    def values(self) -> list[Array]:
        return evaluate_loop(self.program, self.arrays)

    def text(self) -> str:
        """Python that evaluates both sides and prints them."""
        arrays = [f'    "{name}": np.array({_listed(x)}, "{x.dtype}"),' for name, x in self.arrays.items()]
        half = ["import ml_dtypes  # bfloat16"] if any(x.dtype.name == "bfloat16" for x in self.arrays.values()) else []
        return "\n".join([
            *half, "import numpy as np", "from numpy import inf, nan", "from emmy.evaluate.loop import evaluate_loop",
            "from emmy.ir.loop_text import parse", "",
            'program = parse("""' + print_program(self.program).rstrip() + '""")',
            "arrays = {", *arrays, "}",
            "for (side, _), value in zip(program.outputs, evaluate_loop(program, arrays)):", "    print(side, value)", ""])


def _listed(x: Array) -> str:
    return str(x.astype(np.float64).tolist() if x.dtype.kind not in "bi" else x.tolist())


def example(found: Disagreement, inputs: Mapping[str, Tensor], arrays: Mapping[str, Array], definitions: Mapping[str, Tensor],
            bodies: Mapping[str, Made], extents: Mapping[Ix, int]) -> Example | None:
    """The program of a disagreement's sides; None where a side is no value of Loop IR."""
    write = Writer({**{n: t.element for n, t in (*inputs.items(), *definitions.items())}})
    try:
        sides = {side: write.value(made) for side, made in (("left", found.left), ("right", found.right)) if made is not None}
        templates = {name: write.value(made) for name, made in bodies.items()}
    except (IRError, KeyError):
        return None
    if not sides:
        return None
    used = {v.tensor for v in loop.walk((*sides.values(), *templates.values())) if isinstance(v, loop.Load)}
    free = sorted(frozenset[int]().union(*(loop.free_axes((v,))[v] for v in sides.values())))
    shape = tuple(extents[Ax(a)] for a in free)
    made = [loop.Definition(name, definitions[name].dims, t.element, templates[name]) for name, t in definitions.items()
            if name in used and name in templates]
    for side, value in sides.items():
        for k, a in enumerate(free):
            value = placed(value, a, Pos(k))
        made.append(loop.Definition(side, shape, value.dtype, value))
    bound = {v.binds for d in made for v in loop.walk((d.body,)) if v.binds is not None}
    program = loop.Program(tuple(Input(n, t.dims, t.element) for n, t in inputs.items() if n in used),
                           tuple((a, extents[Ax(a)]) for a in sorted(bound)), tuple(made), tuple((side, side) for side in sides))
    try:
        loop.verify(program)
    except IRError:
        return None
    return Example(program, {n: arrays[n].astype(t.element.numpy) for n, t in inputs.items() if n in used})


class Writer:
    """Loop IR of evaluated terms; `elements` has the stored dtype of each tensor."""

    def __init__(self, elements: Mapping[str, dt.DType]):
        self.elements = elements

    def value(self, made: Made) -> Value:
        """A term of sort Value, or an index as a value."""
        match made.name, made.args:
            case "Input" | "Tensor", [t, point]: return loop.Load(t, self.elements[t], tuple(map(self.index, point)))
            case "Const", [element, bits]:
                stored = dt.named(element)
                return loop.Const(stored, bits % (1 << 8 * stored.bytes))
            case "Number", [element, q]: return nearest(dt.named(element), q)
            case "Difference", [_, x, y]: return loop.Apply("sub", (self.value(x), self.value(y)))
            case "IndexValue", [at]: return loop.IndexOf(self.index(at))
            case "Unary" | "Binary" | "Ternary", [op, *xs]: return loop.Apply(op, tuple(map(self.value, xs)))
            case "Sum", [op, [x, *rest]]:
                total = self.value(x)
                for y in rest:
                    total = loop.Apply(op, (total, self.value(y)))
                return total
            case "Cast", [element, x]: return loop.Cast(dt.named(element), self.value(x))
            case "Round", [element, x]: return loop.Round(dt.named(element), self.value(x))
            case "Reduce", [monoid, a, x]: return loop.Reduce(monoid, a, self.value(x))
            case "Scan", [monoid, a, at, x]: return loop.Scan(monoid, a, self.index(at), self.value(x))
            case "Pivot", [recipe, a, s]: return loop.Pivot(recipe, a, self.value(s))
            case "Channel", [recipe, a, s, x]: return loop.Channel(recipe, a, self.value(s), self.value(x))
            case "Replace", [x, a, i]: return placed(self.value(x), a, self.index(i))
        return loop.IndexOf(self.index(made))

    def index(self, made: Made) -> Ix:
        match made.name, made.args:
            case "Axis", [a]: return Ax(a)
            case "Parameter", [k]: return Pos(k)
            case "IndexConst", [n]: return ix.IxConst(n)
            case "IndexAdd", [x, y]: return ix.IxAdd(self.index(x), self.index(y))
            case "IndexMul", [x, n]: return ix.IxMul(self.index(x), n)
            case "IndexDiv", [x, n]: return ix.IxDiv(self.index(x), n)
            case "IndexMod", [x, n]: return ix.IxMod(self.index(x), n)
            case "IndexOfValue", [v]: return IxOf(self.value(v))
            case "IndexReplace", [x, a, i]: return _place(self.index(x), a, self.index(i), lambda v: placed(v, a, self.index(i)))
        raise KeyError(made.name)


def placed(value: Value, axis: int, at: Ix) -> Value:
    """`value` with the index `at` in the place of an axis; a reduction over the axis keeps it as its own."""
    made: dict[Value, Value] = {}

    def put(v: Value) -> Value:
        if v not in made:
            made[v] = v if v.binds == axis and not isinstance(v, loop.Scan) else _changed(v, put, lambda x: _place(x, axis, at, put), axis)
        return made[v]

    return put(value)


def _changed(v: Value, put: Callable[[Value], Value], place: Callable[[Ix], Ix], axis: int) -> Value:
    match v:
        case loop.Load(point=point): return loop.Load(v.tensor, v.element, tuple(map(place, point)))
        case loop.IndexOf(at): return loop.IndexOf(place(at))
        case loop.Apply(op, args): return loop.Apply(op, tuple(map(put, args)))
        case loop.Scan(monoid, a, at, x): return loop.Scan(monoid, a, place(at), x if a == axis else put(x))
        case loop.Const(): return v
    fields: dict[str, Any] = {name: put(getattr(v, name)) for name in ("x", "score") if isinstance(getattr(v, name, None), Value)}
    changed: Value = v.replace(**fields)
    return changed


def _place(x: Ix, axis: int, at: Ix, put: Callable[[Value], Value]) -> Ix:
    def leaf(term: Ix) -> Ix:
        return at if term == Ax(axis) else IxOf(put(term.value)) if isinstance(term, IxOf) else term

    return ix.substitute(x, leaf)


def shown(values: Iterable[Array]) -> str:
    """Both sides' values on a line each."""
    return "\n".join(f"  {side:5} {' '.join(str(v).split())[:300]}" for side, v in zip(("left", "right"), values, strict=False))
