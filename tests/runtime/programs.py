"""A small plan for the runtime's tests: y = (x + w) * (x + w), z = x + w, with x + w kept in a workspace."""

from __future__ import annotations

from emmy.ir.dtype import DType, f32
from emmy.runtime.plan import Buffer, Launch, Plan


def two_kernels(shape: tuple[int, ...] = (3, 5), element: DType = f32) -> Plan:
    buffers = tuple(Buffer(name, element, shape, role) for name, role in
                    (("x", "input"), ("w", "weight"), ("t", "workspace"), ("y", "output"), ("z", "output")))
    launches = (Launch("add", ("x", "w", "t"), (1, 1, 1), 128, row="WORK=t128", bytes=180, flops=15.0),
                Launch("square", ("t", "y", "z"), (2, 1, 1), 64, shared_bytes=65536, identity="abc", predicted_us=1.5))
    return Plan("square_of_sum", buffers, launches, ("x",), ("y", "z", "y"), "__global__ void add() {}\n", "sm_90a", "fast")
