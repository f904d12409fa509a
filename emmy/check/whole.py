"""Rules together: random programs saturated with all of them, every member of every class compared."""

from __future__ import annotations

from collections import Counter

from emmy.check.book import BOOKKEEPING, Book, Graph, Named, settle
from emmy.check.court import Court, Disagreement, Tensor
from emmy.check.snippet import Example, example
from emmy.egraph.rulebook import MATH
from emmy.egraph.rulefile import PHASES
from emmy.egraph.saturate import output_axes
from emmy.egraph.terms import encode
from emmy.evaluate.values import Array
from emmy.ir import loop_ir as loop

ROUNDS, NODES = 5, 3_000


def compared(engine: object, program: loop.Program, kind: str, arrays: dict[str, Array]) -> int:
    """How many members of a saturated program's classes were compared; Disagreement where two differ.  `kind`: as a rule's class."""
    inputs, definitions = tensors(program)
    court = Court(engine, kind, inputs, arrays, definitions)
    court.hear()
    return court.compared


def tensors(program: loop.Program) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and definitions."""
    return {i.name: Tensor(i.element, i.dims) for i in program.inputs}, {d.name: Tensor(d.element, d.shape) for d in program.definitions}


def grown(book: Book, math: str) -> Graph:
    """A graph with every rule that `math` admits, each in the ruleset of its phase."""
    return book.graph(Named(book.forms[r.name], f"judge-{r.phase}", r) for r in book.rules if r.kind in MATH[math])


def saturated(graph: Graph, program: loop.Program) -> None:
    """Fill the graph with a program and run all phases, a few rounds of each."""
    graph.run(encode(program, output_axes(program)))
    settle(graph, "(seq (run judge-index) (run judge-push) (run judge-fuse))", 3 * ROUNDS, NODES)
    further = [p for p in PHASES["loop"] if p not in BOOKKEEPING]
    for phases in ("normalize", "algebra", "twist"), ("measure",), tuple(further):
        runs = " ".join(f"(run judge-{p})" for p in (*phases, *BOOKKEEPING))
        settle(graph, f"(seq {runs})", ROUNDS, NODES)


def together(book: Book, count: int) -> tuple[Counter[str], tuple[str, Example | None] | None]:
    """Judge random programs under all rules: how often each fired, and the first disagreement found."""
    from hypothesis import HealthCheck, Phase, given, settings

    from emmy.check import corners, programs
    from emmy.ir import tensor_ir as tir
    from emmy.lower.tensor_to_loop import lower

    graphs = {math: grown(book, math) for math in MATH}
    found: list[tuple[str, Example | None]] = []

    def agrees(program: tir.Program) -> None:
        source = lower(program)
        given_arrays = programs.arrays(program)
        inputs, definitions = tensors(source)
        for math, graph in graphs.items():
            if found:
                return
            graph.run("(push)")
            saturated(graph, source)
            court: Court | None = None
            kind = "exact" if math == "exact" else "real"
            try:
                court = Court(graph.engine, kind, inputs, given_arrays, definitions)
                court.hear()
            except Disagreement as problem:
                bodies, axes = (court.bodies, court.axes) if court else ({}, {})
                found.append((problem.said, example(problem, inputs, given_arrays, definitions, bodies, axes)))
            graph.run("(pop)")

    quick = settings(max_examples=max(1, count // len(set(programs.KINDS))), database=None, deadline=None, derandomize=True,
                     phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    for program in (*corners.sums(), *corners.corners()):
        agrees(program)
    for kind in dict.fromkeys((*programs.KINDS, *programs.SPELLINGS)):
        quick(given(programs.programs(kinds=(kind,)))(agrees))()
    return sum((Counter(g.fired) for g in graphs.values()), Counter()), found[0] if found else None
