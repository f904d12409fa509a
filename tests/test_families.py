"""What saturation finds in families of programs, whatever their spelling: one canonical form, right numbers, and less cost."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from math import prod
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from emmy.egraph import saturate
from emmy.egraph.canonical import forms
from emmy.egraph.rulebook import scope
from emmy.pipeline import Program, compile
from emmy.tune.as_written import as_written
from emmy.tune.choose import Rows
from tests.families import ATTENTION, FAMILIES, Family, centred, scores

TOLERANCE = 2e-5


def sample(shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@functools.lru_cache(maxsize=8)
def program(family: Family, k: int = 0) -> Program:
    return compile(family.spellings[k], *(torch.empty(shape) for shape in family.shapes))


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Family by family, so that what one test compiles the next finds."""
    return pytest.mark.parametrize("name", [*names], scope="module")


@each(FAMILIES)
def test_all_spellings_have_one_canonical_form(name: str) -> None:
    family = FAMILIES[name]
    found = {"\n".join(forms(program(family, k).region).values()) for k in range(len(family.spellings))}
    assert len(found) == 1 and len(family.spellings) >= 3, "\n\n".join(sorted(found))


@each(FAMILIES)
def test_rewriting_comes_to_a_fixpoint(name: str) -> None:
    family = FAMILIES[name]
    for k in range(len(family.spellings)):
        with scope("loop") as graph:
            assert saturate.run(program(family, k).loop, graph=graph).settled


@each(FAMILIES)
def test_all_spellings_compute_their_function(name: str) -> None:
    family = FAMILIES[name]
    inputs = sample(family.small)
    wanted = family.spellings[0](*(x.double() for x in inputs))
    for spelling in family.spellings:
        found = compile(spelling, *inputs)(*inputs)
        for have, want in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True):
            assert (have.double() - want).abs().max() <= TOLERANCE * max(1.0, float(want.abs().max()))


@each(FAMILIES)
def test_what_is_extracted_costs_less_than_what_is_written(name: str) -> None:
    family = FAMILIES[name]
    made = program(family)
    before, after = sum(as_written(made.loop, Rows(made.target, "exact")).values()), made.choice.predicted
    if family.gain > 1:
        assert before >= family.gain * after, f"{before * 1e6:.1f} µs as written, {after * 1e6:.1f} µs extracted"
    if family.folds:
        assert sorted(f.kind for f in made.tile.kernels[-1].folds) == sorted(family.folds)


@each(n for n, family in FAMILIES.items() if family.launches)
def test_results_of_one_input_share_a_launch_however_they_are_spelled(name: str) -> None:
    family = FAMILIES[name]
    for k in range(len(family.spellings)):
        made = program(family, k)
        assert len(made.plan.launches) == family.launches < len(made.plan.outputs)


@each(n for n in ATTENTION if n != "values of a product")
def test_attention_is_one_twisted_fold_whatever_is_done_to_its_scores(name: str) -> None:
    (kernel,) = program(ATTENTION[name]).tile.kernels
    assert [f.kind for f in kernel.folds] == ["reduce", "twist"] and kernel.schedule is not None and kernel.schedule.form == "twist"


def test_a_fully_masked_row_is_nan_written_out_and_zero_through_sdpa() -> None:
    q, k, v = sample(((1, 2, 6, 8),) * 3)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False

    def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT * 8 ** -0.5).masked_fill(~m, -torch.inf).softmax(-1) @ v

    def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)

    for fn, inside in ((written, torch.isnan), (sdpa, lambda x: x == 0)):
        made = compile(fn, q, k, v, mask)
        found = made(q, k, v, mask)
        assert [f.kind for f in made.tile.kernels[-1].folds] == ["reduce", "twist"]
        assert inside(found[:, :, 2]).all() and torch.allclose(found[:, :, 3:], fn(q, k, v, mask)[:, :, 3:], atol=1e-5)


# -- variance ---------------------------------------------------------------------------------------------------------
def folds_of(fn: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[tuple[str, str]]:
    """(kind, recipe) of the folds of the only kernel."""
    (kernel,) = compile(fn, *(torch.empty(shape, dtype=dtype) for shape in shapes)).tile.kernels
    return [(f.kind, f.recipe) for f in kernel.folds]


def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1, correction=0)


