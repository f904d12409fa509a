"""Which tensors a call looks at, what it writes, and that a call that fails leaves nothing behind."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading

import numpy as np
import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir.dtype import f32
from emmy.runtime import calls, launch
from emmy.runtime.calls import Inputs, Outputs, Slot, alike
from emmy.runtime.launch import Executable
from emmy.runtime.plan import Buffer, Launch, Plan

HOST = torch.device("cpu")
SHAPE = (3, 5)


class Map:
    """In the place of a tensor map: where it points to, and how often it was told."""

    def __init__(self):
        self.pointer, self.told, self.fails = 0, 0, False

    def point(self, pointer):
        if self.fails:
            raise EmmyError("no map", "Choose another.")
        self.pointer, self.told = pointer, self.told + 1


class AddDriver:
    """The device is torch's current one.  A launch adds the tensors that the table names first and second, or fails where `fails`."""

    def __init__(self):
        self.fails, self.launches, self.libc = False, 0, ctypes.CDLL(None)

    def prepare(self, name, grid, block, shared_bytes, pointers, early=False):
        return functools.partial(self.launch, pointers)

    def launch(self, pointers, stream):
        if self.fails:
            raise EmmyError("CUDA refused a launch", "Launch another.")
        given = pointers.values
        self.libc.usleep(10)     # the interpreter's lock is free meanwhile
        assert pointers.values == given
        a, b, c = (np.ctypeslib.as_array(ctypes.cast(p, ctypes.POINTER(ctypes.c_float)), SHAPE) for p in given)
        c[:] = a + b
        self.launches += 1

    def stream(self):
        return 7

    def capturing(self):
        return False

    def enter(self):
        return True

    def leave(self):
        raise AssertionError("it was not entered")


@pytest.fixture
def table():
    return (ctypes.c_uint64 * 3)()


def slots(names):
    return [Slot.of(Buffer(name, f32, SHAPE, "input"), place) for place, name in enumerate(names)]


def take(inputs, *tensors):
    """As a call does it."""
    pointers = [x.data_ptr() for x in tensors] if inputs.alike(*tensors) else None
    return inputs.take(tensors, pointers) if pointers != inputs.pointers else []


def total(**options):
    """The executable of y = a + b."""
    buffers = tuple(Buffer(n, f32, SHAPE, role) for n, role in (("a", "input"), ("b", "input"), ("y", "output")))
    plan = Plan("total", buffers, (Launch("add", ("a", "b", "y"), (1, 1, 1), 32),), ("a", "b"), ("y",), "", "sm_90a", "fast")
    run = Executable(plan, b"", {}, HOST, AddDriver(), **options)
    run._quickly = run._made
    return run


# -- inputs and outputs ------------------------------------------------------------------------------------------------
def test_tensors_are_looked_at_one_by_one_only_where_they_are_unlike_those_before(table, monkeypatch):
    inputs, looked = Inputs(slots("ab"), table, (), HOST), []
    monkeypatch.setattr(inputs, "put", lambda tensors: looked.append(tensors) or Inputs.put(inputs, tensors))
    a, b, c = (torch.randn(SHAPE) for _ in range(3))
    for tensors in ((a, b), (a, b), (a, c), (b, c), (a, b)):
        assert take(inputs, *tensors) == [] and [*table][:2] == [x.data_ptr() for x in tensors] == inputs.pointers
    assert len(looked) == 1
    take(inputs, a, b.requires_grad_())
    take(inputs, a, b)
    assert len(looked) == 2


def test_copies_stand_for_tensors_that_lie_askew(table):
    inputs, a, b = Inputs(slots("ab"), table, (), HOST), torch.randn(SHAPE), torch.randn(SHAPE)
    for askew in (torch.randn(5, 3).t(), torch.randn(16)[1:].view(SHAPE)):
        take(inputs, a, b)
        for _ in range(2):
            none, copy = take(inputs, a, askew)
            assert none is None and torch.equal(copy, askew) and table[1] == copy.data_ptr() and not table[1] % 16
        assert take(inputs, a, b) == [] and [*table][:2] == [a.data_ptr(), b.data_ptr()]


def test_maps_are_told_of_tensors_that_moved_alone(table):
    read, other = Map(), Map()
    inputs = Inputs(slots("ab"), table, [(read, 1), (other, 2)], HOST)
    a, b, c = (torch.randn(SHAPE) for _ in range(3))
    for tensors, told in (((a, b), 1), ((a, b), 1), ((a, c), 2), ((a, torch.randn(5, 3).t()), 3), ((a, b), 4)):
        copies = take(inputs, *tensors)
        assert read.told == told and read.pointer == (copies or tensors)[1].data_ptr() and not other.told


