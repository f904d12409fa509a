"""Attention of documents packed one after the other: which rows are chosen, that no mask is kept, and the numbers of their kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

from emmy.evaluate.reference import evaluate_torch
from emmy.pipeline import Program, compile
from emmy.runtime.execute import arguments, on_numpy, on_simulator

Tensor = torch.Tensor
LENGTHS = 40, 1, 0, 1, 70, 20       # of documents; tokens after the last belong to none
TOKENS, HEADS, SHARED = 137, 4, 2
OFFSETS = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)


def heads(x: Tensor) -> Tensor:
    return x.transpose(0, 1)[None]


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = heads(q) @ heads(k).mT * q.shape[2] ** -0.5
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ heads(v))[0].transpose(0, 1)


def position() -> Tensor:
    return torch.arange(TOKENS)


def document(offsets: Tensor) -> Tensor:
    """The number of each token's document: how many end at or before it."""
    return (offsets[None, 1:] <= position()[:, None]).sum(1)


def same(number: Tensor, causal: bool) -> Tensor:
    mask = number[:, None] == number[None, :]
    return mask & (position()[None, :] <= position()[:, None]) if causal else mask


def between(start: Tensor, end: Tensor, causal: bool) -> Tensor:
    mask = (start[:, None] <= position()) & (position() < end[:, None])
    return mask & (position() <= position()[:, None]) if causal else mask


def from_offsets(offsets: Tensor, causal: bool) -> Tensor:
    number = document(offsets).clamp(max=len(LENGTHS) - 1)
    return between(offsets[number], offsets[number + 1], causal)


def edges() -> tuple[Tensor, Tensor]:
    """Where the document of each token begins and ends; both 0 for a token of none."""
    number = document(OFFSETS)
    inside = number < len(LENGTHS)
    number = number.clamp(max=len(LENGTHS) - 1)
    return OFFSETS[number] * inside, OFFSETS[number + 1] * inside


FORMS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "numbers": (lambda q, k, v, n: sdpa(q, k, v, same(n, False)), (document(OFFSETS),)),
    "numbers, causal": (lambda q, k, v, n: written(q, k, v, same(n, True)), (document(OFFSETS).to(torch.int32),)),
    "edges": (lambda q, k, v, s, e: sdpa(q, k, v, between(s, e, False)), edges()),
    "edges, causal": (lambda q, k, v, s, e: written(q, k, v, between(s, e, True)), edges()),
    "offsets": (lambda q, k, v, o: sdpa(q, k, v, from_offsets(o, True)), (OFFSETS,)),
    "varlen_attn": (lambda q, k, v, o: varlen_attn(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), o, o, 70, 70), (OFFSETS,)),
    "varlen_attn, causal": (lambda q, k, v, o: varlen_attn(q, k, v, o, o, 70, 70, window_size=(-1, 0)), (OFFSETS,)),
    "varlen_attn, window": (lambda q, k, v, o: varlen_attn(q, k, v, o, o, 70, 70, window_size=(40, 3)), (OFFSETS,)),
}


def compiled(name: str, depth: int, target: str) -> tuple[Program, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(TOKENS, n, depth, generator=generator).bfloat16() for n in (HEADS, SHARED, SHARED))
    fn, offsets = FORMS[name]
    return compile(fn, q, k, v, *offsets, target=target), (q, k, v, *offsets)


@pytest.mark.parametrize("name, depth, target", [*((name, 64, "sm_90a") for name in FORMS), ("edges, causal", 128, "sm_90a"),
                                                 ("edges", 64, "sm_80"), ("varlen_attn, window", 128, "sm_80")])
def test_documents(name: str, depth: int, target: str) -> None:
    """In one twist, on NumPy and thread by thread, as eager has it in float64: a row that sees nothing is 0, and NaN written out."""
    made, inputs = compiled(name, depth, target)
    kernel = made.tile.kernels[-1]
    assert [f.kind for f in kernel.folds] == ["reduce", "twist"] and kernel.schedule is not None and kernel.schedule.form == "twist"
    assert ("live" in kernel.schedule.row.raster) == ("numbers" not in name or "causal" in name), kernel.schedule.row
    assert all(t.shape.count(TOKENS) < 2 for k in made.tile.kernels for t in k.outputs), "a mask is kept"
    (wanted,) = evaluate_torch(made.torch, dict(zip(made.captured.inputs, inputs, strict=True)) | made.captured.constants, float64=True)
    if name.startswith(("edges", "varlen")):
        assert (wanted[sum(LENGTHS):].isnan() if name == "edges, causal" else wanted[sum(LENGTHS):] == 0).all()
    for run in (on_numpy, on_simulator):
        (found,) = run(made, arguments(made, inputs)).values()
        np.testing.assert_allclose(found.astype(np.float64), wanted.numpy(), rtol=2.0**-6, atol=2.0**-7)
