"""What the rules find in whole programs: sharing, one identity for equal programs, fusion, cuts, and the doors left to a user."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from emmy.errors import EmmyError
from emmy.ir import kernel_text
from emmy.ir import tile_ir as tile
from emmy.pipeline import Program, compile
from emmy.runtime import execute
from extract import partition

HALF, SINGLE = torch.bfloat16, torch.float32
dtypes = pytest.mark.parametrize("dtype", [SINGLE, HALF], ids=["f32", "bf16"])


def of(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """A tensor whose values do not matter."""
    return torch.empty(shape, dtype=dtype)


def identities(program: Program) -> list[str]:
    return [s.identity for s in program.choice.scheduled.values()]


def only(program: Program) -> tile.Kernel:
    (kernel,) = program.tile.kernels
    return kernel


def folds(kernel: tile.Kernel) -> list[tuple[str, int]]:
    """(kind, extent) of each fold."""
    return [(f.kind, kernel.extents[f.axis]) for f in kernel.folds]


# -- sharing and identity ---------------------------------------------------------------------------------------------
def test_a_shared_value_is_loaded_and_computed_once() -> None:
    (kernel,) = compile(lambda x: (x * x) + (x * x), of(64, 64)).kernels
    text = kernel_text.show(kernel)
    assert text.count("load_global") == 1
    assert text.count(" * x_") + text.count("* x") <= 2, text
    assert sum(line.count("*") for line in text.splitlines() if "let v" in line) == 1


def test_equal_sums_have_one_identity() -> None:
    x, y = of(64, 64), of(64, 64)
    left, right, other = (identities(compile(f, x, y)) for f in (lambda x, y: x + x + y, lambda x, y: y + (x + x), lambda x, y: x * 2 + y))
    assert left == right != other


def softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def test_softmax_is_found_by_its_arithmetic() -> None:
    x = of(16, 300)
    assert identities(compile(softmax_by_hand, x)) == identities(compile(lambda x: x.softmax(-1), x))


def test_linear_is_a_matmul() -> None:
    x, w = of(64, 128), of(32, 128)
    assert identities(compile(functional.linear, x, w)) == identities(compile(lambda x, w: x @ w.t(), x, w))


# -- one pass ---------------------------------------------------------------------------------------------------------
NORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "rms_norm": (lambda x, w: functional.rms_norm(x, (4096,), w), 1),
    "layer_norm": (lambda x, w: functional.layer_norm(x, (4096,), w), 2),
    "softmax": (lambda x, w: x.softmax(-1), 1),
}


@dtypes
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_is_one_kernel(name: str, dtype: torch.dtype) -> None:
    norm, passes = NORMS[name]
    kernel = only(compile(norm, of(16384, 4096, dtype=dtype), of(4096, dtype=dtype)))
    assert len(kernel.folds) == passes and all(n == 4096 for _, n in folds(kernel))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) * 0.125 + mask).softmax(-1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    future = torch.ones(1024, 1024, dtype=torch.bool).triu(1)
    return (q @ k.transpose(-1, -2) * 0.125).masked_fill(future, -math.inf).softmax(-1) @ v


def heads_inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


HEADS = (4, 16, 1024, 64)
ATTENTION: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "plain": (attend, (HEADS,) * 3),
    "mask": (masked, (*(HEADS,) * 3, (1024, 1024))),
    "causal": (causal, (HEADS,) * 3),
    "self": (lambda x: attend(x, x, x), (HEADS,)),
    "heads_inside": (heads_inside, ((4, 1024, 16, 64),) * 3),
    "sdpa": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), (HEADS,) * 3),
}


@dtypes
@pytest.mark.parametrize("name", ATTENTION)
def test_written_out_attention_passes_over_the_keys_once(name: str, dtype: torch.dtype) -> None:
    fn, shapes = ATTENTION[name]
    kernel = only(compile(fn, *(of(*s, dtype=dtype) for s in shapes)))
    assert sorted(folds(kernel)) == [("reduce", 64), ("twist", 1024)]


# -- cuts -------------------------------------------------------------------------------------------------------------
def chain(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (a @ b) @ c


def reads(program: Program) -> list[set[str]]:
    """What each kernel reads of the program's inputs."""
    return [{t.name for t in k.tensors} & set(program.tile.inputs) for k in program.tile.kernels]


