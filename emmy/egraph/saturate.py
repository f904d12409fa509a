"""Phases: a Loop IR program into an e-graph, rules to their fixpoint or the end of their budget, a `Region` out.

`index` to its fixpoint, then `push` to its fixpoint, then one `fuse` step, round and round; then rounds of `deps`,
`normalize`, `algebra` and `twist`, each followed by fusing what they exposed.  In one bag the same rules take an order
of magnitude longer.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable

from emmy.egraph.budget import BUDGET, Budget, Runner, fixpoint
from emmy.egraph.rulebook import EGraph, math_classes, scope
from emmy.egraph.rulefile import parse, without
from emmy.egraph.terms import Region, decode, encode
from emmy.errors import EmmyWarning
from emmy.ir import loop_ir as loop

INSTANTIATING = ("index", "push", "fuse", "deps")
REWRITING = ("normalize", "algebra", "twist")


def output_axes(program: loop.Program) -> dict[str, tuple[int, ...]]:
    """For each definition, the axes of its points: one for each (position, extent), shared by all definitions, bound by no reduction."""
    fresh = max((a for a, _ in program.axes), default=-1) + 1
    made: dict[tuple[int, int], int] = {}
    return {d.name: tuple(made.setdefault((k, n), fresh + len(made)) for k, n in enumerate(d.shape)) for d in program.definitions}


def saturate(program: loop.Program, math: str = "fast", extra: Iterable[tuple[str, str]] = (), budget: Budget = BUDGET,
             traced: bool = False, weights: frozenset[str] = frozenset()) -> Region:
    """The saturated region of `program` under the rule classes of `math`, with `extra` rule files (name, text) after the house's.
    A `traced` region also has the provenance of its members.  `weights`: the inputs that are the same at every call.

    Where a phase ends by its budget, what has been found by then is sound, if less than all; an EmmyWarning names the rule that spent
    most of it.  Phases that instantiate values end by themselves under the house's rules, so there it is a further rule that is named,
    and left out: without those phases nothing is found.  Rounds bound the depth of rewriting: their end is told only where a further rule
    grew most."""
    extra = tuple(extra)
    with contextlib.nullcontext(EGraph("loop", extra, traced=True)) if traced else scope("loop", extra) as graph:
        done = run(program, math, extra, budget, weights=weights, graph=graph)
        if next(iter(done.over), "") not in INSTANTIATING:
            region = decode(graph, program, output_axes(program), "real" in math_classes(math), weights)
    if not done.over:
        return region
    overrun, *others = done.over.values()
    mine, own = further(extra), run(program, math, extra, budget, apart=True, weights=weights).rules
    if overrun.phase in INSTANTIATING:
        overrun = overrun.blamed({key: spent for key, spent in own.items() if key[1] in mine})._replace(left_out=True)
        region = saturate(program, math, [without(overrun.rule, *file) for file in extra], budget, traced, weights)
    else:
        overrun = overrun.blamed(own)
    if overrun.short == "rounds" and overrun.rule not in mine:
        return region
    warnings.warn(EmmyWarning(str(overrun)), stacklevel=2)
    return region._replace(over=(overrun, *others, *region.over))


def further(extra: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The phase of each rule of these files."""
    return {rule.command: rule.phase for file in extra for rule in parse(*file).rules}


def run(program: loop.Program, math: str = "fast", extra: Iterable[tuple[str, str]] = (), budget: Budget = BUDGET,
        apart: bool = False, weights: frozenset[str] = frozenset(), graph: EGraph | None = None) -> Runner:
    """The graph of `program` run through all phases, with the account of it; by rule, and slower, if rules are to run `apart`.  `graph`
    has the rules loaded and nothing else; one is made if it is not given."""
    extra = tuple(extra)
    graph = graph or EGraph("loop", extra, apart)
    graph.run(encode(program, output_axes(program), weights), "<program>")
    runner = Runner(graph, math_classes(math), budget, set(INSTANTIATING) - set(further(extra).values()))
    once, phase = runner.once, runner.phase

    def index() -> bool:
        return fixpoint(phase("index"))

    def instantiate() -> bool:
        return fixpoint(index, phase("push"))

    def fuse() -> bool:
        return fixpoint(instantiate, phase("fuse"))

    def replace() -> bool:
        """To its end before indices are instantiated: of a replacement half made no rule tells what it is at a point, and each point met
        would make another."""
        return fixpoint(phase("replace"))

    def deps() -> bool:
        return fixpoint(phase("deps"))

    fuse()
    for _ in range(budget.rounds):
        deps()
        updated = [once(name) for name in REWRITING]
        fuse()
        runner.rounds += 1
        runner.settled = not any(updated) and not runner.over
        if runner.settled or runner.over:
            break
    else:
        if set(further(extra).values()) & set(REWRITING):
            runner.ended(REWRITING)
    deps()
    once("cut")
    fixpoint(phase("measure"))
    fixpoint(phase("starve"))
    if once("split"):
        once("split")
        fixpoint(replace, index)
        deps()
    if once("copy"):
        once("copy")
        index()     # and nothing replaced anew: a copy is read where rules say so
        deps()
    return runner
