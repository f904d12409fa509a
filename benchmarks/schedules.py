"""Programs whose rows are measured to see how well the model ranks them: emmy tune benchmarks/schedules.py --pack rows.pack --most 52"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = torch.bfloat16


def rms_norm() -> Tensor:
    return nn.RMSNorm(4096, dtype=HALF)(torch.randn(16384, 4096, dtype=HALF))


def softmax() -> Tensor:
    return torch.randn(28 * 2048, 2048).softmax(-1)


def linear() -> Tensor:
    return nn.Linear(2048, 2048, bias=False, dtype=HALF)(torch.randn(2048, 2048, dtype=HALF))


def bias_gelu_residual() -> Tensor:
    x, bias, residual = torch.randn(8192, 8192, dtype=HALF), torch.randn(8192, dtype=HALF), torch.randn(8192, 8192, dtype=HALF)
    return functional.gelu(x + bias) + residual


def cross_entropy() -> Tensor:
    return functional.cross_entropy(torch.randn(4096, 32000, dtype=HALF), torch.randint(0, 32000, (4096,)))
