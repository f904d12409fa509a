"""Canonical forms: one body a class, and its text up to the names of axes and tensors.

The canonical member of a class is the smallest, ties broken by what lies inside reductions, then by text; the text numbers bound axes and
tensors in the order they are met, so it does not depend on how the source named them, nor on ids of the e-graph.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from emmy.egraph.arithmetic import normal
from emmy.egraph.regions import Stretch
from emmy.egraph.terms import Region, Term
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import postorder
from emmy.ir.tensor_ir import Input


class Speller:
    """Writes values as lines `%n = op(...)`.  Output axes are i0, i1, …; others r0, r1, … and tensors x0, x1, … as met."""

    def __init__(self, positions: dict[int, int], extents: dict[int, int]):
        self.positions, self.extents = positions, extents
        self.axes: dict[int, str] = {}
        self.tensors: dict[str, str] = {}
        self.lines: dict[Value, str] = {}
        self.text: list[str] = []

    def copy(self) -> Speller:
        """One that goes on from here."""
        made = Speller(self.positions, self.extents)
        made.axes, made.tensors, made.lines, made.text = dict(self.axes), dict(self.tensors), dict(self.lines), list(self.text)
        return made

    def axis(self, a: int) -> str:
        if a in self.positions:
            return f"i{self.positions[a]}"
        return self.axes.setdefault(a, f"r{len(self.axes)}")

    def index(self, x: Ix) -> str:
        match x:
            case Ax(a): return self.axis(a)
            case ix.IxConst(n): return str(n)
            case ix.IxAdd(): return f"({' + '.join(map(self.index, sorted(addends(x), key=self.place)))})"
            case ix.IxMul(a, n): return f"({self.index(a)} * {n})"
            case ix.IxDiv(a, n): return f"({self.index(a)} // {n})"
            case ix.IxMod(a, n): return f"({self.index(a)} % {n})"
            case IxOf(value): return f"[{self._written(value)}]"
        return str(x)

    def place(self, x: Ix) -> tuple[str, list[str]]:
        """Where an addend stands among others: by its shape, then by the axes that have a name by then."""
        axes = [leaf.a for leaf in ix.leaves(x) if isinstance(leaf, Ax)]
        return str(ix.substitute(x, lambda leaf: Ax(0))), sorted(self.axis(a) for a in axes if a in self.positions or a in self.axes)

    def value(self, v: Value) -> str:
        """What stands for a value: the name of its line, which it writes with those that it needs, or a leaf's own text."""
        return [self._written(x) for x in postorder((v,), lambda x: () if x in self.lines else x.operands)][-1]

    def _written(self, v: Value) -> str:
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
                line = f"{op}({', '.join(self._written(a) for a in args)})"
            case loop.Cast(element, x):
                line = f"cast.{element}({self._written(x)})"
            case loop.Round(element, x):
                line = f"round.{element}({self._written(x)})"
            case loop.Reduce(monoid, a, x):
                inner = self._written(x)
                line = f"reduce.{monoid}[{self.axis(a)}<{self.extents[a]}]({inner})"
            case loop.Scan(monoid, a, at, x):
                inner = self._written(x)
                line = f"scan.{monoid}[{self.axis(a)}<={self.index(at)}]({inner})"
            case loop.Pivot(recipe, a, s):
                inner = self._written(s)
                line = f"pivot.{recipe}[{self.axis(a)}<{self.extents[a]}]({inner})"
            case loop.Channel(recipe, a, s, x):
                score, inner = self._written(s), self._written(x)
                line = f"channel.{recipe}[{self.axis(a)}<{self.extents[a]}]({score}, {inner})"
            case _:
                raise AssertionError(type(v))
        self.lines[v] = f"%{len(self.lines)}"
        self.text.append(f"{self.lines[v]} = {line}")
        return self.lines[v]


def addends(x: Ix) -> list[Ix]:
    """The terms that an index is a sum of."""
    return [*addends(x.x), *addends(x.y)] if isinstance(x, ix.IxAdd) else [x]


def spell(value: Value, positions: dict[int, int], extents: dict[int, int]) -> tuple[str, Speller]:
    """The text of a value, one line an operation and the value itself last, and the names it gave."""
    speller = Speller(positions, extents)
    last = speller.value(value)
    return "\n".join([*speller.text, last]), speller


class Rank:
    """Where a value stands in an `Order`: by counts, and among equals by its text, which is spelled only then."""

    __slots__ = ("counts", "order", "value")

    def __init__(self, counts: tuple[int, int, int], order: Order, value: Value):
        self.counts, self.order, self.value = counts, order, value

    def __lt__(self, other: Rank) -> bool:
        return self.counts < other.counts if self.counts != other.counts else self.order.text(self.value) < self.order.text(other.value)


