"""Schedules of a kernel: the rows that the rules of `rules/tile` and `rules/hardware` admit for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from emmy.egraph.kernel_facts import facts
from emmy.egraph.rows import Reader, options
from emmy.egraph.rulebook import EGraph, emptied, hardware_rules, math_classes, scope
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile

PREMISES = {"FitsThreads": "more threads a block than the target has", "FitsShared": "more shared memory than a block may hold",
            "FitsRegisters": "more registers than the register file holds",
            "Divides": "its width does not divide the axis it runs along or is too wide for its elements, "
                       "its threads do not share out its tile, or its tile is no multiple of an instruction"}

SHOWN = 12      # legal rows that the error for a pin names


def schedules(kernel: tile.Kernel, target: str, math: str = "fast", pins: str = "",
              extra: Iterable[tuple[str, str]] = ()) -> tuple[tile.Schedule, ...]:
    """Every legal schedule of `kernel` on `target` ("sm_90a", …), in a fixed order.

    `pins` fixes fields ("WORK=t256,TILE=v4"); EmmyError if no legal row has them, naming the premise that fails.
    """
    wanted = tile.parse_row(pins)
    with saturated(kernel, target, math, wanted, extra) as graph:
        read = Reader(graph)
        rows = read.rows("Scheduled", lambda r: r.output == read.kernel)
        legal = [s for s in rows if matches(s.row, wanted)]
        if not legal:
            raise EmmyError(f"no legal row of kernel {kernel.name} has {pins!r}", why_not(read, wanted, rows))
    return tuple(legal)


def candidates(kernel: tile.Kernel, target: str, math: str = "fast", pins: str = "",
               extra: Iterable[tuple[str, str]] = ()) -> dict[tile.Schedule, tuple[str, ...]]:
    """Every schedule that a rule proposes for `kernel`, in a fixed order, and which of `PREMISES` it fails: none if it is legal."""
    wanted = tile.parse_row(pins)
    with saturated(kernel, target, math, wanted, extra) as graph:
        read = Reader(graph)
        legal = set(read.rows("Scheduled", lambda r: r.output == read.kernel))
        held = {premise: set(read.rows(premise)) for premise in PREMISES}
        return {s: () if s in legal else tuple(p for p, those in held.items() if s not in those)
                for s in read.rows("Candidate") if matches(s.row, wanted)}


@contextlib.contextmanager
def saturated(kernel: tile.Kernel, target: str, math: str, pins: tile.Row, extra: Iterable[tuple[str, str]] = ()) -> Iterator[EGraph]:
    """The e-graph of a kernel's forms and rows, until the end of a `with` block."""
    rules, classes, added = (hardware_rules(target), *extra), math_classes(math), options(pins)
    with scope("tile", rules) if added else emptied("tile", rules, classes) as graph:
        graph.run("\n".join([*facts(kernel), *added, graph.saturation(classes)]), "<kernel>")
        yield graph


def matches(row: tile.Row, pins: tile.Row) -> bool:
    """Whether `row` has every field that `pins` gives."""
    fields = (pins.work, row.work), (pins.tile, row.tile), (pins.reduce, row.reduce), (pins.stage, row.stage), (pins.raster, row.raster)
    return all(not want or want == have for want, have in fields)


def why_not(read: Reader, wanted: tile.Row, legal: Iterable[tile.Schedule]) -> str:
    """What is missing for a pinned row: the premise that fails, or the rows there are."""
    for candidate in read.rows("Candidate"):
        if matches(candidate.row, wanted):
            missing = [f"{premise} ({reason})" for premise, reason in PREMISES.items() if candidate not in read.rows(premise)]
            if missing:
                return f"row {candidate.row} fails {', '.join(missing)}"
    rows = sorted({str(s.row) for s in legal})
    more = f" and {len(rows) - SHOWN} more, which emmy schedules lists" if len(rows) > SHOWN else ""
    return f"no rule proposes it; legal rows are {' · '.join(rows[:SHOWN])}{more}"
