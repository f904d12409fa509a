"""Form "transpose": the simulated kernel against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, IxConst, add, mul
from emmy.ir.loop_ir import IxOf, Round
from emmy.ir.node import IRError
from emmy.lower.kernel_to_cuda import emit_module
from emmy.lower.tile_to_kernel import transpose
from emmy.runtime.build import build
from tests.lower.tile_to_kernel.forms import kernel, load, op, random, run, schedule, tensors, total

ROWS = ["WORK=t64,TILE=32x32,STAGE=smem", "WORK=t256,TILE=64x32,STAGE=smem", "WORK=t32,TILE=8x16,STAGE=smem"]
P, Q, B, K = range(4)


def lowered(k: tile.Kernel, row: str = ROWS[0], p: int = P, q: int = Q, batch: tuple[int, ...] = ()) -> kernel_ir.Kernel:
    return transpose.lower(k, schedule("transpose", row, (p,), (q,), batch))


def plus(m: int, n: int, element: DType = dt.f32, name: str = "form") -> tile.Kernel:
    """x.T + y, of shape [m, n]."""
    t = tensors(element, x=(n, m), y=(m, n))
    body = op("add", load(t, "x", Q, P), load(t, "y", P, Q))
    return kernel(body if element is dt.f32 else Round(element, body), (P, Q), {P: m, Q: n}, t, element, name)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("m, n", [(1, 1), (1, 37), (129, 3), (3, 129), (37, 40), (64, 32), (40, 100)])
def test_transposed_and_not(row: str, m: int, n: int) -> None:
    k = plus(m, n)
    x = random(k)
    np.testing.assert_array_equal(run(k, lowered(k, row), x), x["x"].T + x["y"])


@pytest.mark.parametrize("m, n", [(64, 64), (70, 128), (37, 5)])
def test_half_types_are_staged_as_they_are_stored(m: int, n: int) -> None:
    k = plus(m, n, dt.bf16)
    x = random(k)
    made = lowered(k, "WORK=t256,TILE=64x64,STAGE=smem")
    wanted = x["x"].T.astype(np.float32) + x["y"].astype(np.float32)
    np.testing.assert_array_equal(run(k, made, x), wanted.astype(x["x"].dtype).astype(np.float64))
    assert made.shared_bytes == 64 * (64 * 2 + 4)


def test_a_long_matrix() -> None:
    k = plus(1000, 67)
    x = random(k)
    np.testing.assert_array_equal(run(k, lowered(k, "WORK=t256,TILE=64x64,STAGE=smem"), x), x["x"].T + x["y"])


def test_several_staged_loads_and_others() -> None:
    """Two staged loads, vectors along either axis, an index as a value, and an axis of batches between and before."""
    t = tensors(x=(2, 20, 36), y=(36 * 20,), u=(36,), v=(20,), w=(2,))
    body = op("add", load(t, "x", B, Q, P), load(t, "y", add(mul(Ax(Q), 36), Ax(P))))
    body = op("mul", body, op("add", load(t, "u", P), load(t, "v", Q)))
    body = op("add", op("add", body, load(t, "w", B)), op("add", load(t, "x", B, IxConst(3), P), load(t, "x", B, Q, IxConst(3))))
    extents = {B: 2, P: 36, Q: 20}
    for axes, order in (((B, P, Q), (0, 2, 1)), ((P, B, Q), (2, 0, 1))):
        k = kernel(body, axes, extents, t)
        x = random(k)
        made = lowered(k, batch=(B,))
        assert made.shared_bytes == 2 * 32 * 33 * 4
        wanted = (x["x"] + x["y"].reshape(20, 36)) * (x["u"] + x["v"][:, None]) + x["w"][:, None, None]
        wanted = wanted + (x["x"][:, 3:4] + x["x"][:, :, 3:4])
        np.testing.assert_allclose(run(k, made, x), wanted.transpose(order), rtol=1e-5, atol=1e-5)


def test_a_gathered_row_is_staged() -> None:
    """x[i[q], p]: contiguous along p wherever the index points."""
    t = tensors(x=(9, 40)) | {"i": tile.Tensor("i", (33,), dt.i64)}
    k = kernel(op("add", load(t, "x", IxOf(load(t, "i", Q)), P), load(t, "x", IxConst(1), P)), (P, Q), {P: 40, Q: 33}, t)
    x = random(k) | {"i": np.arange(33) * 5 % 9}
    made = lowered(k)
    assert made.shared_bytes == 32 * 33 * 4
    np.testing.assert_array_equal(run(k, made, x), (x["x"][x["i"]] + x["x"][1]).T)


def test_flags_and_wide_elements() -> None:
    for element in (dt.bool_, dt.i64):
        t = tensors(element, x=(20, 52))
        k = kernel(load(t, "x", Q, P), (P, Q), {P: 52, Q: 20}, t, element)
        x = {"x": (np.arange(20 * 52).reshape(20, 52) * (1 << 33) % 3).astype(element.numpy)}
        np.testing.assert_array_equal(run(k, lowered(k), x), x["x"].T.astype(np.float64))


def test_what_is_not_a_transposing_map() -> None:
    t = tensors(x=(8, 8, 8))
    folded = kernel(total(K, load(t, "x", Q, P, K)), (P, Q), {P: 8, Q: 8, K: 8}, t)
    for k, row in ((folded, ROWS[0]), (plus(8, 8), "WORK=t256"), (plus(8, 8), "WORK=t256,TILE=32x32")):
        with pytest.raises(IRError, match="a transposing map"):
            lowered(k, row)
    with pytest.raises(IRError, match="whole warps"):
        lowered(plus(8, 8), "WORK=t96,TILE=32x32,STAGE=smem")
    neither = kernel(op("add", load(t, "x", Q, P, IxConst(0)), load(t, "x", P, Q, IxConst(0))), (P, Q), {P: 8, Q: 8}, t)
    assert lowered(neither).shared_bytes == 0, "neither load is contiguous along either axis"


def test_the_compiler_keeps_runs_in_registers() -> None:
    forms = [lowered(plus(4096, 4096, name="squares"), "WORK=t256,TILE=32x32,STAGE=smem"), lowered(plus(1001, 1003, name="odd"), ROWS[1]),
             lowered(plus(4096, 4096, dt.bf16, "halves"), "WORK=t256,TILE=64x64,STAGE=smem")]
    source = emit_module(forms)
    for name, report in build(source, "sm_90a").functions.items():
        assert report.spill_bytes == report.stack_bytes == 0, (name, report)
