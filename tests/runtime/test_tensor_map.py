"""Maps on the host: what the driver is asked for, and when; how launches pass them."""

from __future__ import annotations

import ctypes
import dataclasses
import functools

import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import TensorMap, Windows
from emmy.ir.node import IRError
from emmy.runtime import bundle, tensor_map
from emmy.runtime.launch import Executable
from emmy.runtime.plan import Buffer, Launch, Plan
from emmy.runtime.tensor_map import ALIGNMENT, KEPT, HostMap

TENSOR = TensorMap("map_x", "x", dt.bf16, (3, 40, 64), (1, 32, 64), 128)
WINDOWS = TensorMap("map_w", "x", dt.bf16, (2, 5, 6, 64), (32, 1, 1, 64), windows=Windows((-1, -2), (3, 6), (2, 1)))
HOST = torch.device("cpu")


class Library:
    """Writes the address of the tensor into the map 16 times."""

    def __init__(self, status=0):
        self.status, self.calls = status, []

    def cuTensorMapEncodeIm2col(self, to, kind, rank, pointer, extents, strides, lower, upper, channels, windows, steps, *rest):  # noqa: N802
        self.calls.append((kind, rank, pointer.value, list(extents), list(strides), list(lower), list(upper), channels.value, windows.value,
                           list(steps), *rest))
        return self.status

    def cuTensorMapEncodeTiled(self, to, kind, rank, pointer, extents, strides, box, steps, *rest):  # noqa: N802  the driver's name
        self.calls.append((kind, rank, pointer.value, list(extents), list(strides), list(box), list(steps), *rest))
        ctypes.cast(to, ctypes.POINTER(ctypes.c_uint64 * 16)).contents[:] = [pointer.value] * 16
        return self.status


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(tensor_map, "driver_library", lambda: made)
    return made


def words(address):
    return set(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64 * 16)).contents)


def test_the_driver_counts_from_the_innermost_dimension(library):
    made = HostMap(TENSOR)
    made.point(4096)
    assert made.address % ALIGNMENT == 0 and words(made.address) == {4096}
    assert library.calls == [(9, 3, 4096, [64, 40, 3], [128, 5120], [64, 32, 1], [1, 1, 1], 0, 3, 2, 0)]
    HostMap(TensorMap("m", "x", dt.f32, (100,), (16,), 0)).point(16)
    assert library.calls[-1] == (7, 1, 16, [100], [0], [16], [1], 0, 0, 2, 0)
    HostMap(TENSOR.replace(start=8, pitches=(6400, 128, 1))).point(4096)
    assert library.calls[-1] == (9, 3, 4112, [64, 40, 3], [256, 12800], [64, 32, 1], [1, 1, 1], 0, 3, 2, 0)


def test_windows_are_told_from_the_innermost_dimension(library):
    HostMap(WINDOWS).point(4096)
    assert library.calls == [(9, 4, 4096, [64, 6, 5, 2], [128, 768, 3840], [-2, -1], [-2, -1], 64, 32, [1, 1, 2, 1], 0, 3, 2, 0)]


def test_maps_of_addresses_that_return_are_kept(library):
    made = HostMap(TENSOR)
    for pointer in (256, 512, 256, 512, 512):
        made.point(pointer)
        assert words(made.address) == {pointer}
    assert len(library.calls) == 2
    for k in range(2 * KEPT):
        made.point(16 * k + 1024)
    assert len(made._made) <= KEPT


def test_errors(library, monkeypatch):
    library.status = 1
    with pytest.raises(EmmyError, match=r"cannot describe x \(bf16\[3, 40, 64\]\) in tiles \(1, 32, 64\): error 1"):
        HostMap(TENSOR).point(16)
    monkeypatch.undo()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    tensor_map.driver_library.cache_clear()
    with pytest.raises(EmmyError, match="there is no CUDA driver"):
        HostMap(TENSOR).point(16)


