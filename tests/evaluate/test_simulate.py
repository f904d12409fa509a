"""The simulator computes what NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.evaluate.machine import converter, meaning
from emmy.evaluate.simulate import simulate
from emmy.ir import dtype as dt
from emmy.ir.dtype import DTYPES, DType
from emmy.ir.kernel_ir import Apply, Convert, Kernel, Var
from emmy.ir.operators import OPERATORS, apply
from tests import kernels

NORMAL = np.random.default_rng(0).standard_normal


def run(kernel: Kernel, *inputs: np.ndarray) -> list[np.ndarray]:
    given = iter(inputs)
    buffers = {p.name: next(given) if p.access == "read" else np.zeros(p.length, p.element.numpy) for p in kernel.parameters}
    simulate(kernel, buffers)
    return [buffers[p.name] for p in kernel.parameters if p.access == "write"]


@pytest.mark.parametrize("element", [dt.f32, dt.bf16, dt.f16, dt.f64], ids=str)
def test_map_with_a_tail(element: DType) -> None:
    x = NORMAL(1000).astype(element.numpy)
    (y,) = run(kernels.vector_map(1000, element), x)
    assert np.array_equal(y, np.exp(-x.astype(element.compute.numpy)).astype(element.numpy))


@pytest.mark.parametrize(("element", "width"), [
    (dt.f32, 4), (dt.f32, 1), (dt.bf16, 8), (dt.bf16, 1), (dt.f16, 2), (dt.f64, 2), (dt.i64, 2), (dt.i32, 2)])
def test_vectors(element: DType, width: int) -> None:
    x = (NORMAL(64 * width + 2 * width) * 9).astype(element.numpy)
    (y,) = run(kernels.vector_copy(len(x), element, width), x)
    assert np.array_equal(y, x + x)


def test_warp_and_block_reductions() -> None:
    x = NORMAL((6, 100)).astype(np.float32)
    np.testing.assert_allclose(run(kernels.warp_reduction(6, 100), x.ravel())[0], x.sum(1), rtol=1e-5, atol=1e-5)
    x = NORMAL((3, 1000)).astype(np.float32)
    np.testing.assert_allclose(run(kernels.block_reduction(1000), x.ravel())[0], x.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "k", "n"), [(37, 129, 37), (1, 3, 1), (65, 8, 64)])
def test_matmul(m: int, k: int, n: int) -> None:
    a, b = NORMAL((m, k)).astype(np.float32), NORMAL((k, n)).astype(np.float32)
    (c,) = run(kernels.matmul(m, k, n), a.ravel(), b.ravel())
    np.testing.assert_allclose(c.reshape(m, n), a @ b, rtol=1e-4, atol=1e-4)


def test_online_softmax() -> None:
    x = NORMAL((5, 77)).astype(np.float32) * 20
    (y,) = run(kernels.online_softmax(5, 77), x.ravel())
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y.reshape(5, 77), e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)


def test_branches_and_half_registers() -> None:
    x = NORMAL(32).astype(dt.bf16.numpy)
    y, raw, odds = run(kernels.branches(), x)
    t = np.arange(32)
    assert np.array_equal(raw, x) and np.array_equal(odds, t % 2 == 1)
    assert np.array_equal(y, np.where(t % 2 == 1, np.nan, np.where(t < 16, -np.inf, 1)).astype(np.float32), equal_nan=True)


def test_fma_rounds_once() -> None:
    x = np.array([1 + 2**-12] * 32, np.float32)
    v = [Var(f"v{k}", dt.f32) for k in range(3)]
    (y,) = run(kernels.elementwise("fused", 32, [dt.f32] * 3, Apply("fma", tuple(v))), x, x, -(x * x))
    assert (y == np.float32(2**-24)).all()


@pytest.mark.parametrize(("op", "element"), kernels.operator_cases(), ids=lambda v: str(v))
def test_operators(op: str, element: DType) -> None:
    """Arrays and scalars give the operator's own result, in its own dtype."""
    pool = np.array([-3, -1, 0, 1, 2, 7] + [np.nan, np.inf, -0.0, 0.3] * (element.kind == "float")).astype(element.numpy)
    grid = np.meshgrid(*[pool] * OPERATORS[op].arity)
    args = [g.ravel() for g in grid]
    if op == "select":
        args[0] = args[0].astype(np.bool_)
    with np.errstate(all="ignore"):
        expected = apply(op, *args)
        f = meaning(op, element)
        result = f(*args)
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-6 if element.kind == "float" else 0)
        assert np.asarray(f(*(a[5] for a in args))).dtype == expected.dtype


@pytest.mark.parametrize("source", DTYPES.values(), ids=str)
@pytest.mark.parametrize("target", DTYPES.values(), ids=str)
def test_conversions_are_torchs(source: DType, target: DType) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([-2.75, -1.0, 0.0, 0.4, 1.0, 1.0078, 3.5, 100.3], dtype=torch.float64).to(getattr(torch, source.torch_name))
    y = converter(source, target)(x.to(torch.float64).numpy().astype(source.numpy))
    assert y.dtype == target.numpy
    assert np.array_equal(y.astype(np.float64), x.to(getattr(torch, target.torch_name)).to(torch.float64).numpy())


def test_conversion_in_a_kernel() -> None:
    x = np.array([1.9, -1.9, 0.0, 5e9], np.float32)
    (y,) = run(kernels.elementwise("truncate", 4, [dt.f32], Convert(dt.i64, Var("v0", dt.f32))), x)
    assert y.tolist() == [1, -1, 0, 5000000000 - 5000000000 % 512]


def test_a_scan_by_shuffles() -> None:
    src, dst = np.random.default_rng(0).standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    simulate(kernels.warp_scan(), {"src": src, "dst": dst})
    np.testing.assert_allclose(dst, src.astype(np.float64).cumsum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_that_looks_back(seed: int) -> None:
    """Over more tiles than a warp looks at in one go, in any order of blocks."""
    src = np.random.default_rng(seed).integers(-9, 9, 40 * 32).astype(np.float32)
    dst = np.zeros_like(src)
    simulate(kernels.look_back_scan(), {"src": src, "dst": dst}, seed=seed)
    np.testing.assert_array_equal(dst, src.cumsum())
