"""Whether the other rules already derive what a rule says."""

from __future__ import annotations

import random

from emmy.check.book import Book, Named, settle
from emmy.check.trial import Trial
from emmy.check.world import text, world
from emmy.egraph.rulefile import CLASSES, PHASES, Rule

ROUNDS, NODES = 6, 2_500
BATCHES, LEAST = 6, 10


def redundant(book: Book, rule: Rule, trial: Trial) -> bool:
    """Whether, on seeds where the rule fires, the other rules of its class and below make the same equalities before it does."""
    if not trial.relations or trial.target.rule.name != rule.name:
        return False
    kinds = CLASSES[:CLASSES.index(rule.kind) + 1]
    others = [Named(book.forms[r.name], f"judge-{r.phase}", r) for r in book.rules if r.name != rule.name and r.kind in kinds]
    probe = Named(trial.probe, "judged", rule)
    graph = book.graph([*others, probe], ("judged", trial.declared))
    schedule = f"(seq {' '.join(f'(run judge-{p})' for p in PHASES['loop'])})"
    rng, seen = random.Random(rule.name), 0
    for _ in range(BATCHES):
        at = world(rng.choice)
        seeds = trial.seeds(at, rng.choice, 4)
        graph.run("(push)")
        graph.run(text(at, seeds), "<seeds>")
        settle(graph, schedule, ROUNDS, NODES)
        graph.schedule("(run judged)")
        settle(graph, "(run judge-index)", ROUNDS, 2 * NODES)
        tables = graph.engine.freeze().functions
        rows = [row for name in trial.relations for row in tables[name].rows]
        graph.run("(pop)")
        if any(left != right for left, right in (row.inputs for row in rows)):
            return False
        seen += len(rows)
    return seen >= LEAST
