"""Regions: a Loop IR program cut into stretches, those that repeat saturated and partitioned once.

A program is cut where few tensors pass: between two layers of a model, its residual stream.  A stretch is a program of its own, with
axes and tensors numbered as met, so that stretches which differ by names alone are one node, and no operator's name is looked at.
What a cut loses is fusion across it, that is: computing what passes again in each of its readers, or in one kernel with one of
them.  Where elements are used where they lie, that pays; where they are spread, as the left side of a matrix product over all its
columns, each use would compute them again.  So a cut is made only at the narrowest points, between repeats of several definitions
that spread what they read.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from math import ceil
from typing import NamedTuple

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.loop_ir import Value
from emmy.ir.tensor_ir import Input
from emmy.lower.tensor_to_loop import rename

LEAST = 8           # definitions of a stretch that is worth a region of its own
WIDEST = 3          # tensors that pass a cut, at most
SHARE = 1 / 3       # of the definitions, that repeats must save for the program to be cut at all


class Use(NamedTuple):
    """A place where a stretch stands: its ordinal among all, and the program's name of each of its tensors."""

    place: int
    names: dict[str, str]


class Stretch(NamedTuple):
    """A part of a program, and everywhere it stands.  `weights`: its inputs that are weights wherever it stands; `passed`: its outputs that
    are nowhere results of the program."""

    program: loop.Program
    uses: tuple[Use, ...]
    weights: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()


def cut(program: loop.Program, weights: Collection[str] = ()) -> tuple[Stretch, ...]:
    """The program's distinct stretches, in the order of their first uses; the program itself, by its own names, if it has no repeats.
    `weights`: the inputs that are the same at every call.

    Every definition is in one stretch of each place, but for those made of indices alone, which each stretch that reads them has, or
    dissolves if it reads them once."""
    sequence = _Sequence(program)
    for width in range(1, WIDEST + 1):
        bounds = sequence.narrow(width)
        made = [sequence.segment(lo, hi) for lo, hi in sequence.tiles(bounds)]
        uses: dict[loop.Program, list[Use]] = {}
        for place, (part, names) in enumerate(made):
            uses.setdefault(part, []).append(Use(place, names))
        if sum(len(part.definitions) for part in uses) <= (1 - SHARE) * sum(len(part.definitions) for part, _ in made):
            return tuple(_stretch(part, where, weights, sequence.results) for part, where in uses.items())
    return (_stretch(program, [Use(0, {t.name: t.name for t in program.everything})], weights, sequence.results),)


def _stretch(part: loop.Program, uses: Sequence[Use], weights: Collection[str], results: Collection[str]) -> Stretch:
    fixed = frozenset(i.name for i in part.inputs if all(use.names[i.name] in weights for use in uses))
    passed = frozenset(tensor for _, tensor in part.outputs if not any(use.names[tensor] in results for use in uses))
    return Stretch(part, tuple(uses), fixed, passed)


