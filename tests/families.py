"""Families of programs, each in the spellings that people use: what saturation must find in them.

`spellings` are functions of tensors of `shapes` that are equal over the reals; `small` are shapes to evaluate at.  Weights of a norm are
inputs here, so that nothing is constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Shapes = tuple[tuple[int, ...], ...]


class Family(NamedTuple):
    spellings: tuple[Callable[..., Any], ...]
    shapes: Shapes
    small: Shapes
    gain: float = 1.0               # the predicted time as written over that of what is extracted, at least
    folds: tuple[str, ...] = ()     # kinds of the folds of the kernel that writes the result, where one form alone is right
    launches: int = 0               # of what is extracted, where that matters


def shifted(x: Tensor) -> Tensor:
    return x - x.amax(-1, keepdim=True)


def rooted(x: Tensor) -> Tensor:
    return (x * x).mean(-1, keepdim=True) + 1e-6


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def picked(x: Tensor) -> Tensor:
    """Entry 1 of each row: a class that is the same for all, to keep the inputs few."""
    return x[:, 1]


def row(n: int) -> Tensor:
    return torch.arange(n)


ROWS: Shapes = ((4096, 4096),)
FEW: Shapes = ((5, 12),)

ONE_PASS = {
    "softmax": Family((
        lambda x: x.softmax(-1),
        lambda x: shifted(x).exp() / shifted(x).exp().sum(-1, keepdim=True),
        lambda x: x.log_softmax(-1).exp(),
        lambda x: (shifted(x) - shifted(x).exp().sum(-1, keepdim=True).log()).exp(),
    ), ROWS, FEW, 2.0, ("twist",)),
    "log_softmax": Family((
        lambda x: x.log_softmax(-1),
        lambda x: x.softmax(-1).log(),
        lambda x: x - (x.amax(-1, keepdim=True) + shifted(x).exp().sum(-1, keepdim=True).log()),
    ), ROWS, FEW, 2.0, ("twist",)),
    "logsumexp": Family((
        lambda x: shifted(x).exp().sum(-1).log() + x.amax(-1),
        lambda x: x.amax(-1) - (1 / shifted(x).exp().sum(-1)).log(),
        lambda x: -((-x.amax(-1)) - shifted(x).exp().sum(-1).log()),
    ), ROWS, FEW, 1.8, ("twist",)),
    "cross entropy": Family((
        lambda x: -picked(x.log_softmax(-1)).mean(),
        lambda x: (shifted(x).exp().sum(-1).log() - picked(shifted(x))).sum() / x.shape[0],
        lambda x: -picked(x.softmax(-1).log()).mean(),
    ), ROWS, FEW, 2.0, ("reduce",)),
}

HEADS: Shapes = ((2, 8, 512, 64),) * 3
HEAD: Shapes = ((1, 2, 6, 8),) * 3


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def repeated(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, 1)


def expanded(t: Tensor) -> Tensor:
    b, h, n, d = t.shape
    return t[:, :, None].expand(b, h, 2, n, d).reshape(b, 2 * h, n, d)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, n, d = q.shape
    return (scores(q.reshape(b, h // 2, 2, n, d), k[:, :, None]).softmax(-1) @ v[:, :, None]).reshape(q.shape)


def attend(s: Tensor, v: Tensor) -> Tensor:
    return s.softmax(-1) @ v


def future(s: Tensor) -> Tensor:
    return torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)


ATTENTION = {
    "attention": Family((
        lambda q, k, v: attend(scores(q, k), v),
        lambda q, k, v: attend((q * q.shape[-1] ** -0.5) @ k.mT, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: shifted(scores(q, k)).exp() @ v / shifted(scores(q, k)).exp().sum(-1, keepdim=True),
    ), HEADS, HEAD, 1.8, ("reduce", "twist")),
    "additive mask": Family((
        lambda q, k, v, m: attend(scores(q, k) + m, v),
        lambda q, k, v, m: attend(m + torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k), v),
        lambda q, k, v, m: attend((m.expand(q.shape[0], 1, *m.shape) + scores(q, k)), v),
    ), (*HEADS, (512, 512)), (*HEAD, (6, 6)), 1.8, ("reduce", "twist")),
    "boolean mask": Family((
        lambda q, k, v, m: attend(scores(q, k).masked_fill(m > 0, -math.inf), v),
        lambda q, k, v, m: attend(torch.where(m > 0, -math.inf, scores(q, k)), v),
        lambda q, k, v, m: attend(torch.where((m > 0).logical_not(), scores(q, k), -math.inf), v),
    ), (*HEADS, (512, 512)), (*HEAD, (6, 6)), 1.8, ("reduce", "twist")),
    "causal": Family((
        lambda q, k, v: attend(scores(q, k).masked_fill(future(scores(q, k)), -math.inf), v),
        lambda q, k, v: attend(torch.where(row(q.shape[2]) <= row(q.shape[2])[:, None], scores(q, k), -math.inf), v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ), HEADS, HEAD, 1.8, ("reduce", "twist")),
    "grouped queries": Family((
        lambda q, k, v: attend(scores(q, repeated(k)), repeated(v)),
        lambda q, k, v: attend(scores(q, expanded(k)), expanded(v)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        grouped,
    ), ((2, 8, 512, 64), (2, 4, 512, 64), (2, 4, 512, 64)), ((1, 4, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8)), 1.8, ("reduce", "twist")),
    "soft cap": Family((
        lambda q, k, v: attend(20 * torch.tanh(scores(q, k) / 20), v),
        lambda q, k, v: attend(torch.tanh(q @ k.mT * (q.shape[-1] ** -0.5 / 20)) * 20, v),
        lambda q, k, v: attend(((q / 20 * q.shape[-1] ** -0.5) @ k.mT).tanh() * 20, v),
    ), HEADS, ((1, 2, 6, 16),) * 3, 1.8, ("reduce", "twist")),
    "values of a product": Family((
        lambda q, k, x, w: attend(scores(q, k), x @ w),
        lambda q, k, x, w: attend(scores(q, k), x) @ w,
        lambda q, k, x, w: scores(q, k).softmax(-1) @ F.linear(x, w.t()),
    ), (*HEADS, (64, 64)), (*HEAD, (8, 8)), 1.5),
}

TOKENS: Shapes = ((1024, 4096), (4096,), (4096, 4096))
TOKEN: Shapes = ((3, 8), (8,), (4, 8))
CHANNELS: Shapes = ((1024, 1024), (1024,), (1024,), (1024, 1024))
CHANNEL: Shapes = ((3, 8), (8,), (8,), (4, 8))
IMAGE, FILTERS = (8, 64, 28, 28), (64, 64, 3, 3)
SMALL, FEW_FILTERS = (1, 3, 6, 6), (2, 3, 3, 3)


def inverse(b: Tensor) -> Tensor:
    """The reciprocal of a deviation whose variance is b * b."""
    return torch.rsqrt(b * b + 1e-5)


def wide(t: Tensor) -> Tensor:
    """A value for each channel of an image."""
    return t[:, None, None]


def level(t: Tensor, x: Tensor) -> Tensor:
    """A signal or an image as large as one of `x` that is the same everywhere in a channel."""
    return t.reshape(1, -1, *[1] * (x.dim() - 2)).expand(x[:1].shape)


NORMS = {
    "rms norm, linear": Family((
        lambda x, g, w: F.linear(F.rms_norm(x, g.shape, g, 1e-6), w),
        lambda x, g, w: (x * torch.rsqrt(rooted(x)) * g) @ w.t(),
        lambda x, g, w: (x * g) @ w.t() * torch.rsqrt(rooted(x)),
        lambda x, g, w: (x / torch.sqrt(rooted(x))) @ (w * g).t(),
    ), TOKENS, TOKEN, 1.0),
    "layer norm, linear": Family((
        lambda x, g, w: F.linear(F.layer_norm(x, g.shape, g), w),
        lambda x, g, w: (centred(x) * torch.rsqrt((centred(x) ** 2).mean(-1, keepdim=True) + 1e-5) * g) @ w.t(),
        lambda x, g, w: F.linear(F.layer_norm(x, g.shape), w * g),
    ), TOKENS, TOKEN, 1.0),
    "variance": Family((
        lambda x: x.var(-1, correction=0),
        lambda x: (centred(x) ** 2).mean(-1),
        lambda x: (centred(x) * centred(x)).sum(-1) / x.shape[-1],
        lambda x: (x * x).mean(-1) - x.mean(-1) ** 2,
    ), ROWS, ((5, 16),), 2.0),
    "batch norm after a linear": Family((
        lambda x, m, b, w: F.batch_norm(F.linear(x, w), m, b * b, b, m),
        lambda x, m, b, w: (F.linear(x, w) - m) * torch.rsqrt(b * b + 1e-5) * b + m,
        lambda x, m, b, w: F.linear(x, w * (b * torch.rsqrt(b * b + 1e-5))[:, None], m - m * b * torch.rsqrt(b * b + 1e-5)),
    ), CHANNELS, ((3, 8), (4,), (4,), (4, 8)), 1.1, ("reduce",)),
    "batch norm before a linear": Family((
        lambda x, m, b, w, c: F.linear(F.batch_norm(x, m, b * b, b, m), w, c),
        lambda x, m, b, w, c: F.linear((x - m) * inverse(b) * b + m, w) + c,
        lambda x, m, b, w, c: ((x - m) / torch.sqrt(b * b + 1e-5) * b + m) @ w.t() + c,
        lambda x, m, b, w, c: F.linear(x, w * (b * inverse(b)), w @ m - (w * (b * inverse(b))) @ m + c),
    ), (*CHANNELS, (1024,)), (*CHANNEL, (4,)), 1.0),
    "batch norm after a convolution": Family((
        lambda x, m, b, w: F.batch_norm(F.conv2d(x, w), m, b * b, b, m),
        lambda x, m, b, w: (F.conv2d(x, w) - m[:, None, None]) * (torch.rsqrt(b * b + 1e-5) * b)[:, None, None] + m[:, None, None],
        lambda x, m, b, w: F.conv2d(x, w * (b * torch.rsqrt(b * b + 1e-5))[:, None, None, None], m - m * b * torch.rsqrt(b * b + 1e-5)),
    ), (IMAGE, (64,), (64,), FILTERS), (SMALL, (2,), (2,), FEW_FILTERS), 1.1),
    "batch norm after a padded convolution with a bias": Family((
        lambda x, m, b, w, c: F.batch_norm(F.conv2d(x, w, c, padding=1), m, b * b, b, m),
        lambda x, m, b, w, c: (F.conv2d(x, w, padding=1) + wide(c) - wide(m)) * wide(inverse(b) * b) + wide(m),
        lambda x, m, b, w, c: F.conv2d(x, w * (b * inverse(b))[:, None, None, None],
                                       c * (b * inverse(b)) - m * (b * inverse(b)) + m, padding=1),
    ), (IMAGE, (64,), (64,), FILTERS, (64,)), (SMALL, (2,), (2,), FEW_FILTERS, (2,)), 1.1),
    "batch norm before a convolution": Family((
        lambda x, m, b, w: F.conv2d(F.batch_norm(x, m, b * b, b, m), w),
        lambda x, m, b, w: F.conv2d((x - wide(m)) * wide(inverse(b) * b) + wide(m), w),
        lambda x, m, b, w: F.conv2d(x, w * wide(b * inverse(b)), w.sum((-1, -2)) @ m - (w * wide(b * inverse(b))).sum((-1, -2)) @ m),
    ), (IMAGE, (64,), (64,), FILTERS), (SMALL, (3,), (3,), FEW_FILTERS), 1.0),
    "batch norm before a padded convolution": Family((
        lambda x, m, b, w: F.conv2d(F.batch_norm(x, m, b * b, b, m), w, padding=1),
        lambda x, m, b, w: F.conv2d((x - wide(m)) * wide(inverse(b) * b) + wide(m), w, padding=1),
        lambda x, m, b, w: F.conv2d(F.pad((x - wide(m)) / wide(torch.sqrt(b * b + 1e-5)) * wide(b) + wide(m), (1, 1, 1, 1)), w),
        lambda x, m, b, w: (F.conv2d(x, w * wide(b * inverse(b)), padding=1) + F.conv2d(level(m, x), w, padding=1)
                            - F.conv2d(level(m, x), w * wide(b * inverse(b)), padding=1)),
    ), (IMAGE, (64,), (64,), FILTERS), (SMALL, (3,), (3,), FEW_FILTERS), 1.0),
    "batch norm before a strided and dilated convolution": Family((
        lambda x, m, b, w: F.conv2d(F.batch_norm(x, m, b * b, b, m), w, None, 2, 2, 2),
        lambda x, m, b, w: F.conv2d((x - wide(m)) * wide(inverse(b) * b) + wide(m), w, None, 2, 2, 2),
        lambda x, m, b, w: (F.conv2d(x, w * wide(b * inverse(b)), None, 2, 2, 2) + F.conv2d(level(m, x), w, None, 2, 2, 2)
                            - F.conv2d(level(m, x), w * wide(b * inverse(b)), None, 2, 2, 2)),
    ), (IMAGE, (64,), (64,), FILTERS), (SMALL, (3,), (3,), FEW_FILTERS), 1.0),
    "batch norm before a convolution over time": Family((
        lambda x, m, b, w: F.conv1d(F.batch_norm(x, m, b * b, b, m), w, padding=2),
        lambda x, m, b, w: F.conv1d((x - m[:, None]) * (inverse(b) * b)[:, None] + m[:, None], w, padding=2),
        lambda x, m, b, w: (F.conv1d(x, w * (b * inverse(b))[:, None], padding=2) + F.conv1d(level(m, x), w, padding=2)
                            - F.conv1d(level(m, x), w * (b * inverse(b))[:, None], padding=2)),
    ), ((8, 64, 784), (64,), (64,), (64, 64, 5)), ((2, 3, 6), (3,), (3,), (2, 3, 5)), 1.0),
    "scale before and after a convolution": Family((
        lambda x, s, w, t: F.conv2d(x * wide(s), w, padding=1) * wide(t),
        lambda x, s, w, t: F.conv2d(x, w * wide(s) * t[:, None, None, None], padding=1),
        lambda x, s, w, t: wide(t) * F.conv2d(F.pad(wide(s) * x, (1, 1, 1, 1)), w),
    ), (IMAGE, (64,), FILTERS, (64,)), (SMALL, (3,), FEW_FILTERS, (2,)), 1.0),
    "scalars and biases around a convolution": Family((
        lambda x, w, c: (F.conv2d(2 * x, w, padding=1) + 1) / 4 + wide(c),
        lambda x, w, c: F.conv2d(x / 2, w, padding=1) + wide(c) + 0.25,
        lambda x, w, c: F.conv2d(x, w * 0.5, c + 0.25, padding=1),
    ), (IMAGE, FILTERS, (64,)), (SMALL, FEW_FILTERS, (2,)), 1.0),
    "scalars and biases around a linear": Family((
        lambda x, m, w, c: 2 * F.linear(x + m, w, c),
        lambda x, m, w, c: F.linear(x, w, w @ m + c) / 0.5,
        lambda x, m, w, c: F.linear(2 * x, w, 2 * c) + w @ (2 * m),
    ), ((1024, 1024), (1024,), (1024, 1024), (1024,)), ((3, 8), (8,), (4, 8), (4,)), 1.0),
}

SQUARE: Shapes = ((2048, 2048), (2048, 2048))
TWO: Shapes = ((4, 6), (6, 3))

SUMS = {
    "sum of a product": Family((
        lambda a, b: (a @ b).sum(),
        lambda a, b: (a @ b.sum(-1)).sum(),
        lambda a, b: (a.sum(0) * b.sum(1)).sum(),
    ), SQUARE, TWO, 10.0),
    "mean of a product": Family((
        lambda a, b: (a @ b).mean(-1),
        lambda a, b: (a @ b).sum(-1) / b.shape[-1],
        lambda a, b: a @ b.mean(-1),
    ), SQUARE, TWO, 10.0),
    "outer product, vector": Family((
        lambda u, v, x: torch.outer(u, v) @ x,
        lambda u, v, x: (u[:, None] * v) @ x,
        lambda u, v, x: u * (v @ x),
        lambda u, v, x: (v * x).sum() * u,
    ), ((4096,), (4096,), (4096,)), ((4,), (3,), (3,)), 2.0),
    "maximum of a sum": Family((
        lambda x, y: (x[:, None] + y).amax(-1),
        lambda x, y: x + y.amax(),
        lambda x, y: (y - (-x)[:, None]).amax(-1),
    ), ((4096,), (4096,)), ((4,), (3,)), 1.5),
    "maximum of a scaled product": Family((
        lambda a, b: (2 * (a @ b) + 1).amax(-1),
        lambda a, b: 2 * (a @ b).amax(-1) + 1,
        lambda a, b: (a @ (b * 2)).amax(-1) + 1,
    ), SQUARE, TWO),
}

LINEAR = {
    "low rank, few tokens": Family((
        lambda x, w, a, b: x @ w + (x @ a) @ b,
        lambda x, w, a, b: x @ (w + a @ b),
        lambda x, w, a, b: x @ w + x @ (a @ b),
    ), ((16, 4096), (4096, 4096), (4096, 16), (16, 4096)), ((3, 6), (6, 5), (6, 2), (2, 5)), 1.0),
    "low rank, many tokens": Family((
        lambda x, w, a, b: x @ (w + a @ b),
        lambda x, w, a, b: x @ w + (x @ a) @ b,
        lambda x, w, a, b: x @ w + x @ (a @ b),
    ), ((8192, 1024), (1024, 1024), (1024, 256), (256, 1024)), ((3, 6), (6, 5), (6, 2), (2, 5)), 1.0),
    "gate and up": Family((
        lambda x, g, u: F.silu(x @ g) * (x @ u),
        lambda x, g, u: (x @ u) * F.silu(F.linear(x, g.t())),
        lambda x, g, u: torch.einsum("ik,kj->ij", x, u) * F.silu(x @ g),
    ), ((2048, 1024), (1024, 4096), (1024, 4096)), ((3, 4), (4, 5), (4, 5)), 1.0, ("reduce", "reduce")),
    "linear of a transpose": Family((
        F.linear,
        lambda x, w: x @ w.t(),
        lambda x, w: torch.einsum("ik,jk->ij", x, w),
        lambda x, w: (w @ x.t()).t(),
    ), SQUARE, ((4, 6), (3, 6)), 1.0, ("reduce",)),
    "scalar scale": Family((
        lambda x, w: (2 * x) @ w,
        lambda x, w: 2 * (x @ w),
        lambda x, w: x @ (w / 0.5),
    ), SQUARE, TWO, 1.0, ("reduce",)),
}

VIEWS = {
    "views that cancel": Family((
        lambda x: x + 1,
        lambda x: x.t().t().reshape(-1).reshape(x.shape) + 1,
        lambda x: x[None].expand(3, -1, -1)[1] + 1,
        lambda x: 1 + x.flip(0).flip(0)[:, :].permute(1, 0).mT,
    ), ((2048, 2048),), ((4, 6),)),
    "invariant factor": Family((
        lambda x, y: (x * y.exp()[:, None]).sum(-1),
        lambda x, y: x.sum(-1) * y.exp(),
        lambda x, y: (y.exp()[:, None] * x).sum(1),
    ), ((2048, 2048), (2048,)), ((4, 6), (4,))),
    "common subexpression": Family((
        lambda x, y: ((x @ y).exp(), (x @ y).sum(-1)),
        lambda x, y: (torch.exp(x @ y), x @ y.sum(-1)),
        lambda x, y: (lambda t: (t.exp(), t.sum(1)))(torch.einsum("ik,kj->ij", x, y)),
    ), ((1024, 1024), (1024, 1024)), TWO),
}

SEVERAL = {
    "linears of one input": Family((
        lambda x, q, k, v: (x @ q, x @ k, x @ v),
        lambda x, q, k, v: tuple(F.linear(x, w.t()) for w in (q, k, v)),
        lambda x, q, k, v: tuple(torch.einsum("ik,kj->ij", x, w) for w in (q, k, v)),
        lambda x, q, k, v: tuple((w.t() @ x.t()).t() for w in (q, k, v)),
    ), ((2048, 1024), (1024, 1024), (1024, 256), (1024, 256)), ((3, 4), (4, 6), (4, 5), (4, 5)), 1.0, (), 1),
    "linears of one input, few tokens": Family((
        lambda x, q, k, v: (x @ q, x @ k, x @ v),
        lambda x, q, k, v: tuple(F.linear(x, w.t()) for w in (q, k, v)),
        lambda x, q, k, v: tuple(torch.einsum("ik,kj->ij", x, w) for w in (q, k, v)),
    ), ((16, 1024), (1024, 512), (1024, 512), (1024, 512)), ((3, 4), (4, 5), (4, 5), (4, 5)), 1.2, (), 1),
    "residual, rms norm": Family((
        lambda x, r, w: (x + r, F.rms_norm(x + r, x.shape[-1:], w, 1e-6)),
        lambda x, r, w: (lambda h: (h, h * torch.rsqrt(rooted(h)) * w))(x + r),
        lambda x, r, w: (r + x, (r + x) / rooted(x + r).sqrt() * w),
    ), ((4096, 4096), (4096, 4096), (4096,)), ((5, 6), (5, 6), (6,)), 1.4, ("reduce",), 1),
    "moments of an optimiser": Family((
        lambda p, g, m, v: (lambda a, b: (p - 1e-3 * a / (b.sqrt() + 1e-8), a, b))(0.9 * m + 0.1 * g, 0.9 * v.abs() + 0.1 * (g * g)),
        lambda p, g, m, v: (lambda a, b: (p - a * 1e-3 / (1e-8 + b.sqrt()), a, b))(g * 0.1 + m * 0.9, (g * g) * 0.1 + v.abs() * 0.9),
        lambda p, g, m, v: (p - 1e-3 * (0.9 * m + 0.1 * g) / ((0.9 * v.abs() + 0.1 * (g * g)).sqrt() + 1e-8), 0.9 * m + 0.1 * g,
                            0.9 * v.abs() + 0.1 * (g * g)),
    ), ((1 << 22,),) * 4, ((40,),) * 4, 1.5, (), 1),
}

FAMILIES = {**ONE_PASS, **ATTENTION, **NORMS, **SUMS, **LINEAR, **VIEWS, **SEVERAL}
