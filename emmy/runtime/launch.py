"""Running a launch plan on a GPU: torch tensors in, torch tensors out, pointers passed without copies.

What does not change from call to call is prepared once: the module is loaded, weights lie on the device, and beside
them what launches make of weights alone, which are done again only where torch counts a write to such a weight; workspaces
share one arena, signals are zeros, which launches leave as they found them, and each launch holds the addresses of its
parameters, which point into one table of device pointers and to its tensor maps.  A call checks its tensors, has the table
and the maps of inputs and outputs point to them (`calls.py`) and launches.  CUDA copies parameters at launch, so the table
is free again at once and a call can be captured in a `torch.cuda.graph`.  Where several launches meet the same tensors
again, as those of a loop do, they are one graph that is replayed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from emmy.errors import EmmyError
from emmy.ir.kernel_ir import TensorMap
from emmy.runtime.arrays import to_torch
from emmy.runtime.calls import VECTOR, Inputs, Outputs, Slot
from emmy.runtime.driver import CudaDriver, Driver, Pointers, Prepared
from emmy.runtime.plan import Buffer, Launch, Plan, held_offsets, offsets, workspace_offsets
from emmy.runtime.tensor_map import HostMap

GRAPHS = 16  # settings of tensors whose launches are kept as graphs


def cuda_device(device: Any = "cuda") -> Any:
    """The torch device, with its number; EmmyError without torch, without a GPU, or for a device that is not one."""
    try:
        import torch
    except ImportError as error:
        raise EmmyError("running on a GPU needs PyTorch, which is not installed", "Install torch with CUDA support.") from error
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise EmmyError(f"no device {device!r}", "Choose 'cuda' or 'cuda:N'.") from error
    if found.type != "cuda":
        raise EmmyError(f"device {device!r} is not a CUDA GPU, and compiled kernels run on no other", "Choose 'cuda' or 'cuda:N'.")
    if not torch.cuda.is_available() or (found.index or 0) >= torch.cuda.device_count():
        raise EmmyError(f"torch finds no GPU {device!r} on this machine",
                        "Run where there is one; without, programs run on the devices numpy and simulate, and emmy tune on stand-in.")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


class Executable:
    """A plan on a device, ready to be called.

    `weights` has an array or tensor for each weight and constant of the plan; a tensor that is on the device and has the plan's
    type is used where it lies.  `alone`: a plan's only output is returned by itself, not in a tuple.  Calls may come from any thread but
    share the workspaces: overlap calls on one stream only."""

    def __init__(self, plan: Plan, cubin: bytes, weights: Mapping[str, Any], device: Any = "cuda", driver: Driver | None = None,
                 alone: bool = False) -> None:
        self.plan, self.device = plan, cuda_device(device) if driver is None else device
        import torch

        self._torch, self._lock, self._graphs = torch, threading.Lock(), dict[bytes, Any]()
        self._quickly: Callable[..., Any] = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", self._made)
        self._weights = {b.name: self._weight(b, weights) for b in plan.of("weight", "constant")}
        pointers = {n: w.data_ptr() for n, w in self._weights.items()}
        (of_arena, size), (of_held, kept), (of_signals, words) = workspace_offsets(plan), held_offsets(plan), offsets(plan.of("signals"))
        self._arena, self._held = (torch.empty(n, dtype=torch.uint8, device=self.device) for n in (size, kept))
        self._signals = torch.zeros(words, dtype=torch.uint8, device=self.device)
        pointers |= {name: self._arena.data_ptr() + at for name, at in of_arena.items()}
        pointers |= {name: self._held.data_ptr() + at for name, at in of_held.items()}
        pointers |= {name: self._signals.data_ptr() + at for name, at in of_signals.items()}
        place = {name: k for k, name in enumerate(dict.fromkeys((*plan.inputs, *(b.name for b in plan.buffers))))}
        self._table = (ctypes.c_uint64 * max(1, len(place)))(*(pointers.get(name, 0) for name in place))
        if driver is None:
            torch.cuda.synchronize(self.device)  # the weights have arrived, and signals are 0, whatever stream the first call is on
            driver = CudaDriver(cubin, self.device.index)
        self._driver = driver
        distinct = tuple(dict.fromkeys(plan.outputs))
        maps: dict[TensorMap, HostMap] = {m: HostMap(m) for x in plan.launches for m in x.maps}
        for m, host in maps.items():
            if m.buffer in pointers:
                host.point(pointers[m.buffer])
        moving = [(host, place[m.buffer]) for m, host in maps.items() if m.buffer not in pointers]
        slots = {n: Slot.of(plan.buffer(n), place[n]) for n in (*plan.inputs, *distinct)}
        self._inputs = Inputs([slots[n] for n in plan.inputs], self._table, moving, self.device)
        self._outputs = Outputs([slots[n] for n in distinct], self._table, moving, self.device)
        order = [distinct.index(n) for n in plan.outputs]
        self._returned: Callable[[list[Any]], Any] = itemgetter(*order) if alone or len(order) > 1 else tuple
        cleared = {b.name: (pointers[b.name], b.bytes) for b in plan.of("scratch")}

        def parameters(x: Launch) -> Pointers:
            return Pointers(self._table, tuple(place[a] for a in x.arguments), tuple(maps[m] for m in x.maps),
                            tuple(cleared[a] for a in x.arguments if a in cleared))

        able = self.device.type != "cuda" or torch.cuda.get_device_capability(self.device) >= (9, 0)
        early = [able and x.early and cleared.keys().isdisjoint(x.arguments) for x in plan.launches]     # clearing waits for what is ahead
        first = len(plan.launches) - len(plan.calls)
        read = dict.fromkeys(a for x in plan.launches[:first] for a in x.arguments)
        self._sources = [w for name, w in self._weights.items() if name in read]      # what is held is made of these, and of these inputs
        self._steady = [k for k, name in enumerate(plan.inputs) if name in read]
        self._made_of: tuple[Any, Sequence[Any]] = None, ()     # their state when it was, and the inputs that they were
        here = driver.enter()
        try:
            launches = tuple(driver.prepare(x.kernel, x.grid, x.block, x.shared_bytes, parameters(x), begins)
                             for x, begins in zip(plan.launches, early, strict=True))
            self._once, self._launches = launches[:first], launches[first:]
            self._start: Prepared = self._launches[0] if len(self._launches) == 1 else self._several
            if self._once and not self._steady:
                self._hold(driver.stream(), ())
        finally:
            if not here:
                driver.leave()
        if self._once and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)     # what is held is there, whatever stream the first call is on

    def _made(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised tensor on the device; torch has a quicker way (`_quickly`) for its current device."""
        return self._torch.empty_strided(shape, strides, dtype=dtype, device=self.device)

    def _weight(self, buffer: Buffer, weights: Mapping[str, Any]) -> Any:
        if buffer.name not in weights:
            raise EmmyError(f"{self.plan.name} needs the {buffer.role} {buffer.name!r}, which was not given",
                            f"Pass it; given: {', '.join(weights) or 'none'}.")
        if (shape := tuple(weights[buffer.name].shape)) != buffer.shape:
            raise EmmyError(f"{buffer.role} {buffer.name!r} has shape {shape}, but {buffer.shape} was compiled for",
                            "Compile for the new shape.")
        tensor = to_torch(weights[buffer.name], buffer.element, self.device)
        return tensor.clone() if tensor.data_ptr() % VECTOR else tensor

    def __call__(self, *tensors: Any, out: Sequence[Any] | None = None) -> Any:
        """The outputs, fresh or `out` (a tensor for each distinct output), computed on torch's current stream.

        EmmyError unless each tensor is on the device with the shape and type compiled for; one that is not contiguous is copied."""
        inputs, outputs, driver = self._inputs, self._outputs, self._driver
        if len(tensors) != inputs.count:
            raise EmmyError(f"{self.plan.name} takes {inputs.count} tensors ({', '.join(self.plan.inputs)}), not {len(tensors)}",
                            "Pass one for each input.")
        with self._lock:    # which no interrupt leaves held, as one between `acquire` and `try` would
            here = driver.enter()
            try:
                pointers = [x.data_ptr() for x in tensors] if inputs.alike(*tensors) else None
                if pointers != inputs.pointers:
                    held = inputs.take(tensors, pointers)  # noqa: F841  copies live until their launches are on the stream
                if out is None:
                    results, table, make = [], self._table, self._quickly if here else self._made
                    for place, shape, strides, dtype in outputs.fresh:
                        results.append(x := make(shape, strides, dtype))
                        table[place] = x.data_ptr()
                    if outputs.maps:
                        outputs.follow()
                elif len(out) == outputs.count:
                    results = outputs.take(out)
                else:
                    raise EmmyError(f"{self.plan.name} has {outputs.count} outputs, but out= has {len(out)} tensors",
                                    "Pass one for each output.")
                if self._once:
                    self._hold(driver.stream(), tensors)
                self._start(driver.stream())
            finally:
                if not here:
                    driver.leave()
        return self._returned(results)

    def _hold(self, stream: int, tensors: Sequence[Any]) -> None:
        """Do the launches that are done once, unless the weights that they read, and the inputs, are where they were and nothing has been
        written to them since.  Of a graph that is being captured they are a part, and are done again outside of it."""
        inputs = [tensors[k] for k in self._steady]
        if (made_of := state(self._sources, inputs)) is None or made_of != self._made_of[0]:
            for launch in self._once:
                launch(stream)
            # what the inputs were is kept, so that no other tensor comes to lie there
            self._made_of = None if self._driver.capturing() else made_of, [x.detach() for x in inputs]

    def _several(self, stream: int) -> None:
        """Do the launches, none or many, on what the table names: one by one, or as a graph where the same has been asked before."""
        driver = self._driver
        if self._launches and not driver.capturing():
            asked = bytes(self._table)
            if graph := self._graphs.get(asked):
                return driver.replay(graph, stream)
            if asked in self._graphs:
                self._graphs[asked] = driver.graph(self._launches)
            elif len(self._graphs) < GRAPHS:
                self._graphs[asked] = None
        for launch in self._launches:
            launch(stream)

    def renew(self) -> None:
        """Make what is held anew at the next call: after writes to weights that torch does not count."""
        self._made_of = None, ()

    def poisoned(self) -> tuple[Any, ...]:
        """Outputs for `out=` that hold NaN or -1 everywhere; workspaces are filled alike, and so is what is held, to be made again."""
        for memory in (self._arena, self._held):
            memory.fill_(255)
        self.renew()
        torch, device, slots = self._torch, self.device, self._outputs.slots
        fill = [float("nan") if s.dtype.is_floating_point else -1 for s in slots]
        return tuple(torch.full(s.shape, v, dtype=s.dtype, device=device) for s, v in zip(slots, fill, strict=True))


def state(weights: Sequence[Any], others: Sequence[Any]) -> tuple[list[int], list[tuple[int, int]]] | None:
    """How often each has been written to in place by torch's count, and where the `others` lie; None where torch does not count for one,
    made in inference mode."""
    try:
        return [x._version for x in weights], [(x.data_ptr(), x._version) for x in others]
    except RuntimeError:
        return None
