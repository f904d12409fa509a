"""Products that warpgroups compute, whatever their form, each with what it is in float64: operands' types and places, a batch, what follows
the sums, sums of sums, computed operands and windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from emmy.egraph.schedule import schedules
from emmy.instructions import StoreTile
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.lower.tile_to_kernel import lower
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_windows import Conv
from tests.lower.tile_to_kernel.test_joined import joined, reference, sums
from tests.lower.tile_to_kernel.test_tensor_core import HALF, lowered, wide

DEEP = {dt.bf16: "k16_bf16_f32/f1x1/k64", dt.f16: "k16_f16_f32/f1x1/k64", dt.tf32: "k8_tf32_f32/f1x1/k32",
        dt.e4m3: "k32_e4m3_f32/f1x1/k128"}     # of a tile, for operands of each type


class Product(NamedTuple):
    """A kernel and its result in float64; how its rows and columns are placed, and the type of its operands.  `boxes`: whether the result
    leaves in boxes that maps have, where that is known."""

    kernel: tile.Kernel
    wanted: np.ndarray
    tolerance: float = 1e-5
    lower: Callable[[tile.Kernel, str], kernel_ir.Kernel] = lowered
    element: DType = dt.bf16
    boxes: bool | None = None

    def assert_right(self, row: str) -> None:
        """The simulated kernel that a row of tiles one by one of bf16, 64 deep, makes of it has its numbers, and reads back."""
        form = self.lower(self.kernel, row.replace(DEEP[dt.bf16], DEEP[self.element]))
        close(run(self.kernel, form, random(self.kernel)), self.wanted, self.tolerance)
        assert kernel_parser.parse(kernel_text.show(form)) is form
        assert self.boxes in (None, any(isinstance(s, StoreTile) for s in kernel_ir.walk(form.body)))


def plain(m: int, n: int, k: int, left: bool = False, right: bool = True, element: DType = dt.bf16, tolerance: float = HALF) -> Product:
    """fp32 is rounded by the copies."""
    made = matmul(m, n, k, left, right, element.stored)
    x = {name: dt.rounded(v).astype(np.float64) for name, v in random(made).items()} if element is dt.tf32 else wide(made)
    return Product(made, (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), tolerance, element=element)


def followed(m: int, n: int, k: int, halves: bool, further: int = 0) -> Product:
    """A bias, a value a row and a residual after the sum, of `further` columns; stored as halves, in boxes or line by line, or as fp32."""
    n += further
    t = tensors(dt.bf16, x=(m, k), w=(n, k), bias=(n,), residual=(m, n)) | tensors(dt.f32, scale=(m,))
    y = op("add", op("mul", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "scale", 0)), load(t, "bias", 1))
    body, element = op("add", op("tanh", y), load(t, "residual", 0, 1)), dt.bf16 if halves else dt.f32
    made = kernel(loop.Round(element, body) if halves else body, (0, 1), {0: m, 1: n, 2: k}, t, element)
    x = wide(made)
    wanted = np.tanh(x["x"] @ x["w"].T * x["scale"][:, None] + x["bias"]) + x["residual"]
    return Product(made, wanted, HALF if halves else 1e-5, boxes=halves and n % 8 == 0)


def batch(m: int, n: int, k: int) -> Product:
    t = tensors(dt.bf16, a=(3, m, k), b=(3, n, k))
    made = kernel(total(3, op("mul", load(t, "a", 0, 1, 3), load(t, "b", 0, 2, 3))), (0, 1, 2), {0: 3, 1: m, 2: n, 3: k}, t)
    x = wide(made)

    def of(made: tile.Kernel, row: str) -> kernel_ir.Kernel:
        return lower(made.replace(schedule=schedule("contraction", row, (1,), (2,), (0,))))
    return Product(made, np.einsum("bmk,bnk->bmn", x["a"], x["b"]), lower=of)


def computed(m: int, n: int, k: int) -> Product:
    """An operand in registers."""
    t = tensors(dt.bf16, x=(m, k), w=(n, k))
    body = op("mul", loop.Round(dt.bf16, op("tanh", load(t, "x", 0, 2))), load(t, "w", 1, 2))
    made = kernel(total(2, body), (0, 1), {0: m, 1: n, 2: k}, t)
    x = wide(made)
    return Product(made, np.tanh(x["x"]) @ x["w"].T, HALF)


def added(m: int, n: int, k: int, short: int = 16) -> Product:
    """Sums that are one, the second `short`."""
    made = sums(m, n, (k, short), bias=True)
    return Product(made, reference(made, False), HALF, joined)


def windows(of: Conv) -> Product:
    """Stages are places of the window and channels."""
    made = of.kernel()
    x = wide(made)

    def convolved(made: tile.Kernel, row: str) -> kernel_ir.Kernel:
        (s,) = (s for s in schedules(made, "sm_90a", pins=row) if s.form == "convolution")
        return lower(made.replace(schedule=s))
    return Product(made, of.wanted(x["x"], x["w"]), lower=convolved)


PRODUCTS: dict[str, Callable[[int, int, int], Product]] = {     # of m rows, n columns and sums of k
    "f16": partial(plain, element=dt.f16, tolerance=2.0**-11), "tf32": partial(plain, element=dt.tf32, tolerance=1e-6),
    "e4m3": partial(plain, element=dt.e4m3, tolerance=2.0**-3), "columns side by side": partial(plain, right=False),
    "both across": partial(plain, left=True, right=False), "rows side by side": partial(plain, left=True),
    "followed": partial(followed, halves=True), "followed, in lines": partial(followed, halves=True, further=27),
    "followed, of fp32": partial(followed, halves=False), "followed, odd fp32": partial(followed, halves=False, further=27),
    "batch": batch, "added": added, "added, of two stages": partial(added, short=80), "computed": computed,
    "windows": lambda m, n, k: windows(Conv((2, 9, 10, 64), (72, 3, 3), pad=(1, 1))),       # of sizes of their own
    "windows of three stages a place": lambda m, n, k: windows(Conv((1, 9, 9, 136), (16, 3, 3), pad=(1, 1))),
}
