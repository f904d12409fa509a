"""Whether a rule alone stops: what it adds to a graph of its own seeds comes to an end."""

from __future__ import annotations

import random

from emmy.check.book import Book, Named, settle
from emmy.check.trial import Trial
from emmy.check.world import text, world
from emmy.egraph.rulefile import Rule

ROUNDS, NODES, SEEDS = 16, 4_000, 6


def growth(book: Book, rule: Rule, trial: Trial) -> str:
    """How a graph grows that the rule alone does not stop growing, as "12, 25, 51, 103 nodes"; "" where it stops on every seed."""
    alone = Named(book.forms[rule.name], "judged", rule)
    graph = book.graph([*(r for r in trial.support if r.rule.name != rule.name), alone])
    rng = random.Random(rule.name)
    for _ in range(SEEDS):
        at = world(rng.choice)
        seeds = trial.seeds(at, rng.choice, 1)
        graph.run("(push)")
        graph.run(text(at, seeds), "<seeds>")
        settle(graph)
        sizes = settle(graph, "(seq (run judged) (run judge-index) (run judge-push) (run judge-deps))", ROUNDS, NODES)
        graph.run("(pop)")
        if len(sizes) > ROUNDS or sizes[-1] > NODES:
            shown = sizes if len(sizes) <= 6 else [*sizes[:5], sizes[-1]]
            return f"{', '.join(map(str, shown[:-1]))}{' …' * (len(sizes) > 6)} {shown[-1]} nodes after {len(sizes) - 1} rounds"
    return ""
