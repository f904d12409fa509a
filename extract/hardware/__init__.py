"""What a GPU can do, as numbers that a cost model divides by.  One TOML file a GPU in this folder."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Hardware:
    """Rates are what a good kernel sustains, in 10^12 a second; a matrix product counts two operations a multiply-add.

    A rate of 0 means that the GPU has no such unit.
    """

    name: str
    target: str
    """The nvcc architecture, such as `sm_90a`."""
    sms: int
    bandwidth_TBs: float
    """Device memory, terabytes a second."""
    l2_MB: float
    fp32_TFLOPs: float
    """Single precision outside tensor cores."""
    sfu_TOPs: float
    """Special functions: exp2, log2, rsqrt, sin, tanh."""
    tensor_tf32_TFLOPs: float
    tensor_bf16_TFLOPs: float
    """bf16 and fp16 with fp32 accumulation, dense."""
    tensor_fp8_TFLOPs: float
    launch_us: float
    """From one kernel's end to the next one's first instruction, microseconds."""
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    max_threads: int
    """A block."""
    max_threads_per_sm: int
    registers_per_sm: int
    """Of 32 bits."""
    bulk_TBs: float = 0.0
    """What copy engines bring from the second-level cache, terabytes a second."""


def names() -> list[str]:
    """The GPUs that are described, sorted."""
    return sorted(entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml"))


@cache
def load(name: str) -> Hardware:
    """The GPU of that name, such as `h200`.  Raises ValueError for one that is not described."""
    if name not in names():
        raise ValueError(f"no GPU {name!r} is described; take one of {', '.join(names())} or add extract/hardware/{name}.toml")
    return Hardware(**tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text()))


def named_like(device: str) -> str:
    """The short name of a GPU that its driver calls `device`: "NVIDIA H200" is h200.  One that is not described is its own name, in
    small letters and without spaces."""
    spelled = "".join(device.lower().split())
    return max((name for name in names() if name in spelled), key=len, default=spelled)


def for_target(target: str) -> Hardware:
    """The GPU of an nvcc architecture; `sm_90` and `sm_90a` are one.  Of several, that which $EMMY_GPU names, else the first by name.
    Raises ValueError for one that is not described."""
    meant = os.environ.get("EMMY_GPU", "")
    if meant and load(meant).target.rstrip("af") == target.rstrip("af"):
        return load(meant)
    described = {load(name).target.rstrip("af"): load(name) for name in reversed(names())}
    if target.rstrip("af") not in described:
        known = ", ".join(sorted(hardware.target for hardware in described.values()))
        raise ValueError(f"no GPU of target {target!r} is described; take one of {known} or add a file to extract/hardware")
    return described[target.rstrip("af")]
