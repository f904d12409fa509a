"""Launches that begin while those ahead of them end: where they wait, what they may touch before, and that a missing wait is found."""

from __future__ import annotations

from functools import cache

import pytest

from emmy.evaluate.error import compare, tolerance
from emmy.evaluate.reference import evaluate_torch
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import CopyTile, If, LaunchDependents, WaitKernels
from emmy.instructions.control import For
from emmy.ir.kernel_ir import Kernel, Stmt, walk
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.lower.tile_to_kernel.early import following
from emmy.pipeline import Program, compile_snippet
from emmy.runtime.execute import arguments, on_simulator
from tests.kernels import branches, vector_map

PRODUCT = "WORK=g1x1/ws,TILE=wgmma_m64n32k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p2"
CHAIN = ("x = torch.randn(16, 128, dtype=torch.bfloat16); u, d = (nn.Linear(n, m, bias=False, dtype=torch.bfloat16) for n, m in "
         "((128, 256), (256, 96))); torch.cumsum(d(u(x).relu()), 0)")


@cache
def chain(pins: str = PRODUCT, target: str = "sm_90a") -> Program:
    return compile_snippet(CHAIN, target, pins=pins)


def waits(body: tuple[Stmt, ...]) -> int:
    return sum(isinstance(s, WaitKernels) for s in walk(body))


def without_waits(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out = []
    for s in body:
        match s:
            case WaitKernels(): continue
            case If(): s = s.replace(body=without_waits(s.body), orelse=without_waits(s.orelse))
            case For(): s = s.replace(body=without_waits(s.body))
        out.append(s)
    return tuple(out)


def test_a_chain_of_kernels() -> None:
    program = chain()
    plan, kernels = program.plan, program.kernels
    assert [x.early for x in plan.launches] == [False] + [True] * (len(kernels) - 1) and len(kernels) > 1
    assert [bool(waits(k.body)) for k in kernels] == [x.early for x in plan.launches]
    assert [isinstance(k.body[0], LaunchDependents) for k in kernels] == [True] * (len(kernels) - 1) + [False]
    for k in kernels:
        assert parse(show(k)) is k
    captured = program.captured
    (found,) = on_simulator(program, arguments(program)).values()
    (wanted,) = evaluate_torch(captured.program, captured.tensors, float64=True)
    assert compare(found, wanted).within(tolerance(plan.buffer(plan.outputs[0]).element))


def product() -> Kernel:
    return [k for k in chain().kernels if k.maps][1]


def test_weights_are_on_their_way_before_the_wait() -> None:
    kernel = product()
    late = {p.name for p in kernel.parameters if p.late}
    assert {p.name for p in kernel.parameters if p.access == "write"} < late < {p.name for p in kernel.parameters}
    of = {m.name: m.buffer for m in kernel.maps}
    sides = [s for s in walk(kernel.body) if isinstance(s, If) and any(isinstance(x, CopyTile) for x in walk(s.body)) and not s.orelse]
    waited = {of[x.map]: waits(s.body) for s in sides for x in walk(s.body) if isinstance(x, CopyTile)}
    assert {name: bool(n) for name, n in waited.items()} == {name: name in late for name in waited} and len(set(waited.values())) == 2


def test_missing_waits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program, whole = chain(), chain().kernels
    for k, kernel in enumerate(whole):
        if waits(kernel.body):
            planted = (*whole[:k], kernel.replace(body=without_waits(kernel.body)), *whole[k + 1:])
            monkeypatch.setitem(vars(program), "kernels", planted)
            with pytest.raises(SimulationError, match=r"race: .*no wait_kernels stands before"):
                on_simulator(program, arguments(program))


def test_a_wait_stands_before_each_branch_that_writes() -> None:
    kernel = following(branches(), set())
    assert waits(kernel.body) and all(p.late == (p.access == "write") for p in kernel.parameters)
    early = following(vector_map(100), {"src"})
    assert [type(s).__name__ for s in early.body] == ["Let", "WaitKernels", "LoadGlobal", "StoreGlobal"]
    assert [type(s).__name__ for s in following(vector_map(100), set()).body] == ["Let", "LoadGlobal", "WaitKernels", "StoreGlobal"]


@pytest.mark.parametrize(("pins", "target"), [("PLACE=alone", "sm_90a"), ("", "sm_80")])
def test_none_is_early(pins: str, target: str) -> None:
    program = chain(pins, target)
    assert len(program.plan.launches) > 1 and not any(x.early for x in program.plan.launches)
    assert not any(isinstance(s, WaitKernels | LaunchDependents) for k in program.kernels for s in walk(k.body))
    assert "griddepcontrol" not in program.cuda


def test_attention_of_few_tiles_in_pieces() -> None:
    """The kernel that merges the states of pieces waits for the one that makes them."""
    half = "dtype=torch.bfloat16"
    program = compile_snippet(f"q, k, v = torch.randn(1, 128, 32, {half}), torch.randn(1, 32, 4096, {half}), "
                              f"torch.randn(1, 4096, 32, {half}); F.softmax(q @ k, dim=-1) @ v")
    assert [x.early for x in program.plan.launches] == [False, True]
    captured = program.captured
    (found,) = on_simulator(program, arguments(program)).values()
    (wanted,) = evaluate_torch(captured.program, captured.tensors, float64=True)
    assert compare(found, wanted).within(tolerance(program.plan.buffer(program.plan.outputs[0]).element))


def test_what_is_held_is_not_waited_for() -> None:
    """A kernel that runs once for all calls is ahead of none: the first of a call begins after it has ended."""
    program = compile_snippet("x = torch.randn(64, 256, dtype=torch.bfloat16); u, d = (nn.Parameter(torch.randn(256, 256)) for _ in 'ab'); "
                              "F.linear(F.linear(x, u.to(x.dtype)).relu(), d.to(x.dtype)).cumsum(0)")
    plan = program.plan
    assert any(x.once for x in plan.launches) and len(plan.calls) > 1
    assert [x.early for x in plan.calls] == [False] + [True] * (len(plan.calls) - 1)
    functions = {k.name: k for k in program.kernels}
    for x in plan.calls[1:]:
        late = {a for p, a in zip(functions[x.kernel].parameters, x.arguments, strict=False) if p.late}
        assert late.isdisjoint(b.name for b in plan.of("held")) and late
