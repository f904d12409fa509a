"""The rulebook taken apart: what is declared, which rules derive which facts, and e-graphs with chosen rules alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from emmy.check.pattern import Call, Form, Lit, Term, Var, calls, declarations, form, variables
from emmy.egraph.rulebook import EGraph, rule_files
from emmy.egraph.rulefile import PHASES, Rule, bindings, parse

BOOKKEEPING = ("index", "push", "fuse", "deps")     # phases that name and describe values, and choose nothing
# What makes an axis of the small programs at hand long, and their few elements too few.
SMALL = """(set (LongAxis) 2) (PieceOption 3) (set (PieceLine) 1) (set (LongKeys) 2) (set (LongScan) 2) (ScanPieces 0 64 1)
(Enough "tiles" 0 64 1 9) (Enough "rows" 0 64 1 9) (Enough "columns" 0 64 1 9) (Enough "twists" 0 64 1 9)"""
TERMS = ("Index", "Point", "Body", "Value", "Values")


class Graph(EGraph):
    """An e-graph of given files alone."""

    def __init__(self, files: Iterable[tuple[str, str]]):
        self.engine = bindings().EGraph(no_decomp=True)
        self.fired: dict[str, int] = {}
        self.files = list(files)
        for name, text in self.files:
            self.run(text, name)
        self.rulesets = tuple(s for file in self.files for s in parse(*file).rulesets)


class Named(NamedTuple):
    """A rule as it is run here: its form, the ruleset it is put in, and the rule it was."""

    form: Form
    ruleset: str
    rule: Rule


class Book:
    """The rules of an IR: the house's and those of further files (name, text)."""

    def __init__(self, extra: Iterable[tuple[str, str]] = (), ir: str = "loop"):
        self.extra, self.ir = tuple(extra), ir
        self.files = [parse(*file) for file in (*rule_files(ir), *self.extra)]
        self.rules = tuple(rule for file in self.files for rule in file.rules)
        self.forms = {rule.name: form(rule) for rule in self.rules}
        self.declared = [(file.name, declarations(file)) for file in self.files]
        self.text = "\n".join(text for _, text in self.declared)

    @cached_property
    def empty(self) -> Graph:
        return Graph([*self.declared, ("small", SMALL if self.ir == "loop" else "")])

    @cached_property
    def signature(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """The sorts of the operands and of the result of each constructor, function and relation."""
        return {name: (tuple(f.input_sorts), f.output_sort) for name, f in self.empty.engine.freeze().functions.items()}

    @cached_property
    def relations(self) -> dict[str, list[tuple[Lit | None, ...]]]:
        """Each relation, with the facts of it that the files state; None for what is no string or number."""
        engine = self.empty.engine

        def literal(sort: str, value: object) -> Lit | None:
            return Lit(engine.value_to_string(value)) if sort == "String" else Lit(engine.value_to_i64(value)) if sort == "i64" else None

        names = re.findall(r"\(relation\s+(\S+)", self.text)
        tables = engine.freeze().functions
        return {name: [tuple(literal(s, v) for s, v in zip(tables[name].input_sorts, row.inputs, strict=True)) for row in tables[name].rows]
                for name in names}

    @cached_property
    def functions(self) -> set[str]:
        """What has a value that rules or facts set."""
        return set(re.findall(r"\(function\s+(\S+)", self.text))

    @cached_property
    def derivers(self) -> dict[str, list[tuple[Rule, Call]]]:
        """For each relation and function, the rules that derive facts of it, with the fact."""
        found: dict[str, list[tuple[Rule, Call]]] = {}
        for rule in self.rules:
            for action in self.forms[rule.name].actions:
                fact = action.args[0] if action.name == "set" else action
                if isinstance(fact, Call) and (fact.name in self.relations or fact.name in self.functions):
                    found.setdefault(fact.name, []).append((rule, fact))
        return found

    def constructs(self, name: str) -> bool:
        """Whether a call makes a term."""
        return name in self.signature and name not in self.functions and self.signature[name][1] in TERMS

    def sort(self, term: Term, among: Sequence[Call]) -> str:
        """The sort of a term, a variable's by where it stands in `among`; "" where it is not known."""
        match term:
            case Lit(value): return "String" if isinstance(value, str) else "i64"
            case Call(name): return self.signature[name][1] if name in self.signature else "Values" if name.startswith("multiset") else ""
        return self.sorts(among).get(term.name, "")

    def sorts(self, among: Sequence[Call]) -> dict[str, str]:
        """The sort of each variable in `among`, in the order in which they occur: what the first call says that tells it, or ""."""
        found = dict.fromkeys(variables(*among), "")
        for call in calls(*among):
            places = self.signature[call.name][0] if call.name in self.signature else ()
            for k, x in enumerate(call.args):
                if isinstance(x, Var) and not found[x.name]:
                    other = call.args[1 - k] if call.name in ("=", "union") else x
                    found[x.name] = places[k] if places else self.sort(other, ()) if isinstance(other, Call) else ""
        return found

    def cone(self, forms: Iterable[Form], without: str, kinds: Sequence[str]) -> list[Named]:
        """The rules that the premises of `forms` need: bookkeeping, and what derives their facts and no equality;
        none of another class, nor `without`."""
        needed = {rule.name: rule for rule in self.rules if rule.phase in BOOKKEEPING}
        pending = list(forms)
        while pending:
            for call in calls(*pending.pop().premises):
                for rule, _ in self.derivers.get(call.name, ()):
                    equates = any(a.name == "union" for a in self.forms[rule.name].actions)
                    if rule.name not in needed and rule.kind in kinds and not equates:
                        needed[rule.name] = rule
                        pending.append(self.forms[rule.name])
        return [Named(self.forms[name], f"judge-{rule.phase}", rule) for name, rule in needed.items() if name != without]

    def graph(self, named: Iterable[Named], *further: tuple[str, str]) -> Graph:
        """An e-graph with everything declared, further texts, and these rules alone."""
        rules = list(named)
        rulesets = " ".join(f"(ruleset {s})" for s in ("judged", *(f"judge-{p}" for p in PHASES["loop"])))
        text = "\n".join(r.form.text(r.ruleset, r.rule.name) for r in rules)
        return Graph([*self.declared, ("small", SMALL), *further, ("judged", rulesets + text)])

    def users(self, name: str) -> list[Rule]:
        """The rules with a premise on a relation or function."""
        return [rule for rule in self.rules if any(c.name == name for c in calls(*self.forms[rule.name].premises))]


SUPPORT = f"(seq {' '.join(f'(run judge-{phase})' for phase in PHASES['loop'])})"


def settle(graph: EGraph, schedule: str = SUPPORT, rounds: int = 12, nodes: int = 4_000) -> list[int]:
    """Run a schedule until nothing changes, at most so many times and while the graph is small: its size after each round."""
    sizes = [graph.size()]
    while len(sizes) <= rounds and sizes[-1] <= nodes and graph.schedule(schedule):
        sizes.append(graph.size())
    return sizes
