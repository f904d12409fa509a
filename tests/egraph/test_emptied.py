"""A graph whose rows are deleted after each kernel admits what a fresh copy does."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from emmy.egraph import rulebook, schedule
from emmy.egraph.kernel_facts import facts
from emmy.egraph.rulebook import EGraph, emptied, hardware_rules, scope
from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.pipeline import compile
from tests.families import FAMILIES
from tests.random_programs import Source, programs

CLASSES = ("exact", "finite", "real")
EXTRA = (("mine/width.egg", '(rule ((Elements n)) ((WidthOption 16)) :ruleset fold-exact :name "wider")'),)


def unscheduled(*of: tile.Kernel) -> list[tile.Kernel]:
    return [k.replace(schedule=None) for k in of]


def copied(kernel: tile.Kernel, target: str, math: str) -> tuple[tile.Schedule, ...]:
    """The schedules by a copy of the graph of rules."""
    with mock.patch.object(schedule, "emptied", lambda ir, extra, classes: scope(ir, extra)):
        return schedules(kernel, target, math)


@pytest.fixture(autouse=True)
def none_is_used() -> Iterator[None]:
    """Graphs of this test alone."""
    rulebook._kept.cache_clear()
    yield
    rulebook._kept.cache_clear()


@pytest.mark.parametrize("target", ["sm_90a", "sm_89"])
def test_kernels_of_all_families_have_the_rows_of_a_copy(target: str) -> None:
    made = (compile(f.spellings[0], *(torch.empty(shape) for shape in f.shapes)) for f in list(FAMILIES.values())[::4])
    kernels = [k for program in made for k in unscheduled(*program.tile.kernels)]
    for math in ("fast", "exact", "fast"):      # whatever was there before
        for kernel in kernels:
            assert schedules(kernel, target, math) == copied(kernel, target, math)
    kept = rulebook._kept("tile", (hardware_rules(target),), CLASSES)
    assert kept.free and kept.graph.sizes() == kept.own


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(programs())
def test_kernels_of_random_programs_have_the_rows_of_a_copy(source: Source) -> None:
    for kernel in unscheduled(*compile(source.function, *source.inputs).tile.kernels):
        assert schedules(kernel, "sm_90a") == copied(kernel, "sm_90a", "fast")


def kernel() -> tile.Kernel:
    (made,) = unscheduled(*compile(lambda x: x.exp(), torch.empty(64, 96)).tile.kernels)
    return made


def test_rules_that_add_to_their_own_facts_work_on_copies() -> None:
    with_wider = schedules(kernel(), "sm_90a", extra=EXTRA)
    assert any(s.row.tile == "v16" for s in with_wider) == any(s.row.tile == "v16" for s in copied_with(EXTRA))
    assert not rulebook._kept("tile", (hardware_rules("sm_90a"), *EXTRA), CLASSES).free
    assert schedules(kernel(), "sm_90a", extra=EXTRA) == with_wider


def copied_with(extra: tuple[tuple[str, str], ...]) -> tuple[tile.Schedule, ...]:
    with mock.patch.object(schedule, "emptied", lambda ir, more, classes: scope(ir, more)):
        return schedules(kernel(), "sm_90a", extra=extra)


def test_pins_leave_no_rows() -> None:
    before = schedules(kernel(), "sm_90a")
    assert schedules(kernel(), "sm_90a", pins="WORK=t96")[0].row.work == "t96"
    assert schedules(kernel(), "sm_90a") == before and all(s.row.work != "t96" for s in before)


def test_a_block_within_a_block_and_one_that_failed_have_graphs_of_their_own() -> None:
    def rows(graph: EGraph) -> int:
        return graph.sizes()["Candidate"]

    rules = (hardware_rules("sm_90a"),)
    with emptied("tile", rules, CLASSES) as outer:
        outer.run("\n".join([*facts(kernel()), outer.saturation(CLASSES)]))
        wanted = rows(outer)
        with emptied("tile", rules, CLASSES) as inner:
            assert inner is not outer and rows(inner) == 0 < wanted
        assert rows(outer) == wanted
    with pytest.raises(EmmyError), emptied("tile", rules, CLASSES) as failed:
        failed.run("(nonsense)")
    with emptied("tile", rules, CLASSES) as graph:
        assert graph is not failed and rows(graph) == 0
