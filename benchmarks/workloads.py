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


class Workload(NamedTuple):
    """A program at a size: `case` such as "softmax 16384x4096", and the snippet that the compiler captures."""

    case: str
    dtype: str
    snippet: str

    @property
    def stem(self) -> str:
        """Its name as a file's, unique among the workloads."""
        words = self.case.replace("(-x)", "_neg").replace("*", "_times_").replace("+", "_plus_")
        return re.sub(r"[^a-z0-9_]+", "-", words).strip("-") + f"-{self.dtype}"


def _spine() -> Iterator[Workload]:
    for programs, dtypes, sizes in SPINE:
        for name in programs:
            for size in sizes:
                for dtype in dtypes:
                    snippet = PROGRAMS[name].format(*size, dtype=f"dtype=torch.{TORCH_NAME[dtype]}")
                    yield Workload(f"{name} {'x'.join(map(str, size))}", dtype, snippet)


WORKLOADS: dict[str, Workload] = {w.stem: w for w in _spine()}


def select(pattern: str = "") -> tuple[Workload, ...]:
    """The workloads whose stem or case matches a regular expression."""
    return tuple(w for w in WORKLOADS.values() if re.search(pattern, w.stem) or re.search(pattern, w.case))
