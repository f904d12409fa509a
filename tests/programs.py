"""The programs that every test shares, as snippets in a size `n` and a dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

DTYPES = {"f32": "torch.float32", "bf16": "torch.bfloat16"}


class Program(NamedTuple):
    """`source` is a template: {n} a size, {d} a dtype as torch spells it.  `tolerance` is in units of the output dtype's rounding,
    relative to the largest result."""

    source: str
    tolerance: float = 4

    def snippet(self, n: int, dtype: str) -> str:
        return self.source.replace("{n}", str(n)).replace("{d}", DTYPES[dtype])


_R = "torch.randn({n}, {n}, dtype={d})"
PROGRAMS: dict[str, Program] = {
    "exp_neg": Program(f"x = {_R}; torch.exp(-x)"),
    "square_twice": Program(f"x = {_R}; (x * x) + (x * x)"),
    "sum_left": Program(f"x, y = {_R}, {_R}; x + x + y"),
    "sum_right": Program(f"x, y = {_R}, {_R}; y + (x + x)"),
    "bias_gelu_residual": Program(f"x, bias = {_R}, torch.randn({{n}}, dtype={{d}}); F.gelu(x + bias) + x", 8),
    "rms_norm": Program("x = torch.randn(7, {n}, dtype={d}); nn.RMSNorm({n}, dtype={d})(x)", 8),
    "layer_norm": Program("x = torch.randn(7, {n}, dtype={d}); nn.LayerNorm({n}, dtype={d})(x)", 8),
    "softmax": Program("x = torch.randn(2, 7, {n}, dtype={d}); x.softmax(-1)", 8),
    "transpose_add": Program("x, y = torch.randn(7, {n}, dtype={d}), torch.randn({n}, 7, dtype={d}); x.t() + y"),
    "linear": Program("x = torch.randn(5, {n}, dtype={d}); nn.Linear({n}, 9, dtype={d})(x)", 16),
    "linear_no_bias": Program("x = torch.randn(5, {n}, dtype={d}); nn.Linear({n}, 9, bias=False, dtype={d})(x)", 16),
    "matmul": Program("a, b = torch.randn(6, {n}, dtype={d}), torch.randn({n}, 11, dtype={d}); a @ b", 16),
    "rms_norm_linear": Program("x = torch.randn(5, {n}, dtype={d})\n"
                               "nn.Linear({n}, 9, bias=False, dtype={d})(nn.RMSNorm({n}, dtype={d})(x))", 32),
    "matmul_chain": Program("a, b = torch.randn(6, {n}, dtype={d}), torch.randn({n}, 4, dtype={d})\n"
                            "c = torch.randn(4, {n}, dtype={d})\n(a @ b) @ c", 32),
    "attention": Program("q, k = torch.randn(1, 2, {n}, 8, dtype={d}), torch.randn(1, 2, {n}, 8, dtype={d})\n"
                         "v = torch.randn(1, 2, {n}, 8, dtype={d})\n"
                         "((q @ k.transpose(-2, -1)) * 8 ** -0.5).softmax(-1) @ v", 32),
}


def instances(sizes: tuple[int, ...] = (1, 3, 37, 129)) -> Iterator[tuple[str, str]]:
    """(identifier, snippet) of every program at every size and dtype; the identifier begins with the program's name and a dash."""
    for name, program in PROGRAMS.items():
        for dtype in DTYPES:
            for n in sizes:
                yield f"{name}-{dtype}-{n}", program.snippet(n, dtype)
