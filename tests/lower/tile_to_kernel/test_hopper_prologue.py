"""Computed left operands of warpgroups: the simulated kernel against NumPy in float64, planted faults, the rows proposed, and what the
compiler makes of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError
from emmy.instructions import (
    CommitProducts,
    CopyTile,
    ExpectBytes,
    FenceProducts,
    For,
    LoadSharedVector,
    MultiplyWarpgroupRegisters,
    SetElement,
    SyncWarp,
    WaitBarrier,
    WaitProducts,
)
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import kernel_ir, kernel_parser, kernel_text
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax
from emmy.ir.kernel_ir import Apply, Stmt, const, int32
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import hopper_tiling, lower
from emmy.runtime.build import build
from tests.evaluate.test_simulate_hopper import without_one
from tests.lower.tile_to_kernel.forms import kernel, load, number, op, random, run, schedule, tensors, total
from tests.lower.tile_to_kernel.test_contraction import close
from tests.lower.tile_to_kernel.test_hopper import LARGE, PAIR, SMALL, TALL, rows
from tests.lower.tile_to_kernel.test_tensor_core import HALF, lowered, wide

OCTETS = "WORK=g1x1/ws,TILE=wgmma_m64n16k16_bf16_f32/f1x1/k128,STAGE=d2/smem-tma,RASTER=gm8"


def rounded(x: np.ndarray, element: DType = dt.bf16) -> np.ndarray:
    return x.astype(np.float32).astype(element.numpy).astype(np.float64)


def silu(x: loop.Value) -> loop.Value:
    return op("mul", x, op("recip", op("add", number(1), op("exp", op("neg", x)))))


def product(m: int, n: int, k: int, left: loop.Value, right: loop.Value, t: dict[str, tile.Tensor], name: str = "form",
            element: DType = dt.bf16) -> tile.Kernel:
    """The sum over axis 2 of left * right, of axes 0 and 1."""
    return kernel(loop.Round(element, total(2, op("mul", left, right))), (0, 1), {0: m, 1: n, 2: k}, t, element, name)


def scaled(m: int, n: int, k: int, element: DType = dt.bf16) -> tuple[tile.Kernel, np.ndarray]:
    """silu(x) by a value a row and one a column, rounded, times w; and what it is."""
    t = tensors(element, x=(m, k), w=(n, k), g=(k,)) | tensors(dt.f32, s=(m,))
    left = op("mul", op("mul", silu(load(t, "x", 0, 2)), load(t, "g", 2)), load(t, "s", 0))
    made = product(m, n, k, loop.Round(element, left), load(t, "w", 1, 2), t, element=element)
    x = wide(made)
    return made, rounded(x["x"] / (1 + np.exp(-x["x"])) * x["g"] * x["s"][:, None], element) @ x["w"].T


@pytest.mark.parametrize("row", [SMALL, PAIR, TALL])
@pytest.mark.parametrize("sizes", [(70, 72, 72), (1, 8, 8), (129, 64, 256), (200, 24, 200)])
def test_an_activation_and_scales(row: str, sizes: tuple[int, int, int]) -> None:
    k, wanted = scaled(*sizes)
    form = lowered(k, row)
    close(run(k, form, random(k)), wanted, HALF)
    assert len(form.maps) == 2 + (sizes[1] % 8 == 0) and kernel_parser.parse(kernel_text.show(form)) is form


def test_f16() -> None:
    k, wanted = scaled(70, 72, 72, dt.f16)
    close(run(k, lowered(k, SMALL.replace("bf16", "f16")), random(k)), wanted, 2.0**-9)


def test_two_tensors_and_an_operand_that_is_one_of_them() -> None:
    """silu(g) * u; beside it, a product of u itself, which comes once."""
    t = tensors(dt.bf16, g=(70, 136), u=(70, 136), w=(72, 136), v=(72, 136))
    g, u = load(t, "g", 0, 2), load(t, "u", 0, 2)
    gated = loop.Round(dt.bf16, op("mul", silu(g), u))
    first, second = (total(2, op("mul", x, load(t, name, 1, 2))) for x, name in ((gated, "w"), (u, "v")))
    made = kernel(op("add", first, second), (0, 1), {0: 70, 1: 72, 2: 136}, t)
    x = wide(made)
    for row in (SMALL, PAIR):
        form = lowered(made, row)
        close(run(made, form, random(made)), rounded(x["g"] / (1 + np.exp(-x["g"])) * x["u"]) @ x["w"].T + x["u"] @ x["v"].T, 1e-2)
        assert len(form.maps) == 4


def test_what_is_computed_of_columns_is_computed_as_rows() -> None:
    t = tensors(dt.bf16, x=(24, 72), w=(136, 72))
    made = product(24, 136, 72, load(t, "x", 0, 2), loop.Round(dt.bf16, silu(load(t, "w", 1, 2))), t)
    x = wide(made)
    for row in (SMALL, PAIR):
        form = lower(made.replace(schedule=schedule("contraction", row, (1,), (0,))))
        close(run(made, form, random(made)), x["x"] @ rounded(x["w"] / (1 + np.exp(-x["w"]))).T, HALF)


def test_batches() -> None:
    t = tensors(dt.bf16, a=(3, 16, 24), b=(3, 24, 72), s=(3,))
    left = loop.Round(dt.bf16, op("mul", load(t, "a", 0, 1, 3), load(t, "s", 0)))
    made = kernel(total(3, op("mul", left, load(t, "b", 0, 3, 2))), (0, 1, 2), {0: 3, 1: 16, 2: 72, 3: 24}, t)
    x = wide(made)
    form = lower(made.replace(schedule=schedule("contraction", SMALL, (1,), (2,), (0,))))
    close(run(made, form, random(made)), rounded(x["a"] * x["s"][:, None, None]) @ x["b"])


def test_a_value_that_is_not_finite_beyond_the_end_counts_for_nothing() -> None:
    t = tensors(dt.bf16, x=(8, 72), w=(8, 72))
    made = product(8, 8, 72, loop.Round(dt.bf16, op("recip", load(t, "x", 0, 2))), load(t, "w", 1, 2), t)
    x = wide(made)
    close(run(made, lowered(made, SMALL), random(made)), rounded(1 / x["x"]) @ x["w"].T, HALF)


def integers(k: tile.Kernel) -> dict[str, np.ndarray]:
    """Inputs of which those of a byte are any of its integers."""
    rng = np.random.default_rng(1)
    return {name: rng.integers(-128, 128, x.shape).astype(np.int8) if x.dtype == np.int8 else x for name, x in random(k).items()}


def octets(m: int, n: int, k: int, group: int = 0, name: str = "form") -> tile.Kernel:
    """x @ w.T of integers of 8 bits, scaled by a value for each output, or one for each output and so many inputs."""
    t = tensors(dt.bf16, x=(m, k), s=(n, -(-k // group)) if group else (n,)) | tensors(dt.i8, w=(n, k))
    w: loop.Value = loop.Cast(dt.f32, load(t, "w", 1, 2))
    if group:
        w = loop.Round(dt.bf16, op("mul", w, load(t, "s", 1, ix.IxDiv(Ax(2), group))))
    y = total(2, op("mul", load(t, "x", 0, 2), w))
    y = y if group else op("mul", y, load(t, "s", 1))
    return kernel(loop.Round(dt.bf16, y), (0, 1), {0: m, 1: n, 2: k}, t, dt.bf16, name)


@pytest.mark.parametrize("row", [OCTETS, OCTETS.replace("g1", "g2").replace("n16", "n32"), OCTETS.replace("k128", "k256")])
@pytest.mark.parametrize("sizes", [(16, 136, 256), (1, 64, 144), (40, 70, 400)])
@pytest.mark.parametrize("group", [0, 128])
def test_integers_of_a_byte(row: str, sizes: tuple[int, int, int], group: int) -> None:
    """Weights that are widened on their way, with the scale of an output after the sum or that of a group before it."""
    k = octets(*sizes, group)
    form, inputs = lower(k.replace(schedule=schedule("contraction", row, (1,), (0,)))), integers(k)
    x = {name: v.astype(np.float64) for name, v in inputs.items()}
    wanted = x["x"] @ rounded(x["w"] * np.repeat(x["s"], group, 1)[:, :sizes[2]]).T if group else x["x"] @ x["w"].T * x["s"]
    close(run(k, form, inputs), wanted, HALF)
    assert [m.element for m in form.maps] == [dt.i8, dt.bf16]


def test_fp32_that_is_cast_to_halves() -> None:
    t = tensors(dt.bf16, w=(72, 72)) | tensors(dt.f32, x=(70, 72))
    made = product(70, 72, 72, loop.Round(dt.bf16, load(t, "x", 0, 2)), load(t, "w", 1, 2), t)
    x = wide(made)
    for row in (SMALL, PAIR, TALL):
        close(run(made, lowered(made, row), random(made)), rounded(x["x"]) @ x["w"].T, HALF)


def test_rows_of_integers() -> None:
    for k in (octets(256, 256, 256), octets(256, 256, 256, 128)):
        found = rows(k)
        assert found and {s.rows for s in found.values()} == {(1,)}
        assert all(hopper_tiling.tiling(s.row).depth % 128 == 0 and lower(k.replace(schedule=s)) for s in found.values())
    assert not rows(octets(256, 256, 256, 64))      # groups that no stage lies in
    with pytest.raises(IRError, match="no whole lines"):
        lower(octets(64, 64, 128).replace(schedule=schedule("contraction", SMALL, (1,), (0,))))


def alike(s: Stmt) -> bool:
    """Whether it sets sums to themselves, for the assembler."""
    match s:
        case For(body=(inner,)): return alike(inner)
        case SetElement(value=Apply("fma", (_, _, none))): return none is const(dt.f32, -0.0)
    return False


def test_every_statement_of_the_values_is_missed() -> None:
    """Planted faults: a kernel that lacks one of what brings, computes, hands on and multiplies them is stopped, or has other results."""
    k, _ = scaled(128, 64, 192)
    made, inputs = lowered(k, SMALL.replace("gm8", "gm8/p1")), random(k)
    kinds = (CommitProducts, CopyTile, ExpectBytes, For, LoadSharedVector, MultiplyWarpgroupRegisters, SetElement, SyncWarp, WaitBarrier,
             WaitProducts)
    wanted, tried = run(k, made, inputs), 0
    for s, body in without_one(made.body):
        if (isinstance(s, kinds) and not alike(s)) or isinstance(s, FenceProducts) and "left" in str(s):
            tried += 1
            try:
                assert not np.array_equal(run(k, made.replace(body=body), inputs), wanted), s
            except (SimulationError, IRError):
                continue
    assert tried > 20


def test_what_lanes_have_read_is_given_back_when_all_have() -> None:
    k, _ = scaled(64, 64, 256)
    made = lowered(k, SMALL)
    planted = next(made.replace(body=body) for s, body in without_one(made.body) if isinstance(s, SyncWarp))
    with pytest.raises(SimulationError, match="race"):
        run(k, planted, random(k))


def test_a_wrong_place_in_the_swizzle_is_another_product() -> None:
    k, wanted = scaled(64, 64, 64)
    made = lowered(k, SMALL)

    def altered(body: tuple[kernel_ir.Stmt, ...]) -> tuple[kernel_ir.Stmt, ...]:
        out = []
        for s in body:
            if isinstance(s, LoadSharedVector):
                s = s.replace(index=s.index ^ int32(8))
            if hasattr(s, "body"):
                s = s.replace(body=altered(s.body))
            if hasattr(s, "orelse"):
                s = s.replace(orelse=altered(s.orelse))
            out.append(s)
        return tuple(out)

    assert not np.allclose(run(k, made.replace(body=altered(made.body)), random(k)), wanted, atol=0.1)


def test_rows_are_proposed() -> None:
    t = tensors(dt.bf16, x=(256, 256), y=(256, 256), w=(256, 256), s=(256,)) | tensors(dt.f32, f=(256, 256))
    x, y, w = load(t, "x", 0, 2), load(t, "y", 0, 2), load(t, "w", 1, 2)

    def of(left: loop.Value, right: loop.Value) -> tile.Kernel:
        return product(256, 256, 256, left, right, t)

    for k in (of(op("exp", x), w), of(op("mul", x, load(t, "s", 2)), w), of(op("mul", silu(x), y), w), of(x, op("exp", w))):
        found = rows(k)
        assert any(r.startswith(LARGE.partition(",STAGE")[0]) for r in found)
        for s in found.values():
            lower(k.replace(schedule=s))
    assert {s.rows for s in rows(of(op("mul", x, load(t, "s", 2)), w)).values()} == {(0,)}     # or, as well, on the other side
    assert {s.rows for s in rows(of(x, op("exp", w))).values()} == {(1,)}
    lying = load(t, "x", 2, 0)
    assert rows(of(lying, w)) and not rows(of(op("exp", lying), w))                     # not contiguous along the sum
    assert not rows(of(op("exp", x), op("exp", w)))                                     # both computed
    assert not rows(of(op("mul", x, load(t, "s", 2)), load(t, "f", 1, 2)))              # the other is no half
    assert not rows(of(op("exp", load(t, "f", 0, 2)), w))                               # fp32, which a half does not hold
    assert not rows(of(op("exp", x), w), "exact") and not rows(of(op("exp", x), w), target="sm_80")


def test_registers_of_a_computed_operand_count() -> None:
    t = tensors(dt.bf16, x=(256, 256), w=(256, 256))
    plain, made = (product(256, 256, 256, left, load(t, "w", 1, 2), t) for left in (load(t, "x", 0, 2), op("exp", load(t, "x", 0, 2))))
    tall = LARGE.replace("f1x1", "f2x1").replace("n256", "n128")
    assert tall in rows(plain) and tall not in rows(made)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_compiler_keeps_operands_in_registers() -> None:
    """No spills, and ptxas serialises no product."""
    t = tensors(dt.bf16, x=(1000, 1000), y=(1000, 1000), w=(1024, 1000), g=(1000,), s=(1000,))
    x, w = load(t, "x", 0, 2), load(t, "w", 1, 2)
    lefts = {"relu": op("max", x, number(0)), "gated": op("mul", silu(x), load(t, "y", 0, 2)),
             "scales": op("mul", op("mul", x, load(t, "s", 0)), load(t, "g", 2))}
    kinds = {"wide": LARGE, "three": LARGE.replace("g2", "g3").replace("n256", "n96"),
             "deep": LARGE.replace("n256", "n128").replace("k64", "k128"),
             "tall": LARGE.replace("f1x1", "f2x1").replace("n256", "n96")}
    small = {"pair": "g2 n64 k128 d7", "single": "g1 n128 k128 d5", "deep": "g1 n16 k256 d8"}
    forms = [lowered(product(1000, 1024, k, loop.Round(dt.bf16, left), w, t, f"{name}_{kind}_{k}"), row)
             for name, left in lefts.items() for kind, row in kinds.items() for k in (960, 1000) if k == 960 or kind == "wide"]
    for name, fields in small.items():
        groups, columns, depth, stages = fields.split()
        row = LARGE.replace("g2", groups).replace("n256", columns).replace("k64", depth).replace("d4", stages)
        forms += [lower(octets(100, 1000, k, group, f"octets_{name}_{k}").replace(schedule=schedule("contraction", row, (1,), (0,))))
                  for k, group in ((1024, 0), (1040, 128))]
    for name, report in build(emit_module(forms), "sm_90a").functions.items():
        one = "single" in name or "octets_deep" in name         # one group, which has as many as it asks for
        assert report.spill_bytes == report.stack_bytes == 0 and report.registers <= (255 if one else 168), (name, report)
