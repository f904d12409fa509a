"""Whether a rule keeps values: it fires on seeds of its own, and both sides of each firing are evaluated."""

from __future__ import annotations

import contextlib
import random
import time
from typing import NamedTuple

from emmy.check.book import Book, Named
from emmy.check.pattern import Call, Form
from emmy.check.shrink import smallest
from emmy.check.trial import Failure, Target, Trial, targets
from emmy.check.world import world
from emmy.egraph.rulefile import Rule
from emmy.errors import EmmyError

ENOUGH = 200            # firings


class Outcome(NamedTuple):
    """How often a rule fired, what starves it if it fired less than enough, and its first failure.  `judged`: whether values were
    compared."""

    firings: int
    judged: bool
    starved: str = ""
    failure: Failure | None = None


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
