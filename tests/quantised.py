"""Layers whose weights are integers of 8 or 4 bits, as programs write them: the numbers are widened and scaled, then multiplied.

`rows`, `outputs`, `inputs`: tokens, and the sizes that the layer goes between; `group`: inputs that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Layer(NamedTuple):
    """What a layer computes of activations, weights and scales, and how large these are."""

    fn: Callable[[Tensor, Tensor, Tensor], Tensor]
    packed: bool = False        # two numbers to a byte
    grouped: bool = False       # a scale for each `group` inputs of an output, not for the output

    def tensors(self, rows: int, outputs: int, inputs: int, group: int, dtype: torch.dtype = torch.bfloat16,
                empty: bool = False) -> tuple[Tensor, ...]:
        """Random tensors, every byte among the weights where there are enough of them; uninitialised ones if `empty`."""
        element = torch.uint8 if self.packed else torch.int8
        shape, scales = (outputs, inputs // 2 if self.packed else inputs), (outputs, inputs // group) if self.grouped else (outputs,)
        if empty:
            return torch.empty(rows, inputs, dtype=dtype), torch.empty(shape, dtype=element), torch.empty(scales, dtype=dtype)
        torch.manual_seed(0)
        bounds = torch.iinfo(element)
        w = torch.randint(bounds.min, bounds.max + 1, shape, dtype=element)
        w.view(-1)[:256] = torch.arange(bounds.min, bounds.max + 1).to(element)[:w.numel()]
        return torch.randn(rows, inputs, dtype=dtype), w, (torch.rand(scales) + 0.5).to(dtype)


def by_output(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def by_output_before(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype) * s[:, None])


def by_group(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    outputs, groups = s.shape
    return F.linear(x, (w.to(x.dtype).view(outputs, groups, -1) * s[:, :, None]).view(outputs, -1))


def nibbles(p: Tensor) -> Tensor:
    """The numbers from -8 to 7 of which a byte holds two, the low bits first."""
    low, high = (p & 0xF).to(torch.int8) - 8, (p >> 4).to(torch.int8) - 8
    return torch.stack((low, high), -1).view(p.shape[0], -1)


LAYERS = {
    "by output": Layer(by_output),
    "by output, before": Layer(by_output_before),
    "by group": Layer(by_group, grouped=True),
    "4 bits by output": Layer(lambda x, p, s: by_output(x, nibbles(p), s), packed=True),
    "4 bits by group": Layer(lambda x, p, s: by_group(x, nibbles(p), s), packed=True, grouped=True),
}
