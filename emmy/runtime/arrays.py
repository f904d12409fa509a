"""Arrays across the border: NumPy (with ml_dtypes) and torch hold the same bits under different type names."""

from __future__ import annotations

from typing import Any

import numpy as np

from emmy.ir.dtype import DTYPES, DType

FOREIGN = ("bf16", "e4m3", "e5m2")      # types that torch does not hand to NumPy itself


def element_of(x: Any) -> DType:
    """The element type of a NumPy array or a torch tensor; TypeError if no IR has it."""
    name = str(x.dtype).removeprefix("torch.")
    for d in DTYPES.values():
        if name in (d.torch_name, str(d.numpy)):
            return d
    raise TypeError(f"no element type for {name}; there are {', '.join(DTYPES)}")


def to_numpy(x: Any) -> np.ndarray:
    """A contiguous NumPy array with the elements of `x`, a NumPy array or a torch tensor on any device."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x).reshape(x.shape)
    x = x.detach().cpu().contiguous()
    element = element_of(x)
    return np.asarray(x.view(_bits(element)).numpy().view(element.numpy) if element.name in FOREIGN else x.numpy())


def _bits(element: DType) -> Any:
    """torch's whole numbers as wide as `element`."""
    import torch

    return torch.uint8 if element.bytes == 1 else torch.int16


def to_torch(x: Any, element: DType, device: Any) -> Any:
    """A contiguous torch tensor of `element` on `device` with the elements of `x`; no copy where it is one already."""
    import torch

    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, dtype=element.numpy).reshape(x.shape)
        whole = torch.from_numpy(x.view(f"i{element.bytes}") if element.name in FOREIGN else x)
        x = whole.view(getattr(torch, element.torch_name)) if element.name in FOREIGN else whole
    return x.detach().to(device=device, dtype=getattr(torch, element.torch_name)).contiguous()
