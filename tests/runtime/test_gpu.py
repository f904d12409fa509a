"""The runtime on a GPU: launches, streams, threads, graphs, bundles and the clock."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from emmy.runtime import bundle, timing
from emmy.runtime.launch import Executable
from emmy.runtime.rates import measure_rates
from tests.hopper_kernels import gemm
from tests.runtime.programs import SOURCE, kernel_plan, two_kernels

pytestmark = pytest.mark.gpu
W = np.arange(15, dtype=np.float32).reshape(3, 5)


@pytest.fixture(scope="module")
def target():
    from emmy.runtime.build import TARGETS

    return bundle.pick(dict.fromkeys(TARGETS), torch.cuda.get_device_capability())


@pytest.fixture(scope="module")
def cubin(target):
    from emmy.runtime.build import build

    return build(SOURCE, target).cubin


@pytest.fixture(scope="module")
def run(cubin):
    return Executable(two_kernels(), cubin, {"w": W})


def expected(x):
    z = x + torch.from_numpy(W).cuda()
    return z * z, z


def right(outputs, x):
    return all(torch.equal(a, b) for a, b in zip(outputs, expected(x), strict=False))


def test_results_on_any_stream(run):
    x = torch.randn(3, 5, device="cuda")
    assert right(run(x), x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs = run(x)
    stream.synchronize()
    assert right(outputs, x)


def test_the_same_tensors_again(run):
    x = torch.randn(3, 5, device="cuda")
    out = tuple(torch.empty_like(x) for _ in range(2))
    for _ in range(4):
        x += 1
        run(x, out=out)
        assert right(out, x)
    y = torch.randn(3, 5, device="cuda")
    assert right(run(y), y) and right(run(x, out=out), x)


def test_a_fresh_thread(run):
    x, found = torch.randn(3, 5, device="cuda"), []
    thread = threading.Thread(target=lambda: found.append(right(run(x), x)))
    thread.start()
    thread.join()
    assert found == [True]


def test_a_cuda_graph_replays_on_new_inputs(cubin):
    run = Executable(two_kernels(), cubin, {"w": W})
    x = torch.randn(3, 5, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first call of all
        outputs = run(x)
    x.normal_()
    graph.replay()
    assert right(outputs, x)


def test_a_bundle_runs_is_right_and_is_timed(tmp_path, cubin, target):
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    z = x.astype(np.float64) + W
    bundle.save(tmp_path / "k.emmy", two_kernels(), {target: cubin}, inputs={"x": x}, weights={"w": W}, references={"y": z * z, "z": z})
    result = bundle.load(tmp_path / "k.emmy").run(repeats=3)
    assert result.correct and result.device_us > 0 and result.call_us > 0
    bundle.save(tmp_path / "w.emmy", two_kernels(), {target: cubin}, inputs={"x": x}, weights={"w": W}, references={"y": z, "z": z})
    wrong = bundle.load(tmp_path / "w.emmy").run(repeats=3)
    assert not wrong.correct and wrong.device_us is None


def test_an_element_nobody_wrote_is_seen(cubin):
    plan = two_kernels((4, 5))  # the kernels write 15 of its 20 elements
    run = Executable(plan, cubin, {"w": np.zeros((4, 5), np.float32)})
    zero = torch.zeros(4, 5, dtype=torch.float64, device="cuda")
    errors = bundle.check(run, (zero.float(),), {"y": zero, "z": zero})[1]
    assert errors["y"].mismatched_nonfinite == errors["z"].mismatched_nonfinite == 5


def test_the_clock_agrees_with_the_copy_rate_and_with_itself():
    rates = measure_rates()
    assert 0.1 < rates.copy_TBs < 20 and 1 < rates.fp32_TFLOPs < 500 and rates.bf16_TFLOPs > rates.fp32_TFLOPs
    a, b = torch.empty(1 << 26, device="cuda"), torch.empty(1 << 26, device="cuda")
    times = timing.device_times({"one": lambda: b.copy_(a), "again": lambda: b.copy_(a), "two": lambda: (b.copy_(a), a.copy_(b))})
    assert times["again"].us == pytest.approx(times["one"].us, rel=0.05)
    assert times["two"].us == pytest.approx(2 * times["one"].us, rel=0.1)
    assert 2 * a.nbytes / times["one"].us / 1e6 == pytest.approx(rates.copy_TBs, rel=0.15)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no GPU of sm_90a")
@pytest.mark.parametrize(("shape", "options"), [
    ((1000, 1048, 1096), {}), ((512, 640, 192), {"left_major": "mn", "right_major": "mn", "columns": 128})], ids=str)
def test_tensor_maps_follow_their_tensors(shape, options):
    from emmy.runtime.build import build

    m, n, k = shape
    across = bool(options)
    plan = kernel_plan(gemm(m, n, k, **options), {"a": (k, m) if across else (m, k), "b": (k, n) if across else (n, k), "c": (m, n)})
    cubin = build(plan.source, "sm_90a").cubin
    run = Executable(plan, cubin, {})

    def product(a, b):
        return a.double().t() @ b.double() if across else a.double() @ b.double().t()

    b = torch.randn(plan.buffer("b").shape, device="cuda").bfloat16()
    for _ in range(3):
        a = torch.randn(plan.buffer("a").shape, device="cuda").bfloat16()
        (c,) = run(a, b, out=run.poisoned())
        torch.testing.assert_close(c.double(), product(a, b), rtol=2**-8, atol=1e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (c,) = run(a, b)
    a.normal_()
    graph.replay()
    torch.testing.assert_close(c.double(), product(a, b), rtol=2**-8, atol=1e-3)