@pytest.mark.parametrize("cause", ["type", "map"])
def test_tensors_that_were_taken_before_a_failure_are_written_anew(table, cause):
    failing = Map()
    inputs = Inputs(slots("ab"), table, [(failing, 1)], HOST)
    a, b, c = (torch.randn(SHAPE) for _ in range(3))
    take(inputs, a, b)
    failing.fails = cause == "map"
    with pytest.raises(EmmyError, match="no map" if cause == "map" else "'b' has type torch.float64"):
        take(inputs, c, torch.randn(SHAPE) if cause == "map" else b.double())
    failing.fails = False
    assert take(inputs, a, b) == [] and [*table][:2] == [a.data_ptr(), b.data_ptr()] and failing.pointer == b.data_ptr()


def test_outputs_that_are_given(table):
    written = Map()
    outputs, y = Outputs(slots("y"), table, [(written, 0)], HOST), torch.empty(SHAPE)
    assert outputs.take((y,)) == [y] and table[0] == written.pointer == y.data_ptr()
    with pytest.raises(EmmyError, match="'y' is not contiguous, or not aligned to 16 bytes"):
        outputs.take((torch.empty(5, 3).t(),))


def test_none_are_like_no_tensors():
    assert not alike(())()


# -- calls --------------------------------------------------------------------------------------------------------------
def test_an_output_comes_in_a_tuple_or_alone():
    a, b = torch.randn(SHAPE), torch.randn(SHAPE)
    (y,), alone = total()(a, b), total(alone=True)(a, b)
    assert torch.equal(y, a + b) and torch.equal(alone, a + b)


def test_the_usual_call_is_one_function_of_the_runtime():
    """Each function more would cost a call some 0.1 us: torch's check, an allocation and the launch are most of what it takes."""
    run, a, b, entered = total(), torch.randn(SHAPE), torch.randn(SHAPE), []
    run._quickly = lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
    run(a, b)
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
    try:
        run(a, b)
    finally:
        sys.setprofile(None)
    assert [code.co_name for code in entered if code.co_filename in (calls.__file__, launch.__file__)] == ["__call__"]


def test_every_failure_lets_the_next_call_in():
    run, a, b = total(), torch.randn(SHAPE), torch.randn(SHAPE)

    def no_memory(*_):
        raise torch.OutOfMemoryError("none left")

    def again():
        return torch.equal(run(a, b)[0], a + b)

    assert again()
    for tensors in ((a,), (a, 3), (a, b.double()), (a, torch.zeros(5, 3)), (a, torch.zeros(SHAPE, device="meta"))):
        with pytest.raises(EmmyError):
            run(*tensors)
        assert again()
    run._driver.fails = True
    with pytest.raises(EmmyError, match="refused"):
        run(a, b)
    run._driver.fails, quickly = False, run._quickly
    assert again()
    run._quickly = no_memory
    with pytest.raises(torch.OutOfMemoryError):
        run(a, b)
    run._quickly = quickly
    with pytest.raises(EmmyError, match="total has 1 outputs, but out= has 2 tensors"):
        run(a, b, out=(a, b))
    assert again() and not run._lock.locked()


def test_a_tensor_whose_memory_is_another_is_read_there():
    run, a, b = total(), torch.randn(SHAPE), torch.randn(SHAPE)
    for _ in range(3):
        a.data = torch.randn(SHAPE)
        assert torch.equal(run(a, b)[0], a + b)
    a.resize_(2, 5)
    with pytest.raises(EmmyError, match=r"'a' has shape \(2, 5\)"):
        run(a, b)


def test_a_plan_without_launches_makes_its_outputs():
    plan = Plan("nothing", (Buffer("y", f32, (0, 5), "output"),), (), (), ("y",), "", "sm_90a", "fast")
    run = Executable(plan, b"", {}, HOST, AddDriver())
    run._quickly = run._made
    for _ in range(3):
        (y,) = run()
        assert y.shape == (0, 5)
    assert not run._graphs


def test_calls_of_many_threads():
    """Each finds its own tensors in the table, those of one thread lying askew."""
    run, found = total(), []

    def work(k):
        a, b = torch.full(SHAPE, float(k)), torch.full((5, 3), 0.5).t() if k == 3 else torch.full(SHAPE, 0.5)
        found.append(all(torch.equal(run(a, b)[0], a + b) for _ in range(200)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4 and run._driver.launches == 800
