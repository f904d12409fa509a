"""What a call does with its tensors: their pointers go into the table that launches read, and tensor maps follow them.

Most calls are like the one before.  Torch tells in one check that inputs have the types, devices, shapes and strides of the last ones,
and nothing is written where they are the same memory.  Otherwise each tensor is looked at, and copied or refused by name where it does not
fit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import prod
from operator import or_
from typing import Any, NamedTuple

from emmy.errors import EmmyError
from emmy.runtime.plan import Buffer
from emmy.runtime.tensor_map import HostMap

VECTOR = 16  # bytes: the widest access a kernel makes, hence the alignment it relies on
Table = ctypes.Array[ctypes.c_uint64]
Maps = Iterable[tuple[HostMap, int]]


class Slot(NamedTuple):
    """An input or output: its place in the pointer table and what a tensor there must be."""

    place: int
    name: str
    shape: Any
    strides: tuple[int, ...]
    dtype: Any

    @classmethod
    def of(cls, buffer: Buffer, place: int) -> Slot:
        import torch

        shape = torch.Size(buffer.shape)
        strides = tuple(prod(max(n, 1) for n in shape[k + 1:]) for k in range(len(shape)))
        return cls(place, buffer.name, shape, strides, getattr(torch, buffer.element.torch_name))


class Slots:
    """The inputs or the outputs of a plan: slots of a pointer table, and the tensor maps of tensors there, each with its place."""

    def __init__(self, slots: Iterable[Slot], table: Table, maps: Maps, device: Any) -> None:
        self.slots, self.table, self.device = tuple(slots), table, device
        self.count = len(self.slots)
        places = {x.place for x in self.slots}
        self.maps = [(host, place) for host, place in maps if place in places]

    def put(self, tensors: Sequence[Any]) -> list[Any]:
        """Look at each tensor, and have table and maps point to it.  Of each: None, or the copy that stands for it; EmmyError if it has
        another type, shape or device than its slot."""
        copies: list[Any] = []
        device, table = self.device, self.table
        for x, slot in zip(tensors, self.slots, strict=True):
            place, _, shape, _, dtype = slot
            try:
                fits = (x.dtype is dtype and x.shape == shape and x.device == device and x.is_contiguous()
                        and not (pointer := x.data_ptr()) % VECTOR)
            except AttributeError:
                fits = False
            if fits:
                copies.append(None)
            else:
                copies.append(accept(x, slot, device))
                pointer = copies[-1].data_ptr()
            table[place] = pointer
        self.follow()
        return copies

    def follow(self) -> None:
        """Point the maps to where the tensors are."""
        for host, place in self.maps:
            host.point(self.table[place])


class Inputs(Slots):
    """The inputs, which are the first in the table.  `alike` tells whether tensors are like those of the last call; table and maps point to
    `pointers`."""

    def __init__(self, slots: Iterable[Slot], table: Table, maps: Maps, device: Any) -> None:
        super().__init__(slots, table, maps, device)
        self.alike: Callable[..., bool] = _no
        self.pointers = list[Any]()

    def take(self, tensors: Sequence[Any], pointers: list[Any] | None) -> list[Any]:
        """Have table and maps point to the tensors, one for each slot, known to be alike and at `pointers` unless that is None.  Nothing,
        or what `put` returns where a copy stands for one of them."""
        self.pointers = []      # if this fails midway, the table holds neither those nor these
        if pointers is None or reduce(or_, pointers) % VECTOR:
            copies = self.put(tensors)
            if any(x is not None for x in copies):
                return copies
            self.alike, pointers = alike(tensors), self.table[:self.count]
        else:
            self.table[:self.count] = pointers
            if self.maps:
                self.follow()
        self.pointers = pointers
        return []


class Outputs(Slots):
    """The distinct outputs; `fresh`: the place, shape, strides and type of each, to make it of."""

    def __init__(self, slots: Iterable[Slot], table: Table, maps: Maps, device: Any) -> None:
        super().__init__(slots, table, maps, device)
        self.fresh = [(x.place, tuple(x.shape), x.strides, x.dtype) for x in self.slots]

    def take(self, tensors: Sequence[Any]) -> list[Any]:
        """Have table and maps point to these tensors, one for each slot, and return them; EmmyError unless all can be written to."""
        for x, slot in zip(self.put(tensors), self.slots, strict=True):
            if x is not None:
                raise EmmyError(f"out= for {slot.name!r} is not contiguous, or not aligned to {VECTOR} bytes",
                                "Pass a tensor from torch.empty.")
        return list(tensors)


def _no(*tensors: Any) -> bool:
    return False


def alike(tensors: Sequence[Any]) -> Callable[..., bool]:
    """Whether as many tensors have the types, devices, shapes and strides of these, by torch's own check of all at once."""
    import torch

    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None or not tensors:
        return _no
    check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=[list(x.shape) for x in tensors],
                                        dynamic_dims_strides=[list(x.stride()) for x in tensors]).check
    return check


def accept(x: Any, slot: Slot, device: Any) -> Any:
    """`x`, or a contiguous and aligned copy of it; EmmyError unless it is a tensor of the slot's shape and type on the device."""
    import torch

    name = slot.name
    if not isinstance(x, torch.Tensor):
        raise EmmyError(f"argument {name!r} is a {type(x).__name__}", f"Pass a torch tensor on {device}.")
    if x.dtype is not slot.dtype:
        raise EmmyError(f"argument {name!r} has type {x.dtype}, but {slot.dtype} was compiled for",
                        f"Convert it with .to({slot.dtype}), or compile for {x.dtype}.")
    if x.shape != slot.shape:
        raise EmmyError(f"argument {name!r} has shape {tuple(x.shape)}, but {tuple(slot.shape)} was compiled for",
                        "Compile for the new shape.")
    if x.device != device:
        raise EmmyError(f"argument {name!r} is on {x.device}, but the program is on {device}", f"Move it with .to({str(device)!r}).")
    return x if x.is_contiguous() and x.data_ptr() % VECTOR == 0 else x.clone(memory_format=torch.contiguous_format)
