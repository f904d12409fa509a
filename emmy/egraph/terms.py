"""Loop IR to egglog text, and a saturated e-graph back to classes of terms (`Region`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

from emmy.egraph import provenance
from emmy.egraph.arithmetic import exactly, nearest
from emmy.egraph.budget import Overrun
from emmy.egraph.rulebook import EGraph
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ix
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import IRError

SCALED: dict[str, Callable[[Ix, int], Ix]] = {"IndexMul": ix.IxMul, "IndexDiv": ix.IxDiv, "IndexMod": ix.IxMod}


def encode(program: loop.Program, output_axes: dict[str, tuple[int, ...]], weights: frozenset[str] = frozenset()) -> str:
    """Facts and terms of a region: extents, weights, definitions, and each definition's element at its output axes."""
    inputs = {i.name for i in program.inputs}
    lines = [f"(set (Extent {a}) {n})" for a, n in program.axes]
    extents = {(a, d.shape[k]) for d in program.definitions for k, a in enumerate(output_axes[d.name])}
    lines += [f"(set (Extent {a}) {n})" for a, n in sorted(extents)]
    axes = {a for a, _ in program.axes} | {a for own in output_axes.values() for a in own}
    names = [t.name for t in program.everything]        # of inputs whose copies have names of their own
    copied = [i for i in program.inputs if not any(name.startswith(f"{i.name}_along") for name in names)]
    lines += dimensions(((i.name, i.dims, i.element) for i in copied), max(axes, default=-1) + 1)
    constants = {v for d in program.definitions for v in loop.walk((d.body,)) if isinstance(v, loop.Const)}
    lines += sorted(f'(set (Exact "{c.element}" {_signed(c.bits)}) {rational(x)})' for c in constants if (x := exactly(c)) is not None)
    lines += [f'(set (Stored "{t.name}") "{t.element.compute}")' for t in program.everything]
    lines += [f'(Half "{t.name}")' for t in program.everything if t.element is not t.element.compute]
    lines += [f'(Weight "{name}")' for name in sorted(weights)]
    lines += [f'(set (Definition "{d.name}") {body(d.body, inputs)})' for d in program.definitions]
    lines += [f'(Tensor "{d.name}" {point(map(ix.Ax, output_axes[d.name]), inputs)})' for d in program.definitions]
    return "\n".join(lines)


