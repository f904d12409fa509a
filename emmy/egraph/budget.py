"""What saturation may spend, and the account of what it spent: nodes, seconds and matches by phase and by rule."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from emmy.egraph.rulebook import EGraph
from emmy.errors import EmmyError


@dataclass(frozen=True)
class Budget:
    """Of each phase: `nodes` that it may add (rows of all tables), `seconds` that it may take; and `rounds` of the rewriting phases, in
    which one step of each is taken."""

    nodes: int = 60_000
    seconds: float = 20.0
    rounds: int = 16

    @staticmethod
    def parse(text: str) -> Budget:
        """The budget spelled NODES or NODES,SECONDS; that of no text is the default.  EmmyError if it is neither."""
        if not text:
            return BUDGET
        if not (found := re.fullmatch(r"(\d+)(?:,(\d+(?:\.\d+)?))?", text.strip())):
            raise EmmyError(f"the budget {text!r} is not NODES or NODES,SECONDS", "give it as --budget 60000 or --budget 60000,20")
        return Budget(int(found[1]), float(found[2])) if found[2] else Budget(int(found[1]))


BUDGET = Budget()


class Spent(NamedTuple):
    """Matches of rules (0 where only a phase is known), new nodes, and seconds."""

    matches: int = 0
    nodes: int = 0
    seconds: float = 0.0

    def __add__(self, other: tuple[object, ...]) -> Spent:
        assert isinstance(other, Spent)
        return Spent(self.matches + other.matches, self.nodes + other.nodes, self.seconds + other.seconds)


class Overrun(NamedTuple):
    """A phase that spent its budget, what it had spent by then, and the rule that spent most of it."""

    phase: str
    spent: Spent
    budget: Budget
    rule: str = ""
    share: Spent = Spent()
    left_out: bool = False      # whether all was done again without the rule

    @property
    def short(self) -> str:
        """What ended it: nodes, seconds or rounds."""
        return "nodes" if self.spent.nodes > self.budget.nodes else "seconds" if self.spent.seconds > self.budget.seconds else "rounds"

    def most(self, spent: Spent) -> float:
        """How much of what ended it was spent."""
        return spent.seconds if self.short == "seconds" else spent.nodes

    def blamed(self, rules: dict[tuple[str, str], Spent]) -> Overrun:
        """The same, with the rule of the phase that spent most."""
        own = {rule: spent for (phase, rule), spent in rules.items() if phase == self.phase}
        rule = max(own, key=lambda name: self.most(own[name]), default="")
        return self._replace(rule=rule, share=own.get(rule, Spent()))

    def __str__(self) -> str:
        def said(spent: Spent) -> str:
            return f"{spent.seconds:.1f} s" if self.short == "seconds" else f"{spent.nodes} new nodes"

        at = f"{self.budget.rounds} rounds" if self.short == "rounds" else said(self.spent)
        named = f"; the rule that {'took' if self.short == 'seconds' else 'grew'} it most is {self.rule} ({said(self.share)})"
        ended = ", and was left out" if self.left_out else ""
        return f"saturation stopped phase {self.phase} at {at}{named if self.rule else ''}{ended}; raise --budget or mend the rule"


class Runner:
    """Runs phases of rules, each until it has spent its budget, after which it runs no more: what was found by then is sound.  Those of
    `endless` have none.

    Rules run in the engine one step at a time, for a step ends and a fixpoint may not exist.  Each rule of `graph.apart` runs alone, and
    `rules` is what each spent, by (phase, rule)."""

    def __init__(self, graph: EGraph, classes: Iterable[str], budget: Budget, endless: Iterable[str] = ()):
        self.graph, self.classes, self.budget, self.endless = graph, tuple(classes), budget, frozenset(endless)
        self.size = graph.size()
        self.phases: dict[str, Spent] = {}
        self.rules: dict[tuple[str, str], Spent] = {}
        self.over: dict[str, Overrun] = {}          # in the order of time
        self.rounds = 0                             # that rewriting took
        self.settled = False                        # whether rewriting came to a fixpoint

    def once(self, phase: str) -> bool:
        """One step of a phase; whether it changed anything."""
        if phase in self.over:
            return False
        changed = [self._run(phase, ruleset) for ruleset in self.graph.rulesets_of(phase, self.classes)]
        total = self.phases.get(phase, Spent())
        if phase not in self.endless and (total.nodes > self.budget.nodes or total.seconds > self.budget.seconds):
            self.over[phase] = Overrun(phase, total, self.budget)
        return any(changed)

    def ended(self, phases: Iterable[str]) -> None:
        """The rounds of these phases are spent before their fixpoint: the overrun of the one that grew most."""
        phase = max(phases, key=lambda name: self.phases.get(name, Spent()).nodes)
        self.over[phase] = Overrun(phase, self.phases.get(phase, Spent()), self.budget)

    def _run(self, phase: str, ruleset: str) -> bool:
        start, before = time.perf_counter(), sum(self.graph.fired.values())
        changed = self.graph.schedule(f"(run {ruleset})")
        size = self.graph.size() if changed else self.size
        spent = Spent(sum(self.graph.fired.values()) - before, size - self.size, time.perf_counter() - start)
        self.size = size
        self.phases[phase] = self.phases.get(phase, Spent()) + spent
        if rule := self.graph.apart.get(ruleset):
            self.rules[phase, rule] = self.rules.get((phase, rule), Spent()) + spent
        return changed

    def phase(self, phase: str) -> Callable[[], bool]:
        """A step of a phase, for `fixpoint`."""
        return lambda: self.once(phase)


def together(accounts: Iterable[dict[tuple[str, str], Spent]]) -> dict[tuple[str, str], Spent]:
    """Several accounts by (phase, rule) as one."""
    out: dict[tuple[str, str], Spent] = {}
    for account in accounts:
        for key, spent in account.items():
            out[key] = out.get(key, Spent()) + spent
    return out


def fixpoint(*steps: Callable[[], bool]) -> bool:
    """Runs steps in turn until none changes anything; whether one did."""
    changed = False
    while any([step() for step in steps]):
        changed = True
    return changed
