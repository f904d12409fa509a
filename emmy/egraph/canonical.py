"""Canonical forms: one body a class, and its text up to the names of axes and tensors.

The canonical member of a class is the smallest, ties broken by text; the text numbers bound axes and tensors in the
order they are met, so it does not depend on how the source named them, nor on ids of the e-graph.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from emmy.egraph.regions import Stretch
from emmy.egraph.terms import Region, Term
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.tensor_ir import Input


class Speller:
    """Writes values as lines `%n = op(...)`.  Output axes are i0, i1, …; others r0, r1, … and tensors x0, x1, … as met."""

    def __init__(self, positions: dict[int, int], extents: dict[int, int]):
        self.positions, self.extents = positions, extents
        self.axes: dict[int, str] = {}
        self.tensors: dict[str, str] = {}
        self.lines: dict[Value, str] = {}
        self.text: list[str] = []

    def axis(self, a: int) -> str:
        if a in self.positions:
            return f"i{self.positions[a]}"
        return self.axes.setdefault(a, f"r{len(self.axes)}")

    def index(self, x: Ix) -> str:
        match x:
            case Ax(a): return self.axis(a)
            case ix.IxConst(n): return str(n)
            case ix.IxAdd(a, b): return f"({self.index(a)} + {self.index(b)})"
            case ix.IxMul(a, n): return f"({self.index(a)} * {n})"
            case ix.IxDiv(a, n): return f"({self.index(a)} // {n})"
            case ix.IxMod(a, n): return f"({self.index(a)} % {n})"
            case IxOf(value): return f"[{self.value(value)}]"
        return str(x)

    def value(self, v: Value) -> str:
        if v in self.lines:
            return self.lines[v]
        match v:
            case loop.Load(name, element, point):
                at = ", ".join(self.index(x) for x in point)
                return f"{self.tensors.setdefault(name, f'x{len(self.tensors)}')}:{element}[{at}]"
            case loop.Const(element, bits):
                return f"{element}:{bits:#x}"
            case loop.IndexOf(at):
                return f"index({self.index(at)})"
            case loop.Apply(op, args):
                line = f"{op}({', '.join(self.value(a) for a in args)})"
            case loop.Cast(element, x):
                line = f"cast.{element}({self.value(x)})"
            case loop.Round(element, x):
                line = f"round.{element}({self.value(x)})"
            case loop.Reduce(monoid, a, x):
                inner = self.value(x)
                line = f"reduce.{monoid}[{self.axis(a)}<{self.extents[a]}]({inner})"
            case loop.Scan(monoid, a, at, x):
                inner = self.value(x)
                line = f"scan.{monoid}[{self.axis(a)}<={self.index(at)}]({inner})"
            case loop.Pivot(recipe, a, s):
                inner = self.value(s)
                line = f"pivot.{recipe}[{self.axis(a)}<{self.extents[a]}]({inner})"
            case loop.Channel(recipe, a, s, x):
                score, inner = self.value(s), self.value(x)
                line = f"channel.{recipe}[{self.axis(a)}<{self.extents[a]}]({score}, {inner})"
            case _:
                raise AssertionError(type(v))
        self.lines[v] = f"%{len(self.lines)}"
        self.text.append(f"{self.lines[v]} = {line}")
        return self.lines[v]


def spell(value: Value, positions: dict[int, int], extents: dict[int, int]) -> tuple[str, Speller]:
    """The text of a value, one line an operation and the value itself last, and the names it gave."""
    speller = Speller(positions, extents)
    last = speller.value(value)
    return "\n".join([*speller.text, last]), speller


def canonical(region: Region, roots: Iterable[int] | None = None) -> dict[int, Value]:
    """The canonical body of every class (of those reached before `roots` are all settled, if given), kept tensors inlined.

    Classes settle in the order of size: when those of size n - 1 are settled, all members of size n are known.  So a class has its text
    compared only among its smallest members, and mostly it has but one."""
    elements = region.elements()
    positions = {a: k for axes in region.output_axes.values() for k, a in enumerate(axes)}
    users: dict[int, list[tuple[int, Term]]] = {}
    best: dict[int, Value] = {}
    size: dict[int, int] = {}
    sizes: list[int] = []                                       # a heap of those that `open_` has
    open_: dict[int, dict[int, dict[Term, None]]] = {}          # by size: the members of each class
    wanted = None if roots is None else set(roots)

    @cache
    def rank(value: Value) -> tuple[str, str]:
        text, speller = spell(value, positions, region.extents)
        return text, repr(sorted(speller.tensors))

    def build(term: Term) -> Value:
        kids = tuple(best[k] for k in term.kids)
        if term.kind == "Sum":      # the operands that stand most often come first, then by text
            count = Counter(kids)
            kids = tuple(sorted(kids, key=lambda k: (-count[k], rank(k))))
        return term.build(kids, elements.get(term.label))

    def smallest(members: Iterable[Term]) -> Value:
        made: dict[Value, tuple[str, str, tuple[int, ...]]] = {}
        for term in members:
            value, key = build(term), (term.kind, term.label, term.kids)
            made[value] = min(made.get(value, key), key)
        return min(made, key=lambda value: (rank(value), made[value])) if len(made) > 1 else next(iter(made))

    def offer(c: int, term: Term) -> None:
        n = 1 + sum(size[k] for k in term.kids)
        if n not in open_:
            heapq.heappush(sizes, n)
        open_.setdefault(n, {}).setdefault(c, {})[term] = None

    for c, terms in region.terms.items():
        for term in terms:
            if term.kind == "Tensor":
                continue
            for k in set(term.kids):
                users.setdefault(k, []).append((c, term))
            if not term.kids:
                offer(c, term)
    while sizes and (wanted is None or wanted):
        n = heapq.heappop(sizes)
        settled = {c: terms for c, terms in open_.pop(n).items() if c not in best}
        for c, members in settled.items():
            best[c], size[c] = smallest(members), n
        if wanted is not None:
            wanted -= settled.keys()
        for c in settled:
            for user, other in users.get(c, ()):
                if user not in best and all(k in best for k in other.kids):
                    offer(user, other)
    return best


def digest(text: str) -> str:
    """An identity: the first 12 hexadecimal digits of the text's BLAKE2b."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class Form(NamedTuple):
    """The canonical form of a tensor, typed, and the tensors it reads, in the order of their names x0, x1, … in the text."""

    text: str
    reads: tuple[str, ...]


