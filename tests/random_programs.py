"""Random torch functions over the covered operators, as source text: a failure prints a program to run.

Functions are smooth and their values moderate, so that an error stays near rounding times the largest value met: a wrong element shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

EXTENTS = (1, 2, 3, 5, 32, 33)
LARGEST, STEEPEST = 4_000, 1e3      # elements of a tensor; size of a value
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
UNARY = (
    "{x}.tanh()", "{x}.sigmoid()", "{x}.sin()", "-{x}", "{x}.abs()", "{x}.relu()", "{x} * 0.5 + 1", "F.gelu({x})",
    "1 / ({x} * {x} + 1)", "{x} - {x}.detach() * 2", "(-{x} * {x}).exp()", "(1 + {x}.abs()).log()", "{x}.clamp(-1, 2)", "F.silu({x})",
    "({x} + {x}) + {x}",
)
BINARY = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})", "{x} / (1 + {y} * {y})",
    "torch.where({m}, {x}, {y})",
)
ALONG = (
    "{x}.sum({d})", "{x}.mean({d})", "{x}.amax({d}, keepdim=True)", "{x}.sum({d}, keepdim=True)", "{x}.softmax({d})",
    "{x}.cumsum({d}) * 0.1", "{x}.flip({d})", "{x}.unsqueeze({d})", "{x}.narrow({d}, {n} // 2, ({n} + 1) // 2)",
    "{x}.log_softmax({d})", "{x}.logsumexp({d})", "torch.cat([{x}, {x} * 2], {d})", "{x}.roll(1, {d})", "{x}.transpose({d}, -1)",
    "{x}.transpose({d}, -1)", "{x}.var({d}, correction=0)", "{x}.amin({d})", "{x}.index_select({d}, torch.tensor([{n} - 1, 0]))",
)
WHOLE = (
    "{x}.reshape(-1)", "{x}.sum()", "F.layer_norm({x}, {x}.shape[-1:])", "F.rms_norm({x}, {x}.shape[-1:], eps=1e-3)",
    "{x}.t() if {x}.dim() < 3 else {x}.mT", "{x}.tril() if {x}.dim() > 1 else {x}", "{x}[..., ::2]", "{x}.bfloat16().to({x}.dtype)",
)
INTEGER = (
    "{i} + {j}", "{i} * {j}", "{i} // ({j} * {j} + 1)", "{i} % 3", "{i}.sum()", "{i}.amax()", "{i}.abs() - 2", "({i} > {j}).sum(0)",
    "torch.maximum({i}, {j})", "{i}.clamp(-2, 2)", "({i} == {j}) | ({i} > 0)", "{i}.cumsum(0)", "{i}.argmax(0)",
)


class Source(NamedTuple):
    """`text` defines `f(x0, x1, …)`; `inputs` are its examples; `scale` is the largest value met, 1 at least."""

    text: str
    inputs: tuple[Tensor, ...]
    scale: float

    @property
    def function(self) -> Any:
        space: dict[str, Any] = {"torch": torch, "F": functional}
        exec(self.text, space)
        return space["f"]


@st.composite
def programs(draw: st.DrawFn, most: int = 8) -> Source:
    """A function of one to three float inputs and sometimes two of integers, with up to `most` operations and one to three results."""
    dims = draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=3))
    if draw(st.integers(0, 30)) == 0:
        dims.append(0)
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    values: dict[str, Tensor] = {}

    def size() -> tuple[int, ...]:
        return tuple(draw(st.lists(st.sampled_from(dims), max_size=3)))

    for _ in range(draw(st.integers(1, 3))):
        values[f"x{len(values)}"] = torch.randn(size(), generator=generator).to(dtype)
    if draw(st.integers(0, 3)) == 0:
        shape = size() or (3,)
        for _ in range(2):
            values[f"x{len(values)}"] = torch.randint(-5, 6, shape, generator=generator)
    inputs, lines = tuple(values), []
    for _ in range(draw(st.integers(1, most))):
        line = draw(expression(values))
        name = f"v{len(values)}"
        try:
            made = eval(line, {"torch": torch, "F": functional}, values)
        except (RuntimeError, IndexError):
            continue
        if made.numel() <= LARGEST and bool((made.double().abs() < STEEPEST).all()):
            lines.append(f"    {name} = {line}")
            values[name] = made
    made_here = [n for n in values if n not in inputs] or list(inputs)
    results = [made_here[-1], *draw(st.lists(st.sampled_from(list(values)), max_size=2))]
    text = "\n".join([f"def f({', '.join(inputs)}):", *lines, f"    return {', '.join(results)}{',' * (len(results) == 1)}"])
    scale = max((float(v.double().abs().max()) for v in values.values() if v.numel()), default=1.0)
    return Source(text, tuple(values[n] for n in inputs), max(scale, 1.0))


@st.composite
def expression(draw: st.DrawFn, values: dict[str, Tensor]) -> str:
    """An expression of values by name.  It may not apply to their shapes."""
    floats = [n for n, v in values.items() if v.is_floating_point()]
    whole = [n for n, v in values.items() if not v.is_floating_point() and v.dtype is not torch.bool]
    if whole and draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(INTEGER)).format(i=draw(st.sampled_from(whole)), j=draw(st.sampled_from(whole)))
    x = draw(st.sampled_from(floats))
    shape = values[x].shape
    kind = draw(st.sampled_from(("unary", "binary", "binary", "along", "along", "whole", "matmul", "matmul")))
    if kind == "unary":
        return draw(st.sampled_from(UNARY)).format(x=x)
    if kind == "along" and len(shape):
        d = draw(st.integers(0, len(shape) - 1))
        return draw(st.sampled_from(ALONG)).format(x=x, d=d, n=shape[d])
    if kind == "whole" and len(shape):
        return draw(st.sampled_from(WHOLE)).format(x=x)
    if kind == "matmul" and len(shape) > 1:
        fits = [f"{x} @ {y}" for y in floats if len(values[y].shape) > 0 and values[y].shape[-2 if values[y].dim() > 1 else 0] == shape[-1]]
        fits += [f"{x} @ {y}.mT" for y in floats if len(values[y].shape) > 1 and values[y].shape[-1] == shape[-1]]
        if fits:
            return f"({draw(st.sampled_from(fits))}) * {max(shape[-1], 1) ** -0.5:.3f}"
    fits = [y for y in floats if broadcasts(shape, values[y].shape)]
    mask = f"torch.arange({shape[-1] if len(shape) else 1}) % 2 == 0"
    return draw(st.sampled_from(BINARY)).format(x=x, y=draw(st.sampled_from(fits)), m=mask)


def broadcasts(a: torch.Size, b: torch.Size) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b), strict=False))
