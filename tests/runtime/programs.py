"""A small plan for the runtime's tests: z = x + w and y = z * z, with x + w kept in a workspace."""

from __future__ import annotations

from emmy.ir.dtype import DType, f32
from emmy.ir.kernel_ir import Kernel
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.plan import Buffer, Launch, Plan

SOURCE = """
extern "C" __global__ void add(const float* x, const float* w, float* t) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 15) t[i] = x[i] + w[i];
}

extern "C" __global__ void square(const float* t, float* y, float* z) {
  extern __shared__ float staged[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  staged[16000 + threadIdx.x] = i < 15 ? t[i] : 0.0f;
  __syncthreads();
  if (i < 15) {
    float a = staged[16000 + threadIdx.x];
    y[i] = a * a;
    z[i] = a;
  }
}
"""


def two_kernels(shape: tuple[int, ...] = (3, 5), element: DType = f32) -> Plan:
    """The plan; SOURCE computes it for 15 elements of f32."""
    buffers = tuple(Buffer(name, element, shape, role) for name, role in
                    (("x", "input"), ("w", "weight"), ("t", "workspace"), ("y", "output"), ("z", "output")))
    launches = (Launch("add", ("x", "w", "t"), (1, 1, 1), 128, row="WORK=t128", bytes=180, flops=15.0),
                Launch("square", ("t", "y", "z"), (2, 1, 1), 64, shared_bytes=65536, identity="abc", predicted_us=1.5))
    return Plan("square_of_sum", buffers, launches, ("x",), ("y", "z", "y"), SOURCE, "sm_90a", "fast")


def product(element, n, moved=0):
    """A plan of one n x n matrix product."""
    buffers = tuple(Buffer(name, element, (n, n), role) for name, role in (("a", "input"), ("b", "weight"), ("y", "output")))
    launch = Launch("k", ("a", "b", "y"), (1, 1, 1), 128, bytes=moved, flops=2.0 * n**3)
    return Plan("matmul", buffers, (launch,), ("a",), ("y",), "", "sm_90a", "fast")


def kernel_plan(kernel: Kernel, shapes: dict[str, tuple[int, ...]]) -> Plan:
    """The plan that launches one kernel: the buffers that it reads are inputs, those that it writes outputs."""
    buffers = tuple(Buffer(p.name, p.element, shapes[p.name], "input" if p.access == "read" else "output") for p in kernel.parameters)
    launch = Launch(kernel.name, tuple(p.name for p in kernel.parameters), kernel.grid, kernel.block, kernel.dynamic_shared_bytes,
                    maps=kernel.maps)
    inputs, outputs = (tuple(b.name for b in buffers if b.role == role) for role in ("input", "output"))
    return Plan(kernel.name, buffers, (launch,), inputs, outputs, emit(kernel), "sm_90a", "fast")


def held_product() -> Plan:
    """The plan of y = x + t, where t = w + w is held; SOURCE computes it."""
    buffers = tuple(Buffer(name, f32, (3, 5), role) for name, role in (("x", "input"), ("w", "weight"), ("t", "held"), ("y", "output")))
    launches = (Launch("add", ("w", "w", "t"), (1, 1, 1), 128, once=True), Launch("add", ("x", "t", "y"), (1, 1, 1), 128))
    return Plan("sum", buffers, launches, ("x",), ("y",), SOURCE, "sm_90a", "fast")