def summed(v: Value) -> bool:
    """Whether a value is a sum, or one where a condition holds."""
    return isinstance(v, loop.Apply) and (v.op in ("add", "sub") or v.op == "select" and any(map(summed, v.args[1:])))


def quotients(x: Ix) -> int:
    """How many quotients and remainders an index has."""
    match x:
        case ix.IxAdd(a, b): return quotients(a) + quotients(b)
        case ix.IxMul(a, _): return quotients(a)
        case ix.IxDiv(a, _) | ix.IxMod(a, _): return 1 + quotients(a)
    return 0


class Order:
    """The order of canonical forms: fewer products of sums, then fewer operations, quotients and remainders of indices among them, then
    fewer of them inside reductions, then content."""

    def __init__(self, region: Region):
        self.extents = region.extents
        self.positions = {a: k for axes in region.output_axes.values() for k, a in enumerate(axes)}
        self.known: dict[Value, Rank] = {}
        self.texts: dict[Value, tuple[str, str]] = {}

    def __call__(self, v: Value) -> Rank:
        for x in postorder((v,), lambda x: () if x in self.known else x.operands):
            self._rank(x)
        return self.known[v]

    def _rank(self, v: Value) -> None:
        if v not in self.known:
            below = [self.known[x].counts for x in v.operands]
            folded, size, inside = sum(k[0] for k in below), sum(k[1] for k in below), sum(k[2] for k in below)
            of_sums = any(map(summed, v.operands))
            linear = isinstance(v, loop.Apply) and v.op in ("mul", "div") or isinstance(v, loop.Reduce) and v.monoid == "add"
            size += sum(map(quotients, v.point)) if isinstance(v, loop.Load) else 0
            self.known[v] = Rank((folded + (linear and of_sums), size + 1, inside + (size if v.binds is not None else 0)), self, v)

    def text(self, v: Value) -> tuple[str, str]:
        if v not in self.texts:
            text, speller = spell(v, self.positions, self.extents)
            self.texts[v] = text, repr(sorted(speller.tensors))
        return self.texts[v]


def canonical(region: Region, roots: Iterable[int] | None = None) -> dict[int, Value]:
    """The canonical body of every class (of those reached before `roots` are all settled, if given), kept tensors inlined."""
    return {c: value for c, (_, value) in smallest(region, roots).items()}


def smallest(region: Region, roots: Iterable[int] | None = None) -> dict[int, tuple[Term, Value]]:
    """The canonical member of every class that has one (or until `roots` are all settled) with its body, members before their users: the
    first in `Order`, sums and products over the reals in normal form.  Classes settle in the order of their counts, all of one at once,
    so that a class has its text compared only among members of its own."""
    elements = region.elements()
    order = Order(region)
    users: dict[int, list[tuple[int, Term]]] = {}
    best: dict[int, tuple[Term, Value]] = {}
    counts: list[tuple[int, int, int]] = []                                     # a heap of those that `open_` has
    open_: dict[tuple[int, int, int], dict[int, dict[Value, Term]]] = {}        # by counts: the members of each class, built
    wanted = None if roots is None else set(roots)

    def offer(c: int, term: Term) -> None:
        made = term.build(tuple(best[k][1] for k in term.kids), elements.get(term.label))
        made = normal(made, order) if region.real else made
        rank = order(made)
        if rank.counts not in open_:
            heapq.heappush(counts, rank.counts)
        open_.setdefault(rank.counts, {}).setdefault(c, {}).setdefault(made, term)

    for c, terms in region.terms.items():
        for term in terms:
            if term.kind in ("Tensor", "Sum"):
                continue
            for k in set(term.kids):
                users.setdefault(k, []).append((c, term))
            if not term.kids:
                offer(c, term)
    while counts and (wanted is None or wanted):
        settled = {c: members for c, members in open_.pop(heapq.heappop(counts)).items() if c not in best}
        for c, members in settled.items():
            value = min(members, key=order)
            best[c] = members[value], value
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
    reads = {tensor: [names[t] for t in form.reads] for tensor, (form, names) in made.items()}
    named: dict[str, str] = {}
    defined: dict[str, str] = {}
    calls: list[str] = []
    for tensor in postorder((result,), lambda t: reads.get(t, [])):
        if tensor not in made:
            named[tensor] = f"x{len(named) - len(calls)}"
            continue
        function = defined.setdefault(made[tensor][0].text, f"f{len(defined)}")
        named[tensor] = f"%{len(calls)}"
        calls.append(f"{named[tensor]} = {function}({', '.join(named[t] for t in reads[tensor])})")
    return "\n".join([*(f"{function}:\n{text}" for text, function in defined.items()), *calls, named[result]])


def _shape(tensor: Input | loop.Definition) -> tuple[int, ...]:
    return tensor.dims if isinstance(tensor, Input) else tensor.shape
