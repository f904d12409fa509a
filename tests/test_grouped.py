"""Grouped products: which rows are chosen, that no matrix is kept for each row, and the numbers of their kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from emmy.errors import EmmyError
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import torch_ir
from emmy.lower.torch_to_tensor import lower
from emmy.pipeline import Program, compile
from emmy.runtime.execute import arguments, on_numpy, on_simulator

Tensor = torch.Tensor
LENGTHS = 40, 1, 0, 65, 30      # of groups; rows after the last belong to none
ROWS, GROUPS, SUM, COLUMNS = 140, len(LENGTHS), 264, 272
ENDS = torch.tensor(np.cumsum(LENGTHS), dtype=torch.int32)
DISORDERED = torch.tensor([40, 136, 0, 70, 20], dtype=torch.int32)


def chosen(ends: Tensor) -> Tensor:
    """The group of each row: how many end at or before it."""
    return (ends <= torch.arange(ROWS)[:, None]).sum(1).clamp(max=GROUPS - 1)


def written(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return torch.einsum("mk,mnk->mn", x, w[chosen(ends)])


def any_order(x: Tensor, w: Tensor, number: Tensor) -> Tensor:
    return (w[number] @ x[:, :, None])[:, :, 0]


ANY = torch.randint(0, GROUPS, (ROWS,), generator=torch.Generator().manual_seed(3))
PROGRAMS: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
    "grouped_mm": (lambda x, w, o: torch._grouped_mm(x, w.mT, offs=o), ENDS),
    "grouped_mm, across": (lambda x, w, o: torch._grouped_mm(x, w.mT.contiguous(), offs=o), ENDS),
    "columns": (lambda x, w, o: torch._grouped_mm(w, x.t(), offs=o), ENDS),
    "gate": (lambda x, w, o: F.silu(torch._grouped_mm(x, w[:, :COLUMNS].mT, offs=o)) *
             torch._grouped_mm(x, w[:, COLUMNS:].mT, offs=o), ENDS),
    "written out": (written, ENDS),
    "no order": (written, DISORDERED),
    "rows in any order": (any_order, ANY),
}


def compiled(name: str) -> tuple[Program, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((ROWS, SUM), (GROUPS, COLUMNS * (1 + (name == "gate")), SUM)))
    fn, asked = PROGRAMS[name]
    return compile(fn, x, w, asked, target="sm_90a"), (x, w, asked)


@pytest.mark.parametrize("name", PROGRAMS)
def test_groups(name: str) -> None:
    """In one kernel of tensor cores, on NumPy and thread by thread, as eager has it in float64; rows of no group are 0."""
    made, inputs = compiled(name)
    kernel = made.tile.kernels[-1]
    assert kernel.schedule is not None and (kernel.schedule.form, kernel.schedule.row.tile[:5]) == ("layered", "wgmma")
    assert len(kernel.folds) == (2 if name == "gate" else 1)
    assert all(len(t.shape) < 3 for k in made.tile.kernels[:-1] for t in k.outputs if name not in ("grouped_mm, across", "gate"))
    (wanted,) = evaluate_torch(made.torch, dict(zip(made.captured.inputs, inputs, strict=True)) | made.captured.constants, float64=True)
    if name in ("grouped_mm", "columns", "gate"):
        assert ((wanted.mT if name == "columns" else wanted)[sum(LENGTHS):] == 0).all()
    for run in (on_numpy, on_simulator):
        (found,) = run(made, arguments(made, inputs)).values()
        np.testing.assert_allclose(found.astype(np.float64), wanted.numpy(), rtol=2.0**-6, atol=2.0**-4)


def test_other_targets_compute_each_element() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((ROWS, 16), (GROUPS, 24, 16)))
    made, inputs = compile(PROGRAMS["grouped_mm"][0], x, w, ENDS, target="sm_80"), (x, w, ENDS)
    (wanted,) = evaluate_torch(made.torch, dict(zip(made.captured.inputs, inputs, strict=True)) | made.captured.constants, float64=True)
    (found,) = on_simulator(made, arguments(made, inputs)).values()
    np.testing.assert_allclose(found.astype(np.float64), wanted.numpy(), rtol=2.0**-6, atol=2.0**-4)


def test_scales_of_rows_and_of_columns_of_a_group() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(torch.float8_e4m3fn) for shape in ((ROWS, 528), (GROUPS, COLUMNS, 528)))
    a, b = torch.rand(ROWS, generator=generator), torch.rand(GROUPS, COLUMNS, generator=generator)

    def fn(x: Tensor, w: Tensor, a: Tensor, b: Tensor, o: Tensor) -> Tensor:
        return torch._scaled_grouped_mm(x, w.mT, a, b, offs=o, out_dtype=torch.bfloat16)

    made = compile(fn, x, w, a, b, ENDS, target="sm_90a")
    kernel = made.tile.kernels[-1]
    assert kernel.schedule is not None and kernel.schedule.form == "layered" and "e4m3" in kernel.schedule.row.tile
    number = chosen(ENDS)
    wanted = torch.einsum("mk,mnk->mn", x.double(), w[number].double()) * a.double()[:, None] * b.double()[number]
    wanted[sum(LENGTHS):] = 0
    (found,) = on_simulator(made, arguments(made, (x, w, a, b, ENDS))).values()
    np.testing.assert_allclose(found.astype(np.float64), wanted.numpy(), rtol=2.0**-6, atol=2.0**-4)


@pytest.mark.parametrize("operands, message", [("%x, %w, %o, %b", "a bias of a grouped product"),
                                               ("%x, %w", "a grouped product of no offsets")])
def test_what_is_not_taken_says_so(operands: str, message: str) -> None:
    program = torch_ir.parse(f"""torch {{
      %x = input("x") : bf16[8, 16]
      %w = input("w") : bf16[2, 16, 24]
      %o = input("o") : i32[2]
      %b = input("b") : bf16[2, 24]
      %y = aten._grouped_mm.default({operands}) : bf16[8, 24]
      return %y
    }}""")
    with pytest.raises(EmmyError, match=message):
        lower(program)


@pytest.mark.parametrize("scales, message", [("%a, %b, %o, None, %a", "a scale of the result"),
                                             ("%b, %a, %o", r"scales of shapes \[2, 24\] and \[8\]")])
def test_scales_that_are_not_taken(scales: str, message: str) -> None:
    program = torch_ir.parse(f"""torch {{
      %x = input("x") : e4m3[8, 16]
      %w = input("w") : e4m3[2, 16, 24]
      %o = input("o") : i32[2]
      %a = input("a") : f32[8]
      %b = input("b") : f32[2, 24]
      %y = aten._scaled_grouped_mm.default(%x, %w, {scales}) : bf16[8, 24]
      return %y
    }}""")
    with pytest.raises(EmmyError, match=message):
        lower(program)
