"""A GPU's file for the cost model: what its driver says of it, and what it does."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emmy.errors import EmmyError
from emmy.runtime import rates
from extract import hardware
from extract.hardware import Hardware

Step = tuple[str, Callable[[], Any]]
TARGETS = {(9, 0): "sm_90a"}        # of a GPU whose own instructions need a suffix
BLOCK = 1024                        # threads of a block, of every GPU since compute capability 2.0


def steps(properties: Any) -> Iterator[Step]:
    """Each field of `Hardware` but its name, and how it is found, on the current GPU of these torch properties."""
    capability = properties.major, properties.minor
    yield "target", lambda: TARGETS.get(capability, "sm_{}{}".format(*capability))
    yield "sms", lambda: properties.multi_processor_count
    yield "bandwidth_TBs", rates.copy_TBs
    yield "l2_MB", lambda: properties.L2_cache_size / 1e6
    yield "fp32_TFLOPs", rates.fma_TFLOPs
    yield "sfu_TOPs", rates.special_TOPs
    yield "tensor_tf32_TFLOPs", lambda: rates.product_TFLOPs("float32")
    yield "tensor_bf16_TFLOPs", lambda: rates.product_TFLOPs("bfloat16")
    yield "tensor_fp8_TFLOPs", lambda: rates.product_TFLOPs("float8_e4m3fn") if capability >= (8, 9) else 0
    yield "launch_us", rates.launch_us
    yield "shared_bytes_per_block", lambda: properties.shared_memory_per_block_optin
    yield "shared_bytes_per_sm", lambda: properties.shared_memory_per_multiprocessor
    yield "max_threads", lambda: BLOCK
    yield "max_threads_per_sm", lambda: properties.max_threads_per_multi_processor
    yield "registers_per_sm", lambda: properties.regs_per_multiprocessor


def measured(name: str, properties: Any, found: Callable[[Any], Iterator[Step]] = steps,
             watch: Callable[[str], None] = lambda field: None) -> Hardware:
    """The GPU as the cost model sees it; `watch` is told of each field before it is found.  Rates have three digits."""
    fields: dict[str, Any] = {"name": name}
    for field, find in found(properties):
        watch(field)
        value = find()
        fields[field] = float(f"{value:.3g}") if isinstance(value, float) else value
    return Hardware(**fields)


def text(gpu: Hardware, about: str, day: datetime.date) -> str:
    """The TOML file of a GPU, which says where its numbers are from."""
    defaults = {f.name: f.default for f in dataclasses.fields(Hardware)}
    lines = [f"# {about}.  Measured by emmy calibrate on {day.isoformat()}: rates are those of long kernels, limits the driver's."]
    for name, value in dataclasses.asdict(gpu).items():
        if value != defaults[name]:
            lines.append(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value:g}" if isinstance(value, float) else
                         f"{name} = {value}")
    return "\n".join(lines) + "\n"


def beside(gpu: Hardware) -> Mapping[str, float]:
    """How many times what the described GPU of that target does this one does, by field, where a rate differs by more than a tenth."""
    try:
        known = hardware.for_target(gpu.target)
    except ValueError:
        return {}
    pairs = ((name, value, getattr(known, name)) for name, value in dataclasses.asdict(gpu).items() if isinstance(value, int | float))
    return {name: value / other for name, value, other in pairs if other and abs(value / other - 1) > 0.1}


def short(name: str) -> str:
    """A name for a GPU's file; EmmyError if it cannot be a file's."""
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise EmmyError(f"{name!r} is no name for a GPU's file", "give --name letters and digits, as in h200")
    return name