@dtypes
def test_the_cheaper_bracketing_is_taken(dtype: torch.dtype) -> None:
    """Two small kernels: A(BC) where B and C make the small product, (AB)C where A and B do."""
    right = compile(chain, *(of(*s, dtype=dtype) for s in ((4096, 64), (64, 4096), (4096, 64))))
    left = compile(chain, *(of(*s, dtype=dtype) for s in ((64, 4096), (4096, 64), (64, 4096))))
    assert reads(right) == [{"b", "c"}, {"a"}] and reads(left) == [{"a", "b"}, {"c"}]
    for program in (right, left):
        small, product = program.tile.kernels
        assert small.shape == (64, 64) and folds(small) == [("reduce", 4096)] and folds(product) == [("reduce", 64)]


def test_chained_matmuls_are_fused_when_tiny_and_cut_when_large() -> None:
    assert len(compile(chain, of(2, 2), of(2, 2), of(2, 2)).tile.kernels) == 1
    assert len(compile(chain, of(512, 512), of(512, 512), of(512, 512)).tile.kernels) == 2


SPLIT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "sum": (lambda x: x.sum(), ((1 << 22,),), 2),
    "max": (lambda x: x.amax(-1), ((4, 1 << 20),), 2),
    "columns": (lambda x: x.sum(0), ((65536, 64),), 2),
    "mean": (lambda x: x.mean(-1), ((4, 1_000_000),), 2),
    "few rows of a matmul": (lambda a, b: a @ b, ((16, 4096), (4096, 4096)), 2),
    "a million": (lambda x: x.sum(), ((1_000_000,),), 2),
    "no divisor": (lambda x: x.sum(), ((1_000_003,),), 2),
    "variance with no divisor": (lambda x: x.var(), ((1_000_003,),), 3),
    "first maximum of a million": (torch.argmax, ((1_000_000,),), 2),
    "columns with no divisor": (lambda x: x.sum(0), ((1_000_003, 3),), 2),
    "many rows": (lambda x: x.sum(-1), ((16384, 4096),), 1),
    "many columns": (lambda x: x.sum(0), ((4096, 16384),), 1),
    "many tiles": (lambda a, b: a @ b, ((2048, 2048), (2048, 2048)), 1),
    "short": (lambda x: x.sum(-1), ((4, 512),), 1),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_reduction_is_split_where_blocks_are_few(name: str) -> None:
    fn, shapes, kernels = SPLIT[name]
    assert len(compile(fn, *(of(*s) for s in shapes)).tile.kernels) == kernels


def test_exact_math_splits_a_maximum_but_no_sum() -> None:
    x = of(1 << 20)
    assert len(compile(torch.amax, x, math="exact").tile.kernels) == 2
    assert len(compile(torch.sum, x, math="exact").tile.kernels) == 1


SMALL = """(set (LongAxis) 64) (Enough "tiles" 4096 8191 64 9999) (Enough "rows" 16 31 64 9999) (Enough "columns" 64 127 64 9999)
(Enough "twists" 16 31 16 9999)"""
PIECES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "sum": (torch.sum, ((4096,),)),
    "sum and a rest": (torch.sum, ((4099,),)),
    "odd sum": (torch.sum, ((5000,),)),
    "odd variance": (torch.var, ((5000,),)),
    "odd first maximum": (torch.argmax, ((5000,),)),
    "matmul and a rest": (torch.matmul, ((16, 1027), (1027, 32))),
    "variance": (lambda x: x.var(-1), ((2, 1024),)),
    "max": (lambda x: x.amax(-1), ((2, 2048),)),
    "columns": (lambda x: x.sum(0), ((1024, 8),)),
    "matmul": (torch.matmul, ((16, 1024), (1024, 32))),
    "attention": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                  ((2, 4, 1, 16), (2, 2, 128, 16), (2, 2, 128, 16))),
    "attention of norms": (lambda q, k, v: functional.softmax(q @ functional.rms_norm(k, (16,)).mT / 16, -1)
                           @ functional.rms_norm(v, (16,)), ((2, 8, 16), (2, 128, 16), (2, 128, 16))),
    "reshaped": (lambda x: x.reshape(64, 8, 16).transpose(0, 1).reshape(8, 1024).sum(-1), ((8192,),)),
}


