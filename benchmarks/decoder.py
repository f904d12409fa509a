"""A decoder of Llama blocks: what programs of many layers are measured on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Shape(NamedTuple):
    """`tokens` by `width`; `heads` query heads share `groups` key and value heads; `hidden` is the width inside the MLP."""

    tokens: int = 2048
    width: int = 4096
    heads: int = 32
    groups: int = 8
    hidden: int = 14336
    dtype: torch.dtype = torch.bfloat16


LLAMA = Shape()
TINY = Shape(tokens=6, width=16, heads=4, groups=2, hidden=24, dtype=torch.float32)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Block(nn.Module):
    """Attention and a gated MLP, each after a norm and beside a residual."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.depth = shape.width // shape.heads
        self.before, self.between = (nn.RMSNorm(shape.width, dtype=shape.dtype) for _ in range(2))

        def linear(inside: int, outside: int) -> nn.Linear:
            return nn.Linear(inside, outside, bias=False, dtype=shape.dtype)

        self.query, self.out = linear(shape.width, shape.width), linear(shape.width, shape.width)
        self.key, self.value = (linear(shape.width, shape.groups * self.depth) for _ in range(2))
        self.gate, self.up, self.down = (linear(*pair) for pair in ((shape.width, shape.hidden),) * 2 + ((shape.hidden, shape.width),))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.before(x)
        q, k, v = (y.unflatten(-1, (-1, self.depth)).transpose(1, 2) for y in (self.query(h), self.key(h), self.value(h)))
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        h = self.between(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Blocks in a row."""

    def __init__(self, layers: int, shape: Shape):
        super().__init__()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(layers))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def decoder(layers: int, shape: Shape = LLAMA) -> tuple[Decoder, tuple[Tensor, Tensor, Tensor]]:
    """A decoder and example inputs; of a large one no tensor has memory."""
    with torch.device("meta" if shape.width > 256 else "cpu"):
        angles = torch.empty(shape.tokens, shape.width // shape.heads, dtype=shape.dtype)
        return Decoder(layers, shape), (torch.empty(1, shape.tokens, shape.width, dtype=shape.dtype), angles, angles.clone())
