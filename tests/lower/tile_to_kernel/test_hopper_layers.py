"""Products of rows with the matrix that each asks for: the simulated kernel against float64, whatever rows ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from emmy.egraph.schedule import schedules
from emmy.evaluate.simulate import SimulationError
from emmy.instructions import Assign, Barrier, Let, StoreShared
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Stmt
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import lower
from emmy.lower.tile_to_kernel.layered import layered
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close
from tests.lower.tile_to_kernel.test_hopper_shares import changed
from tests.lower.tile_to_kernel.test_tensor_core import wide

SMALL = "WORK=g1x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8"
STAY = "WORK=g2x1/ws,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm2/p3"
TURNS = "WORK=g2x1/ws-turns,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p3"
ODD = "WORK=g1x1/ws,TILE=wgmma_m64n40k16_bf16_f32/f1x1/k64,STAGE=d3/smem-tma,RASTER=gm1/p2"
HALF = 2.0**-8


def grouped(m: int, n: int, k: int, layers: int, across: bool = False, out: dt.DType = dt.bf16, gated: bool = False,
            bias: bool = False) -> tile.Kernel:
    """sum of x[m, k] w[e[m], n, k] over k, or of w[e[m], k, n] if `across`; `gated`: times the same sum with other matrices; `bias`: and
    one of the layer's for each column."""
    shape = (layers, k, n) if across else (layers, n, k)
    t = tensors(dt.bf16, x=(m, k), w=shape, u=shape, b=(layers, n)) | {"e": tile.Tensor("e", (m,), dt.i64)}
    layer = IxOf(load(t, "e", 0))
    point = (layer, 2, 1) if across else (layer, 1, 2)
    body: Value = total(2, op("mul", load(t, "x", 0, 2), load(t, "w", *point)))
    if gated:
        body = op("mul", body, total(2, op("mul", load(t, "x", 0, 2), load(t, "u", *point))))
    if bias:
        body = op("add", body, load(t, "b", layer, 1))
    used = {name: x for name, x in t.items() if name not in "ub" or gated and name == "u" or bias and name == "b"}
    return kernel(body if out is dt.f32 else loop.Round(out, body), (0, 1), {0: m, 1: n, 2: k}, used, out)


def test_what_rows_have_is_read_where_there_are_rows() -> None:
    """The last tile of the last layer reaches beyond the last row, though tiles divide the rows."""
    t = tensors(dt.bf16, x=(128, 72), w=(3, 72, 72), r=(128, 72), s=(128,)) | {"e": tile.Tensor("e", (128,), dt.i64)}
    product = total(2, op("mul", load(t, "x", 0, 2), load(t, "w", IxOf(load(t, "e", 0)), 1, 2)))
    body = op("add", op("mul", product, load(t, "s", 0)), load(t, "r", 0, 1))
    for out in (dt.bf16, dt.f32):
        k = kernel(loop.Round(out, body) if out is dt.bf16 else body, (0, 1), {0: 128, 1: 72, 2: 72}, t, out)
        x, inputs = wide(k), random(k) | {"e": (np.arange(128) >= 50).astype(np.int64) + (np.arange(128) >= 70)}
        wanted = np.einsum("mk,mnk->mn", x["x"], x["w"][inputs["e"]]) * x["s"][:, None] + x["r"]
        close(run(k, made(k, SMALL), inputs), wanted, HALF)


def by_column(m: int, n: int, k: int, layers: int) -> tile.Kernel:
    """sum of w[e[n], m, k] x[n, k] over k: the columns ask, which are rows of the tiles."""
    t = tensors(dt.bf16, x=(n, k), w=(layers, m, k)) | {"e": tile.Tensor("e", (n,), dt.i64)}
    body = total(2, op("mul", load(t, "w", IxOf(load(t, "e", 1)), 0, 2), load(t, "x", 1, 2)))
    return kernel(loop.Round(dt.bf16, body), (0, 1), {0: m, 1: n, 2: k}, t, dt.bf16)


def reference(k: tile.Kernel, inputs: dict[str, np.ndarray], across: bool) -> np.ndarray:
    x, e = wide(k), inputs["e"]
    made = [np.einsum("mk,mkn->mn" if across else "mk,mnk->mn", x["x"], x[name][e]) for name in "wu" if name in x]
    return np.prod(made, axis=0) + (x["b"][e] if "b" in x else 0)


