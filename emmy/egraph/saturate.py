"""Phases and budgets: a Loop IR program into an e-graph, rules to their fixpoint, a `Region` out.

`index` to its fixpoint, then `push` to its fixpoint, then one `fuse` step, round and round; then rounds of `deps`,
`normalize`, `algebra` and `twist`, each followed by fusing what they exposed.  In one bag the same rules take an order
of magnitude longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from emmy.egraph.rulebook import EGraph, math_classes
from emmy.egraph.terms import Region, decode, encode
from emmy.ir import loop_ir as loop

REWRITING = ("normalize", "algebra", "twist")
ROUNDS, SECONDS, NODES = 12, 20.0, 60_000


def output_axes(program: loop.Program) -> dict[str, tuple[int, ...]]:
    """For each definition, the axes of its points: one for each (position, extent), shared by all definitions, bound by no reduction."""
    fresh = max((a for a, _ in program.axes), default=-1) + 1
    made: dict[tuple[int, int], int] = {}
    return {d.name: tuple(made.setdefault((k, n), fresh + len(made)) for k, n in enumerate(d.shape)) for d in program.definitions}


def saturate(program: loop.Program, math: str = "fast", extra: Iterable[tuple[str, str]] = ()) -> Region:
    """The saturated region of `program` under the rule classes of `math`, with `extra` rule files (name, text) after the house's.

    A budget of rounds, seconds and nodes bounds it: what has been found by then is sound, if less than all.
    """
    classes = math_classes(math)
    graph = EGraph("loop", extra)
    axes = output_axes(program)
    graph.run(encode(program, axes), "<program>")

    def run(phase: str) -> str:
        return graph.phase(phase, classes)

    index, deps = f"(saturate {run('index')})", f"(saturate {run('deps')})"
    fuse = f"(saturate (seq (saturate (seq {index} {run('push')})) {run('fuse')}))"
    graph.schedule(fuse)
    start = time.monotonic()
    for _ in range(ROUNDS):
        graph.schedule(deps)
        updated = [graph.schedule(run(phase)) for phase in REWRITING]
        graph.schedule(fuse)
        if not any(updated) or time.monotonic() - start > SECONDS or graph.size() > NODES:
            break
    graph.schedule(f"(seq {deps} {run('cut')} (saturate {run('measure')}) (saturate {run('starve')}))")
    if graph.schedule(run("split")):
        graph.schedule(f"(seq {run('split')} (saturate (seq {run('replace')} {index})) {deps})")
    return decode(graph, program, axes)
