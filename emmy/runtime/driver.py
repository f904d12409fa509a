"""Loading cubins and launching their kernels on raw streams, by the CUDA driver's own library."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from emmy.errors import EmmyError
from emmy.runtime.tensor_map import HostMap, driver_library

STATIC_SHARED = 48 * 1024  # bytes of shared memory a block may have before its kernel must opt in to more
Grid = tuple[int, int, int]
Prepared = Callable[[int], None]    # does a launch on the stream of that raw handle


class Pointers:
    """The parameters of one launch: device pointers kept in `table`, then `maps`.

    `address` is that of an array of the parameters' addresses, as cuLaunchKernel takes it; `cleared` are the pointers and bytes of what is
    filled with zeros before the launch."""

    def __init__(self, table: ctypes.Array[ctypes.c_uint64], indices: tuple[int, ...], maps: tuple[HostMap, ...] = (),
                 cleared: tuple[tuple[int, int], ...] = ()) -> None:
        base = ctypes.addressof(table)
        self._table, self._indices, self.maps, self.cleared = table, indices, maps, cleared
        addresses = (*(base + 8 * k for k in indices), *(m.address for m in maps))
        self._array = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self.address = ctypes.addressof(self._array)

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(self._table[k] for k in self._indices)


class Driver(Protocol):
    """A loaded module.  Launches, and `prepare`, need its device's context to be current in this thread: from `enter` to `leave`."""

    def prepare(self, name: str, grid: Grid, block: int, shared_bytes: int, pointers: Pointers, early: bool = False) -> Prepared:
        """A launch of the kernel of that name, with `shared_bytes` of dynamic shared memory, and with the pointers as they stand when it is
        done; what it is to find cleared is cleared before.  An `early` one may begin while the one ahead of it on the stream ends, if it
        finds nothing cleared."""

    @property
    def stream(self) -> Callable[[], int]:
        """Tells the raw handle of torch's current stream."""

    def capturing(self) -> bool:
        """Whether torch's current stream records its work instead of doing it."""

    def graph(self, launches: Iterable[Prepared]) -> Any:
        """Launches, with the pointers as they stand, as a graph."""

    def replay(self, graph: Any, stream: int) -> None:
        """Do a graph's launches, in order, on a stream."""

    def enter(self) -> bool:
        """Make the device's context current.  Whether the device is torch's current one; `leave` is to be called unless it is."""

    def leave(self) -> None:
        """Make the context current that was before `enter`."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number that says which it is, and 64 bytes of value."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint))


_SERIALIZATION = 6                  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MOST_SHARED = 8                    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_BLOCKING, _THREAD_LOCAL = 1, 1     # of a stream; of a capture


class _Thread(threading.local):
    """Whether the context has been made current in this thread."""

    entered = False


class CudaDriver:
    """In the device's primary context, which is torch's; CuPy's and cuda-bindings' launches take longer than the library's own."""

    def __init__(self, cubin: bytes, device: int) -> None:
        import torch

        self._library, self._device, self._thread = driver_library(), device, _Thread()
        self.stream, self._current = functools.partial(torch._C._cuda_getCurrentRawStream, device), torch._C._cuda_getDevice
        self._capturing = torch._C._cuda_isCurrentStreamCapturing
        self._functions = dict[str, tuple[ctypes.c_void_p, int]]()      # and the bytes of dynamic shared memory that each is allowed
        self._context, self._module, ordinal = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(ordinal), device)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        here = self.enter()
        try:
            self._do("cuModuleLoadData", ctypes.byref(self._module), cubin)
        finally:
            if not here:
                self.leave()

    def _do(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise EmmyError(f"CUDA could not load a kernel: {name} gives error {status}",
                            "Build the kernels for this GPU, and leave room in its memory.")

    def prepare(self, name: str, grid: Grid, block: int, shared_bytes: int, pointers: Pointers, early: bool = False) -> Prepared:
        function, allowed = self._functions.get(name, (ctypes.c_void_p(), STATIC_SHARED))
        if name not in self._functions:
            self._do("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        if shared_bytes > allowed:
            self._do("cuFuncSetAttribute", function, _MOST_SHARED, shared_bytes)
        self._functions[name] = function, max(shared_bytes, allowed)
        self._do("cuFuncLoad", function)    # now, because a lazy load at the first launch would break a graph capture
        config = _Config(grid, (block, 1, 1), shared_bytes)
        if early and not pointers.cleared:
            config.attributes, config.count = ctypes.pointer(_Attribute(_SERIALIZATION, 0, 1)), 1
        return self._prepared(config, function, pointers)

    def _prepared(self, config: _Config, function: ctypes.c_void_p, pointers: Pointers) -> Prepared:
        """A launch with all but its stream made once; it keeps what it points to."""
        start, on = self._library.cuLaunchKernelEx, 0
        arguments = ctypes.byref(config), function, ctypes.c_void_p(pointers.address), None
        cleared = [(ctypes.c_ulonglong(at), ctypes.c_ubyte(0), ctypes.c_size_t(size)) for at, size in pointers.cleared]

        def launch(stream: int, kept: Pointers = pointers) -> None:
            nonlocal on
            if stream != on:
                config.stream = on = stream
            for fill in cleared:
                self._do("cuMemsetD8Async", *fill, ctypes.c_void_p(stream))
            if status := start(*arguments):
                raise EmmyError(f"CUDA refused a launch of grid {tuple(config.grid)}, block {config.block[0]}, "
                                f"{config.shared_bytes} bytes of shared memory: error {status}",
                                "Compile for this GPU, or pin a schedule that uses fewer resources.")

        return launch

    def capturing(self) -> bool:
        return bool(self._capturing())

    def graph(self, launches: Iterable[Prepared]) -> ctypes.c_void_p:
        recorder, graph, made = (ctypes.c_void_p() for _ in range(3))
        self._do("cuStreamCreate", ctypes.byref(recorder), _NON_BLOCKING)
        self._do("cuStreamBeginCapture_v2", recorder, _THREAD_LOCAL)
        try:
            for launch in launches:
                launch(recorder.value or 0)
        finally:
            self._do("cuStreamEndCapture", recorder, ctypes.byref(graph))
        self._do("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        self._do("cuGraphDestroy", graph)
        self._do("cuStreamDestroy_v2", recorder)
        return made

    def replay(self, graph: ctypes.c_void_p, stream: int) -> None:
        if status := self._library.cuGraphLaunch(graph, ctypes.c_void_p(stream)):
            raise EmmyError(f"CUDA refused a graph of launches: error {status}", "Look for an earlier failure of a kernel on this GPU.")

    def enter(self) -> bool:
        """A thread whose current device, as torch has it, is this one keeps the context."""
        if self._current() != self._device:
            self._do("cuCtxPushCurrent_v2", self._context)
            return False
        if not self._thread.entered:
            self._do("cuCtxSetCurrent", self._context)
            self._thread.entered = True
        return True

    def leave(self) -> None:
        self._do("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
