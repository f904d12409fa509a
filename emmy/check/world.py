"""What seeds are made in: axes with extents, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from emmy.check.court import Tensor
from emmy.check.pattern import Call, Lit, Term, calls
from emmy.egraph.arithmetic import exactly
from emmy.egraph.rulefile import Rule
from emmy.egraph.terms import dimensions, rational
from emmy.evaluate.values import Array
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.operators import OPERATORS

AXES = 4
BOUND = range(6, 8)     # axes that templates bind, which points do not mention: substitution captures nothing
FRESH = 8               # the first axis that no seed has
Interval = tuple[int, int]
Choose = Callable[[Sequence[Any]], Any]
# What elements of floating-point tensors are drawn from where every bit counts.
NAN, INFINITY = float("nan"), float("inf")
PALETTES = ((NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, -5e-324, 1.0, -1.0, 3e38), (0.0, -0.0, -1.0), (0.0, -0.0, 1.0),
            (NAN, INFINITY, -INFINITY, 1.0))


class Mismatch(Exception):
    """A choice that does not fit the others."""


class World(NamedTuple):
    """What several seeds share: the extents of axes, and tensors."""

    extents: dict[int, int]
    inputs: dict[str, Tensor]
    definitions: dict[str, Tensor]
    bodies: dict[str, Term]

    def text(self) -> str:
        """The facts of it."""
        lines = [f"(set (Extent {a}) {n})" for a, n in self.extents.items()]
        lines += [f'(set (Stored "{name}") "{t.element.compute}")' for name, t in (*self.inputs.items(), *self.definitions.items())]
        lines += [f'(Half "{name}")' for name, t in (*self.inputs.items(), *self.definitions.items()) if t.element is not t.element.compute]
        lines += [f'(Weight "{name}")' for name in self.inputs]
        lines += [f'(set (Definition "{name}") {body})' for name, body in self.bodies.items()]
        return "\n".join((*lines, *dimensions(((name, t.dims, t.element) for name, t in self.inputs.items()), FRESH)))

    def interval(self, t: Term, params: Sequence[Interval] = ()) -> Interval:
        """The least and largest value of an index, given those of a template's parameters."""
        match t:
            case Call("Axis", (Lit(a),)): return 0, max(0, self.extents[int(a)] - 1)
            case Call("IndexConst", (Lit(n),)): return int(n), int(n)
            case Call("Parameter", (Lit(k),)) if int(k) < len(params): return params[int(k)]
            case Call("IndexAdd", (x, y)):
                (a, b), (c, d) = self.interval(x, params), self.interval(y, params)
                return a + c, b + d
            case Call("IndexMul", (x, Lit(n))):
                low, high = sorted(e * int(n) for e in self.interval(x, params))
                return low, high
            case Call("IndexDiv", (x, Lit(n))):
                low, high = self.interval(x, params)
                return low // int(n), high // int(n)
            case Call("IndexMod", (x, Lit(n))): return 0, int(n) - 1
            case Call("IndexOfValue" | "IndexOfBody", (Call("Input" | "BodyInput", (Lit(name), _)),)):
                return 0, (self.inputs[str(name)].below or 1) - 1
        raise Mismatch

    def dtype(self, t: Term) -> DType:
        """The type of a value without variables."""
        assert isinstance(t, Call)
        match t.name.removeprefix("Body"), t.args:
            case "Input", (Lit(name), _): return self.inputs[str(name)].element.compute
            case "Tensor", (Lit(name), _): return self.definitions[str(name)].element.compute
            case "Const" | "Number", (Lit(element), _): return dt.named(str(element))
            case "Cast" | "Round", (Lit(element), _): return dt.named(str(element)).compute
            case "IndexValue" | "Index", _: return dt.i64
            case ("Unary" | "Binary"), (Lit(op), *_) if OPERATORS[str(op)].result == "bool": return dt.bool_
            case "At" | "Replace", (x, *_): return self.dtype(x)
            case "Sum", (_, Call(_, (x, *_))): return self.dtype(x)
        return self.dtype(t.args[-1])



def world(choose: Choose, empty: bool = False) -> World:
    """Axes and no tensors.  `empty`: an axis may have no point."""
    return World({a: choose((2, 3, 4, 3, 1, *([0] if empty else []))) for a in (*range(AXES), *BOUND)}, {}, {}, {})


class Seed(NamedTuple):
    """Terms on which a rule may fire, and the rules that derive the facts of its premises."""

    roots: tuple[Term, ...]
    through: tuple[Rule, ...]


def text(at: World, seeds: Iterable[Seed]) -> str:
    """A world and the roots of seeds, as egglog text, with the numbers that constants in them stand for."""
    roots = dict.fromkeys(root for seed in seeds for root in seed.roots)
    constants = {c.args for c in calls(*roots, *at.bodies.values()) if c.name in ("Const", "BodyConst")}
    numbers = sorted(f"(set (Exact {d} {c}) {rational(x)})" for d, c in constants if (x := exactly(_constant(d, c))) is not None)
    return "\n".join((at.text(), *numbers, *(f"(let $root{k} {root})" for k, root in enumerate(roots))))


def _constant(element: Term, bits: Term) -> loop.Const:
    assert isinstance(element, Lit) and isinstance(bits, Lit)
    stored = dt.named(str(element.value))
    return loop.Const(stored, int(bits.value) % (1 << 8 * stored.bytes))


def fraction(numerator: int, denominator: int) -> Call:
    """A number as a term."""
    return Call("bigrat", (Call("bigint", (Lit(numerator),)), Call("bigint", (Lit(denominator),))))


def coordinates(at: Term) -> tuple[Term, ...]:
    """The coordinates of a point."""
    match at:
        case Call("Coordinate", (x, rest)): return (x, *coordinates(rest))
        case Call("End"): return ()
    raise Mismatch


def inputs(tensors: Mapping[str, Tensor], kind: str, seed: int) -> dict[str, Array]:
    """Elements of inputs.  Odd seeds: numbers of both signs, and for "exact" NaN, infinities, subnormals, or zeros and ones; even ones:
    floats of [1/2, 2), so that what is undefined somewhere is defined."""
    rng, wild = np.random.default_rng(seed), seed % 2 == 1

    def array(t: Tensor) -> Array:
        if t.below is not None:
            return rng.integers(0, t.below, t.dims, t.element.numpy)
        if t.element.kind == "bool":
            return rng.integers(0, 2, t.dims).astype(bool)
        if t.element.kind == "int":
            info = np.iinfo(t.element.numpy)
            ends = rng.choice([info.min, info.max, 0, -1, 2], t.dims)
            ends_too = wild and kind in ("exact", "finite")     # over the reals nothing wraps
            return np.where(ends_too & (rng.random(t.dims) < 0.3), ends, rng.integers(-4, 5, t.dims)).astype(t.element.numpy)
        x = rng.integers(4, 16, t.dims) / 8
        x = x * rng.choice((-1, 1, 1), t.dims) if wild else x
        palette = PALETTES[seed // 2 % len(PALETTES)]
        special = rng.choice(palette, t.dims) if wild and kind == "exact" else x
        with np.errstate(all="ignore"):
            return np.asarray(np.where(rng.random(t.dims) < 0.6 + 0.4 * (len(palette) == 3), special, x)).astype(t.element.numpy)

    return {name: array(t) for name, t in tensors.items()}
