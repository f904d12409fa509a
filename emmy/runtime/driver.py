"""Loading cubins and launching their kernels on raw streams: through cuda-bindings, or else through CuPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Protocol, Self

import numpy as np

from emmy.errors import EmmyError
from emmy.runtime.tensor_map import SIZE, HostMap

STATIC_SHARED = 48 * 1024  # bytes of shared memory a block may have before its kernel must opt in to more


class Pointers:
    """The parameters of one launch: device pointers kept in `table`, then `maps`.

    `address` is that of an array of the parameters' addresses, as cuLaunchKernel takes it."""

    def __init__(self, table: ctypes.Array[ctypes.c_uint64], indices: tuple[int, ...], maps: tuple[HostMap, ...] = ()) -> None:
        base = ctypes.addressof(table)
        self._table, self._indices, self.maps = table, indices, maps
        addresses = (*(base + 8 * k for k in indices), *(m.address for m in maps))
        self._array = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self.address = ctypes.addressof(self._array)

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(self._table[k] for k in self._indices)


# function, grid, block, bytes of dynamic shared memory, parameters, whether it begins while those ahead of it end
Launched = tuple[Any, tuple[int, int, int], int, int, Pointers, bool]


class Driver(Protocol):
    """A loaded module.  Entered (`with driver:`), its device's context is current in this thread: launches need that."""

    def function(self, name: str, shared_bytes: int) -> Any:
        """The kernel of that name, allowed `shared_bytes` of dynamic shared memory."""

    def stream(self) -> int:
        """The raw handle of torch's current stream."""

    def launch(self, function: Any, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, pointers: Pointers,
               early: bool = False) -> None:
        """Launch `function` with the pointers as they stand.  An `early` one may begin while the one ahead of it on the stream ends."""

    def capturing(self, stream: int) -> bool:
        """Whether the stream records its work instead of doing it."""

    def graph(self, launches: Iterable[Launched]) -> Any:
        """The launches, with the pointers as they stand, as a graph; None if this driver makes none."""

    def replay(self, graph: Any, stream: int) -> None:
        """Do a graph's launches, in order, on a stream."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class BindingsDriver:
    """Through cuda-bindings: the least time per launch, in the device's primary context, which is torch's."""

    def __init__(self, cubin: bytes, device: int) -> None:
        import torch
        from cuda.bindings import driver

        self._driver, self._device, self._stream = driver, device, torch._C._cuda_getCurrentRawStream
        self._launch = driver.cuLaunchKernel
        self._checked(driver.cuInit(0))
        self._context = self._checked(driver.cuDevicePrimaryCtxRetain(self._checked(driver.cuDeviceGet(device))))
        with self:
            self._module = self._checked(driver.cuModuleLoadData(cubin))

    @staticmethod
    def _checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise EmmyError(f"CUDA could not load a kernel: {result[0]!r}", "Build the kernels for this GPU, and leave room in its memory.")
        return result[1] if len(result) > 1 else None

    def function(self, name: str, shared_bytes: int) -> Any:
        function = self._checked(self._driver.cuModuleGetFunction(self._module, name.encode()))
        if shared_bytes > STATIC_SHARED:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._checked(self._driver.cuFuncSetAttribute(function, attribute, shared_bytes))
        self._checked(self._driver.cuFuncLoad(function))  # now, because a lazy load at the first launch would break a graph capture
        return function

    def stream(self) -> int:
        return int(self._stream(self._device))

    def launch(self, function: Any, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, pointers: Pointers,
               early: bool = False) -> None:
        if early:
            (status,) = self._driver.cuLaunchKernelEx(self._overlapping(grid, block, shared_bytes, stream), function, pointers.address, 0)
        else:
            (status,) = self._launch(function, *grid, block, 1, 1, shared_bytes, stream, pointers.address, 0)
        if status:
            raise EmmyError(f"CUDA refused a launch of grid {grid}, block {block}, {shared_bytes} bytes of shared memory: {status!r}",
                            "Compile for this GPU, or pin a schedule that uses fewer resources.")

    def _overlapping(self, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int) -> Any:
        """The configuration of a launch that begins when the one ahead lets it."""
        driver, config, attribute = self._driver, self._driver.CUlaunchConfig(), self._driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes, config.hStream, config.attrs, config.numAttrs = shared_bytes, stream, [attribute], 1
        return config

    def capturing(self, stream: int) -> bool:
        return bool(self._checked(self._driver.cuStreamIsCapturing(stream)))

    def graph(self, launches: Iterable[Launched]) -> Any:
        driver = self._driver
        recorder = self._checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        self._checked(driver.cuStreamBeginCapture(recorder, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        try:
            for function, grid, block, shared_bytes, pointers, early in launches:
                self.launch(function, grid, block, shared_bytes, int(recorder), pointers, early)
        finally:
            graph = self._checked(driver.cuStreamEndCapture(recorder))
        made = self._checked(driver.cuGraphInstantiate(graph, 0))
        self._checked(driver.cuGraphDestroy(graph))
        self._checked(driver.cuStreamDestroy(recorder))
        return made

    def replay(self, graph: Any, stream: int) -> None:
        (status,) = self._driver.cuGraphLaunch(graph, stream)
        if status:
            raise EmmyError(f"CUDA refused a graph of launches: {status!r}", "Look for an earlier failure of a kernel on this GPU.")

    def __enter__(self) -> Self:
        self._driver.cuCtxPushCurrent(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.cuCtxPopCurrent()


class CuPyDriver:
    """Through CuPy, where cuda-bindings are absent."""

    def __init__(self, cubin: bytes, device: int) -> None:
        import cupy
        import torch

        self._cupy, self._device, self._stream = cupy, device, torch._C._cuda_getCurrentRawStream
        self._guard, self._streams = cupy.cuda.Device(device), dict[int, Any]()
        self._module = cupy.cuda.function.Module()
        with self:
            self._module.load(cubin)

    def function(self, name: str, shared_bytes: int) -> Any:
        function, driver = self._module.get_function(name), self._cupy.cuda.driver
        if shared_bytes > STATIC_SHARED:
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
        return function

    def stream(self) -> int:
        return int(self._stream(self._device))

    def launch(self, function: Any, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, pointers: Pointers,
               early: bool = False) -> None:
        if stream not in self._streams:
            self._streams[stream] = self._cupy.cuda.ExternalStream(stream)
        maps = (np.void(ctypes.string_at(m.address, SIZE)) for m in pointers.maps)
        function(grid, (block, 1, 1), (*map(np.uint64, pointers.values), *maps), shared_bytes, self._streams[stream])

    def capturing(self, stream: int) -> bool:
        return True     # it makes no graphs

    def graph(self, launches: Iterable[Launched]) -> Any:
        return None

    def replay(self, graph: Any, stream: int) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._guard.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.__exit__()


def load_driver(cubin: bytes, device: int) -> Driver:
    """The quickest driver that is installed, with the cubin loaded on a device; EmmyError if there is none."""
    kinds: tuple[type[BindingsDriver | CuPyDriver], ...] = (BindingsDriver, CuPyDriver)
    for kind in kinds:
        try:
            return kind(cubin, device)
        except ImportError:
            continue
    raise EmmyError("launching kernels needs cuda-bindings or CuPy, and neither is installed",
                    'Install them: pip install "emmy-egraph[cuda]".')
