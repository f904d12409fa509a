"""Argument checks, and the pointers that reach a launch: kernels are NumPy functions on host memory, everything else is the real thing."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

import numpy as np
import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir.dtype import bf16, f32, i32, i64
from emmy.runtime import tensor_map
from emmy.runtime.driver import CudaDriver, Pointers
from emmy.runtime.launch import Executable, cuda_device
from emmy.runtime.plan import Buffer
from tests.runtime.programs import held_product, two_kernels
from tests.stopwatch import seconds

HOST = torch.device("cpu")


class HostDriver:
    """Runs `add` and `square` on the memory that the pointers name, read through the parameter array as CUDA would."""

    def __init__(self, size=15):
        self.size, self.calls, self.allowed, self.entered = size, [], {}, False
        self.captures, self.replays, self.early = False, 0, []

    def prepare(self, name, grid, block, shared_bytes, pointers, early=False):
        self.allowed[name] = shared_bytes
        return functools.partial(self.launch, (name, grid, block, shared_bytes, pointers, early))

    def stream(self):
        return 7

    def launch(self, prepared, stream):
        assert self.entered
        function, grid, block, shared_bytes, pointers, early = prepared
        slots = ctypes.cast(pointers.address, ctypes.POINTER(ctypes.c_void_p))
        values = tuple(ctypes.cast(slots[k], ctypes.POINTER(ctypes.c_uint64))[0] for k in range(3))
        assert values == pointers.values
        a, b, c = (np.ctypeslib.as_array(ctypes.cast(v, ctypes.POINTER(ctypes.c_float)), (self.size,)) for v in values)
        if function == "add":
            c[:] = a + b
        else:
            b[:], c[:] = a * a, a
        self.calls.append((function, grid, block, shared_bytes, stream))
        self.early.append(early)

    def capturing(self):
        return self.captures

    def graph(self, launches):
        """Copies of the pointers, as CUDA copies parameters when it captures."""
        def fixed(pointers):
            table = (ctypes.c_uint64 * 3)(*pointers.values)
            return Pointers(table, (0, 1, 2))
        return [(*launched[:4], fixed(launched[4]), launched[5]) for launched in (launch.args[0] for launch in launches)]

    def replay(self, graph, stream):
        self.replays += 1
        for prepared in graph:
            self.launch(prepared, stream)

    def enter(self):
        self.entered = True
        return False

    def leave(self):
        self.entered = False


@pytest.fixture
def program():
    w = np.arange(15, dtype=np.float32).reshape(3, 5)
    return Executable(two_kernels(), b"", {"w": w}, HOST, HostDriver()), torch.from_numpy(w)


def test_results_and_launches(program):
    run, w = program
    x = torch.randn(3, 5)
    y, z, again = run(x)
    assert torch.equal(z, x + w) and torch.equal(y, z * z) and again is y
    assert run._driver.calls == [("add", (1, 1, 1), 128, 0, 7), ("square", (2, 1, 1), 64, 65536, 7)]
    assert run._driver.allowed == {"add": 0, "square": 65536}
    assert run(x)[0] is not y, "outputs are fresh at each call"


def test_scratch_is_cleared_before_its_launch():
    """It lies in the arena, apart from the workspace that the launch has too."""
    plan = two_kernels()
    first, second = plan.launches
    words = Buffer("words", i64, (5,), "scratch")
    first = dataclasses.replace(first, arguments=(*first.arguments, "words"))
    run = Executable(dataclasses.replace(plan, buffers=(*plan.buffers, words), launches=(first, second)), b"",
                     {"w": np.ones((3, 5), np.float32)}, HOST, HostDriver())
    (pointers, none) = (launch.args[0][4] for launch in run._launches)
    assert none.cleared == () and pointers.cleared == ((pointers.values[3], 40),)
    assert pointers.values[3] + 40 <= pointers.values[2] or pointers.values[2] + 60 <= pointers.values[3]


def test_signals_are_zeros_once_and_stay():
    """They lie apart from the arena, which is poisoned; what is exchanged lies there, and neither is cleared before a launch."""
    plan = two_kernels()
    first, second = plan.launches
    own = Buffer("partial", f32, (64,), "exchange"), Buffer("given", i32, (5,), "signals"), Buffer("more", i32, (3,), "signals")
    launches = dataclasses.replace(first, arguments=(*first.arguments, "partial", "given")), dataclasses.replace(
        second, arguments=(*second.arguments, "more"))
    run = Executable(dataclasses.replace(plan, buffers=(*plan.buffers, *own), launches=launches), b"",
                     {"w": np.ones((3, 5), np.float32)}, HOST, HostDriver())
    (one, two) = (launch.args[0][4] for launch in run._launches)
    assert one.cleared == two.cleared == ()
    run.poisoned()
    partial, given, more = *one.values[3:], two.values[-1]
    assert (ctypes.c_uint8 * 256).from_address(partial)[:] == [255] * 256 and more == given + 256
    assert not any((ctypes.c_uint8 * 512).from_address(given))


def test_early_launches_are_asked_for():
    plan = two_kernels()
    early = dataclasses.replace(plan, launches=(plan.launches[0], dataclasses.replace(plan.launches[1], early=True)))
    for of, wanted in ((plan, [False, False]), (early, [False, True])):
        run = Executable(of, b"", {"w": np.zeros((3, 5), np.float32)}, HOST, HostDriver())
        run(torch.randn(3, 5))
        assert run._driver.early == wanted


def test_views_are_made_contiguous_and_aligned(program):
    run, w = program
    for x in (torch.randn(5, 3).t(), torch.randn(16)[1:].view(3, 5), torch.randn(1, 5).expand(3, 5)):
        assert torch.equal(run(x)[1], x + w)


def test_tensors_unlike_those_before(program):
    run, w = program
    for x in (torch.randn(3, 5), torch.randn(3, 5), torch.randn(5, 3).t(), torch.randn(16)[1:].view(3, 5),
              torch.randn(3, 5).requires_grad_(), torch.nn.Parameter(torch.randn(3, 5))):
        for _ in range(2):
            assert torch.equal(run(x)[1], (x + w).detach())
    with torch.inference_mode():
        assert torch.equal(run(torch.ones(3, 5))[1], 1 + w)
    for wrong in (torch.zeros(3, 4), torch.zeros(3, 5).double(), 3):
        with pytest.raises(EmmyError, match="'x'"):
            run(wrong)
    assert torch.equal(run(torch.ones(3, 5))[1], 1 + w)


def test_outputs_are_made_the_quick_way_on_torchs_current_device(program):
    run, w = program
    asked = []

    def quick(shape, strides, dtype):
        asked.append((shape, strides, dtype))
        return torch.empty(shape, dtype=dtype)

    run._quickly = quick
    run(torch.ones(3, 5))
    assert not asked

    def enter():
        run._driver.entered = True
        return True

    run._driver.enter = enter
    for _ in range(2):
        assert torch.equal(run(torch.ones(3, 5))[1], 1 + w)
    assert asked == [((3, 5), (5, 1), torch.float32)] * 4 and all(type(shape) is tuple for shape, _, _ in asked)


def test_outputs_into_given_tensors(program):
    run, w = program
    x, y, z = torch.randn(3, 5), torch.empty(3, 5), torch.empty(3, 5)
    results = run(x, out=(y, z))
    assert results[0] is y and results[1] is z and torch.equal(z, x + w)
    for out, message in [((y,), "2 outputs"), ((y, torch.empty(5, 3).t()), "not contiguous"), ((y, torch.empty(4)), "'z' has shape")]:
        with pytest.raises(EmmyError, match=message):
            run(x, out=out)


def test_launches_on_the_same_tensors_again_are_one_graph(program):
    run, w = program
    x, y, z = torch.randn(3, 5), torch.empty(3, 5), torch.empty(3, 5)
    for k in range(5):
        x += 1
        run(x, out=(y, z))
        assert torch.equal(z, x + w) and torch.equal(y, z * z)
        assert run._driver.replays == max(0, k - 1)
    other, first = torch.randn(3, 5), z.clone()
    result = torch.empty(3, 5)
    run(other, out=(y, result))
    assert run._driver.replays == 3 and torch.equal(result, other + w) and torch.equal(z, first)
    run._driver.captures = True
    run(x, out=(y, z))
    assert run._driver.replays == 3, "a stream that captures takes launches, not graphs"


def test_a_weight_on_the_device_is_not_copied():
    w = torch.zeros(3, 5)
    run = Executable(two_kernels(), b"", {"w": w}, HOST, HostDriver())
    w += 2
    assert torch.equal(run(torch.ones(3, 5))[1], torch.full((3, 5), 3.0))


@pytest.mark.parametrize(("arguments", "message"), [
    ((), r"takes 1 tensors \(x\), not 0"),
    ((np.zeros((3, 5), np.float32),), "'x' is a ndarray"),
    ((torch.zeros(3, 5, dtype=torch.bfloat16),), "'x' has type torch.bfloat16, but torch.float32"),
    ((torch.zeros(5, 3),), r"'x' has shape \(5, 3\), but \(3, 5\)"),
    ((torch.zeros(3, 5, device="meta"),), "'x' is on meta"),
])
def test_wrong_arguments_are_named(program, arguments, message):
    with pytest.raises(EmmyError, match=message) as caught:
        program[0](*arguments)
    assert caught.value.remedy


@pytest.mark.parametrize(("weights", "message"), [({}, "needs the weight 'w'"), ({"w": np.zeros(4, np.float32)}, r"has shape \(4,\)")])
def test_wrong_weights_are_named(weights, message):
    with pytest.raises(EmmyError, match=message):
        Executable(two_kernels(), b"", weights, HOST, HostDriver())


def test_half_weights_keep_their_bits():
    w = np.array([[1.5, -0.0, np.inf]], bf16.numpy)
    run = Executable(two_kernels((1, 3), bf16), b"", {"w": w}, HOST, HostDriver())
    assert run._weights["w"].view(torch.int16).tolist() == w.view(np.int16).tolist()


@pytest.mark.parametrize("device", ["cpu", "warp9", "cuda:99"])
def test_devices_that_cannot_run_kernels(device):
    with pytest.raises(EmmyError, match=device):
        cuda_device(device)


def test_no_driver_installed(monkeypatch):
    def absent(name):
        raise OSError(f"{name}: no such file")

    tensor_map.driver_library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(EmmyError, match="no CUDA driver"):
        CudaDriver(b"", 0)
    tensor_map.driver_library.cache_clear()


# -- launches that are done once ----------------------------------------------------------------------------------------
def test_what_weights_alone_give_is_made_at_load_and_where_one_is_written_to():
    w = torch.nn.Parameter(torch.randn(3, 5))
    run = Executable(held_product(), b"", {"w": w}, HOST, HostDriver())
    assert len(run._driver.calls) == 1, "it is made before the first call"
    x = torch.randn(3, 5)

    def launches():
        before = len(run._driver.calls)
        assert torch.equal(run(x)[0], x + (w + w).detach())
        return len(run._driver.calls) - before

    assert [launches(), launches()] == [1, 1]
    with torch.no_grad():
        w.mul_(3)
    assert [launches(), launches()] == [2, 1]
    torch.optim.SGD([w], 0.1).step(lambda: (w * w).sum().backward())
    assert [launches(), launches()] == [2, 1]
    w.data.mul_(2)      # which torch does not count
    run.renew()
    assert [launches(), launches()] == [2, 1]
    run.poisoned()
    assert [launches(), launches()] == [2, 1], "what is poisoned is made again"


def test_a_graph_that_is_captured_has_what_a_written_weight_takes_and_a_call_outside_makes_it_anew():
    w, x = torch.randn(3, 5), torch.randn(3, 5)
    run = Executable(held_product(), b"", {"w": w}, HOST, HostDriver())
    w += 1
    for captures in (True, False):
        run._driver.captures, before = captures, len(run._driver.calls)
        assert torch.equal(run(x)[0], x + (w + w)) and len(run._driver.calls) == before + 2


def test_a_weight_that_torch_counts_no_writes_of_is_read_at_every_call():
    with torch.inference_mode():
        w = torch.randn(3, 5)
        run = Executable(held_product(), b"", {"w": w}, HOST, HostDriver())
        for _ in range(2):
            w += 1
            assert torch.equal(run(x := torch.randn(3, 5))[0], x + (w + w))


def test_asking_for_writes_takes_no_time_where_nothing_is_done_once(program):
    """And little where something is: of one weight, far less than a launch."""
    run, _ = program
    assert run._once == ()
    w = torch.randn(3, 5)
    held = Executable(held_product(), b"", {"w": w}, HOST, HostDriver())
    thousand = seconds(lambda: held, lambda run: [run._hold(7, ()) for _ in range(1000)], 2e-3)
    assert thousand < 2e-3


def test_what_is_made_of_inputs_is_made_again_where_they_are_others():
    plan = held_product()
    plan = dataclasses.replace(plan, buffers=tuple(dataclasses.replace(b, role="input") if b.name == "w" else b for b in plan.buffers),
                               inputs=("x", "w"))
    run = Executable(plan, b"", {}, HOST, HostDriver())
    x, w = torch.randn(3, 5), torch.nn.Parameter(torch.randn(3, 5))
    assert run._driver.calls == []

    def launches():
        before = len(run._driver.calls)
        assert torch.equal(run(x, w)[0], x + (w + w).detach())
        return len(run._driver.calls) - before

    assert [launches(), launches()] == [2, 1]
    with torch.no_grad():
        w.add_(1)
    assert [launches(), launches()] == [2, 1]
    for _ in range(3):
        w.data = torch.randn(3, 5)
    assert [launches(), launches()] == [2, 1]
    w = torch.randn(3, 5)
    assert [launches(), launches()] == [2, 1]
