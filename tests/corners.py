"""Programs at the corners of their inputs, with every kind of row that their kernels have.

A corner is a program and its tensors: nothing, one number, one element, odd extents, and lines that hold NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.lower import tile_to_kernel
from emmy.pipeline import Program, compile
from emmy.tune.runners import kind
from emmy.tune.tasks import options
from extract import hardware

TARGET, HALF = "sm_90a", torch.bfloat16
INF, NAN = math.inf, math.nan


class Corner(NamedTuple):
    fn: Callable[..., Any]
    tensors: tuple[Tensor, ...]

    def program(self) -> Program:
        return compile(self.fn, *self.tensors, target=TARGET)


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between -2 and 2, all different."""
    n = math.prod(shape)
    return ((torch.arange(n) * 0.618).sin() * 2).reshape(shape).to(dtype)


def harsh(rows: int, columns: int, dtype: torch.dtype = torch.float32, largest: float | None = None) -> Tensor:
    """A row of -inf, one that ends in it, one of NaN, and rows with one inf, one -inf, one NaN and the `largest` number (the dtype's)."""
    x, last = ramp(rows, columns, dtype=dtype).clone(), columns - 1
    x[0], x[1, 1:], x[2], x[3, 0], x[4, last], x[5, last // 2] = -INF, -INF, NAN, INF, -INF, NAN
    x[6, last] = torch.finfo(dtype).max if largest is None else largest
    return x


def mapped(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) * y + 1


def turned(x: Tensor, y: Tensor) -> Tensor:
    return x.t() * 2 + y


def normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def extremes(x: Tensor) -> tuple[Tensor, ...]:
    return x.amax(-1), x.argmax(-1), x.argmin(-1)


def moments(x: Tensor) -> tuple[Tensor, ...]:
    return x.mean(-1), x.var(-1)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def apart(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.exp(), y.sum(-1)


ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1), "log softmax": lambda x: x.log_softmax(-1), "norm": normalised, "extremes": extremes,
    "moments": moments, "sum": lambda x: x.sum(-1), "all": lambda x: (x.sum(), x.amax()), "columns": lambda x: x.sum(0),
    "softmax of columns": lambda x: x.softmax(0), "scan": lambda x: x.cumsum(-1), "scan of columns": lambda x: x.cumsum(0)}
SHAPES = ((1, 1), (1, 33), (33, 1), (7, 37), (7, 64))


def corners() -> Iterator[tuple[str, Corner]]:
    for name, fn in ROWS.items():
        up = 2.5 if name == "all" else 0.0      # what is left where all numbers cancel tells in which order they were added
        yield from ((f"{name} {shape}", Corner(fn, (ramp(*shape) + up,))) for shape in SHAPES)
        yield f"{name} harsh", Corner(fn, (harsh(8, 40),))
        yield f"{name} harsh halves", Corner(fn, (harsh(8, 64, dtype=HALF),))
    for shape in SHAPES:
        yield f"map {shape}", Corner(mapped, (ramp(*shape), ramp(*shape).flip(0)))
        yield f"turned {shape}", Corner(turned, (ramp(*shape), ramp(*shape[::-1])))
        yield f"apart {shape}", Corner(apart, (ramp(*shape), ramp(*shape)))
    yield "map harsh", Corner(mapped, (harsh(8, 40), harsh(8, 40).flip(0)))
    yield "turned harsh", Corner(turned, (harsh(8, 40), harsh(40, 8)))
    yield "long sum", Corner(lambda x: x.sum(), (ramp(70_000, dtype=HALF),))
    yield "long scan", Corner(lambda x: x.cumsum(0), (ramp(5_001),))
    for dtype in (torch.float32, HALF):
        label = str(dtype).removeprefix("torch.")
        for m, k, n in ((1, 1, 1), (1, 40, 9), (33, 7, 1), (65, 72, 80)):
            yield f"product {label} {m}x{k}x{n}", Corner(torch.matmul, (ramp(m, k, dtype=dtype), ramp(k, n, dtype=dtype)))
        yield f"product {label} harsh", Corner(torch.matmul, (harsh(72, 64, dtype=dtype), ramp(64, 64, dtype=dtype)))
        for causal in (False, True):
            attend = partial(attention, causal=causal)
            for shape in ((1, 1, 1, 16), (1, 2, 5, 16), (1, 1, 19, 32)):
                yield f"attention {label} {causal} {shape}", Corner(attend, tuple(ramp(*shape, dtype=dtype).roll(s) for s in range(3)))
            # what a mask hides is left out with its tile, so that values there must be numbers; and scores that float64 holds overflow
            q, k, v = harsh(72, 64, dtype, 9.0), harsh(72, 64, dtype, 9.0).flip(0), ramp(72, 64, dtype=dtype)
            yield f"attention {label} {causal} harsh", Corner(attend, (q[None, None], k[None, None], v[None, None]))
        q, v = ramp(1, 1, 72, 64, dtype=dtype), harsh(72, 64, dtype)[None, None]
        yield f"attention {label} of harsh values", Corner(attention, (q, q.flip(2), v))


