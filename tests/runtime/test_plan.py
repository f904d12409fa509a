from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.ir.dtype import DTYPES, f32
from emmy.ir.node import IRError
from emmy.runtime.plan import ALIGNMENT, Buffer, Launch, Plan, held_offsets, workspace_offsets
from tests.runtime.programs import held_product, two_kernels


@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_json_round_trip(element):
    plan = two_kernels(element=element)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.buffers[0].element is element


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "p"}', two_kernels().to_json().replace('"f32"', '"f33"')])
def test_text_that_is_no_plan(text):
    with pytest.raises(IRError, match="not a launch plan|unknown dtype"):
        Plan.from_json(text)


@pytest.mark.parametrize(("changes", "message"), [
    ({"outputs": ("t",)}, "outputs t are not"),
    ({"inputs": ("x", "w")}, "inputs x, w are not"),
    ({"buffers": two_kernels().buffers * 2}, "two buffers have one name"),
    ({"buffers": two_kernels().buffers[1:]}, "inputs x are not"),
    ({"launches": (Launch("k", ("nowhere",), (1, 1, 1), 32),)}, "reads or writes nowhere"),
    ({"launches": (Launch("k", ("x",), (0, 1, 1), 32),)}, "grid"),
    ({"launches": (Launch("k", ("x",), (1, 1, 1), 2048),)}, "block"),
    ({"launches": (Launch("k", ("x",), (1, 1, 1), 32, early=True),)}, "early"),
])
def test_malformed_plans_are_refused(changes, message):
    with pytest.raises(IRError, match=message):
        dataclasses.replace(two_kernels(), **changes)


def test_buffer_by_name():
    assert two_kernels().buffer("t").bytes == 60
    with pytest.raises(IRError, match="no buffer 'q'"):
        two_kernels().buffer("q")


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_workspaces_alive_together_do_not_overlap(spans):
    """Each workspace is named by its first and last launch; sizes are in elements."""
    spaces = {f"t{k}": (4 * n, min(a, b), max(a, b)) for k, (n, a, b) in enumerate(spans)}
    buffers = tuple(Buffer(name, f32, (size // 4,), "workspace") for name, (size, _, _) in spaces.items())
    launches = tuple(Launch("k", tuple(n for n, (_, a, b) in spaces.items() if step in (a, b)), (1, 1, 1), 32) for step in range(8))
    offsets, total = workspace_offsets(Plan("p", buffers, launches, (), (), "", "sm_90a", "fast"))
    assert all(at % ALIGNMENT == 0 and at + spaces[name][0] <= total for name, at in offsets.items())
    for one, (size, first, last) in spaces.items():
        for other, (size2, first2, last2) in spaces.items():
            if one < other and first <= last2 and first2 <= last and size and size2:
                assert offsets[one] + size <= offsets[other] or offsets[other] + size2 <= offsets[one]
    busiest = max((sum(-(-s // ALIGNMENT) * ALIGNMENT for s, a, b in spaces.values() if a <= step <= b) for step in range(8)), default=0)
    assert busiest <= total <= sum(-(-s // ALIGNMENT) * ALIGNMENT for s, _, _ in spaces.values())


def test_launches_that_are_done_once():
    plan = held_product()
    assert Plan.from_json(plan.to_json()) == plan and [x.once for x in plan.launches] == [True, False] and plan.calls == plan.launches[1:]
    assert held_offsets(plan) == ({"t": 0}, ALIGNMENT) and workspace_offsets(plan) == ({}, 0)
    assert held_offsets(two_kernels()) == ({}, 0)


@pytest.mark.parametrize(("change", "message"), [
    (lambda first, second: (dataclasses.replace(first, arguments=("w", "w", "y")), second), "y is another tensor at each call"),
    (lambda first, second: (second, first), "come before the others"),
    (lambda first, second: (dataclasses.replace(first, early=True), second), "early, and none is ahead"),
    (lambda first, second: (first, dataclasses.replace(second, early=True)), "early, and none is ahead"),
])
def test_launches_that_cannot_be_done_once_are_refused(change, message):
    plan = held_product()
    with pytest.raises(IRError, match=message):
        dataclasses.replace(plan, launches=change(*plan.launches))
