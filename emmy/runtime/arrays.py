"""Arrays across the border: NumPy (with ml_dtypes) and torch hold the same bits under different type names."""

from __future__ import annotations

from typing import Any

import numpy as np

from emmy.ir.dtype import DTYPES, DType


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
    if element.name != "bf16":  # the one type that torch does not hand to NumPy itself
        return np.asarray(x.numpy())
    import torch

    return np.asarray(x.view(torch.int16).numpy().view(element.numpy))


def to_torch(x: Any, element: DType, device: Any) -> Any:
    """A contiguous torch tensor of `element` on `device` with the elements of `x`; no copy where it is one already."""
    import torch

    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, dtype=element.numpy).reshape(x.shape)
        x = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if element.name == "bf16" else torch.from_numpy(x)
    return x.detach().to(device=device, dtype=getattr(torch, element.torch_name)).contiguous()