def dimensions(inputs: Iterable[tuple[str, tuple[int, ...], DType]], fresh: int) -> list[str]:
    """Facts of inputs (name, dimensions, type) of two dimensions and more, whose axes are from `fresh` on, one for each extent: what
    rules/loop/layout.egg declares; and of the first axis after them."""
    lines: list[str] = []
    axes: dict[tuple[int, int], int] = {}       # by number of a dimension and how many points
    for name, dims, element in inputs:
        if len(dims) < 2:
            continue
        lines += [f'(Shaped "{name}" {len(dims)} {element.bytes})']
        piece = max(1, 16 // element.bytes)
        for k, n in enumerate(dims):
            own, whole = (axes.setdefault((k, points), fresh + len(axes)) for points in (n, -(-n // piece) * piece))
            apart = prod(dims[k + 1:])
            lines += [f'(Dimension "{name}" {k} {n} {own} {whole})']
            lines += [f'(Strided "{name}" {k})'] * (apart > 1) + [f'(Uneven "{name}" {k})'] * (apart > 1 and apart % piece > 0)
    lines += [f"(set (Extent {a}) {n})" for (_, n), a in axes.items()]
    return [*lines, f"(set (FirstFreshAxis) {fresh + len(axes)})"]


def index(x: Ix, inputs: set[str]) -> str:
    """An index term as egglog text."""
    match x:
        case ix.Ax(a): return f"(Axis {a})"
        case ix.Pos(k): return f"(Parameter {k})"
        case ix.IxConst(n): return f"(IndexConst {n})"
        case ix.IxAdd(a, b): return f"(IndexAdd {index(a, inputs)} {index(b, inputs)})"
        case ix.IxMul(a, n): return f"(IndexMul {index(a, inputs)} {n})"
        case ix.IxDiv(a, n): return f"(IndexDiv {index(a, inputs)} {n})"
        case ix.IxMod(a, n): return f"(IndexMod {index(a, inputs)} {n})"
        case IxOf(value): return f"(IndexOfBody {body(value, inputs)})"
    raise IRError(f"no index term {x!r}")


def point(at: Iterable[Ix], inputs: set[str]) -> str:
    """A point as egglog text."""
    text = "(End)"
    for x in reversed(list(at)):
        text = f"(Coordinate {index(x, inputs)} {text})"
    return text


def body(value: Value, inputs: set[str]) -> str:
    """A definition's body as egglog text, a template over its parameters."""
    made: dict[Value, str] = {}
    for v in loop.walk((value,)):
        match v:
            case loop.Load(name, _, at):
                made[v] = f'({"BodyInput" if name in inputs else "BodyTensor"} "{name}" {point(at, inputs)})'
            case loop.Const(element, bits):
                made[v] = f'(BodyConst "{element}" {_signed(bits)})'
            case loop.IndexOf(at):
                made[v] = f"(BodyIndex {index(at, inputs)})"
            case loop.Apply(op, args):
                made[v] = f'({("BodyUnary", "BodyBinary", "BodyTernary")[len(args) - 1]} "{op}" {" ".join(made[a] for a in args)})'
            case loop.Cast(element, x):
                made[v] = f'(BodyCast "{element}" {made[x]})'
            case loop.Round(element, x):
                made[v] = f'(BodyRound "{element}" {made[x]})'
            case loop.Reduce(monoid, a, x):
                made[v] = f'(BodyReduce "{monoid}" {a} {made[x]})'
            case loop.Scan(monoid, a, at, x):
                made[v] = f'(BodyScan "{monoid}" {a} {index(at, inputs)} {made[x]})'
            case _:
                raise IRError(f"{type(v).__name__} is derived by rules; a definition does not start with one")
    return made[value]


def _signed(bits: int) -> int:
    """64 bits as the engine's integer."""
    return bits - (1 << 64) if bits >> 63 else bits


def rational(x: Fraction) -> str:
    """A number as egglog text."""
    return f'(bigrat (from-string "{x.numerator}") (from-string "{x.denominator}"))'


class ClassValue(Value):
    """A value known by its class only: what an index term in a `Region` may hold."""

    key: int

    @functools.cached_property
    def dtype(self) -> DType:
        return dt.i64


class Term(NamedTuple):
    """One member of a class.  `kind` is its constructor; `label` its operator, monoid, recipe, dtype or tensor; `kids` classes.
    A Sum is a sum or product of any number of operands in no order, a Difference one that may cancel: `spelled` canonical forms
    alone are made from them."""

    kind: str
    label: str
    kids: tuple[int, ...] = ()
    axis: int | None = None
    at: tuple[Ix, ...] = ()
    bits: int = 0

    def build(self, kids: tuple[Value, ...], element: DType | None = None) -> Value:
        """The Loop IR value of this term over `kids` (for Scan and gathers, the values in `at` come after the others)."""
        holes = iter(kids[len(self.kids) - len(self.indexed):])
        at = tuple(ix.substitute(x, lambda leaf: IxOf(next(holes)) if isinstance(leaf, IxOf) else leaf) for x in self.at)
        match self.kind:
            case "Input" | "Tensor":
                assert element is not None
                return loop.Load(self.label, element, at)
            case "Const": return loop.Const(dt.named(self.label), self.bits)
            case "IndexValue": return loop.IndexOf(at[0])
            case "Unary" | "Binary" | "Ternary": return loop.Apply(self.label, kids)
            case "Difference": return loop.Apply("sub", kids)
            case "Sum": return functools.reduce(lambda x, y: loop.Apply(self.label, (x, y)), kids)
            case "Cast": return loop.Cast(dt.named(self.label), kids[0])
            case "Round": return loop.Round(dt.named(self.label), kids[0])
        assert self.axis is not None
        match self.kind:
            case "Reduce": return loop.Reduce(self.label, self.axis, kids[0])
            case "Scan": return loop.Scan(self.label, self.axis, at[0], kids[0])
            case "Pivot": return loop.Pivot(self.label, self.axis, kids[0])
            case "Channel": return loop.Channel(self.label, self.axis, kids[0], kids[1])
        raise AssertionError(self.kind)

    @property
    def spelled(self) -> bool:
        """Whether it is there for canonical forms alone."""
        return self.kind in ("Sum", "Difference")

    @property
    def indexed(self) -> tuple[int, ...]:
        """The classes of the values that `at` uses as indices, in the order of its leaves."""
        found: list[int] = []

        def leaf(x: Ix) -> Ix:
            if isinstance(x, IxOf) and isinstance(x.value, ClassValue):
                found.append(x.value.key)
            return x

        for x in self.at:
            ix.substitute(x, leaf)
        return tuple(found)


class Copy(NamedTuple):
    """An input with its dimensions in another order: the class of its element at a point of `axes`."""

    source: str
    home: int
    axes: tuple[int, ...]


class Region(NamedTuple):
    """A saturated region: the members of each class, the axes each depends on, and the class of each definition."""

    program: loop.Program
    extents: dict[int, int]
    output_axes: dict[str, tuple[int, ...]]
    terms: dict[int, tuple[Term, ...]]
    deps: dict[int, frozenset[int]]
    home: dict[str, int]
    may_keep: frozenset[int]
    states: tuple[frozenset[int], ...]      # the components of each state of a twist that may be kept, as one tensor
    read_where_kept: frozenset[int]     # of those that may be kept, what is not computed again where it is
    rounded: dict[int, DType]       # the half type that the program itself rounds a class to, if it does
    fired: dict[str, int]
    real: bool                      # whether rules over the reals were admitted
    copies: dict[str, Copy] = {}    # of inputs that kernels may read in their place, by name
    kept_at: tuple[tuple[int, int, int, Ix], ...] = ()      # class; another, which may be kept and has it at an axis' index: axis, index
    over: tuple[Overrun, ...] = ()  # phases that ended by their budget
    provenance: provenance.Provenance | None = None     # of a traced graph
    weights: frozenset[str] = frozenset()       # inputs that are the same at every call
    passed: frozenset[str] = frozenset()        # outputs that are no results of the whole program

    def elements(self) -> dict[str, DType]:
        return {t.name: t.element for t in self.program.everything}


KINDS = ("Input", "Tensor", "Const", "Number", "IndexValue", "Difference", "Unary", "Binary", "Ternary", "Cast", "Round", "Sum",
         "Reduce", "Pivot", "Channel", "Scan")

POINT = {"Input": 1, "Tensor": 1, "IndexValue": 0, "Scan": 2}      # which argument says where


class Tables:
    """The tables of a saturated graph: classes of sort Value by number, and rows as members."""

    kinds, sorts = KINDS, ("Index", "Point", "Body", "Value")

    def __init__(self, graph: EGraph):
        self.engine = graph.engine
        self.functions = graph.engine.freeze().functions
        self.rows = {name: function.rows for name, function in self.functions.items()}
        self.ids: dict[Any, int] = {}
        self.points = _points(self.rows, graph.engine.value_to_i64, self.key)

    def key(self, value: Any) -> int:
        """The number of a class."""
        return self.ids.setdefault(value, len(self.ids))

    def member(self, kind: str, inputs: Any) -> Term | None:
        """The member that a row of constructor `kind` is, the classes that it uses as indices last among its `kids`; None if its point is
        an instance that was left half made."""
        i64, label = self.engine.value_to_i64, "" if kind == "IndexValue" else self.engine.value_to_string(inputs[0])
        where = self.points.get(inputs[POINT[kind]]) if kind in POINT else ()
        if where is None:
            return None
        at = where if isinstance(where, tuple) else (where,)
        match kind:
            case "Input" | "Tensor" | "IndexValue": term = Term(kind, label, at=at)
            case "Const": term = Term(kind, label, bits=i64(inputs[1]) % (1 << 8 * dt.named(label).bytes))
            case "Number":
                term = Term("Const", label, bits=nearest(dt.named(label), self.engine.value_to_bigrat(inputs[1])).bits)
            case "Sum": term = Term(kind, label, tuple(sorted(map(self.key, self.engine.value_to_multiset(inputs[1])))))
            case "Reduce" | "Pivot" | "Channel": term = Term(kind, label, tuple(map(self.key, inputs[2:])), i64(inputs[1]))
            case "Scan": term = Term(kind, label, (self.key(inputs[3]),), i64(inputs[1]), at)
            case _: term = Term(kind, label, tuple(map(self.key, inputs[1:])))
        return term._replace(kids=(*term.kids, *term.indexed))


def decode(graph: EGraph, program: loop.Program, output_axes: dict[str, tuple[int, ...]], real: bool,
           weights: frozenset[str] = frozenset()) -> Region:
    """The classes of sort Value of a saturated graph."""
    tables = Tables(graph)
    i64, rows, key = tables.engine.value_to_i64, tables.rows, tables.key
    extents = {i64(r.inputs[0]): i64(r.output) for r in rows["Extent"]}
    terms: dict[int, dict[Term, None]] = {}
    home: dict[str, int] = {}
    deps = {key(r.inputs[0]): frozenset(i64(a) for a in tables.engine.value_to_set(r.output)) for r in rows["Deps"]}

    def admitted(c: int, term: Term) -> bool:
        if c in term.kids or any(k not in deps for k in term.kids) or c not in deps:
            return False
        own = frozenset[int]().union(*(deps[k] for k in term.kids[:len(term.kids) - len(term.indexed)]))
        own = (own - {term.axis}).union(*(loop.axes_of(x, _DepsOf(deps)) for x in term.at))
        return own <= deps[c]

    for kind in KINDS:
        for r in rows[kind]:
            c, term = key(r.output), tables.member(kind, r.inputs)
            if term is None:
                continue
            if kind == "Tensor" and term.label in output_axes and term.at == tuple(map(ix.Ax, output_axes[term.label])):
                home[term.label] = c
            if admitted(c, term):
                terms.setdefault(c, {})[term] = None
    rounded = {key(r.output): half for kind in ("Cast", "Round") for r in rows[kind]
               if (half := dt.named(tables.engine.value_to_string(r.inputs[0]))) in (dt.bf16, dt.f16)}
    ordered = {c: tuple(sorted(ts, key=repr)) for c, ts in terms.items()}
    keepable, read = (frozenset(key(r.inputs[0]) for r in rows[table]) for table in ("MayKeep", "ReadWhereKept"))
    states: dict[tuple[Any, ...], set[int]] = {}
    for r in rows["Component"]:
        *state, component = r.inputs
        states.setdefault(tuple(state), set()).add(key(component))
    together = tuple(sorted(map(frozenset, states.values()), key=sorted))
    return Region(program, extents, output_axes, ordered, deps, home, keepable, together, read, rounded, dict(graph.fired), real,
                  copies(tables), kept_at(tables), provenance=provenance.read(graph, tables) if graph.traced else None, weights=weights)


def copies(tables: Tables) -> dict[str, Copy]:
    """The copies of inputs that rules/loop/layout.egg makes, in the order of their names."""
    string, found = tables.engine.value_to_string, {}
    for r in tables.rows["Copy"]:
        name, source, _, at, home = r.inputs
        axes = tuple(x.a for x in tables.points[at] if isinstance(x, ix.Ax))
        found[string(name)] = Copy(string(source), tables.key(home), axes)
    return dict(sorted(found.items()))


def kept_at(tables: Tables) -> tuple[tuple[int, int, int, Ix], ...]:
    """The classes that rules/loop/states.egg finds at other points of those that may be kept: (class, kept class, axis, index)."""
    rows = (r.inputs for r in tables.rows["KeptAt"])
    found = {(tables.key(c), tables.key(of), tables.engine.value_to_i64(a), tables.points[at]) for c, of, a, at in rows}
    return tuple(sorted(found, key=repr))


class _DepsOf(dict[Value, frozenset[int]]):
    """The axes of a `ClassValue`, looked up by its class."""

    def __init__(self, deps: dict[int, frozenset[int]]):
        super().__init__()
        self.deps = deps

    def __getitem__(self, value: Value) -> frozenset[int]:
        assert isinstance(value, ClassValue)
        return self.deps[value.key]


def _points(rows: dict[str, Any], i64: Any, key: Any) -> dict[Any, Any]:
    """The smallest index term of each class of Index, and each Point as a tuple of them."""
    best: dict[Any, tuple[tuple[int, str], Ix]] = {}
    makes = ("Axis", "IndexConst", "IndexAdd", *SCALED, "IndexOfValue")
    pending = [(make, r) for make in makes for r in rows[make]]
    changed = True
    while changed:
        changed = False
        for make, r in pending:
            kids = [best.get(v) for v in r.inputs]
            match make:
                case "Axis": made: Ix | None = ix.Ax(i64(r.inputs[0]))
                case "IndexConst": made = ix.IxConst(i64(r.inputs[0]))
                case "IndexOfValue": made = IxOf(ClassValue(key(r.inputs[0])))
                case "IndexAdd": made = ix.IxAdd(kids[0][1], kids[1][1]) if kids[0] and kids[1] else None
                case _: made = SCALED[make](kids[0][1], i64(r.inputs[1])) if kids[0] else None
            if made is None:
                continue
            size = 1 + sum(k[0][0] for k in kids if k)
            rank = (size, repr(made))
            if r.output not in best or rank < best[r.output][0]:
                best[r.output] = rank, made
                changed = True
    out: dict[Any, Any] = {v: term for v, (_, term) in best.items()}
    pending_points = list(rows["Coordinate"])
    out |= {r.output: () for r in rows["End"]}
    while pending_points:
        rest = [r for r in pending_points if r.inputs[0] not in out or r.inputs[1] not in out]
        for r in pending_points:
            if r.inputs[0] in out and r.inputs[1] in out:
                out[r.output] = (out[r.inputs[0]], *out[r.inputs[1]])
        if len(rest) == len(pending_points):
            break
        pending_points = rest
    return out