def plan():
    """Two launches: the first maps the input and a workspace, the second the same workspace, a weight and the output."""
    buffers = tuple(Buffer(n, dt.bf16, (3, 40, 64), role) for n, role in
                    (("x", "input"), ("w", "weight"), ("t", "workspace"), ("y", "output")))
    x, w, t, y = (TENSOR.replace(name=f"map_{n}", buffer=n) for n in "xwty")
    launches = (Launch("first", ("x", "t"), (1, 1, 1), 128, 65536, maps=(x, t)),
                Launch("second", ("t", "w", "y"), (1, 1, 1), 128, 65536, maps=(t, w, y)))
    return Plan("mapped", buffers, launches, ("x",), ("y",), "", "sm_90a", "fast")


class MapDriver:
    """Records what each launch is given, read through the parameter array as CUDA would."""

    def __init__(self):
        self.launches = []

    def prepare(self, name, grid, block, shared_bytes, pointers, early=False):
        return functools.partial(self.launch, (name, pointers))

    def stream(self):
        return 0

    def launch(self, prepared, stream):
        function, pointers = prepared
        slots, count = ctypes.cast(pointers.address, ctypes.POINTER(ctypes.c_void_p)), len(pointers.values)
        values = [ctypes.cast(slots[k], ctypes.POINTER(ctypes.c_uint64))[0] for k in range(count)]
        assert tuple(values) == pointers.values
        self.launches.append((function, values, [words(slots[count + k]) for k in range(len(pointers.maps))]))

    def capturing(self):
        return True

    def enter(self):
        return False

    def leave(self):
        pass


def test_launches_pass_maps_of_where_the_tensors_are(library):
    driver = MapDriver()
    run = Executable(plan(), b"", {"w": torch.zeros(3, 40, 64, dtype=torch.bfloat16)}, HOST, driver)
    assert len(library.calls) == 2      # of the weight and of the workspace, which stay
    for _ in range(3):
        x, y = (torch.zeros(3, 40, 64, dtype=torch.bfloat16) for _ in range(2))
        run(x, out=(y,))
        (first, (px, pt), maps1), (second, (pt2, pw, py), maps2) = driver.launches[-2:]
        assert (first, second, px, py) == ("first", "second", x.data_ptr(), y.data_ptr()) and pt == pt2
        assert maps1 == [{px}, {pt}] and maps2 == [{pt}, {pw}, {py}]
    before = len(library.calls)
    run(x, out=(y,))
    assert len(library.calls) == before <= 8


def test_plans_keep_maps(tmp_path):
    assert Plan.from_json(plan().to_json()) == plan()
    assert Plan.from_json(plan().to_json()).launches[0].maps[0] is plan().launches[0].maps[0]
    windows = dataclasses.replace(plan().launches[0], maps=(WINDOWS,))
    assert Plan.from_json(dataclasses.replace(plan(), launches=(windows,)).to_json()).launches[0].maps[0] is WINDOWS
    array = torch.zeros(3, 40, 64, dtype=torch.bfloat16)
    bundle.save(tmp_path / "m.emmy", plan(), {}, inputs={"x": array}, weights={"w": array}, references={"y": array.double()})
    assert bundle.load(tmp_path / "m.emmy").plan == plan()


@pytest.mark.parametrize(("change", "message"), [
    ({"buffer": "nowhere"}, "no buffer 'nowhere'"), ({"buffer": "w"}, "has to be an argument too"),
    ({"element": dt.f16}, r"maps x as f16\[3, 40, 64\]; it is bf16\[3, 40, 64\]"), ({"shape": (4, 40, 64)}, r"as bf16\[4, 40, 64\]"),
])
def test_maps_of_other_buffers_are_refused(change, message):
    launch = dataclasses.replace(plan().launches[0], maps=(TENSOR.replace(**change),))
    with pytest.raises(IRError, match=message):
        dataclasses.replace(plan(), launches=(launch,))


@pytest.mark.parametrize(("old", "new"), [('"swizzle": 128', '"swizzle": 48'), ('"box"', '"boxes"')])
def test_text_of_maps_that_are_none(old, new):
    with pytest.raises(IRError, match="swizzled by 48|not a launch plan"):
        Plan.from_json(plan().to_json().replace(old, new))