class _Sequence:
    """The definitions in order, without those made of indices alone."""

    def __init__(self, program: loop.Program):
        self.program = program
        self.reads = {d.name: _loaded(d) for d in program.definitions}
        self.loads = {d.name: [v for v in loop.walk((d.body,)) if isinstance(v, loop.Load)] for d in program.definitions}
        self.results = {tensor for _, tensor in program.outputs}
        self.free: dict[str, loop.Definition] = {}
        for d in program.definitions:
            if d.name not in self.results and all(t in self.free for t in self.reads[d.name]):
                self.free[d.name] = d
        self.order = [d for d in program.definitions if d.name not in self.free]
        made = {d.name for d in self.order}
        self.spreads = [spreads(d, made) for d in self.order]
        self.first = {t: k for k, d in reversed([*enumerate(self.order)]) for t in (d.name, *self.reads[d.name])}    # its maker or reader
        self.last = {t: k for k, d in enumerate(self.order) for t in self.reads[d.name]}

    def narrow(self, width: int) -> list[int]:
        """The ends, and the places between two definitions that at most `width` tensors pass, be they read on both sides or made on one.
        Those that do so for half of the program do not count: what every layer reads is nothing that one hands to the next."""
        count = [0] * (len(self.order) + 1)
        for t, last in self.last.items():
            if t not in self.free and last - self.first[t] < len(self.order) / 2:
                for place in range(self.first[t] + 1, last + 1):
                    count[place] += 1
        return [0, *(place for place in range(1, len(self.order)) if count[place] <= width), len(self.order)]

    def segment(self, lo: int, hi: int) -> tuple[loop.Program, dict[str, str]]:
        """The definitions from `lo` up to `hi` as a program of its own, and the names that its tensors have in the whole."""
        uses = Counter(v.tensor for d in self.order[lo:hi] for v in self.loads[d.name])
        inside = [self.dissolved(d, {t for t in self.reads[d.name] if t in self.free and uses[t] == 1}) for d in self.order[lo:hi]]
        wanted = {t for d in inside for t in _loaded(d) if t in self.free}
        for d in reversed(self.free.values()):
            if d.name in wanted:
                wanted |= self.reads[d.name].keys()
        definitions = [d for d in self.free.values() if d.name in wanted] + inside
        sources = self.program.tensors
        names = {d.name: f"t{k}" for k, d in enumerate(definitions)}
        axes: dict[int, int] = {}
        inputs: list[Input] = []
        for d in definitions:
            for t in _loaded(d):
                if t not in names:
                    source = sources[t]
                    names[t] = f"x{len(inputs)}"
                    inputs.append(Input(names[t], source.dims if isinstance(source, Input) else source.shape, source.element))
            for v in loop.walk((d.body,)):
                if v.binds is not None:
                    axes.setdefault(v.binds, len(axes))
        outputs = tuple((names[d.name],) * 2 for d in inside if self.last.get(d.name, 0) >= hi or d.name in self.results)
        extents = self.program.extents
        bodies = tuple(d.replace(name=names[d.name], body=rename(d.body, axes, names)) for d in definitions)
        made = loop.Program(tuple(inputs), tuple((new, extents[old]) for old, new in axes.items()), bodies, outputs)
        return made, {new: old for old, new in names.items()}

    def dissolved(self, definition: loop.Definition, tensors: set[str]) -> loop.Definition:
        """The definition with the bodies of some tensors made of indices alone in their places, as the lowering does with what is used
        once."""
        made = {v: pointwise(self.free[v.tensor].body, v.point) for v in self.loads[definition.name] if v.tensor in tensors}
        body = replaced(definition.body, {v: new for v, new in made.items() if new is not None})
        return loop.Definition(definition.name, definition.shape, definition.element, body)

    def tiles(self, bounds: Sequence[int]) -> list[tuple[int, int]]:
        """The stretches between some of `bounds` that save the most definitions by repeating one after the other."""
        atoms = [self.segment(lo, hi)[0] for lo, hi in zip(bounds, bounds[1:], strict=False)]

        def tile(first: int, stop: int) -> list[tuple[int, int]]:
            best = (0, 0, first, stop)      # definitions saved, less the period; from where to where
            step = stop - first
            for period in range(1, (stop - first) // 2 + 1):
                start = first
                while start + period < stop:
                    run = 0
                    while start + run + period < stop and atoms[start + run] is atoms[start + run + period]:
                        run += 1
                    size = bounds[start + period] - bounds[start]
                    unit = period * ceil(LEAST / size)      # short ones are taken several at a time
                    # inputs of the first are made by none, so it is the second that tells
                    spread = run >= period and any(self.spreads[bounds[start + period]:bounds[start + 2 * period]])
                    times = (run + period) // unit if spread else 0
                    saved = (times - 1) * (bounds[start + unit] - bounds[start]) if times > 1 else 0
                    if (saved, -unit) > best[:2]:
                        best, step = (saved, -unit, start, start + times * unit), unit
                    start += run + 1
            _, _, start, end = best
            if not best[0]:
                return [(bounds[first], bounds[stop])] if first < stop else []
            units = [(bounds[k], bounds[k + step]) for k in range(start, end, step)]
            return [*tile(first, start), *units, *tile(end, stop)]

        return tile(0, len(atoms))


def _loaded(definition: loop.Definition) -> dict[str, None]:
    """The tensors that a definition loads, in the order in which its body meets them."""
    return dict.fromkeys(v.tensor for v in loop.walk((definition.body,)) if isinstance(v, loop.Load))


def spreads(definition: loop.Definition, made: set[str]) -> bool:
    """Whether a body reduces over what two loads share where the other has a coordinate that the load of one of `made` lacks: the left
    side of a product of matrices."""
    def coordinates(v: loop.Load) -> frozenset[Ix]:
        leaves = frozenset[Ix]().union(*map(ix.leaves, v.point))
        return frozenset(x for x in leaves if isinstance(x, Ax) or isinstance(x, Pos) and definition.shape[x.k] > 1)

    for v in loop.walk((definition.body,)):
        if isinstance(v, loop.Reduce):
            sides = [(x.tensor in made, coordinates(x)) for x in loop.walk((v.x,)) if isinstance(x, loop.Load)]
            along = [(ours, side) for ours, side in sides if Ax(v.axis) in side]
            if any(ours and other - side for ours, side in along for _, other in along):
                return True
    return False


def pointwise(body: Value, point: tuple[Ix, ...]) -> Value | None:
    """A body of scalar operators of indices at a point; None if it is anything more."""
    made: dict[Value, Value] = {}

    def at_point(x: Ix) -> Ix:
        return point[x.k] if isinstance(x, Pos) else x

    for v in loop.walk((body,)):
        match v:
            case loop.Const(): made[v] = v
            case loop.IndexOf(at) if not v.operands: made[v] = loop.IndexOf(ix.substitute(at, at_point))
            case loop.Apply(op, args): made[v] = loop.Apply(op, tuple(made[x] for x in args))
            case loop.Cast(element, x): made[v] = loop.Cast(element, made[x])
            case _: return None
    return made[body]


def replaced(body: Value, by: dict[loop.Load, Value]) -> Value:
    """The body with other values for some of its loads."""
    made: dict[Value, Value] = {}

    def field(x: object) -> object:
        match x:
            case Value(): return made[x]
            case Ix(): return ix.substitute(x, lambda leaf: loop.IxOf(made[leaf.value]) if isinstance(leaf, loop.IxOf) else leaf)
            case tuple(): return tuple(map(field, x))
        return x

    for v in loop.walk((body,)) if by else ():
        names = (f.name for f in dataclasses.fields(v))
        made[v] = by[v] if isinstance(v, loop.Load) and v in by else type(v)(*(field(getattr(v, name)) for name in names))
    return made.get(body, body)