CORNERS = dict(corners())
EMPTY: dict[str, Corner] = {f"{name} {shape}": Corner(fn, (torch.ones(shape),)) for name, fn in ROWS.items()
                            for shape in ((0, 4), (4, 0)) if not (name in ("extremes", "all") and 0 in shape)}
EMPTY |= {"map": Corner(mapped, (torch.ones(0), torch.ones(0))), "product": Corner(torch.matmul, (torch.ones(0, 3), torch.ones(3, 2))),
          "product of nothing": Corner(torch.matmul, (torch.ones(2, 0), torch.ones(0, 3))),
          "attention": Corner(F.scaled_dot_product_attention, (torch.ones(1, 2, 0, 8),) * 3)}
SCALARS: dict[str, Corner] = {
    "map": Corner(mapped, (torch.tensor(3.0), torch.tensor(-2.0))),
    "sum": Corner(lambda x: (x.sum(), x.mean(), x.argmax()), (torch.tensor(NAN),)),
    "softmax": Corner(lambda x: x.softmax(0), (torch.tensor(INF),)), "scan": Corner(lambda x: x.cumsum(0), (torch.tensor(2.5),))}


def empty(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


MANY, ROW = 2 ** 31 + 64, 2 ** 11
LARGE: dict[str, Corner] = {
    "map": Corner(lambda x: x + 1, (empty(MANY),)),
    "map of truths": Corner(torch.logical_not, (empty(MANY, dtype=torch.bool),)),
    "almost": Corner(lambda x: x + 1, (empty(2 ** 31 - 8),)),
    "almost a sum": Corner(lambda x: x.sum(), (empty(2 ** 31 - 1),)),
    "almost rows": Corner(lambda x: x.softmax(-1), (empty(2 ** 20 - 1, ROW),)),
    "almost a scan": Corner(lambda x: x.cumsum(-1), (empty(3, 5 * 2 ** 27),)),
    "sum": Corner(lambda x: x.sum(), (empty(MANY),)),
    "first of the largest": Corner(torch.argmax, (empty(MANY),)),
    "rows": Corner(lambda x: x.softmax(-1), (empty(2 ** 20 + 1, ROW),)),
    "long rows": Corner(lambda x: x.softmax(-1), (empty(2, 2 ** 30 + 8),)),
    "variance": Corner(lambda x: x.var(-1), (empty(2 ** 20 + 1, ROW),)),
    "columns": Corner(lambda x: x.sum(0), (empty(2 ** 20 + 1, ROW),)),
    "softmax of columns": Corner(lambda x: x.softmax(0), (empty(2 ** 20 + 1, ROW),)),
    "scan": Corner(lambda x: x.cumsum(-1), (empty(3, 2 ** 30),)),
    "turned": Corner(lambda x: x.t() + 1, (empty(2 ** 16 + 8, 2 ** 15),)),
    "counted": Corner(lambda x: torch.arange(MANY, device=x.device).sum() + x, (empty(1, dtype=torch.int64),)),
    "sum of a square": Corner(lambda x, y: (x[:, None] * y).sum(), (empty(2 ** 16), empty(2 ** 16))),
    "product of long lines": Corner(torch.matmul, (empty(2 ** 17 + 8, 2 ** 14), empty(2 ** 14, 64))),
    "wide product": Corner(torch.matmul, (empty(2 ** 17 + 8, 64), empty(64, 2 ** 14))),
    "attention": Corner(attention, (empty(2 ** 17 + 1, 16, 16, 64),) * 3),
    "embedding": Corner(lambda x, i: x[i], (empty(2 ** 15 + 1, 2 ** 16), empty(8, dtype=torch.int64))),
    "many products": Corner(torch.matmul, (empty(70_000, 8, 16), empty(70_000, 16, 8)))}


def kinds(kernel: tile.Kernel, most: float = math.inf) -> list[tile.Schedule]:
    """A legal schedule of each kind that is predicted to take less than `most` seconds, the cheapest predicted first."""
    found: dict[str, tile.Schedule] = {}
    for option in options(kernel, TARGET, "fast", hardware.for_target(TARGET)):
        if option.seconds < most or not found:
            found.setdefault(kind(option.schedule), option.schedule)
    return list(found.values())


def lowered(kernel: tile.Kernel, schedule: tile.Schedule) -> kernel_ir.Kernel:
    return tile_to_kernel.lower(kernel.replace(schedule=schedule))