def outputs(region: Region) -> dict[str, Form]:
    """The form of each output tensor of a region's program that is not an input handed through."""
    wanted = dict.fromkeys(tensor for _, tensor in region.program.outputs if tensor in region.home)
    bodies = canonical(region, [region.home[tensor] for tensor in wanted])
    tensors = region.program.tensors
    made: dict[str, Form] = {}
    for tensor in wanted:
        axes = region.output_axes[tensor]
        text, speller = spell(bodies[region.home[tensor]], {a: k for k, a in enumerate(axes)}, region.extents)
        inputs = [f"{short}: {tensors[t].element}{list(_shape(tensors[t]))}" for t, short in speller.tensors.items()]
        bounds = ", ".join(f"i{k}<{region.extents[a]}" for k, a in enumerate(axes))
        made[tensor] = Form("\n".join([*inputs, f"{tensors[tensor].element}[{bounds}]:", text]), tuple(speller.tensors))
    return made


def forms(region: Region) -> dict[str, str]:
    """The canonical form of each output of the region's program: what decides whether two programs are one."""
    made, tensors = outputs(region), region.program.tensors
    return {name: made[tensor].text if tensor in made else f"x0:{tensors[tensor].element}" for name, tensor in region.program.outputs}


def composed(program: loop.Program, stretches: Sequence[Stretch], regions: Sequence[Region]) -> dict[str, str]:
    """`forms` of a program cut into `stretches`, saturated as `regions`.  Of several stretches, an output's form is each distinct form of
    theirs once, and the calls that make the output, both as met."""
    if [len(stretch.uses) for stretch in stretches] == [1]:
        return forms(regions[0])
    made: dict[str, tuple[Form, dict[str, str]]] = {}       # by tensor: its form, and the program's names of what it reads
    for stretch, region in zip(stretches, regions, strict=True):
        found = outputs(region)
        made |= {use.names[tensor]: (form, use.names) for use in stretch.uses for tensor, form in found.items()}
    tensors = program.tensors
    return {name: _calls(tensor, made) if tensor in made else f"x0:{tensors[tensor].element}" for name, tensor in program.outputs}


def _calls(result: str, made: dict[str, tuple[Form, dict[str, str]]]) -> str:
    """The form of a tensor in terms of inputs x0, x1, …, with distinct forms f0, f1, … and their calls %0, %1, … as met."""
    named: dict[str, str] = {}
    defined: dict[str, str] = {}
    inputs: dict[str, str] = {}
    calls: list[str] = []
    stack = [(result, False)]
    while stack:
        tensor, ready = stack.pop()
        if tensor in named or tensor in inputs:
            continue
        if tensor not in made:
            inputs[tensor] = f"x{len(inputs)}"
            continue
        form, names = made[tensor]
        reads = [names[t] for t in form.reads]
        if ready:
            function = defined.setdefault(form.text, f"f{len(defined)}")
            named[tensor] = f"%{len(named)}"
            calls.append(f"{named[tensor]} = {function}({', '.join({**inputs, **named}[t] for t in reads)})")
        else:
            stack.append((tensor, True))
            stack.extend((t, False) for t in reversed(reads))
    return "\n".join([*(f"{function}:\n{text}" for text, function in defined.items()), *calls, named[result]])


def _shape(tensor: Input | loop.Definition) -> tuple[int, ...]:
    return tensor.dims if isinstance(tensor, Input) else tensor.shape