@dtypes
@pytest.mark.parametrize("name", PIECES)
def test_pieces_compute_what_the_whole_does(name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small reductions, their pieces kept whatever that costs."""
    rules = tmp_path / "small.egg"
    rules.write_text(SMALL)
    ranked = partition.ranked

    def keep_pieces(problem: partition.Problem, price: Callable[[partition.Kernel], float],
                    *counts: int) -> tuple[partition.Solution, ...]:
        return ranked(problem._replace(outputs=(*problem.outputs, *(t for t in problem.home if t not in problem.named))), price, *counts)

    monkeypatch.setattr(partition, "ranked", keep_pieces)
    torch.manual_seed(0)
    fn, shapes = PIECES[name]
    inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
    program = compile(fn, *inputs, rules=[rules])
    assert len(program.tile.kernels) > 1
    found = execute.on_simulator(program, execute.arguments(program))[program.plan.outputs[0]].astype(np.float64)
    wanted = fn(*(x.double() for x in inputs)).numpy()
    assert np.abs(found - wanted).max() <= (2 ** -7 if dtype is HALF else 1e-5) * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_before_a_linear_writes_no_normalised_tensor(dtype: torch.dtype) -> None:
    """The rows' scales come after the product.  With a weight, columns of the other factor are scaled, or what is normalised is written:
    rings that copies fill take factors as they lie in memory."""
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.linear(functional.rms_norm(x, (4096,)), w)

    program = compile(fn, of(4096, 4096).to(dtype), of(4096, 4096).to(dtype))
    written = [k.shape for k in program.tile.kernels]
    assert written == [(4096,), (4096, 4096)]
    assert program.tile.kernels[-1].schedule is not None and program.tile.kernels[-1].schedule.form == "contraction"


# -- math ---------------------------------------------------------------------------------------------------------------
EXACT: dict[str, Callable[..., Any]] = {
    "sums": lambda x, y: x + x + y - (y + x),
    "products": lambda x, y: (x * y) * (y * x) / 3,
    "zeros": lambda x, y: (x * 0 + y, x - x, x / x, -x * 1),
    "select": lambda x, y: torch.where(x > y, x * y, y / x).clamp(-2, 2),
    "rounding": lambda x, y: (x.floor() + y.trunc() - (x * 8).round(), x.abs()),
    "broadcast": lambda x, y: x[:, :1] * y + x[0] / (y * y + 1),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_math_keeps_every_bit(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 37), torch.randn(9, 37)
    x[0, :6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42])
    program = compile(EXACT[name], x, y, math="exact")
    wanted = EXACT[name](x, y)
    found = execute.on_simulator(program, execute.arguments(program))
    for out, ref in zip(program.plan.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        same = (found[out].view(np.int32) == ref.numpy().view(np.int32)) | (np.isnan(found[out]) & np.isnan(ref.numpy()))
        assert same.all(), f"{out}: {found[out][~same]} for {ref.numpy()[~same]}"


def test_exact_math_uses_no_rule_over_the_reals() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)

    assert [kind for kind, _ in folds(only(compile(fn, of(64, 128))))] == ["twist"]
    exact = compile(fn, of(64, 128), math="exact")
    assert {kind for k in exact.tile.kernels for kind, _ in folds(k)} == {"reduce"}


# -- pins and rules of the user's ---------------------------------------------------------------------------------------
def test_a_pin_is_obeyed_though_the_rules_do_not_propose_it() -> None:
    for pins in "WORK=t128", "WORK=t96,TILE=v2":
        schedule = only(compile(torch.exp, of(64, 64), pins=pins)).schedule
        assert schedule is not None and str(schedule.row) == pins


@pytest.mark.parametrize("pins, reason", [("WORK=t2048", "FitsThreads"), ("WORK=t128,TILE=v8", "Divides"),
                                          ("WORK=t8x8", "no rule proposes it")])
def test_an_illegal_pin_names_the_premise_that_fails(pins: str, reason: str) -> None:
    with pytest.raises(EmmyError, match=reason):
        _ = compile(torch.exp, of(64, 63), pins=pins).tile


def test_a_rule_of_the_users_makes_programs_equal(tmp_path: Path) -> None:
    rules = tmp_path / "double.egg"
    rules.write_text('(birewrite (Binary "add" x x) (Binary "mul" x (Const "f32" 1073741824))\n'
                     '           :ruleset normalize-real :name "double")')
    x, y = of(64, 64), of(64, 64)
    doubled, added = (compile(f, x, y, rules=[rules]) for f in (lambda x, y: x * 2 + y, lambda x, y: y + (x + x)))
    assert identities(doubled) == identities(added)


def test_an_error_in_a_rule_file_names_the_file(tmp_path: Path) -> None:
    rules = tmp_path / "broken.egg"
    rules.write_text('(rewrite (Binary "add" x) x :ruleset normalize-real :name "broken")')
    with pytest.raises(EmmyError, match=r"broken\.egg"):
        _ = compile(torch.exp, of(4), rules=[rules]).tile
