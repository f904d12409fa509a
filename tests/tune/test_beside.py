"""Kernels that share a launch: chosen by cost, spelled in rows, one function, right on every device."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.errors import EmmyError
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError
from emmy.ir.tile_text import parse, print_program
from emmy.pipeline import compile_snippet
from emmy.runtime.execute import arguments, on_numpy, on_simulator

GROUPED = "x,q,k,v=torch.randn(5,64),torch.randn(64,48),torch.randn(64,24),torch.randn(64,24); (x@q, x@k, x@v)"
LOW_RANK = "x=torch.randn(256,512); w,a,b=(nn.Parameter(torch.randn(n)) for n in ((512,512),(512,16),(16,512)))"
UNLIKE = "x,y,z=torch.randn(37,96),torch.randn(1000),torch.randn(64,33); (F.softmax(x,-1), y.exp(), z.sum(0))"


@pytest.mark.parametrize("snippet", [GROUPED, UNLIKE])
def test_one_launch(snippet: str) -> None:
    program = compile_snippet(snippet)
    (launch,) = program.plan.launches
    (function,) = program.kernels
    first, *others = program.tile.kernels
    assert others and launch.kernel == function.name == tile.launch_name(program.tile.kernels)
    assert all(k.schedule and k.schedule.row.place == tile.BESIDE for k in others) and first.schedule and not first.schedule.row.place
    assert parse(print_program(program.tile)) is program.tile
    apart = compile_snippet(snippet, pins="PLACE=alone")
    assert len(apart.plan.launches) == len(apart.tile.kernels) == len(program.tile.kernels)
    assert launch.predicted_us < sum(x.predicted_us for x in apart.plan.launches)
    assert launch.predicted_us == pytest.approx(program.choice.predicted * 1e6)
    assert launch.bytes <= sum(x.bytes for x in apart.plan.launches)       # x is read from memory once
    arrays, wanted = arguments(program), evaluate_torch(program.captured.program, program.captured.tensors, float64=True)
    for found in (on_numpy(program, arrays), on_simulator(program, arrays)):
        for name, value in zip(program.plan.outputs, wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_what_waits_is_not_beside() -> None:
    program = compile_snippet("x,w=torch.randn(300,300),torch.randn(300,300); y=(x@w).softmax(0); (y@w, y.sum(1))")
    written: dict[str, int] = {}
    for n, launch in enumerate(program.choice.launches):
        assert all(written.get(t.name, -1) < n for k in launch for t in k.tensors)
        written |= {t.name: n for k in launch for t in k.outputs}


def test_pins_hold_beside_and_a_place_is_no_choice_of_theirs() -> None:
    program = compile_snippet(UNLIKE, pins="WORK=t256")
    assert any(k.schedule and k.schedule.row.work == "t256" for k in program.tile.kernels)
    with pytest.raises(EmmyError, match="PLACE=beside"):
        _ = compile_snippet(UNLIKE, pins="PLACE=beside").tile


def test_a_program_says_what_lies_beside_what() -> None:
    program = compile_snippet(GROUPED)
    first, second = program.tile.kernels
    with pytest.raises(IRError, match="no kernel is before it"):
        tile.launches([second])
    tensor = first.outputs[0]
    reads = second.replace(tensors=(*second.tensors, tensor))
    with pytest.raises(IRError, match=f"reads {tensor.name}"):
        tile.launches([first, reads])


def test_kernels_of_weights_share_no_launch_with_those_of_calls() -> None:
    """W + AB of a layer and its low-rank update, in fp32: made once, since that is the least work of a call."""
    program = compile_snippet(f"{LOW_RANK}; x@w + (x@a)@b")
    first, second = program.plan.launches
    assert first.once and {x.name for x in program.plan.of("weight")} < set(first.arguments) and not second.once
    assert [program.choice.once, program.choice.predicted] == pytest.approx([first.predicted_us / 1e6, second.predicted_us / 1e6])
    assert program.plan.buffer(first.arguments[-1]).role == "held"
    plain = compile_snippet(f"{LOW_RANK.replace('nn.Parameter', '')}; x@w + (x@a)@b")
    assert not any(x.once for x in plain.plan.launches), "inputs are other tensors at each call"
    arrays, wanted = arguments(program), evaluate_torch(program.captured.program, program.captured.tensors, float64=True)
    for name, value in zip(program.plan.outputs, wanted, strict=True):
        np.testing.assert_allclose(on_numpy(program, arrays)[name], value, rtol=1e-4, atol=1e-3)


def test_the_same_kernel_of_a_weight_and_of_an_input_is_one_function() -> None:
    program = compile_snippet("w = nn.Parameter(torch.randn(512, 512)); x, y = torch.randn(512, 512), torch.randn(512, 512); "
                              "(y @ w.softmax(-1), y @ x.softmax(-1))")
    made, again = (x for x in program.plan.launches if x.kernel.startswith("fold"))
    assert made.once and not again.once and made.kernel == again.kernel and made.identity == again.identity
