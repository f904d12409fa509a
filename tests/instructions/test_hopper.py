"""Hopper's instructions: their rules, their text in CUDA, what nvcc and ptxas say of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from emmy.errors import EmmyError
from emmy.evaluate.products import LANE, Sums, layout, swizzle
from emmy.instructions import (
    Arrive,
    CopyBulk,
    CopyTile,
    DeclareArray,
    ExpectBytes,
    FenceProducts,
    InitBarrier,
    MultiplyWarpgroup,
    MultiplyWarpgroupRegisters,
    NamedBarrier,
    SetRegisters,
    StoreMatrices,
    StoreTile,
    WaitBarrier,
    WaitProducts,
    WaitStores,
)
from emmy.instructions.bulk_copy import swizzled
from emmy.instructions.resources import resources
from emmy.instructions.wgmma import place
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, GlobalBuffer, Kernel, SharedBuffer, Stmt, TensorMap, Thread, const, int32, verify
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit, emit_module
from emmy.runtime.build import build
from tests.hopper_kernels import gemm, registers_product

T, ZERO, FALSE = Thread(), int32(0), const(dt.bool_, False)
MAP = TensorMap("map_a", "a", dt.bf16, (64, 64), (64, 64))


def kernel(*body: Stmt) -> Kernel:
    return Kernel("small", (GlobalBuffer("a", dt.bf16, 4096, "read"), GlobalBuffer("c", dt.bf16, 4096, "write")),
        (SharedBuffer("tile", dt.bf16, 8192, 1024), SharedBuffer("loose", dt.bf16, 4096), SharedBuffer("floats", dt.f32, 64, 1024),
         SharedBuffer("full", dt.i64, 2)), (1, 1, 1), 128,
        (DeclareArray("acc", dt.f32, 32), DeclareArray("left", dt.bf16, 8), DeclareArray("odd", dt.bf16, 7), *body),
        (MAP, MAP.replace(name="map_c", buffer="c")))


COPY = CopyTile("tile", ZERO, "map_a", (ZERO, ZERO), "full", ZERO)
STORE = StoreTile("map_c", (ZERO, ZERO), "tile", ZERO)
BULK = CopyBulk("tile", ZERO, "a", ZERO, 8, "full", ZERO)
PRODUCT = MultiplyWarpgroup(dt.bf16, 64, "acc", ZERO, "tile", ZERO, "k", "tile", ZERO, "k", FALSE)
OTHER = MultiplyWarpgroupRegisters(dt.bf16, 64, "acc", ZERO, "left", ZERO, "tile", ZERO, "k", FALSE)
STAGE = StoreMatrices("tile", T * 8, "acc", ZERO, 8)


def test_what_the_rules_below_change_is_right() -> None:
    k = kernel(COPY, STORE, BULK, PRODUCT, OTHER, STAGE)
    verify(k)
    assert parse(show(k)) is k


@pytest.mark.parametrize(("statement", "message"), [
    (InitBarrier("tile", ZERO, 1), "tile holds bf16; a barrier is an element of i64"),
    (InitBarrier("full", int32(2), 1), "barrier 2 of full, which has 2"),
    (InitBarrier("full", ZERO, 0), "0 arrivals"),
    (ExpectBytes("full", ZERO, 1 << 20), "1048576 bytes expected"),
    (Arrive("full", const(dt.f32, 0)), "is f32, not i32 or i64"),
    (WaitBarrier("full", ZERO, FALSE), "is bool, not i32"),
    (COPY.replace(target="loose"), "aligned to 16 bytes, is no place for tiles of map_a: bf16, aligned to 1024"),
    (COPY.replace(target="floats"), "floats of f32"),
    (COPY.replace(coordinates=(ZERO,)), "1 coordinates in map_a, whose tensor has 2 dimensions"),
    (COPY.replace(coordinates=(ZERO, const(dt.i64, 0))), "is i64, not i32"),
    (COPY.replace(coordinates=(ZERO, int32(4))), "at element 4 of its innermost dimension"),
    (COPY.replace(index=int32(64)), "a tile of map_a at element 64 of tile"),
    (COPY.replace(map="a"), "a is not a TensorMap of the kernel"),
    (COPY.replace(map="map_c"), "map_c describes a buffer that the kernel writes"),
    (STORE.replace(map="map_a"), "map_a describes a buffer that is only read"),
    (BULK.replace(count=4), "4 elements from bf16 to bf16; a bulk copy is a multiple of 16 bytes"),
    (BULK.replace(target="floats"), "from bf16 to f32"),
    (BULK.replace(source=int32(4)), "index 4 of a bulk copy"),
    (BULK.replace(buffer="c"), "c is written by the kernel"),
    (WaitStores(-1, True), "-1 pending"),
    (PRODUCT.replace(element=dt.f32), "matrices of f32"),
    (PRODUCT.replace(columns=60), "60 columns"),
    (PRODUCT.replace(columns=264), "264 columns"),
    (PRODUCT.replace(columns=128), "elements 0 to 63 of acc, which has 32"),
    (PRODUCT.replace(into_at=T), "not constant after unrolling"),
    (PRODUCT.replace(left="loose"), "loose of bf16, aligned to 16 bytes; an operand is bf16, aligned to 1024"),
    (PRODUCT.replace(left_major="m"), "tile by 'm'"),
    (PRODUCT.replace(right_at=int32(64)), "an operand at element 64 of tile"),
    (PRODUCT.replace(right_chunk=100), "100 elements from 64 columns"),
    (PRODUCT.replace(accumulate=ZERO), "is i32, not bool"),
    (OTHER.replace(left="acc"), "acc is of f32, not bf16"),
    (OTHER.replace(left_at=int32(1)), "elements 1 to 8 of left, which has 8"),
    (FenceProducts(("odd",)), "odd of 7 bf16 takes no part"),
    (WaitProducts(8), "8 pending groups"),
    (WaitProducts(0, ("tile",)), "tile is not defined"),
    (SetRegisters(36, True), "36 registers"),
    (NamedBarrier(int32(16), 128), "barrier 16"),
    (NamedBarrier(ZERO, 128), "barrier 0"),
    (NamedBarrier(int32(1), 100), "100 threads"),
    (STAGE.replace(width=3), "3 elements of a lane"),
    (STAGE.replace(buffer="floats"), "floats holds f32"),
    (STAGE.replace(array="odd"), "elements 0 to 7 of odd, which has 7"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_rules(statement: Stmt, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(kernel(statement))


@pytest.mark.parametrize(("change", "message"), [
    ({"shape": (64,)}, "1 to 5 extents each"), ({"box": (64, 257)}, "those of a tile up to 256"), ({"box": (64, 0)}, "up to 256"),
    ({"box": (64, 128)}, "rows of 256 bytes, swizzled by 128"), ({"box": (64, 32)}, "rows of 64 bytes, swizzled by 128"),
    ({"swizzle": 48}, "swizzled by 48"), ({"box": (64, 4), "swizzle": 0}, "multiples of 16"),
    ({"shape": (64, 60)}, "multiples of 16"), ({"start": 4}, "multiples of 16"), ({"pitches": (68, 1)}, "multiples of 16"),
    ({"pitches": (64, 2)}, "contiguous along its last"), ({"pitches": (64,)}, "contiguous along its last"),
    ({"start": -8}, "contiguous along its last"),
])
def test_rules_of_maps(change: dict[str, object], message: str) -> None:
    with pytest.raises(IRError, match=message):
        MAP.replace(**change)


@pytest.mark.parametrize(("change", "message"), [
    ({"maps": (MAP.replace(buffer="tile"),)}, "does not fit the buffer tile"),
    ({"maps": (MAP.replace(shape=(65, 64)),)}, r"map_a of bf16\[65, 64\] does not fit"),
    ({"maps": (MAP.replace(element=dt.f16),)}, "does not fit"), ({"maps": (MAP, MAP)}, "map_a is defined twice"),
    ({"shared": (SharedBuffer("tile", dt.bf16, 64, 48),)}, "a power of two"), ({"cluster": 2}, "clusters of 2 blocks"),
])
def test_rules_of_kernels(change: dict[str, object], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(kernel().replace(**change))


def test_shared_buffers_lie_aligned_in_dynamic_memory() -> None:
    k = kernel()
    assert k.shared_offsets == (0, 16384, 24576, 24832, 24848)
    assert k.shared_bytes == k.dynamic_shared_bytes == 24848 and k.replace(maps=()).dynamic_shared_bytes == 0
    late = k.replace(shared=(SharedBuffer("full", dt.i64, 3), SharedBuffer("tile", dt.bf16, 512, 1024)))
    assert late.shared_offsets == (0, 1024, 2048)


def test_text() -> None:
    text = emit(gemm(256, 256, 256).replace(cluster=2, grid=(2, 1, 1)))
    for line in (
        'extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(2, 1, 1) gemm_bf16_kk_256(',
        "__nv_bfloat16* __restrict__ c, const __grid_constant__ emmy_map map_a,",
        "extern __shared__ __align__(1024) unsigned char shared_memory[];",
        "emmy_copy_tile_2(&map_b, &tile_b[slot * 256 * 64], column, step * 64, &full[slot]);",
        "emmy_product_bf16_256_kk(&acc[0], emmy_tile(&tile_a[slot * 8192 + part * 64 * 64 + q * 16], 16), ",
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0, %1,", "%128, %129, p, 1, 1, 0, 0;",
        "emmy_wait_products<0>();\n      emmy_pin(acc);", "emmy_shrink_registers<40>();", "emmy_wait_stores_read<1>();",
    ):
        assert line in text, line
    assert "emmy_store_tile_3" not in text and "#include <cuda_fp16.h>" not in text
    assert "%32, %33, %34, %35}, %36, p, 1, 1, 1;" in emit(registers_product())
    assert "__launch_bounds__(128) registers_product_f16" in emit(registers_product())


VARIANTS = {
    "both along k": gemm(4096, 4096, 4096),
    "both across": gemm(4096, 4096, 4096, left_major="mn", right_major="mn", columns=128, stages=6),
    "f16, a across": gemm(1000, 1048, 1096, left_major="mn", columns=192, element=dt.f16),
    "registers": registers_product(256),
    "registers, b along k": registers_product(64, element=dt.bf16, by_thread=True, major="k"),
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("name", VARIANTS)
def test_ptxas_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    (report,) = build(emit(VARIANTS[name]), "sm_90a", cache=tmp_path).functions.values()
    assert report.spill_bytes == report.stack_bytes == report.shared_bytes == 0


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_ptxas_complaints_are_errors(tmp_path: Path) -> None:
    with pytest.raises(EmmyError, match=r"C7519.*warpgroup.arrive is injected"):
        build(emit(gemm(512, 512, 512, leave_out="fence_products")), "sm_90a", cache=tmp_path)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_every_rank_and_width(tmp_path: Path) -> None:
    """Tiles of 1 to 5 dimensions; stores of 1, 2 and 4 matrices of either kind, from halves and from sums."""
    shapes = [(4096,), (64, 64), (4, 16, 64), (2, 2, 16, 64), (2, 1, 2, 16, 64)]
    boxes = [(*(1 for _ in s[:-2]), *((16, 64) if len(s) > 1 else (64,))) for s in shapes]
    maps = [TensorMap(f"map_{b}{len(s)}", b, dt.bf16, s, box) for s, box in zip(shapes, boxes, strict=True) for b in "ac"]
    copies = [CopyTile("tile", ZERO, m.name, (ZERO,) * len(m.shape), "full", ZERO) if m.buffer == "a" else
              StoreTile(m.name, (ZERO,) * len(m.shape), "tile", ZERO) for m in maps]
    fill = [DeclareArray(f"halves_{e}", e, 8, Const(e, 0)) for e in (dt.f16, dt.bf16)]
    stores = [StoreMatrices("tile", T % 8 * 64, array, ZERO, width, transposed)
              for array in ("acc", "halves_bf16") for width in (2, 4, 8) for transposed in (False, True)]
    k = kernel(*fill, *copies, *stores)
    build(emit_module([k.replace(maps=tuple(maps))]), "sm_90a", cache=tmp_path)


def test_resources_count_tiles_once_a_block() -> None:
    k = gemm(512, 512, 256, columns=256, blocks=8)
    counted, tiles, steps, pieces = resources(k), 8, 4, 4
    assert counted.global_bytes == tiles * 2 * (steps * (128 + 256) * 64 + pieces * 64 * 64)
    assert counted.shared_bytes == k.shared_bytes
    assert resources(registers_product()).flops > 2 * 64 * 64 * 16


def test_a_fragment_is_where_it_says() -> None:
    matrix = np.arange(64 * 24).reshape(64, 24)
    values = Sums(matrix, 2).values()
    for register in range(12):
        h, j, e = place(register)
        np.testing.assert_array_equal(values[register], matrix[32 + LANE // 4 + 8 * h, 8 * j + 2 * (LANE % 4) + e])


@pytest.mark.parametrize("element", [dt.bf16, dt.f32, dt.i64])
def test_swizzled_is_the_layout_of_operands_and_tiles(element: DType) -> None:
    for span in (0, 32, 64, 128):
        for index in (0, 9, 77, 300, 511):
            made = swizzled(int32(index), element, span)
            assert isinstance(made, Const)
            assert int(made.value) == swizzle(np.array(index * element.bytes), span) // element.bytes
    if element is dt.bf16:
        rows = layout("k", 64, 0, 0, 2)
        assert rows[9, 3] == int(swizzled(int32(9 * 64 + 3), element).value)  # type: ignore[attr-defined]
        assert layout("mn", 128, 4096, 0, 2)[70, 2] == 4096 + int(swizzled(int32(2 * 64 + 6), element).value)  # type: ignore[attr-defined]
