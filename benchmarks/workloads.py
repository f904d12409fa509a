"""What is measured: snippets at sizes that fill a GPU, and at sizes that fit nothing, in fp32 and bf16."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TORCH_NAME = {"fp32": "float32", "bf16": "bfloat16"}
PROGRAMS = {
    "exp(-x)": "x = torch.randn({0}, {1}, {dtype}); torch.exp(-x)",
    "(x*x)+(x*x)": "x = torch.randn({0}, {1}, {dtype}); (x * x) + (x * x)",
    "x+x+y": "x, y = torch.randn({0}, {1}, {dtype}), torch.randn({0}, {1}, {dtype}); x + x + y",
    "y+(x+x)": "x, y = torch.randn({0}, {1}, {dtype}), torch.randn({0}, {1}, {dtype}); y + (x + x)",
    "bias+gelu+residual": "x, b, r = torch.randn({0}, {1}, {dtype}), torch.randn({1}, {dtype}), torch.randn({0}, {1}, {dtype}); "
                          "F.gelu(x + b) + r",
    "transpose+add": "x, y = torch.randn({1}, {0}, {dtype}), torch.randn({0}, {1}, {dtype}); x.t() + y",
    "rmsnorm": "x = torch.randn({0}, {1}, {dtype}); nn.RMSNorm({1}, {dtype})(x)",
    "layernorm": "x = torch.randn({0}, {1}, {dtype}); nn.LayerNorm({1}, {dtype})(x)",
    "softmax": "x = torch.randn({0}, {1}, {dtype}); F.softmax(x, dim=-1)",
    "matmul": "a, b = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}); a @ b",
    "linear": "x = torch.randn({0}, {2}, {dtype}); nn.Linear({2}, {1}, bias=False, {dtype})(x)",
    "linear+bias": "x = torch.randn({0}, {2}, {dtype}); nn.Linear({2}, {1}, {dtype})(x)",
    "rmsnorm+linear": "x = torch.randn({0}, {2}, {dtype}); nn.Linear({2}, {1}, bias=False, {dtype})(nn.RMSNorm({2}, {dtype})(x))",
    "(ab)c": "a, b, c = torch.randn({0}, {1}, {dtype}), torch.randn({1}, {2}, {dtype}), torch.randn({2}, {3}, {dtype}); (a @ b) @ c",
    "attention": "q = torch.randn({0}, {1}, {2}, {3}, {dtype}); k = torch.randn({0}, {1}, {2}, {3}, {dtype}); "
                 "v = torch.randn({0}, {1}, {2}, {3}, {dtype}); "
                 "F.softmax(q @ k.transpose(-2, -1) * {3} ** -0.5, dim=-1) @ v",
}

# What rewriting finds (tests/families.py), where eager computes what is written.
PROGRAMS |= {
    "logsumexp": "torch.randn({0}, {1}, {dtype}).logsumexp(-1)",
    "log_softmax": "torch.randn({0}, {1}, {dtype}).log_softmax(-1)",
    "cross_entropy": "F.cross_entropy(torch.randn({0}, {1}, {dtype}), torch.randint(0, {1}, ({0},)))",
    "variance": "torch.randn({0}, {1}, {dtype}).var(-1, correction=0)",
    "layernorm+linear": "x = torch.randn({0}, {2}, {dtype}); nn.Linear({2}, {1}, {dtype})(nn.LayerNorm({2}, {dtype})(x))",
    "sum(ab)": "a, b = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}); (a @ b).sum()",
    "mean(ab)": "a, b = torch.randn({0}, {2}, {dtype}), torch.randn({2}, {1}, {dtype}); (a @ b).mean(-1)",
    "(uv)x": "u, v, x = torch.randn({0}, {dtype}), torch.randn({1}, {dtype}), torch.randn({1}, {dtype}); torch.outer(u, v) @ x",
    "max(x+y)": "x, y = torch.randn({0}, {dtype}), torch.randn({1}, {dtype}); (x[:, None] + y).amax(-1)",
    "xw+(xa)b": "x, w, a, b = torch.randn({0}, {1}, {dtype}), torch.randn({1}, {2}, {dtype}), torch.randn({1}, {3}, {dtype}), "
                "torch.randn({3}, {2}, {dtype}); x @ w + (x @ a) @ b",
    "x(w+ab)": "x, w, a, b = torch.randn({0}, {1}, {dtype}), torch.randn({1}, {2}, {dtype}), torch.randn({1}, {3}, {dtype}), "
               "torch.randn({3}, {2}, {dtype}); x @ (w + a @ b)",
    "silu(xg)(xu)": "x, g, u = torch.randn({0}, {1}, {dtype}), torch.randn({1}, {2}, {dtype}), torch.randn({1}, {2}, {dtype}); "
                    "F.silu(x @ g) * (x @ u)",
    "softcap_attention": "q = torch.randn({0}, {1}, {2}, {3}, {dtype}); k = torch.randn({0}, {1}, {2}, {3}, {dtype}); "
                         "v = torch.randn({0}, {1}, {2}, {3}, {dtype}); "
                         "F.softmax(20 * torch.tanh(q @ k.transpose(-2, -1) * ({3} ** -0.5 / 20)), dim=-1) @ v",
}

BOTH, LARGE, WIDE = ("fp32", "bf16"), (8192, 8192), (16384, 4096)
POINTWISE = ("exp(-x)", "(x*x)+(x*x)", "x+x+y", "y+(x+x)", "bias+gelu+residual", "transpose+add")
ROWWISE = ("rmsnorm", "layernorm", "softmax")
PRODUCTS = ("matmul", "linear", "linear+bias")
# Each line: programs, dtypes, sizes (rows, columns; for products rows, columns, length of the sum; for others as the snippet reads them).
SPINE: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, ...], ...]], ...] = (
    (POINTWISE, BOTH, (LARGE,)),
    (ROWWISE, BOTH, (WIDE,)),
    (("rmsnorm",), BOTH, ((32, 2048),)),
    (("softmax",), BOTH, ((28 * 2048, 2048),)),
    (PRODUCTS, ("fp32",), ((1024,) * 3, (2048,) * 3)),
    (PRODUCTS, ("bf16",), ((1024,) * 3, (4096,) * 3)),
    (("rmsnorm+linear",), ("fp32",), ((2048,) * 3,)),
    (("rmsnorm+linear",), ("bf16",), ((4096,) * 3,)),
    (("(ab)c",), BOTH, ((4096, 64, 4096, 64), (64, 4096, 64, 4096))),
    (("attention",), BOTH, ((4, 16, 1024, 64), (1, 8, 512, 128))),
    (("exp(-x)", "bias+gelu+residual", "transpose+add", *ROWWISE), BOTH, ((37, 129), (1000, 1000), (1, 3))),
    (("matmul", "linear+bias", "rmsnorm+linear"), BOTH, ((37, 129, 65), (1000,) * 3, (1, 3, 5))),
    (("attention",), BOTH, ((1, 3, 37, 20),)),
)

FAMILIES = (
    (("logsumexp", "log_softmax", "variance"), BOTH, (WIDE, (4096, 131072))),
    (("cross_entropy",), BOTH, ((4096, 32000),)),
    (("layernorm+linear",), ("bf16",), ((4096,) * 3,)),
    (("sum(ab)", "mean(ab)"), BOTH, ((4096,) * 3,)),
    (("(uv)x", "max(x+y)"), ("fp32",), ((8192, 8192),)),
    (("xw+(xa)b", "x(w+ab)"), ("bf16",), ((16, 4096, 4096, 16), (8192, 1024, 1024, 256))),
    (("silu(xg)(xu)",), ("bf16",), ((16, 4096, 14336), (2048, 4096, 14336))),
    (("softcap_attention",), ("bf16",), ((4, 16, 1024, 64),)),
)
SUITES = {"spine": SPINE, "families": FAMILIES}


class Workload(NamedTuple):
    """A program at a size: its suite, `case` such as "softmax 16384x4096", and the snippet that the compiler captures."""

    suite: str
    case: str
    dtype: str
    snippet: str

    @property
    def stem(self) -> str:
        """Its name as a file's, unique among the workloads."""
        words = self.case.replace("(-x)", "_neg").replace("*", "_times_").replace("+", "_plus_")
        return re.sub(r"[^a-z0-9_]+", "-", words).strip("-") + f"-{self.dtype}"


def _workloads() -> Iterator[Workload]:
    for suite, lines in SUITES.items():
        for programs, dtypes, sizes in lines:
            for name in programs:
                for size in sizes:
                    for dtype in dtypes:
                        snippet = PROGRAMS[name].format(*size, dtype=f"dtype=torch.{TORCH_NAME[dtype]}")
                        yield Workload(suite, f"{name} {'x'.join(map(str, size))}", dtype, snippet)


WORKLOADS: dict[str, Workload] = {w.stem: w for w in _workloads()}


def select(pattern: str = "", suite: str = "spine") -> tuple[Workload, ...]:
    """The workloads of a suite whose stem or case matches a regular expression."""
    return tuple(w for w in WORKLOADS.values() if w.suite == suite and (re.search(pattern, w.stem) or re.search(pattern, w.case)))
