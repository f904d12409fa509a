"""Copies of inputs in another layout: where they are chosen, that what reads them computes the same, and what explanations say."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from emmy.capture.snippet import capture_snippet
from emmy.cli.derivations import page
from emmy.egraph.problem import outline, problem
from emmy.egraph.schedule import schedules
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import tile_ir as tile
from emmy.pipeline import Program
from emmy.runtime.arrays import to_numpy
from emmy.runtime.execute import arguments, on_numpy, on_simulator
from emmy.tune.choose import Rows
from emmy.tune.explanation import explain
from extract.kernels import Kernels
from extract.problem import Solution, launches

BYTES = ("x, w = (nn.Parameter(torch.randn(n, m).to(torch.float8_e4m3fn), requires_grad=False) for n, m in (({0}, {2}), ({2}, {1}))); "
         "torch._scaled_mm(x, w, torch.tensor(0.5), torch.tensor(2.0), out_dtype=torch.bfloat16)")
TF32 = "x, w = torch.randn({0}, {2}), torch.randn({2}, {1}); x @ w"
ODD = "x, w = torch.randn({0}, {2}, dtype=torch.bfloat16), torch.randn({1}, {2}, dtype=torch.bfloat16); x @ w.t()"
CONV = ("x, w = torch.randn({0}, {2}, {1}, {1}, dtype=torch.bfloat16), torch.randn({3}, {2}, {4}, {4}, dtype=torch.bfloat16); "
        "F.conv2d(x, w, stride={5}, padding={6})")


def compiled(snippet: str, *sizes: int, traced: bool = False) -> Program:
    return Program(capture_snippet(snippet.format(*sizes)), math="tf32" if snippet is TF32 else "fast", traced=traced)


def forms(program: Program) -> list[str]:
    return [k.schedule.form for k in program.tile.kernels if k.schedule]


def with_copies(program: Program, atom: str) -> Program:
    """The program with all copies kept and read, the kernel of the result with its first row of these instructions."""
    rows, (region,) = Rows(program.target, program.math), program.regions
    outlined = outline(region)
    stated = problem(outlined, rows.gpu, program.math)
    kernels, copies = Kernels(stated, rows.price(outlined)), frozenset(region.copies)
    found = [kernels.kernel(w, copies if w in stated.outputs else frozenset()) for w in (*sorted(copies), *stated.outputs)]
    made = launches(stated, [k for k in found if k is not None])
    assert len(made) == len(copies) + 1 and made[-1].reads == copies
    for k in made:
        kernels.priced(k)
    of = rows.call(outlined, made[-1]).identity
    bare = rows.found[of].kernel.replace(schedule=None)
    row = next(s.row for s in schedules(bare, program.target, program.math) if atom in s.row.tile)
    rows.found[of] = rows.best(bare, str(row))
    _, extracted = rows.launched(outlined, Solution(0.0, made), "PLACE=alone")
    vars(program)["choice"] = rows.together(program.loop, program.stretches, (extracted,), "")
    return program


RESNET = [(32, 56, 64, 64, 3, 1, 1), (32, 28, 128, 128, 3, 1, 1), (32, 56, 128, 128, 3, 2, 1), (32, 14, 256, 256, 3, 1, 1),
          (32, 7, 512, 512, 3, 1, 1)]


@pytest.mark.parametrize("sizes", RESNET, ids=lambda s: "x".join(map(str, s)))
def test_a_convolution_of_channels_first_is_copies_and_one_of_channels_last(sizes: tuple[int, ...]) -> None:
    program = compiled(CONV, *sizes)
    assert forms(program)[-1] == "convolution" and len(program.tile.kernels) == 3 and len(program.plan.launches) == 2
    (region,), alone = program.regions, program.knowing(program.evidence)
    terms = {c: tuple(t for t in ts if t.kind != "Tensor" or t.label not in region.copies) for c, ts in region.terms.items()}
    vars(alone)["regions"] = (region._replace(copies={}, terms=terms),)
    assert "convolution" not in forms(alone) and alone.choice.predicted > 2.5 * program.choice.predicted


@pytest.mark.parametrize(("snippet", "sizes"), [(TF32, (2048, 2048, 2048)), (BYTES, (4096, 4096, 4096))], ids=["tf32", "e4m3"])
def test_a_right_side_in_rows_is_copied_into_lines(snippet: str, sizes: tuple[int, ...]) -> None:
    program = compiled(snippet, *sizes)
    assert forms(program) == ["transpose", "contraction"] and "wgmma" in str(program.tile.kernels[-1].schedule)


@pytest.mark.parametrize("snippet", [TF32.replace("x @ w", "x @ w.t()").replace("torch.randn({2}, {1})", "torch.randn({1}, {2})"),
                                     TF32.replace("randn({0}, {2})", "randn({2})"), "torch.randn({0}, {1}).t().contiguous()"])
def test_what_lies_in_lines_has_no_copy(snippet: str) -> None:
    program = Program(capture_snippet(snippet.format(64, 64, 64)), math="tf32")
    assert [region.copies for region in program.regions] == [{}]


def test_an_input_whose_copy_would_have_the_name_of_another_has_none() -> None:
    snippet = "x, w, w_along0 = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8); x @ w + w_along0"
    program = Program(capture_snippet(snippet), math="tf32")
    assert [region.copies for region in program.regions] == [{}]


@pytest.mark.parametrize(("snippet", "sizes", "atom", "shapes"), [
    (TF32, (72, 40, 36), "wgmma", [(40, 36)]),
    (BYTES, (64, 32, 48), "wgmma", [(32, 48)]),
    (ODD, (70, 24, 37), "wgmma", [(24, 40), (70, 40)]),
    (CONV, (2, 6, 8, 16, 3, 1, 1), "wgmma", [(16, 3, 3, 8), (2, 6, 6, 8)]),
    (CONV, (2, 7, 16, 8, 3, 2, 1), "wgmma", [(8, 3, 3, 16), (2, 7, 7, 16)]),
    (CONV, (2, 5, 16, 24, 1, 1, 0), "wgmma", [(2, 5, 5, 16)]),
], ids=["tf32", "e4m3", "odd", "conv", "conv-stride", "conv-1x1"])
def test_what_reads_copies_computes_the_same(snippet: str, sizes: tuple[int, ...], atom: str, shapes: list[tuple[int, ...]]) -> None:
    program = with_copies(compiled(snippet, *sizes), atom)
    *made, last = program.tile.kernels
    assert [k.outputs[0].shape for k in made] == shapes and last.schedule is not None and atom in last.schedule.row.tile
    tile.verify(last)
    arrays, captured = arguments(program), program.captured
    (exact,) = evaluate_torch(captured.program, captured.tensors, float64=True)
    wanted = to_numpy(exact).astype(np.float64)
    for device in (on_numpy, on_simulator):
        (found,) = device(program, arrays).values()
        error = np.abs(found.astype(np.float64).reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()
        assert error < (2e-3 if snippet is TF32 else 8e-3), device.__name__


def test_an_explanation_names_the_rule_and_prices_the_copy() -> None:
    program = compiled(TF32, 2048, 2048, 2048, traced=True)
    told = explain(program.region, Rows(program.target, program.math), most=1)
    console = Console(width=150, file=io.StringIO())
    for line in page(told, 150):
        console.print(line)
    text = console.file.getvalue()      # type: ignore[attr-defined]
    assert "read-copy  w[a0, p1] → w_along0[p1, a0]" in text and "w_along0[p0, p1] = w[p1, p0]" in text and "fuse w_along0" in text
