"""Tiles one above the other: simulated kernels against float64 and those without clusters, planted faults, rows, what nvcc makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emmy.egraph.schedule import candidates, schedules
from emmy.errors import EmmyError
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import (
    Arrive,
    ArrivePeer,
    ClusterWait,
    CopyTile,
    CopyWindows,
    ExpectBytes,
    FenceProducts,
    For,
    If,
    InitBarrier,
    WaitBarrier,
)
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Block, Stmt, Var
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close, matmul
from tests.lower.tile_to_kernel.test_hopper_shares import changed
from tests.lower.tile_to_kernel.test_hopper_windows import C, Conv, M, N, P, Q, R, S
from tests.lower.tile_to_kernel.test_tensor_core import HALF, gated, lowered, wide

ONE = "WORK=g1x1/ws/m2,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
STAY = "WORK=g1x1/ws/m2,TILE=wgmma_m64n48k16_bf16_f32/f1x1/k64,STAGE=d3/smem-tma,RASTER=gm4/p4"
PAIR = "WORK=g2x1/ws/m2,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm2/p2"
FOUR = "WORK=g1x1/ws/m4,TILE=wgmma_m64n32k16_bf16_f32/f1x2/k128,STAGE=d2/smem-tma,RASTER=gm8/p4"
LARGE = "WORK=g2x1/ws/m2,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132"


def copies(k: kernel_ir.Kernel) -> set[bool]:
    """Whether copies go to several blocks."""
    return {s.mask is not None for s in kernel_ir.walk(k.body) if isinstance(s, CopyTile | CopyWindows)}


@pytest.mark.parametrize("row", [ONE, STAY, PAIR, FOUR])
@pytest.mark.parametrize("sizes", [(136, 152, 200), (65, 40, 72), (300, 72, 264)])
def test_the_sums_are_those_of_the_row_without_clusters(row: str, sizes: tuple[int, int, int]) -> None:
    """Stacks whose last tile is below the result, or that are wider than it; more stacks than clusters, and fewer."""
    k = matmul(*sizes, right=True, element=dt.bf16)
    x, form = wide(k), lowered(k, row)
    plain = lowered(k, row.replace("/m2", "").replace("/m4", ""))
    got = run(k, form, random(k))
    close(got, x["a"] @ x["b"].T, HALF)
    np.testing.assert_array_equal(got, run(k, plain, random(k)))
    assert copies(form) == {True, False} and copies(plain) == {False} and form.cluster == int(row.partition("/m")[2][0])
    assert form.grid[0] % form.cluster == 0 and kernel_parser.parse(kernel_text.show(form)) is form


@pytest.mark.parametrize("left, right", [(False, False), (True, True), (True, False)])
def test_layouts(left: bool, right: bool) -> None:
    """Columns that are contiguous are shared in boxes of 64."""
    k = matmul(136, 200, 136, left, right, dt.bf16)
    x = wide(k)
    close(run(k, lowered(k, PAIR), random(k)), (x["a"].T if left else x["a"]) @ (x["b"].T if right else x["b"]), HALF)
    if not right:
        with pytest.raises(IRError, match="2 blocks do not share 64 positions of b in boxes of multiples of 64"):
            lowered(k, ONE)


def test_several_sums() -> None:
    gated(140, 136, ONE, 1e-5)


def convolved(k: tile.Kernel, pins: str) -> kernel_ir.Kernel:
    (s,) = (s for s in schedules(k, "sm_90a", pins=pins) if s.form == "convolution")
    return lower(k.replace(schedule=s))


def test_filters_are_columns() -> None:
    for of in (Conv((2, 5, 8, 64), (24, 3, 3), pad=(1, 1)), Conv((1, 9, 9, 136), (16, 3, 3), pad=(1, 1))):
        k = of.kernel()
        x, form = wide(k), convolved(k, ONE)
        close(run(k, form, random(k)), of.wanted(x["x"], x["w"]), 1e-5)
        assert {s.mask is not None for s in kernel_ir.walk(form.body) if isinstance(s, CopyWindows)} == {False} and True in copies(form)


def test_windows_are_columns() -> None:
    """Results channel by channel: rows are filters, and each block brings some windows of a tile to both."""
    of = Conv((2, 7, 6, 64), (72, 3, 3), pad=(1, 1))
    t = tensors(dt.bf16, x=of.image, w=(72, 3, 3, 64))
    body: loop.Value = op("mul", load(t, "w", M, R, S, C), of.padded(load(t, "x", N, of.at(0), of.at(1), C)))
    for axis in (C, S, R):
        body = total(axis, body)
    k = kernel(body, (M, N, P, Q), of.extents, t)
    x, form = wide(k), convolved(k, ONE.replace("n64", "n48"))
    close(run(k, form, random(k)), of.wanted(x["x"], x["w"]).transpose(3, 0, 1, 2), 1e-5)
    assert {s.mask is not None for s in kernel_ir.walk(form.body) if isinstance(s, CopyWindows)} == {True}


Change = Callable[[Any], tuple[Stmt, ...]]


def each(cls: type[Stmt], change: Change, where: Callable[[Any], bool] = lambda s: True) -> Change:
    return lambda s: change(s) if isinstance(s, cls) and where(s) else (s,)


def several(s: Any) -> bool:
    return s.mask is not None


def ending(s: Any) -> bool:
    """The loop of waits at the end of a thread that copies."""
    return isinstance(s.body[0], WaitBarrier) and not any(isinstance(x, For | ExpectBytes | FenceProducts) for x in s.body)


SECOND = Block(0) % 2
FAULTS: dict[str, tuple[Change, str]] = {
    "its own share expected": (each(ExpectBytes, lambda s: (s.replace(bytes=s.bytes // 2),)), "bytes|race|deadlock"),
    "nothing expected": (each(ExpectBytes, lambda s: (Arrive(s.barrier, s.at),)), "bytes|race"),
    "one block brings no share": (each(CopyTile, lambda s: (If(SECOND == 0, (s,)),), several), "deadlock"),
    "both bring one share": (each(CopyTile, lambda s: (s.replace(coordinates=(s.coordinates[0] - SECOND * 32, s.coordinates[1])),),
                                  several), ""),
    "shares the other way around": (each(CopyTile, lambda s: (s.replace(index=s.index + (1 - SECOND * 2) * 2048),), several), ""),
    "a share to oneself": (each(CopyTile, lambda s: (s.replace(mask=None),), several), "deadlock"),
    "given back to oneself": (each(ArrivePeer, lambda s: (If(s.rank == SECOND, (s,)),)), "deadlock"),
    "never given back": (each(ArrivePeer, lambda s: ()), "deadlock"),
    "a count of one block's warps": (each(InitBarrier, lambda s: (s.replace(count=4),), lambda s: s.count == 8), "race|deadlock|barrier"),
    "no meeting": (each(ClusterWait, lambda s: ()), "race|uninitialised"),
    "no wait for both blocks": (each(WaitBarrier, lambda s: (), lambda s: not isinstance(s.parity, Var)), "barrier|race"),
    "a block ends early": (each(For, lambda s: (), ending), "unfinished|cluster"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    change, kinds = FAULTS[name]
    k = matmul(130, 64, 256, right=True, element=dt.bf16)
    x, form = wide(k), lowered(k, ONE)
    broken = changed(form, change)
    assert broken is not form
    if not kinds:
        assert np.abs(run(k, broken, random(k)) - x["a"] @ x["b"].T).max() > 0.1
        return
    with pytest.raises(SimulationError) as error:
        run(k, broken, random(k))
    assert error.value.kind in kinds.split("|"), error.value


def rows(k: tile.Kernel, pins: str = "", target: str = "sm_90a", math: str = "fast") -> dict[str, tile.Schedule]:
    return {str(s.row): s for s in schedules(k, target, math, pins) if s.row.stack > 1}


def test_rows_are_proposed_where_each_block_has_rows() -> None:
    large = matmul(4096, 4096, 2048, right=True, element=dt.bf16)
    found = rows(large)
    assert LARGE in found and {s.row.stack for s in found.values()} == {2}
    assert all(tile.parse_row(text) is s.row for text, s in found.items())
    assert found.keys() == {str(s.row).replace("/ws", "/ws/m2") for s in schedules(large, "sm_90a")
                             if "/ws," in str(s.row) and not s.row.raster.endswith("/sk")}
    assert {s.row.threads for s in rows(matmul(65, 64, 64, right=True, element=dt.bf16)).values()} == {256}     # tiles of 64 rows
    assert not rows(matmul(64, 4096, 2048, right=True, element=dt.bf16))            # one row of tiles
    assert not rows(matmul(256, 256, 256, right=True))                              # fp32
    assert not rows(large, target="sm_120")
    wide_ = {text.partition("_m64n")[2].partition("k")[0] for text in rows(matmul(4096, 4096, 2048, element=dt.bf16))}
    assert wide_ and not {w for w in wide_ if int(w) % 64}                          # columns are contiguous


def test_pins() -> None:
    k = matmul(4096, 4096, 2048, right=True, element=dt.bf16)
    own = "WORK=g1x1/ws/m4,TILE=wgmma_m64n96k16_bf16_f32/f2x1/k128,STAGE=d3/smem-tma,RASTER=gm4/p116"
    assert [*rows(k, own)] == [own] and [*rows(k, own.replace("/p116", ""))] == [own.replace("/p116", "")]
    assert lower(k.replace(schedule=rows(k, own)[own])).grid == (116, 1, 1)
    for old, new, reason in (("n96", "n80", "Divides"), ("gm4", "gm6", "Divides"), ("p116", "p66", "Divides"), ("d3", "d1", "Divides"),
                             ("d3", "d9", "FitsShared"), ("m4", "m3", "no rule proposes it"), ("p116", "p132", "no rule proposes it"),
                             ("f2x1", "f4x1", "FitsRegisters"), ("smem-tma", "smem-tma-once", "no rule proposes it")):
        with pytest.raises(EmmyError) as caught:
            rows(k, own.replace(old, new))
        assert reason in caught.value.remedy, (new, caught.value.remedy)
    for old, new in (("n96", "n80"), ("gm4", "gm6"), ("p116", "p66")):
        with pytest.raises(IRError, match="are whole clusters of 4, and each block brings 8 columns"):
            lowered(k, own.replace(old, new))
    with pytest.raises(IRError, match="read once and goes to several blocks"):
        lowered(k, own.replace("smem-tma", "smem-tma-once"))


def test_not_for_what_is_computed_in_registers() -> None:
    t = tensors(dt.bf16, x=(256, 136), w=(256, 136))
    body = op("mul", loop.Round(dt.bf16, op("tanh", load(t, "x", 0, 2))), load(t, "w", 1, 2))
    made = kernel(loop.Round(dt.bf16, total(2, body)), (0, 1), {0: 256, 1: 256, 2: 136}, t, dt.bf16)
    assert any(s.row.tile.startswith("wgmma") for s in schedules(made, "sm_90a")) and not rows(made)
    with pytest.raises(IRError, match="are no operands"):
        lowered(made, ONE)


def test_shared_bytes_are_at_most_what_the_rules_say() -> None:
    k = matmul(256, 256, 2048, right=True, element=dt.bf16)
    for s in rows(k).values():
        assert lower(k.replace(schedule=s)).shared_bytes <= 232448
    assert not [s for s, why in candidates(k, "sm_90a").items() if s.row.stack > 1 and "FitsShared" in why]


def test_the_compiler_keeps_sums_in_registers() -> None:
    """No spills, and ptxas serialises no product."""
    t = tensors(dt.bf16, x=(512, 2048), w=(512, 2048), bias=(512,), residual=(512, 512))
    y = op("add", total(2, op("mul", load(t, "x", 0, 2), load(t, "w", 1, 2))), load(t, "bias", 1))
    body = loop.Round(dt.bf16, op("add", op("tanh", y), load(t, "residual", 0, 1)))
    after = kernel(body, (0, 1), {0: 512, 1: 512, 2: 2048}, t, dt.bf16, "after")

    def of(name: str, row: str, element: DType = dt.bf16) -> kernel_ir.Kernel:
        return lowered(matmul(1024, 1024, 2048, right=True, element=element, name=name), row)

    conv = Conv((8, 14, 14, 64), (128, 3, 3), pad=(1, 1)).kernel().replace(name="conv")
    forms = [of("two", LARGE), of("four", LARGE.replace("m2", "m4").replace("p132", "p116")),
             of("three", LARGE.replace("g2", "g3").replace("n256", "n128")),
             of("tall", LARGE.replace("n256", "n128").replace("f1x1", "f2x1")),
             of("bytes", LARGE.replace("n256k16_bf16", "n192k32_e4m3").replace("k64", "k128"), dt.e4m3), lowered(after, LARGE),
             convolved(conv, LARGE.replace("n256", "n128"))]
    source = emit_module(forms)
    assert "emmy_copy_tile_2_to(" in source and "__cluster_dims__(4, 1, 1)" in source and "emmy_arrive_peer(" in source
    for name, report in build(source, "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= 168, (name, report)
