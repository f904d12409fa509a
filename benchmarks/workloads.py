"""What is measured: snippets at sizes that fill a GPU, and at sizes that fit nothing, in fp32 and bf16."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks import convolutions, products

TORCH_NAME = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn"}
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

# What memory bounds: along the rows, along the columns, all of a tensor, at places that are read, and of several results at once.
PROGRAMS |= {
    "rmsnorm_0": "x = torch.randn({0}, {1}, {dtype}); nn.RMSNorm({0}, {dtype})(x.t()).t()",
    "layernorm_0": "x = torch.randn({0}, {1}, {dtype}); nn.LayerNorm({0}, {dtype})(x.t()).t()",
    "softmax_0": "torch.randn({0}, {1}, {dtype}).softmax(0)",
    "log_softmax_0": "torch.randn({0}, {1}, {dtype}).log_softmax(0)",
    "permute": "torch.randn({0}, {1}, {2}, {3}, {dtype}).permute(0, 2, 1, 3).contiguous()",
    "cumsum": "torch.randn({0}, {1}, {dtype}).cumsum(-1)",
    "sum": "torch.randn({0}, {1}, {dtype}).sum(-1)",
    "mean": "torch.randn({0}, {1}, {dtype}).mean(-1)",
    "var": "torch.randn({0}, {1}, {dtype}).var(-1)",
    "argmax": "torch.randn({0}, {1}, {dtype}).argmax(-1)",
    "sum_all": "torch.rand({0}, {dtype}).sum()",
    "mean_all": "torch.rand({0}, {dtype}).mean()",
    "var_all": "torch.randn({0}, {dtype}).var()",
    "argmax_all": "torch.randn({0}, {dtype}).argmax()",
    "embedding": "w, i = torch.randn({0}, {1}, {dtype}), torch.randint(0, {0}, ({2},)); F.embedding(i, w)",
    "rope": "x, c, s = torch.randn({0}, {1}, {2}, {3}, {dtype}), torch.randn({2}, {3}, {dtype}), torch.randn({2}, {3}, {dtype}); "
            "a, b = x.chunk(2, -1); x * c + torch.cat((-b, a), -1) * s",
    "swiglu": "x, y = torch.randn({0}, {1}, {dtype}), torch.randn({0}, {1}, {dtype}); F.silu(x) * y",
    "adamw": "p, g, m, v = torch.randn({0}, {dtype}), torch.randn({0}, {dtype}), torch.randn({0}, {dtype}), torch.rand({0}, {dtype}); "
             "m, v = .9 * m + .1 * g, .999 * v + .001 * g * g; (p * .99999 - .001 * (m / .1) / ((v / .001).sqrt() + 1e-8), m, v)",
    "batchnorm": "x = torch.randn({0}, {1}, {2}, {3}, {dtype}); nn.BatchNorm2d({1}, {dtype}).eval()(x)",
    "groupnorm": "x = torch.randn({0}, {1}, {2}, {3}, {dtype}); nn.GroupNorm(32, {1}, {dtype})(x)",
    "maxpool": "F.max_pool2d(torch.randn({0}, {1}, {2}, {3}, {dtype}), 3, 2, 1)",
    "avgpool": "F.adaptive_avg_pool2d(torch.randn({0}, {1}, {2}, {3}, {dtype}), 1)",
    "x+y": "torch.randn({0}, {dtype}) + torch.randn({0}, {dtype})",
}
PROGRAMS |= products.PROGRAMS | convolutions.PROGRAMS

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
# 64 to 512 MB are moved, but in the last lines, where the latency of a launch is all there is.
RAGGED = ((1 << 20, 37), (65536, 1000), (32768, 2049), WIDE, (8192, 8192), (512, 131072))
MEMORY = (
    (("exp(-x)",), ("fp32",), (LARGE,)),
    (("bias+gelu+residual", "rmsnorm", "layernorm", "softmax", "log_softmax"), ("bf16",), RAGGED),
    (("rmsnorm_0", "layernorm_0", "softmax_0", "log_softmax_0"), ("bf16",), tuple((n, m) for m, n in RAGGED)),
    (("softmax",), ("fp32",), ((28 * 2048, 2048),)),
    (("cross_entropy",), ("bf16",), ((4096, 128256),)),
    (("transpose+add",), ("bf16",), (LARGE,)),
    (("permute",), ("bf16",), ((8, 2048, 32, 128),)),
    (("cumsum",), ("fp32",), ((4096, 32768), (1, 1 << 26))),
    (("sum_all", "mean_all", "var_all", "argmax_all"), ("fp32",), ((1 << 28,),)),
    (("sum", "mean", "var", "argmax"), ("fp32",), ((65536, 512),)),
    (("embedding",), ("bf16",), ((128256, 4096, 8192),)),
    (("rope",), ("bf16",), ((4, 32, 4096, 128),)),
    (("swiglu",), ("bf16",), ((4096, 14336),)),
    (("adamw",), ("fp32",), ((1 << 24,),)),
    (("batchnorm", "groupnorm"), ("bf16",), ((64, 256, 56, 56),)),
    (("maxpool",), ("bf16",), ((64, 64, 112, 112),)),
    (("avgpool",), ("bf16",), ((512, 2048, 7, 7),)),
    (("rmsnorm",), ("fp32",), ((32, 2048),)),
    (("softmax",), ("fp32",), ((128, 128),)),
    (("x+y",), ("fp32",), ((2,),)),
)
SUITES = {"spine": SPINE, "families": FAMILIES, "memory": MEMORY, **products.SUITES, **convolutions.SUITES}


class Workload(NamedTuple):
    """A program at a size: its suite, `case` such as "softmax 16384x4096", and the snippet that the compiler captures.  `dtype` is that of
    its tensors, or "tf32" for fp32 whose products may round their factors to it."""

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


_ALL = tuple(_workloads())
WORKLOADS: dict[str, Workload] = {w.stem: w for w in _ALL}       # a program that two suites have is the same one


def select(pattern: str = "", suite: str = "spine") -> tuple[Workload, ...]:
    """The workloads of a suite whose stem or case matches a regular expression."""
    return tuple(w for w in _ALL if w.suite == suite and (re.search(pattern, w.stem) or re.search(pattern, w.case)))
