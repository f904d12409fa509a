"""Copies of windows: their rules, their CUDA, and what the simulator makes of them beside NumPy."""

from __future__ import annotations

import itertools
import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest

from emmy.evaluate.products import swizzle
from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import CopyTile, CopyWindows
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Kernel, Thread, int32, verify, walk
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit, emit_module
from emmy.runtime.build import build
from tests.window_kernels import EVERY

PADDED = EVERY[0]
(COPY,) = (s for s in walk(PADDED.body) if isinstance(s, CopyWindows))
(MAP,) = PADDED.maps


def raw(kernel: Kernel) -> np.ndarray:
    """What the kernel finds in shared memory, by windows and channels."""
    (of,) = kernel.maps
    x = np.arange(1, prod(of.shape) + 1).astype(np.float32).astype(dt.bf16.numpy)
    got = np.zeros(prod(of.box), dt.bf16.numpy)
    simulate(kernel, {"a": x, "raw": got})
    places = swizzle(np.arange(got.size) * 2, of.swizzle) // 2
    return got[places].reshape(of.box[0], of.box[-1])


@pytest.mark.parametrize("kernel", EVERY, ids=lambda k: k.name)
def test_each_row_is_an_element_of_the_next_window(kernel: Kernel) -> None:
    (of,), (copy,) = kernel.maps, (s for s in walk(kernel.body) if isinstance(s, CopyWindows))
    corner, offsets = ([e.value for e in values] for values in (copy.coordinates, copy.offsets))
    x = np.arange(1, prod(of.shape) + 1).astype(np.float32).astype(dt.bf16.numpy).reshape(of.shape)
    w = of.windows
    begins = [[first + k * step for k in range(n)] for first, n, step in zip(*w.numbers, strict=True)]
    every = [*itertools.product(range(of.shape[0] + 9), *begins)]
    start = every.index((corner[0], *corner[1:-1]))
    for row, (image, *at) in zip(raw(kernel), every[start:], strict=False):
        place = image, *(a + o for a, o in zip(at, offsets, strict=True))
        wanted = np.zeros(of.box[-1], x.dtype)
        if all(0 <= p < n for p, n in zip(place, of.shape, strict=False)):
            there = x[place][corner[-1]:corner[-1] + of.box[-1]]
            wanted[:len(there)] = there
        np.testing.assert_array_equal(row, wanted)


def changed(**change: object) -> Kernel:
    """The kernel with another copy."""
    def new(s: object) -> object:
        return COPY.replace(**change) if s is COPY else s.replace(body=tuple(map(new, s.body))) if hasattr(s, "body") else s
    return PADDED.replace(body=tuple(map(new, PADDED.body)))


@pytest.mark.parametrize(("change", "message"), [
    ({"offsets": (int32(0),)}, "1 offsets in map_a, whose windows have 2 dimensions"),
    ({"offsets": (int32(0), int32(256))}, "an offset of 256 in map_a; they are below 256"),
    ({"offsets": (int32(0), int32(-1))}, "an offset of -1"),
    ({"coordinates": (int32(0), int32(0), int32(0), int32(4))}, "at element 4 of its innermost dimension"),
])
def test_rules(change: dict[str, object], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(changed(**change))


def test_a_map_has_windows_or_none() -> None:
    verify(PADDED)
    with pytest.raises(IRError, match="map_a is a map without windows"):
        verify(PADDED.replace(maps=(MAP.replace(windows=None),)))
    tile = CopyTile(COPY.target, COPY.index, COPY.map, COPY.coordinates, COPY.barrier, COPY.at)
    with pytest.raises(IRError, match="map_a is a map of windows"):
        verify(PADDED.replace(body=tuple(s.replace(body=tuple(tile if x is COPY else x for x in s.body)) if hasattr(s, "body") else s
                                         for s in PADDED.body)))


@pytest.mark.parametrize("change", [
    {"lower": (-1,)}, {"counts": (5, 0)}, {"lower": (-129, 0)}, {"steps": (1, 9)}, {"counts": (5, 300)},
])
def test_rules_of_windows(change: dict[str, object]) -> None:
    with pytest.raises(IRError, match="map map_a: windows"):
        MAP.replace(windows=MAP.windows.replace(**change))
    assert MAP.windows.upper(MAP.shape) == (-1, -1)     # of 3 x 3, padded by 1


def test_a_tile_of_windows_counts_them_alone() -> None:
    with pytest.raises(IRError, match="in tiles"):
        MAP.replace(box=(12, 2, 1, 64))


@pytest.mark.parametrize("change", [
    {"coordinates": (int32(0), Thread() - 2, int32(0), int32(0))}, {"coordinates": (int32(0), Thread() + 4, int32(0), int32(0))},
    {"offsets": (Thread() - 1, int32(0))}, {"offsets": (int32(0), Thread() + 256)},
])
def test_faults_where_no_window_begins(change: dict[str, object]) -> None:
    with pytest.raises(SimulationError, match="windows of map_a from") as caught:
        raw(changed(**change))
    assert caught.value.kind == "bounds"


def test_faults_between_windows() -> None:
    apart = EVERY[1]
    (copy,) = (s for s in walk(apart.body) if isinstance(s, CopyWindows))
    moved = copy.replace(coordinates=(int32(1), Thread() + 3, int32(2), int32(8)))
    body = tuple(s.replace(body=tuple(moved if x is copy else x for x in s.body)) if hasattr(s, "body") else s for s in apart.body)
    with pytest.raises(SimulationError, match="in steps of"):
        raw(apart.replace(body=body))


def test_text() -> None:
    text = show(PADDED)
    assert "swizzle 128 windows((-1, -1), (5, 6), (1, 1))" in text and "offsets(0, 2) on full[0];" in text
    assert parse(text) is PADDED
    cuda = emit(PADDED)
    assert "emmy_copy_windows_4(&map_a, &tile[0], 0, 2, 3, 0, 0, 2, &full[0]);" in cuda
    assert ("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%1], [%0, {%5, %4, %3, %2}], [%8], "
            "{%7, %6};") in cuda


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_every_rank_compiles(tmp_path: Path) -> None:
    build(emit_module(EVERY), "sm_90a", cache=tmp_path)
