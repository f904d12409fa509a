"""A rule in a graph of its supporting rules alone, where it only records what it would unite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from emmy.check.book import Book, Graph, Named, settle
from emmy.check.court import DERIVED, Court, Disagreement
from emmy.check.pattern import Call, Form
from emmy.check.seeds import Maker
from emmy.check.snippet import Example, example
from emmy.check.world import Choose, Mismatch, Seed, World, inputs, text
from emmy.egraph.rulefile import CLASSES, Rule
from emmy.errors import EmmyError
from emmy.evaluate.values import Array
from emmy.ir.node import IRError

BATCH = 20              # seeds that share a graph
AXES = 32               # that a graph may have where its terms are evaluated: NumPy broadcasts along no more


class Target(NamedTuple):
    """What to judge a rule by: the firings of `rule`, itself or one that uses the facts it derives, under a class."""

    rule: Rule
    through: str
    kind: str


class Failure(NamedTuple):
    """What was found, and the smallest program that shows it."""

    said: str
    example: Example | None
    terms: tuple[str, ...] = ()


def unions(form: Form) -> list[Call]:
    return [a for a in form.actions if a.name == "union"]


def targets(book: Book, rule: Rule) -> list[Target]:
    """Its own firings if it makes equalities or describes values; else those of the rules that use its facts."""
    form = book.forms[rule.name]
    described = any(isinstance(a.args[0], Call) and a.args[0].name in DERIVED for a in form.actions if a.name == "set")
    if unions(form) or described:
        return [Target(rule, "", rule.kind)]
    found: dict[str, Rule] = {}
    seen, pending = {rule.name}, [rule]
    while pending:
        for fact in facts(book.forms[pending.pop().name]):
            for user in book.users(fact.name) if fact.name in book.relations else ():
                if user.name not in seen:
                    seen.add(user.name)
                    if unions(book.forms[user.name]):
                        found[user.name] = user
                    else:
                        pending.append(user)
    return [Target(user, rule.name, max(rule.kind, user.kind, key=CLASSES.index)) for user in found.values()]


def facts(form: Form) -> Iterator[Call]:
    """The facts that a rule derives."""
    for a in form.actions:
        fact = a.args[0] if a.name == "set" else a
        if isinstance(fact, Call) and a.name not in ("union", "let"):
            yield fact


class Crowded(Exception):     # noqa: N818, no error
    """A graph has too many axes for its terms to be evaluated."""


class Trial:
    """One target in a graph of its supporting rules, where it only records what it would unite."""

    def __init__(self, book: Book, target: Target):
        self.book, self.target, self.form = book, target, book.forms[target.rule.name]
        self.kinds = CLASSES[:CLASSES.index(target.kind) + 1]
        actions: list[Call] = []
        declared: list[str] = []
        self.relations: list[str] = []
        for action in self.form.actions:
            if action.name == "union":
                name = f"Judged{len(self.relations)}"
                among = (*self.form.premises, *self.form.actions)
                sort = book.sort(action.args[0], among) or book.sort(action.args[1], among)
                declared.append(f"(relation {name} ({sort} {sort}))")
                self.relations.append(name)
                action = Call(name, action.args)
            actions.append(action)
        self.probe = Form(self.form.premises, tuple(actions))
        through = [book.forms[target.through]] if target.through else []
        self.support = book.cone([self.form, *through], "" if target.through else target.rule.name, self.kinds)
        self.support = [r for r in self.support if r.rule.name != target.rule.name]
        judged = Named(self.probe, "judged", target.rule)
        self.batch = 2 if any("Extent" in str(a) for a in self.probe.actions) else BATCH      # it makes axes: arrays have few dimensions
        self.declared = " ".join(declared)
        self.graph = book.graph([*self.support, judged], ("declared", self.declared))

    def seeds(self, at: World, choose: Choose, count: int, tries: int = 8) -> list[Seed]:
        """Up to `count` seeds in a world, with so many tries for each."""
        made: list[Seed] = []
        maker = Maker(self.book, at, choose, self.kinds, self.target.through)
        for _ in range(tries * count):
            try:
                seed = maker.seed(self.form)
            except (Mismatch, IRError, IndexError):
                continue
            if not self.target.through or self.target.through in {r.name for r in seed.through}:
                made.append(seed)
            if len(made) == count:
                break
        return made

    def fire(self, at: World, seeds: list[Seed], graph: Graph | None = None) -> int:
        """Fill the graph with seeds and let the rule fire once; how often it did."""
        graph = graph or self.graph
        graph.run(text(at, seeds), "<seeds>")
        if settle(graph)[-1] > 4_000:
            return 0
        before = graph.fired.get(self.target.rule.name, 0)
        graph.schedule("(run judged)")
        fired = graph.fired.get(self.target.rule.name, 0) - before
        settle(graph)
        return fired

    def hear(self, at: World, arrays: Mapping[str, Array]) -> Failure | None:
        """Compare what the rule would unite."""
        court: Court | None = None
        try:
            court = Court(self.graph.engine, self.target.kind, at.inputs, arrays, at.definitions)
            if len(court.space.dimension) > AXES:
                raise Crowded
            court.hear()
            for relation in self.relations:
                for left, right in court.pairs(relation):
                    court.compare(left, right, ordered=True)
        except Disagreement as found:
            bodies, extents = (court.bodies, court.axes) if court else ({}, {})
            return Failure(found.said, example(found, at.inputs, arrays, at.definitions, bodies, extents))
        return None

    def round(self, at: World, seeds: list[Seed], seed: int, judged: bool = True) -> tuple[int, Failure | None]:
        """Fire on seeds and compare on two settings of the inputs: firings, and a failure."""
        self.graph.run("(push)")
        try:
            fired = self.fire(at, seeds)
            kinds = (0, 1) if fired and judged else ()
            found = next((f for k in kinds if (f := self.hear(at, inputs(at.inputs, self.target.kind, 2 * seed + k)))), None)
        except Crowded:
            fewer = seeds[:len(seeds) // 2]
        except EmmyError as error:      # two values of what has one
            return len(seeds), Failure(error.message.removeprefix("rules: "), None, tuple(map(str, seeds[0].roots)))
        else:
            return fired, found
        finally:
            self.graph.run("(pop)")
        return self.round(at, fewer, seed, judged) if fewer else (0, None)
