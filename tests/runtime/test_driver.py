"""Launches through the driver's library, which a recorder stands for here: what it is given, and in which context."""

from __future__ import annotations

import ctypes
import gc
import threading
import types

import pytest
import torch

from emmy.errors import EmmyError
from emmy.runtime import driver
from emmy.runtime.driver import CudaDriver, Pointers, _Config

MAKERS = {"cuModuleGetFunction", "cuModuleLoadData", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuGraphInstantiateWithFlags"}


class Library:
    """Records the calls; handles that it hands out are numbers from 100 on."""

    def __init__(self):
        self.calls, self.handles, self.status = [], 100, {}

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            if name in MAKERS:
                self.handles += 1
                arguments[0]._obj.value = self.handles
            return self.status.get(name, 0)
        return call

    def named(self, *names):
        return [name for name, _ in self.calls if name in names]


@pytest.fixture
def device(monkeypatch):
    """The current device and stream, as torch has them."""
    state = types.SimpleNamespace(current=0, stream=7, capturing=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream + index, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: state.capturing, raising=False)
    return state


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(driver, "driver_library", lambda: made)
    return made


def pointers(*values):
    return Pointers((ctypes.c_uint64 * len(values))(*values), tuple(range(len(values))))


def test_a_launch(device, library):
    made = CudaDriver(b"cubin", 0)
    assert made.enter()
    launch = made.prepare("k", (3, 2, 1), 128, 65536, p := pointers(11, 12))
    library.calls.clear()
    for stream in (7, 7, 9):
        launch(stream)
        (name, (config, function, parameters, extra)) = library.calls[-1]
        given = config._obj
        assert name == "cuLaunchKernelEx" and isinstance(given, _Config) and function.value > 100 and extra is None
        assert (tuple(given.grid), tuple(given.block), given.shared_bytes, given.stream) == ((3, 2, 1), (128, 1, 1), 65536, stream)
        assert parameters.value == p.address and given.count == 0
    assert made.stream() == 7 and not made.capturing()
    library.status["cuLaunchKernelEx"] = 701
    with pytest.raises(EmmyError, match=r"grid \(3, 2, 1\), block 128, 65536 bytes of shared memory: error 701"):
        launch(7)


def test_sizes_are_those_of_the_drivers_structures():
    assert ctypes.sizeof(_Config) == 56 and _Config.stream.offset == 32 and ctypes.sizeof(driver._Attribute) == 72


def test_an_early_launch_says_so(device, library):
    made = CudaDriver(b"cubin", 0)
    made.prepare("k", (1, 1, 1), 32, 0, pointers(1), early=True)(7)
    config = library.calls[-1][1][0]._obj
    assert config.count == 1 and config.attributes[0].id == 6 and config.attributes[0].value == 1


def test_a_launch_finds_cleared_what_it_asks_for_and_waits_for_that(device, library):
    table = (ctypes.c_uint64 * 1)(11)
    launch = CudaDriver(b"cubin", 0).prepare("k", (1, 1, 1), 32, 0, Pointers(table, (0,), cleared=((4096, 40),)), early=True)
    library.calls.clear()
    launch(7)
    (fill, given), (_, (config, *_)) = library.calls
    assert fill == "cuMemsetD8Async" and [x.value for x in given] == [4096, 0, 40, 7] and config._obj.count == 0


def test_a_launch_keeps_what_it_points_to(device, library):
    launch = CudaDriver(b"cubin", 0).prepare("k", (1, 1, 1), 32, 0, pointers(11, 12))
    gc.collect()
    launch(7)
    slots = ctypes.cast(library.calls[-1][1][2], ctypes.POINTER(ctypes.c_void_p))
    assert [ctypes.cast(slots[k], ctypes.POINTER(ctypes.c_uint64))[0] for k in range(2)] == [11, 12]


def test_a_function_is_loaded_once_and_allowed_the_most_shared_memory(device, library):
    made = CudaDriver(b"cubin", 0)
    for shared_bytes in (0, 50_000, 90_000, 60_000):
        made.prepare("k", (1, 1, 1), 32, shared_bytes, pointers(1))
    assert len(library.named("cuModuleGetFunction")) == 1
    assert [arguments[2] for name, arguments in library.calls if name == "cuFuncSetAttribute"] == [50_000, 90_000]


def test_the_context_stays_in_a_thread_whose_device_it_is(device, library):
    made = CudaDriver(b"cubin", 0)
    assert library.named("cuCtxSetCurrent", "cuCtxPushCurrent_v2") == ["cuCtxSetCurrent"]
    assert made.enter() and made.enter() and len(library.named("cuCtxSetCurrent")) == 1
    thread = threading.Thread(target=made.enter)
    thread.start()
    thread.join()
    assert len(library.named("cuCtxSetCurrent")) == 2
    device.current = 1
    assert not made.enter()
    made.leave()
    assert library.named("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2") == ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"]


def test_a_graph_of_launches(device, library):
    made = CudaDriver(b"cubin", 0)
    launches = [made.prepare(name, (1, 1, 1), 32, 0, pointers(1)) for name in "ab"]
    library.calls.clear()
    graph = made.graph(launches)
    assert [name for name, _ in library.calls] == [
        "cuStreamCreate", "cuStreamBeginCapture_v2", "cuLaunchKernelEx", "cuLaunchKernelEx", "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags", "cuGraphDestroy", "cuStreamDestroy_v2"]
    made.replay(graph, 7)
    assert library.calls[-1][0] == "cuGraphLaunch" and library.calls[-1][1][0] is graph and library.calls[-1][1][1].value == 7
    library.status["cuGraphLaunch"] = 1
    with pytest.raises(EmmyError, match="graph of launches: error 1"):
        made.replay(graph, 7)


def test_what_cannot_be_loaded(device, library):
    library.status["cuModuleLoadData"] = 209
    with pytest.raises(EmmyError, match="cuModuleLoadData gives error 209"):
        CudaDriver(b"cubin", 0)
