"""Kernels beside each other in one launch: simulated against each alone, barriers, grids and shared memory of their own; text and nvcc."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from emmy.evaluate.simulate import simulate
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.node import IRError
from emmy.ir.tile_text import parse_kernel
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower, lower_launch
from emmy.lower.tile_to_kernel.beside import beside
from emmy.runtime.build import build
from tests.kernels import block_reduction, matmul, vector_map
from tests.lower.tile_to_kernel.forms import random, schedule
from tests.lower.tile_to_kernel.test_outputs import MAP, NORM, PRODUCTS
from tests.lower.tile_to_kernel.test_twist_tile import B, M, N, attention


class Case(NamedTuple):
    kernel: tile.Kernel
    form: str
    row: str
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()

    def scheduled(self, name: str) -> tile.Kernel:
        return self.kernel.replace(name=name, schedule=schedule(self.form, self.row, self.rows, self.columns, self.batch))


SMALL = [Case(parse_kernel(NORM), "fold", "WORK=t128,TILE=v4,REDUCE=coop", (0,), (1,)), Case(parse_kernel(MAP), "map", "WORK=t128"),
         Case(attention(2, 40, 24, 37, 8), "twist", "WORK=t16x8,TILE=fma_f32/f2x2/k4,STAGE=d1/smem", (M,), (N,), (B,)),
         Case(parse_kernel(PRODUCTS), "contraction", "WORK=t8x16,TILE=fma_f32/f2x2/k8,STAGE=d2/smem", (0,), (1,))]
DEEP = [Case(parse_kernel(PRODUCTS), "contraction", "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x4/k64,STAGE=d3/smem-async", (0,), (1,)),
        Case(parse_kernel(PRODUCTS), "contraction", "WORK=w1x4,TILE=mma_m16n8k16_bf16_f32/f1x2/k64,STAGE=d2/smem-async", (0,), (1,)),
        SMALL[0]]


def kernels(cases: list[Case]) -> list[tile.Kernel]:
    return [case.scheduled(f"part_{chr(97 + k)}") for k, case in enumerate(cases)]


def left(made: kernel_ir.Kernel, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What a simulated kernel leaves in its outputs, given its inputs in order."""
    given = iter(inputs)
    buffers = {p.name: next(given).reshape(-1) if p.access == "read" else np.zeros(p.length, p.element.numpy) for p in made.parameters}
    simulate(made, buffers)
    return [buffers[p.name] for p in made.parameters if p.access == "write"]


@pytest.mark.parametrize("cases", [SMALL, SMALL[::-1], DEEP], ids=["small", "reversed", "deep"])
def test_each_does_what_it_does_alone(cases: list[Case]) -> None:
    parts = kernels(cases)
    made = lower_launch(parts)
    inputs = [[np.ascontiguousarray(x) for x in random(k).values()] for k in parts]
    together = iter(left(made, [x for each in inputs for x in each]))
    for part, each in zip(map(lower, parts), inputs, strict=True):
        for alone in left(part, each):
            np.testing.assert_array_equal(next(together), alone)
    assert made.shared_bytes == max(lower(k).shared_bytes for k in parts)
    assert made.grid == (sum(int(np.prod(lower(k).grid)) for k in parts), 1, 1)
    assert parse(show(made)) is made


def test_kernels_written_by_hand_with_barriers() -> None:
    made = beside("both", [block_reduction(100), matmul(37, 20, 37), block_reduction(64)])
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(n).astype(np.float32) for n in (300, 37 * 20, 20 * 37, 192)]
    first, product, second = left(made, inputs)
    np.testing.assert_allclose(first, inputs[0].reshape(3, 100).sum(1), rtol=1e-4)
    np.testing.assert_allclose(product.reshape(37, 37), inputs[1].reshape(37, 20) @ inputs[2].reshape(20, 37), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, inputs[3].reshape(3, 64).sum(1), rtol=1e-4)


def test_blocks_of_other_sizes_cannot_share_a_launch() -> None:
    with pytest.raises(IRError, match="blocks of as many threads, not 128, 256"):
        beside("both", [vector_map(10), block_reduction(10)])


def test_a_place_in_shared_memory_is_aligned() -> None:
    made = beside("both", [block_reduction(100), block_reduction(64)])
    assert [b.start for b in made.shared] == [0, 0] and made.shared_bytes == 1024
    with pytest.raises(IRError, match="begins at byte 8"):
        kernel_ir.verify(made.replace(shared=(kernel_ir.SharedBuffer("a_part", dt.f32, 256, 16, 8), made.shared[1])))


def test_they_compile() -> None:
    made = [lower_launch(kernels(SMALL)), lower_launch(kernels(DEEP))]
    assert made[1].dynamic_shared_bytes > 0 == made[0].dynamic_shared_bytes
    assert len(build(emit_module(made), "sm_90a").functions) == 2
