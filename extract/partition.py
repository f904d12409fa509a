"""Partition: which tensors are kept in memory, and which body each kernel has.

A program is a set of kernels, first one for each kept tensor.  Given the kept set, each kernel's body is extracted (every class once,
shared parts paid once) from the members its class admits, loads of kept tensors among them.  Programs of few tensors are searched
exhaustively (`extract.lattice`).  Others are searched by descent (`extract.descent`) from what the least work passes through and, if they
name few tensors, from "all that the program names" and "only its results"; of middling ones the best choice among candidate kernels
(`extract.columns`) is then looked for.  Where it saves, kernels are then merged, each to write several tensors (`extract.siblings`).

A kernel is priced by the caller, who knows what schedules it has; the floor (`max(bytes, work) + launch`) prunes what
could not be better.  Everything is deterministic, the end of a search included, which is by what it has spent.
"""

from __future__ import annotations

from collections.abc import Callable

from extract import lattice, siblings
from extract.descent import Descent
from extract.kernels import Kernels
from extract.problem import Kernel, Member, Problem, Solution

__all__ = ["Kernel", "Member", "Problem", "Solution", "ranked", "search"]

EXHAUSTIVE, MIDDLING = 12, 48       # tensors that a program may keep, for all sets to be searched, and for descent's result to be improved
SMALL = 12      # tensors that a program names, for descent to start from them and from its results as well
COLUMNS, ROUNDS = 600, 16   # candidate kernels among which descent's result is improved, and how often the best choice is priced


def search(problem: Problem, price: Callable[[Kernel], float]) -> Solution:
    """The best partition found, which for few tensors is the best there is; ValueError if an output cannot be computed."""
    return ranked(problem, price, 1)[0]


def ranked(problem: Problem, price: Callable[[Kernel], float], count: int, several: int = 0,
           ended: Callable[[], None] = lambda: None) -> tuple[Solution, ...]:
    """The `count` best partitions that write different sets of tensors, cheapest first: of few tensors the best there are, `several` if
    that is more and the best has several kernels, else the best that descent meets on its way.  The first is what `search` finds.
    `ended` is called if the search ended with the best that it had met, having spent what it may.  ValueError if an output cannot be
    computed.
    """
    few = len(problem.home) <= EXHAUSTIVE
    kernels = Kernels(problem, price, thorough=few)

    def best(count: int) -> tuple[Solution, ...]:
        return tuple(sorted((siblings.merged(kernels, found) for found in explore(kernels, count)), key=lambda s: s.seconds))

    found = best(count)
    if few and count < several and len(found[0].kernels) > 1:
        found = best(several)
    if kernels.over:
        ended()
    return found


def explore(kernels: Kernels, count: int) -> tuple[Solution, ...]:
    """The best partitions into kernels that write one tensor each, by kernels that the caller keeps."""
    problem = kernels.problem
    if len(problem.home) <= EXHAUSTIVE:
        found = lattice.ranked(kernels, count)
    else:
        outputs = frozenset(problem.outputs)
        named = frozenset(problem.named) | outputs
        laid_out = kernels.laid_out()
        starts = (laid_out, named, outputs) if len(problem.named) <= SMALL else (laid_out,)
        if problem.copies:      # two copies may pay where one does not
            starts = (*starts, laid_out | problem.copies)
        descent = Descent(kernels, count)
        found = descent.ranked(starts) or descent.ranked((named,))
        if found and len(problem.home) <= MIDDLING and not kernels.over:
            found = polished(kernels, descent, found)[:count]
    if not found:
        raise ValueError(f"no kernels compute {', '.join(problem.outputs)}")
    return found


def polished(kernels: Kernels, descent: Descent, found: tuple[Solution, ...]) -> tuple[Solution, ...]:
    """`found`, preceded by a better choice among the kernels that were looked at and more, if there is one, or by where descent gets to
    from what that keeps."""
    from extract import columns  # OR-tools takes a while to import

    columns.widen(kernels, found[0].seconds, COLUMNS)
    best = columns.solve(kernels, found[0], rounds=ROUNDS, budget=0.2).solution
    if best.seconds >= found[0].seconds * (1 - 1e-6):
        return found
    first = min((best, *descent.ranked((best.kept,))[:1]), key=lambda s: s.seconds)
    return first, *(s for s in found if s.kept != first.kept)
