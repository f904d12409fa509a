"""Canonical forms: one body a class, and its text up to the names of axes and tensors.

The canonical member of a class is the smallest, ties broken by what lies inside reductions, then by text; the text numbers bound axes and
tensors in the order they are met, so it does not depend on how the source named them, nor on ids of the e-graph.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterable

from emmy.egraph.arithmetic import normal
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


type Rank = tuple[int, int, int, str, str]


class Order:
    """The order of canonical forms: fewer products of sums, then fewer operations, then fewer of them inside reductions, then content."""

    def __init__(self, region: Region):
        self.extents = region.extents
        self.positions = {a: k for axes in region.output_axes.values() for k, a in enumerate(axes)}
        self.known: dict[Value, Rank] = {}

    def __call__(self, v: Value) -> Rank:
        if v not in self.known:
            below = [self(x) for x in v.operands]
            folded, size, inside = sum(k[0] for k in below), sum(k[1] for k in below), sum(k[2] for k in below)
            of_sums = any(isinstance(x, loop.Apply) and x.op in ("add", "sub") for x in v.operands)
            linear = isinstance(v, loop.Apply) and v.op in ("mul", "div") or isinstance(v, loop.Reduce) and v.monoid == "add"
            text, speller = spell(v, self.positions, self.extents)
            self.known[v] = (folded + (linear and of_sums), size + 1, inside + (size if v.binds is not None else 0), text,
                             repr(sorted(speller.tensors)))
        return self.known[v]


def canonical(region: Region, roots: Iterable[int] | None = None) -> dict[int, Value]:
    """The canonical body of every class (of those reached before `roots` are all settled, if given), kept tensors inlined."""
    return {c: value for c, (_, value) in smallest(region, roots).items()}


def smallest(region: Region, roots: Iterable[int] | None = None) -> dict[int, tuple[Term, Value]]:
    """The canonical member of every class that has one (or until `roots` are all settled) with its body, members before their users: the
    first in `Order`, sums and products over the reals in normal form."""
    elements = region.elements()
    order = Order(region)
    users: dict[int, list[tuple[int, Term]]] = {}
    best: dict[int, tuple[Term, Value]] = {}
    heap: list[tuple[Rank, int, int, Term, Value]] = []
    met = itertools.count()
    wanted = None if roots is None else set(roots)

    def offer(c: int, term: Term) -> None:
        made = term.build(tuple(best[k][1] for k in term.kids), elements.get(term.label))
        made = normal(made, order) if region.real else made
        heapq.heappush(heap, (order(made), next(met), c, term, made))

    for c, terms in region.terms.items():
        for term in terms:
            if term.kind in ("Tensor", "Sum"):
                continue
            for k in set(term.kids):
                users.setdefault(k, []).append((c, term))
            if not term.kids:
                offer(c, term)
    while heap and (wanted is None or wanted):
        *_, c, term, made = heapq.heappop(heap)
        if c in best:
            continue
        best[c] = term, made
        if wanted is not None:
            wanted.discard(c)
        for user, other in users.get(c, ()):
            if user not in best and all(k in best for k in other.kids):
                offer(user, other)
    return best


def digest(text: str) -> str:
    """An identity: the first 12 hexadecimal digits of the text's BLAKE2b."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def forms(region: Region) -> dict[str, str]:
    """The canonical form of each output of the region's program, typed: what decides whether two programs are one."""
    roots = {name: region.home[tensor] for name, tensor in region.program.outputs if tensor in region.home}
    bodies = canonical(region, roots.values())
    tensors = region.program.tensors
    out: dict[str, str] = {}
    for name, tensor in region.program.outputs:
        if tensor not in region.home:      # an input handed through
            source = tensors[tensor]
            out[name] = f"x0:{source.element}"
            continue
        axes = region.output_axes[tensor]
        text, speller = spell(bodies[region.home[tensor]], {a: k for k, a in enumerate(axes)}, region.extents)
        definition = tensors[tensor]
        inputs = [f"{short}: {tensors[t].element}{list(_shape(tensors[t]))}" for t, short in speller.tensors.items()]
        bounds = ", ".join(f"i{k}<{region.extents[a]}" for k, a in enumerate(axes))
        out[name] = "\n".join([*inputs, f"{definition.element}[{bounds}]:", text])
    return out


def _shape(tensor: Input | loop.Definition) -> tuple[int, ...]:
    return tensor.dims if isinstance(tensor, Input) else tensor.shape
