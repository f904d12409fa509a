"""Which rule made what, read off the matches that a traced e-graph recorded (`emmy.egraph.recording`).

After saturation each recorded row says which two members of one class a rule made equal: an `Edge`.  A class is connected by its edges,
for unions alone made it.  A plain e-graph records nothing and pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.egraph import pattern
from emmy.egraph.pattern import Atom, Bindings, Computed, Fact, Form, Hole, Literal, Pattern, Patterns, holes
from emmy.egraph.recording import MATCHED, matched
from emmy.egraph.rulefile import Rule, bindings

if TYPE_CHECKING:
    from emmy.egraph.rulebook import EGraph
    from emmy.egraph.terms import Region, Tables, Term

VALUE = "Value"         # the sort whose classes have derivations
LINKS = 6               # relations that are followed, one deriving the other, to find what a variable stands for


class ENode(NamedTuple):
    """An e-node: a constructor and its arguments, classes of Value by number."""

    op: str
    args: tuple[Atom, ...]


class Edge(NamedTuple):
    """A match of a rule: under `bindings` its two patterns are instances of one class.  An end is None where the pattern is a variable
    alone, which stands for any member."""

    rule: Rule
    left: Pattern
    right: Pattern
    bindings: Bindings
    source: ENode | None
    target: ENode | None


class Provenance(NamedTuple):
    """`home`: the class of each e-node; `term`: each e-node of sort Value as a member of the region, where it is one; `values`: which
    arguments of a constructor are classes of Value; `bags`: constructors whose last argument is
    operands in no order; `edges`: those of each class; `keeps`: the rules that let a class be kept; `graph`,
    `tables`: the e-graph itself."""

    graph: EGraph
    tables: Tables
    home: Mapping[ENode, Atom]
    term: Mapping[ENode, Term]
    values: Mapping[str, tuple[int, ...]]
    bags: frozenset[str]
    edges: Mapping[int, tuple[Edge, ...]]
    keeps: Mapping[int, tuple[str, ...]]

    def atom(self, of: Pattern, env: Bindings) -> Atom:
        """What a pattern stands for: the class of a form; KeyError if there is no such row."""
        return self.home[self.node(of, env)] if isinstance(of, Form) else _atom(of, env)

    def node(self, form: Form, env: Bindings) -> ENode:
        """The e-node of a form; KeyError if what it is made of has no row."""
        return ENode(form.op, tuple(self.atom(a, env) for a in form.args))


def made_by(region: Region) -> dict[tuple[int, Term], tuple[str, ...]]:
    """For each member of each class of a traced region that the program does not say itself, the rules whose actions make it, by name."""
    assert region.provenance is not None, "the region is traced"
    found: dict[tuple[int, Term], set[str]] = defaultdict(set)
    said: set[tuple[int, Term]] = set()
    for edge in (e for edges in region.provenance.edges.values() for e in edges):
        for form in pattern.subforms(edge.right):
            try:
                node = region.provenance.node(form, edge.bindings)
            except KeyError:
                continue
            if node in region.provenance.term:
                member = region.provenance.home[node], region.provenance.term[node]
                found[member].add(edge.rule.name)
                said |= {member} if edge.rule.phase == "push" else set()
    return {member: tuple(sorted(names)) for member, names in found.items() if member not in said}


def _atom(of: Hole | Computed | Literal, env: Bindings) -> Atom:
    return of.value if isinstance(of, Literal) else env[of.name]


def containers(graph: EGraph) -> dict[str, tuple[str, str]]:
    """The sorts of containers that rule files declare: the kind of container, and the sort of its elements."""
    egg = bindings()
    sorts = (c for name, text in graph.files for c in graph.engine.parse_program(text, name) if isinstance(c, egg.Sort))
    return {c.name: (c.presort_and_args[0], str(c.presort_and_args[1][0])) for c in sorts if c.presort_and_args}


def converter(graph: EGraph, key: Callable[[Any], Atom]) -> Callable[[str, Any], Atom]:
    """What turns a value of a sort into an atom; `key` numbers classes of Value."""
    engine, known = graph.engine, containers(graph)
    plain = {VALUE: key, "i64": engine.value_to_i64, "f64": engine.value_to_f64, "bool": engine.value_to_bool,
             "String": engine.value_to_string, "BigInt": engine.value_to_bigint, "BigRat": engine.value_to_bigrat}

    def convert(sort: str, value: Any) -> Atom:
        if sort in plain:
            return plain[sort](value)
        match known.get(sort, (sort, "")):
            case "Set", inner: return frozenset(convert(inner, v) for v in engine.value_to_set(value))
            case "MultiSet", inner: return tuple(sorted(convert(inner, v) for v in engine.value_to_multiset(value)))
        return sort, value

    return convert


def read(graph: EGraph, tables: Tables) -> Provenance:
    """The provenance of a traced graph whose classes are numbered by `tables`."""
    convert = converter(graph, tables.key)
    home: dict[ENode, Atom] = {}
    term: dict[ENode, Term] = {}
    values: dict[str, tuple[int, ...]] = {}
    for op, table in tables.functions.items():
        if op.startswith(MATCHED) or table.output_sort not in tables.sorts:
            continue
        values[op] = tuple(k for k, sort in enumerate(table.input_sorts) if sort == VALUE and table.output_sort == VALUE)
        for row in table.rows:
            node = ENode(op, tuple(map(convert, table.input_sorts, row.inputs)))
            home[node] = convert(table.output_sort, row.output)
            if op in tables.kinds and (member := tables.member(op, row.inputs)) is not None:
                term[node] = member
    rows = {s.rule.name: [dict(zip((c for c, _ in s.columns), map(convert, t.input_sorts, r.inputs), strict=True)) for r in t.rows]
            for s in graph.recorded for t in [tables.functions[matched(s.rule)]]}
    several = {sort for sort, of in containers(graph).items() if of == ("MultiSet", VALUE)}
    bags = frozenset(op for op in values if several & set(tables.functions[op].input_sorts[-1:]))
    made = Provenance(graph, tables, home, term, values, bags, {}, {})
    edges: dict[int, dict[tuple[Any, ...], Edge]] = defaultdict(dict)
    matches = _Matches(made, graph.recorded, rows)
    for edge in matches.edges():
        c = made.atom(edge.left if isinstance(edge.left, Form) else edge.right, edge.bindings)
        edges[c].setdefault((edge.rule.name, edge.left, edge.right, edge.source, edge.target), edge)
    keeps = {c: tuple(dict.fromkeys(s.rule.name for s, _, _ in by)) for (c,), by in matches.deriving("MayKeep").items()}
    keeps |= {at[-1]: tuple(dict.fromkeys(s.rule.name for s, _, _ in by)) for at, by in matches.deriving("Component").items()}
    return made._replace(edges={c: tuple(found.values()) for c, found in edges.items()}, keeps=keeps)


class _Matches:
    """The matches of the recorded rules, as edges."""

    def __init__(self, provenance: Provenance, rules: Iterable[Patterns], rows: Mapping[str, list[dict[str, Atom]]]):
        self.provenance, self.rules, self.rows = provenance, tuple(rules), rows
        self.derived: dict[str, dict[tuple[Atom, ...], list[tuple[Patterns, Fact, Bindings]]]] = {}

    def edges(self) -> Iterator[Edge]:
        for s in self.rules:
            for left, right in s.unions:
                followed = isinstance(left, Hole) and left.name not in s.forms and any(left in fact.args for fact in s.asks)
                pairs = [] if followed else self.pairs(s, [side for side, _ in self.sides(s, left, {}, 0)], right)
                for env in self.rows[s.rule.name]:
                    if followed:
                        found = list(self.sides(s, left, env, LINKS))
                        pairs = self.pairs(s, [side for side, _ in found], right)
                    for k, side, target in pairs:
                        yield from self.edge(s, side, target, found[k][1] if followed else env)

    def pairs(self, s: Patterns, sides: list[Pattern], right: Pattern) -> list[tuple[int, Pattern, Pattern]]:
        """What a union joins: of the patterns that its left side is those that bind most variables of the right side, by number, and the
        right side."""
        wanted = holes(right)
        bound = [pattern.bind(side, wanted, s.forms) for side in sides]
        most = max((len(wanted & holes(side)) for side in bound), default=0)
        found: list[tuple[int, Pattern, Pattern]] = []
        for k, side in enumerate(bound):
            target = right
            if isinstance(right, Hole) and right.name not in holes(side) and s.forms.get(right.name):
                target = s.forms[right.name][0]
            if len(wanted & holes(side)) == most and (isinstance(side, Form) or isinstance(target, Form)):
                found.append((k, side, target))
        return found

    def edge(self, s: Patterns, side: Pattern, target: Pattern, env: Bindings) -> Iterator[Edge]:
        """The edge of two patterns under a match, unless it joins nothing."""
        try:
            source, end = (self.provenance.node(p, env) if isinstance(p, Form) else None for p in (side, target))
            left, right = (self.provenance.home[n] if n else self.provenance.atom(p, env) for n, p in ((source, side), (end, target)))
        except KeyError:
            return
        if left == right and isinstance(left, int) and source != end:
            yield Edge(s.rule, side, target, env, source, end)

    def sides(self, s: Patterns, side: Pattern, env: Bindings, links: int) -> Iterator[tuple[Pattern, Bindings]]:
        """The patterns that a side of a union is: itself, what premises say of it, or what the rules say that derive such a premise."""
        if not isinstance(side, Hole):
            yield side, env
            return
        if side.name in s.forms:
            yield from ((form, env) for form in s.forms[side.name])
            return
        asked = [f for f in s.asks if side in f.args] if links else []
        if not asked:
            yield side, env
        for fact in asked:
            key = tuple(_known(a, env) for a in fact.args)
            for other, derived, bound in self.deriving(fact.relation).get(key, ()):
                names = {theirs.name: ours for theirs, ours in zip(derived.args, fact.args, strict=True) if isinstance(theirs, Hole)}
                prefix = f"{other.rule.name}."
                for found, whole in self.sides(other, derived.args[fact.args.index(side)], bound, links - 1):
                    yield pattern.renamed(found, names, prefix), {**{prefix + k: v for k, v in whole.items()}, **env}

    def deriving(self, relation: str) -> dict[tuple[Atom, ...], list[tuple[Patterns, Fact, Bindings]]]:
        """The matches that derive each row of a relation."""
        if relation not in self.derived:
            found: dict[tuple[Atom, ...], list[tuple[Patterns, Fact, Bindings]]] = defaultdict(list)
            for s in self.rules:
                for fact in s.derives:
                    for env in self.rows[s.rule.name] if fact.relation == relation else ():
                        try:
                            found[tuple(self.provenance.atom(a, env) for a in fact.args)].append((s, fact, env))
                        except KeyError:
                            continue
            self.derived[relation] = found
        return self.derived[relation]


def _known(of: Pattern, env: Bindings) -> Atom:
    return None if isinstance(of, Form) else _atom(of, env)
