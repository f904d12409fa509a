"""Blocks counted along one axis compute what those of a grid of three do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emmy.evaluate.simulate import simulate
from emmy.ir.kernel_ir import Kernel
from emmy.lower import tile_to_kernel
from emmy.lower.tile_to_kernel import finish
from emmy.pipeline import compile
from tests.corners import kinds


def written(kernel: Kernel, values: list[np.ndarray]) -> np.ndarray:
    """What a kernel leaves in its one output."""
    *reads, output = kernel.parameters
    out = np.zeros(output.length, output.element.numpy)
    simulate(kernel, {**{p.name: x for p, x in zip(reads, values, strict=True)}, output.name: out})
    return out.astype(np.float64)


@pytest.mark.parametrize("name", ["product", "attention"])
def test_a_grid_without_room_along_its_other_axes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = torch.matmul if name == "product" else torch.nn.functional.scaled_dot_product_attention
    x = torch.randn(3, 40, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    (kernel,) = compile(fn, *[x] * (2 if name == "product" else 3)).tile.kernels
    draws = ((np.random.default_rng(k).standard_normal(t.shape) / 4, t.element.numpy) for k, t in enumerate(kernel.tensors))
    values = [x.astype(element).reshape(-1) for x, element in draws]
    turned = 0
    for schedule in kinds(kernel):
        scheduled = kernel.replace(schedule=schedule)
        with monkeypatch.context() as patch:
            before = tile_to_kernel.lower(scheduled)
            patch.setattr(finish, "GRID_LIMITS", (2 ** 31 - 1, 1, 1))
            after = tile_to_kernel.lower(scheduled)
        assert after.grid[1:] == (1, 1) and np.prod(after.grid) == np.prod(before.grid)
        if before.grid != after.grid:
            turned += 1
            np.testing.assert_array_equal(*(written(made, values) for made in (before, after)))
    assert turned
