"""Whether a rule keeps values: it fires on seeds of its own, and both sides of each firing are evaluated."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from emmy.check.book import Book, Graph, Named, settle
from emmy.check.court import DERIVED, Court, Disagreement, Tensor
from emmy.check.pattern import Call, Form
from emmy.check.seeds import Maker, Seed, text
from emmy.check.snippet import Example, example
from emmy.check.world import Choose, Mismatch, World, world
from emmy.egraph.rulefile import CLASSES, Rule
from emmy.errors import EmmyError
from emmy.evaluate.values import Array
from emmy.ir.node import IRError

ENOUGH = 200            # firings
BATCH = 20              # seeds that share a graph
SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.0, -0.0, 1e-40, -5e-324, 1.0, -1.0, 3e38)


class Target(NamedTuple):
    """What to judge a rule by: the firings of `rule`, itself or one that uses the facts it derives, under a class."""

    rule: Rule
    through: str
    kind: str


class Outcome(NamedTuple):
    """How often a rule fired, what starves it if it fired less than enough, and its first failure.  `judged`: whether values were
    compared."""

    firings: int
    judged: bool
    starved: str = ""
    failure: Failure | None = None


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

    def seeds(self, at: World, choose: Choose, count: int) -> list[Seed]:
        """Up to `count` seeds in a world."""
        made: list[Seed] = []
        maker = Maker(self.book, at, choose, self.kinds, self.target.through)
        for _ in range(8 * count):
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
        except EmmyError as error:      # two values of what has one
            return len(seeds), Failure(error.message.removeprefix("rules: "), None, tuple(map(str, seeds[0].roots)))
        finally:
            self.graph.run("(pop)")
        return fired, found


def inputs(tensors: Mapping[str, Tensor], kind: str, seed: int) -> dict[str, Array]:
    """Elements of inputs.  Odd seeds: numbers of both signs, and for "exact" NaN, infinities, zeros and subnormals; even ones: floats of
    [1/2, 2), so that what is undefined somewhere is defined."""
    rng, wild = np.random.default_rng(seed), seed % 2 == 1

    def array(t: Tensor) -> Array:
        if t.below is not None:
            return rng.integers(0, t.below, t.dims, t.element.numpy)
        if t.element.kind == "bool":
            return rng.integers(0, 2, t.dims).astype(bool)
        if t.element.kind == "int":
            info = np.iinfo(t.element.numpy)
            ends = rng.choice([info.min, info.max, 0, -1, 2], t.dims)
            return np.where(wild & (rng.random(t.dims) < 0.3), ends, rng.integers(-4, 5, t.dims)).astype(t.element.numpy)
        x = rng.integers(4, 16, t.dims) / 8
        x = x * rng.choice((-1, 1, 1), t.dims) if wild else x
        special = rng.choice(SPECIAL, t.dims) if wild and kind == "exact" else x
        with np.errstate(all="ignore"):
            return np.asarray(np.where(rng.random(t.dims) < 0.5, special, x)).astype(t.element.numpy)

    return {name: array(t) for name, t in tensors.items()}


def judge(book: Book, rule: Rule, enough: int = ENOUGH, seconds: float = 6.0, explain: bool = True) -> Outcome:
    """Fire a rule on random seeds until it has fired enough or has taken so many seconds of the processor.  `explain`: find the smallest
    failure, and the premise that starves it."""
    found = targets(book, rule)
    aims = found or [Target(rule, "", rule.kind)]
    total = 0
    for target in aims:
        trial, rng, end = Trial(book, target), random.Random(f"{rule.name} {target.rule.name}"), time.process_time() + seconds / len(aims)
        fired = k = 0
        while fired * len(aims) < enough and time.process_time() < end:
            at = world(rng.choice, empty=k % 8 == 7)
            seeds = trial.seeds(at, rng.choice, trial.batch)
            more, failure = trial.round(at, seeds, k, bool(found))
            fired += more
            if failure:
                return Outcome(total + fired, True, failure=smallest(trial, at, seeds, k, failure) if explain else failure)
            k += 1
        total += fired
    if total >= enough or not explain:
        return Outcome(total, bool(found))
    through = f", premises of {aims[0].rule.name}, which uses its facts" if aims[0].through else ""
    return Outcome(total, bool(found), starving(Trial(book, aims[0]), total) + through)


class Late(KeyboardInterrupt):
    """The time for shrinking is up; hypothesis lets it through."""


class Case:
    """A world with seeds, and the seed of its inputs' elements."""

    def __init__(self, at: World, seeds: list[Seed], seed: int):
        self.at, self.seeds, self.seed = at, seeds, seed


def smallest(trial: Trial, at: World, seeds: list[Seed], inputs_seed: int, failure: Failure, seconds: float = 8.0) -> Failure:
    """The failure on the smallest seed found: one of those at hand, or one that hypothesis finds and shrinks."""
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample

    end, best = time.monotonic() + seconds, [(1 << 30, failure)]

    def kept(found: Failure, seed: Seed) -> None:
        terms = tuple(map(str, seed.roots))
        best.append((len(found.example.text()) if found.example else len(str(terms)), found._replace(terms=terms)))

    for seed in seeds:
        if found := trial.round(at, [seed], inputs_seed)[1]:
            kept(found, seed)

    @st.composite
    def cases(draw: Any) -> Case:
        at = world(lambda options: draw(st.sampled_from(options)))
        return Case(at, trial.seeds(at, lambda options: draw(st.sampled_from(options)), 1), draw(st.integers(0, 3)))

    def fails(case: Case) -> bool:
        if time.monotonic() > end:
            raise Late
        found = trial.round(case.at, case.seeds, case.seed)[1] if case.seeds else None
        if found:
            kept(found, case.seeds[0])
        return found is not None

    quick = settings(max_examples=200, database=None, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink],
                     suppress_health_check=list(HealthCheck))
    with contextlib.suppress(NoSuchExample, Late):
        find(cases(), fails, settings=quick)
    return min(best, key=lambda sized: sized[0])[1]


def starving(trial: Trial, fired: int) -> str:
    """Which premise, left out, lets a rule fire more often on the same seeds."""
    premises = trial.form.premises
    rule = trial.target.rule
    loose = [Named(Form(tuple(q for q in premises if q is not p), (Call(f"Alive{k}", ()),)), "judged", rule._replace(name=f"alive-{k}"))
             for k, p in enumerate(premises)]
    declared = " ".join(f"(relation Alive{k} ())" for k in range(len(premises)))
    graph = trial.book.graph(trial.support, ("alive", declared))
    for named in loose:
        with contextlib.suppress(EmmyError):        # what is left may not ground its variables
            graph.run(named.form.text("judged", named.rule.name))
    rng = random.Random(0)
    for _ in range(8):
        graph.run("(push)")
        at = world(rng.choice)
        trial.fire(at, trial.seeds(at, rng.choice, trial.batch), graph)
        graph.run("(pop)")
    counts = {str(p): graph.fired.get(f"alive-{k}", 0) for k, p in enumerate(premises)}
    freed = {p: n for p, n in counts.items() if n > 8 * max(1, fired // 50)}
    if not freed:
        return "no single premise frees it"
    return "starved by " + ", ".join(sorted(freed, key=lambda p: -freed[p])[:2])
