"""Small inputs that compilers of PyTorch got wrong, each with the public reports of it.  A case is a function and its arguments.

What eager returns on the same tensors is right, unless the case says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

INF, NAN = math.inf, math.nan


class Case(NamedTuple):
    """`reports`: issues on GitHub.  `tolerance`: relative and absolute, for results that eager rounds otherwise.  `writes`: the arguments
    afterwards count as results."""

    reports: str
    fn: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    tolerance: float | None = None
    writes: bool = False


def ramp(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.arange(math.prod(shape), dtype=torch.float32) * scale).sin().reshape(shape)


def rows_without_numbers() -> torch.Tensor:
    x = torch.linspace(-3, 3, 165).reshape(5, 33).clone()
    x[1], x[2, 4:], x[3, 2], x[4, 9] = -INF, -INF, INF, NAN
    return x


def update_in_place(x: torch.Tensor) -> torch.Tensor:
    x.mul_(x.flip(0))
    x[2:] = x[:-2].clone() + 1
    return x.mean(1)


def add_repeatedly(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.index_put_((i,), torch.ones(i.shape), accumulate=True)
    return x + 1


def train_batch_norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x, mean, var, training=True)


X, S = torch.tensor([0.5, -0.0, 0.0, INF, -INF, NAN, 1e30]), torch.tensor(4.0)
A, B = torch.tensor([-9, 9, 8, -8, 0]), torch.tensor([4, -4, 4, 3, -2])
N, M = torch.tensor([NAN, 2.0, -1.0, NAN, INF, -INF]), torch.tensor([1.0, NAN, NAN, NAN, 3.0, 0.0])
TIES = torch.tensor([[2.0, NAN, 9.0, NAN], [1.0, 4.0, 4.0, 0.0], [-INF, -INF, -INF, -INF], [INF, 1.0, INF, INF]])
I32, F16 = torch.tensor([1, -2, 3], dtype=torch.int32), torch.tensor([1.5, -2.0, 3.0], dtype=torch.float16)

CASES: dict[str, Case] = {
    "softmax_rows_without_numbers": Case(
        "pytorch/pytorch#131060", lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)), (rows_without_numbers(),)
    ),
    "softmax_of_a_large_product": Case(
        "pytorch/pytorch#161150", lambda x, c: (x * c).softmax(-1), (torch.tensor([[2e13, 1e13, 3.7e13]]), torch.tensor(1 / 3))
    ),
    "argmax_of_nan_and_ties": Case("pytorch/pytorch#118266, #99879", lambda x: (x.argmax(-1), x.argmin(-1), x.argmax()), (TIES,)),
    "nan_through_extrema": Case(
        "pytorch/pytorch#93784; apache/tvm#19518",
        lambda x, y: (
            torch.maximum(x, y),
            torch.minimum(y, x),
            x.clamp(-1, 1),
            x.relu(),
            x.amax(),
            torch.fmax(x, y),
            functional.hardtanh(x),
            x.clamp_min(0.25),
        ),
        (N, M),
    ),
    "floats_that_do_not_fold": Case(
        "pytorch/pytorch#186281, #187580",
        lambda x: (
            x * 0,
            x - x,
            x / x,
            0 * x + 2,
            torch.where(x * 0 == 0, x, 3),
            (x + 1e8) - 1e8,
            1 / (x * 0),
            x.sqrt() ** 2,
            x.clamp(-9, 9).exp().log(),
        ),
        (X,),
    ),
    "addmm_scales": Case(
        "pytorch/pytorch#196596, #167313",
        lambda c, n, a, b: (torch.addmm(n, a, b, beta=0), torch.addmm(c, a, b, alpha=2, beta=0.5).relu()),
        (torch.tensor([2.0, -5.0]), torch.full((2,), NAN), ramp(3, 4), ramp(4, 2)),
    ),
    "int64_products": Case(
        "pytorch/pytorch#175966, #183901", lambda k: (torch.arange(7) * k, (torch.arange(7) * k).sum()), (torch.tensor(3_000_000_000),)
    ),
    "nothing": Case(
        "pytorch/pytorch#95370, #104937",
        lambda e, f, w: (
            e.sum(1),
            f.sum(1),
            f.sum(0),
            f.prod(1),
            f.sum(),
            e.softmax(-1),
            e.t() + 1,
            e @ w,
            f @ e,
            f.any(1),
            functional.layer_norm(e, (4,)),
        ),
        (torch.ones(0, 4), torch.ones(4, 0), torch.ones(4, 3)),
    ),
    "scalars": Case(
        "pytorch/pytorch#193265",
        lambda s: (s.cumsum(0), s.softmax(0), s.sum(), s.argmax(), s.unsqueeze(0) * 2, s.var(correction=0), s.expand(4)),
        (S,),
    ),
    "scans": Case(
        "pytorch/pytorch#132107, #189518",
        lambda x, b: (x.cumsum(0), b.cumsum(0), b.cumsum(0, dtype=torch.float32), b.cumsum(0, dtype=torch.float16)),
        (torch.full((270,), INF), torch.arange(270) % 4 == 0),
    ),
    "in_place": Case("pytorch/pytorch#198033, #198270", update_in_place, (ramp(64, 16),), writes=True),
    "in_place_and_large": Case("pytorch/pytorch#198033, #198270", update_in_place, (ramp(768, 320),), tolerance=1e-5, writes=True),
    "repeated_indices": Case(
        "pytorch/pytorch#174074, #138908", add_repeatedly, (torch.zeros(5), torch.tensor([1, 1, 3])), writes=True
    ),
    "integer_division": Case(
        "pytorch/pytorch#186164, #158212, #178013",
        lambda a, b, c: (a // b, a % b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), a // c, a % c, torch.fmod(a, c)),
        (A, B, torch.tensor(-4)),
    ),
    "casts_round": Case(
        "pytorch/pytorch#176565, #181568",
        lambda x, w: (x.bfloat16().float() - x, (x @ w).bfloat16().float() + x[0], x.half().float(), x.half().sum(0).float()),
        (ramp(8, 8, scale=0.3), ramp(8, 8)),
    ),
    "variance_far_from_zero": Case(
        "pytorch/pytorch#55044, #115181",
        lambda x, h: (
            x.var(-1),
            x.var(-1, correction=0, keepdim=True),
            x.std(0),
            functional.layer_norm(x, (512,)),
            h.var(),
            x[:, :1].var(-1, correction=0),
        ),
        (ramp(4, 512) + 1e4, (ramp(20_000) * 200).half()),
        tolerance=2e-3,
    ),
    "activations": Case(
        "tenstorrent/tt-metal#56517",
        lambda x: (
            functional.gelu(x),
            functional.gelu(x, approximate="tanh"),
            functional.silu(x),
            functional.mish(x),
            functional.softplus(x * 10),
            torch.sigmoid(x * 15),
        ),
        (torch.tensor([-11.0, -3.0, -0.5, 0.0, 0.7, 2.7, 12.0]),),
        tolerance=1e-5,
    ),
    "activations_of_infinity": Case(
        "tenstorrent/tt-metal#56517; karpathy/llm.c#721",
        lambda x: (
            functional.gelu(x, approximate="tanh"),
            functional.silu(x),
            functional.mish(x),
            functional.softplus(x),
            torch.sigmoid(x),
            torch.tanh(x),
        ),
        (torch.tensor([-INF, INF, NAN]),),
    ),
    "pools_at_the_edge": Case(
        "pytorch/pytorch#100987, #94775",
        lambda x, one: (
            functional.max_pool2d(x, 1, 2, ceil_mode=True),
            functional.max_pool2d(x, 3, 2, 1, 1, True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            functional.avg_pool1d(one, 4, 3, 2),
        ),
        (ramp(1, 2, 6, 7), torch.tensor([[-0.75]])),
        tolerance=1e-6,
    ),
    "batch_norm_in_training": Case(
        "pytorch/pytorch#95024",
        train_batch_norm,
        (ramp(3, 2, 4, 4) + 2, torch.zeros(2), torch.ones(2)),
        tolerance=1e-5,
        writes=True,
    ),
    "one_of_several_lengths": Case(
        "pytorch/pytorch#113393, #123810",
        lambda a, b, c: tuple(functional.scaled_dot_product_attention(x, x, x, is_causal=True) for x in (a, b, c)),
        (ramp(2, 1, 8), ramp(2, 5, 8), ramp(2, 17, 8)),
        tolerance=1e-5,
    ),
    "promotion": Case(
        "pytorch/pytorch#93784, #159492",
        lambda i, h, d: (i.sum(), (i > 1).sum(), i / 2, i * 2.5, h * d, h + i, h * 1e5, (i > 1) * h, i.prod()),
        (I32, F16, torch.tensor(3.0, dtype=torch.float64)),
    ),
    "unsigned": Case("pytorch/pytorch#159492", lambda i: i.to(torch.uint8) - 2, (I32,)),
    "strides": Case(
        "pytorch/pytorch#116433, #197815",
        lambda x, y: (x.t() * 2, x.unsqueeze(1) + y, torch.zeros_like(x.t()), (x - 1).view(-1, 1, 3)),
        (ramp(2, 6), ramp(1, 4, 1)),
    ),
    "sorting": Case(
        "pytorch/pytorch#93784", lambda x: (x.sort(-1).values, x.sort(-1, descending=True).values, x.argsort(stable=True)), (TIES,)
    ),
}


class Llama(nn.Module):
    """A block of a Llama: RMSNorm, causal attention, RMSNorm, SwiGLU."""

    def __init__(self, width: int = 32, heads: int = 4, hidden: int = 48):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))