ASKED = {"in order": lambda rng, m, g: np.sort(rng.integers(0, g, m)), "in any order": lambda rng, m, g: rng.integers(0, g, m),
         "one": lambda rng, m, g: np.full(m, g - 1), "at the edges of tiles": lambda rng, m, g: np.minimum(np.arange(m) // 64, g - 1),
         "with some left out": lambda rng, m, g: np.sort(rng.choice([0, g - 1], m))}


def asking(k: tile.Kernel, how: str) -> dict[str, np.ndarray]:
    layers = next(t.shape[0] for t in k.tensors if t.name == "w")
    (rows,) = next(t.shape for t in k.tensors if t.name == "e")
    return random(k) | {"e": ASKED[how](np.random.default_rng(1), rows, layers).astype(np.int64)}


def made(k: tile.Kernel, row: str, sides: tuple[tuple[int, ...], tuple[int, ...]] = ((0,), (1,))) -> kernel_ir.Kernel:
    return lower(k.replace(schedule=schedule("layered", row, *sides)))


@pytest.mark.parametrize("row", [SMALL, STAY, TURNS, ODD])
@pytest.mark.parametrize("how", ASKED)
def test_each_row_gets_the_products_of_its_layer(row: str, how: str) -> None:
    for m, n, layers, across in ((200, 72, 3, False), (136, 64, 5, True)):
        if across and row == ODD:
            continue
        k = grouped(m, n, 136, layers, across)
        inputs = asking(k, how)
        close(run(k, made(k, row), inputs), reference(k, inputs, across), HALF)


@pytest.mark.parametrize("how", ["in order", "in any order"])
@pytest.mark.parametrize("form", [{"out": dt.f32}, {"gated": True}, {"bias": True, "out": dt.f32}, {"bias": True, "across": True}])
def test_what_follows_the_sums(how: str, form: dict[str, Any]) -> None:
    k = grouped(150, 72, 72, 3, **form)
    inputs = asking(k, how)
    close(run(k, made(k, STAY), inputs), reference(k, inputs, "across" in form), HALF)


@pytest.mark.parametrize("how", ASKED)
def test_columns_that_ask(how: str) -> None:
    k = by_column(72, 150, 136, 3)
    inputs = asking(k, how)
    x = wide(k)
    close(run(k, made(k, TURNS, ((1,), (0,))), inputs), np.einsum("nmk,nk->mn", x["w"][inputs["e"]], x["x"]), HALF)


def test_layers_of_other_numbers() -> None:
    """One layer, many more than rows, and more rows than a round looks at."""
    for m, layers in ((72, 1), (40, 300), (2100, 2)):
        k = grouped(m, 16, 64, layers)
        inputs = asking(k, "in order")
        close(run(k, made(k, "WORK=g1x1/ws,TILE=wgmma_m64n16k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p2"), inputs),
              reference(k, inputs, False), HALF)


def test_tiles_that_nobody_counts_are_refused() -> None:
    with pytest.raises(IRError, match="tiles of all layers are more than 32 bits count"):
        made(grouped(1 << 22, 1 << 14, 64, 1 << 10), SMALL)


def test_an_index_outside_writes_no_row_of_others() -> None:
    k = grouped(136, 64, 64, 3)
    inputs = asking(k, "in order")
    inputs["e"][100:] = 2
    wrong = {**inputs, "e": np.where(np.arange(136) < 100, inputs["e"], 7)}
    found = run(k, made(k, SMALL), wrong)
    close(found[:100], reference(k, inputs, False)[:100], HALF)


def test_what_has_layers() -> None:
    k = grouped(40, 72, 64, 3)
    found = layered(k)
    assert found is not None and found.layers == 3 and found.kernel.extents[found.axis] == 3
    assert not any(isinstance(x, IxOf) for f in found.kernel.folds for v in loop.walk(f.lifts) if isinstance(v, loop.Load) for x in v.point)
    t = tensors(dt.bf16, x=(40, 64), w=(3, 72, 64)) | {"e": tile.Tensor("e", (40,), dt.i64), "s": tile.Tensor("s", (64,), dt.i64)}
    plain = kernel(total(2, op("mul", load(t, "x", 0, 2), load(t, "w", Ax(0), 1, 2))), (0, 1), {0: 3, 1: 72, 2: 64}, t)
    inside = kernel(total(2, op("mul", load(t, "x", 0, 2), load(t, "w", IxOf(load(t, "s", 2)), 1, 2))), (0, 1), {0: 40, 1: 72, 2: 64}, t)
    both = op("mul", load(t, "w", IxOf(load(t, "e", 0)), 1, 2), load(t, "w", IxOf(load(t, "e", 1)), 1, 2))
    two = kernel(total(2, both), (0, 1), {0: 40, 1: 40, 2: 64}, t)
    assert layered(plain) is None and layered(inside) is None and layered(two) is None


def test_layers_one_below_the_other_in_one_dimension() -> None:
    """Of [layers * n, k], as one linear's weights are for all layers; not where a layer's part is longer than the step between layers."""
    t = tensors(dt.bf16, x=(150, 72), w=(3 * 72, 72)) | {"e": tile.Tensor("e", (150,), dt.i64)}

    def of(step: int) -> tile.Kernel:
        at = ix.add(ix.mul(IxOf(load(t, "e", 0)), step), Ax(1))
        body = total(2, op("mul", load(t, "x", 0, 2), load(t, "w", at, 2)))
        return kernel(loop.Round(dt.bf16, body), (0, 1), {0: 150, 1: 72, 2: 72}, t, dt.bf16)

    k = of(72)
    found, inputs = layered(k), random(k) | {"e": np.sort(np.random.default_rng(1).integers(0, 3, 150))}
    assert found is not None and found.layers == 3
    x = wide(k)
    close(run(k, made(k, STAY), inputs), np.einsum("mk,mnk->mn", x["x"], x["w"].reshape(3, 72, 72)[inputs["e"]]), HALF)
    assert layered(of(36)) is None and layered(of(80)) is None


def test_rows_are_proposed_where_rows_ask() -> None:
    found = {s.form for s in schedules(grouped(1024, 256, 512, 8), "sm_90a")}
    assert "layered" in found and "contraction" not in found
    rows = [s.row for s in schedules(grouped(4096, 1024, 512, 8), "sm_90a") if s.form == "layered"]
    assert not any("/m" in r.work or "/c" in r.work or "/sk" in r.raster for r in rows) and any("turns" in r.work for r in rows)
    assert {s.form for s in schedules(by_column(256, 1024, 512, 8), "sm_90a") if s.row.tile.startswith("wgmma")} == {"layered"}
    assert not any(s.form == "layered" for s in schedules(grouped(1024, 256, 512, 8), "sm_80"))


def first(s: Stmt) -> bool:
    return isinstance(s, StoreShared) and isinstance(s.index, kernel_ir.Var) and s.index.name.startswith("g_")


FAULTS: dict[str, tuple[Callable[[Stmt], tuple[Stmt, ...]], str, str]] = {
    "nobody waits for the table": (lambda s: () if isinstance(s, Barrier) else (s,), "in order", "uninitialised"),
    "layers begin a row late": (lambda s: (s.replace(value=s.value + 1),) if first(s) else (s,), "in order", ""),
    "all rows are in order": (lambda s: (s.replace(value=kernel_ir.int32(0)),) if isinstance(s, Assign) and "disorder" in s.var.name
                              else (s,), "in any order", ""),
    "a tile is written whole": (lambda s: (s.replace(value=kernel_ir.const(dt.bool_, True)),) if isinstance(s, Let) and
                                s.var.name.startswith("alone") else (s,), "in order", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault: str) -> None:
    change, how, kind = FAULTS[fault]
    k = grouped(200, 136, 136, 3)
    form, inputs = made(k, STAY), asking(k, how)
    broken = changed(form, change)
    assert broken is not form
    with pytest.raises((SimulationError, AssertionError)) as error:
        close(run(k, broken, inputs), reference(k, inputs, False), HALF)
    assert not kind or getattr(error.value, "kind", "") == kind


def test_machine_code() -> None:
    """The rows that are best for experts of models spill nothing, and nothing makes products wait for each other."""
    large = "WORK=g2x1/ws,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k64,STAGE=d4/smem-tma,RASTER=gm8/p132"
    turns = "WORK=g2x1/ws-turns,TILE=wgmma_m64n128k16_bf16_f32/f2x1/k64,STAGE=d6/smem-tma,RASTER=gm8/p132"
    forms = [made(grouped(8192, 4096, 4096, 8), row).replace(name=f"form_{n}_") for n, row in enumerate((large, turns))]
    assert all(parse(show(form)) is form for form in forms)
    assert all(not report.spill_bytes for report in build(emit_module(forms), "sm_90a").functions.values())