def test_variance_has_three_members_and_the_length_of_the_row_decides() -> None:
    region = compile(variance, torch.empty(64, 4096)).region
    sums = [ts for ts in region.terms.values() if any(t.kind == "Channel" and t.label == "moments" for t in ts)]
    assert {(t.kind, t.label) for t in sums[0]} >= {("Channel", "moments"), ("Reduce", "add"), ("Difference", "squares")}
    assert folds_of(variance, (4096, 4096)) == [("reduce", "add"), ("reduce", "add")], "two passes over registers"
    assert folds_of(variance, (4096, 131072)) == [("twist", "moments")], "one pass over what registers do not hold"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squares_cancel_only_where_their_sums_are_exact(dtype: torch.dtype) -> None:
    def of_truths(x: torch.Tensor) -> torch.Tensor:
        return variance((x > 0).to(torch.float32))

    def differences(made: Program) -> int:
        """Plain differences in the class of the sum of squared deviations."""
        classes = [ts for ts in made.region.terms.values() if any(t.kind == "Difference" and t.label == "squares" for t in ts)]
        assert classes
        return sum(t.kind == "Binary" and t.label == "sub" for ts in classes for t in ts)

    assert differences(compile(variance, torch.empty(64, 4096, dtype=dtype))) == 0
    assert differences(compile(of_truths, torch.empty(64, 4096, dtype=dtype))) > 0


@pytest.mark.parametrize("columns", [7, 1000, 40000])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_variance_far_from_zero(columns: int, mean: float) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)) + mean
    wanted = variance(x.double())
    assert ((compile(variance, x)(x).double() - wanted).abs() <= 2e-4 * wanted).all()


# -- several outputs --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("first, second, shapes", [
    (lambda x, w: x @ w.t(), lambda x, w: (w @ x.t()).t(), ((8, 16), (4, 16))),
    (lambda x, w: F.linear(x * 2, w), lambda x, w: (x @ w.mT) / 0.5, ((8, 16), (4, 16))),
    (lambda x, s: x.softmax(-1) * s, lambda x, s: s * x.log_softmax(-1).exp(), ((8, 16), (16,))),
    (lambda x, b: F.layer_norm(x, b.shape) + b, lambda x, b: b + centred(x) * torch.rsqrt((centred(x) ** 2).mean(-1, keepdim=True) + 1e-5),
     ((8, 16), (16,))),
    (lambda q, k: scores(q, k).softmax(-1), lambda q, k: (k @ q.mT * q.shape[-1] ** -0.5).mT.softmax(-1), ((2, 8, 16), (2, 8, 16))),
    (lambda x, w: F.conv2d(x * 2, w, padding=1), lambda x, w: F.conv2d(x, w * 2, padding=1), ((1, 3, 6, 6), (2, 3, 3, 3))),
])
def test_spellings_of_a_subexpression_meet_across_outputs(first: Any, second: Any, shapes: Any) -> None:
    made = compile(lambda *xs: (first(*xs).tanh(), second(*xs).erf()), *map(torch.empty, shapes))
    homes = [made.region.home[tensor] for _, tensor in made.loop.outputs]
    below = [{t.kids for t in made.region.terms[c] if t.label == op} for c, op in zip(homes, ("tanh", "erf"), strict=True)]
    assert below[0] and below[0] == below[1]


def test_what_outputs_share_is_computed_once() -> None:
    made = compile(lambda x, w: ((x @ w).exp(), (w.t() @ x.t()).t().sin()), torch.empty(1024, 1024), torch.empty(1024, 1024))
    work = sum(prod(k.extents[a] for a in f.span) * k.extents[f.axis] for k in made.tile.kernels for f in k.folds)
    assert work == 1024 ** 3


# -- chains -----------------------------------------------------------------------------------------------------------
def least_work(dims: tuple[int, ...]) -> int:
    """Multiplications of the best bracketing of a chain of matrices dims[k] x dims[k + 1]."""
    @functools.cache
    def best(i: int, j: int) -> int:
        return min((best(i, k) + best(k + 1, j) + dims[i] * dims[k + 1] * dims[j + 1] for k in range(i, j)), default=0)

    return best(0, len(dims) - 2)


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_of_matrices_has_the_work_of_dynamic_programming(seed: int) -> None:
    draw = random.Random(seed)
    dims = tuple(draw.choice((512, 1024, 1536, 2048, 3072, 4096)) for _ in range(4 + seed))
    made = compile(lambda first, *rest: functools.reduce(torch.matmul, rest, first),
                   *(torch.empty(m, n) for m, n in zip(dims, dims[1:], strict=False)))
    work = sum(prod(k.extents[a] for a in f.span) * k.extents[f.axis] for k in made.tile.kernels for f in k.folds)
    assert work <= 1.01 * least_work(dims), f"{dims}: {work / least_work(dims):.3f} of the least work"
