"""What a GPU does, measured: rates that floors and cost models divide by."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from emmy.errors import EmmyError
from emmy.runtime.timing import device_us

ELEMENTS = 1 << 28          # of the tensors that rates of memory are measured on
SIDE = 8192                 # of the matrices that are multiplied


class Rates(NamedTuple):
    """A copy's traffic (bytes read and written), fp32 fused multiply-adds, bf16 matrix products."""

    copy_TBs: float
    fp32_TFLOPs: float
    bf16_TFLOPs: float


def measure_rates() -> Rates:
    """Measure the rates that floors are computed from; a few hundred milliseconds.  EmmyError if the GPU or CuPy is missing."""
    return Rates(copy_TBs(), fma_TFLOPs(), product_TFLOPs("bfloat16"))


def copy_TBs() -> float:
    """Bytes read and written by a kernel that copies, in 10^12 a second."""
    import torch

    source = torch.randn(ELEMENTS, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / device_us(lambda: torch.mul(source, 1.0, out=target)) / 1e6     # a copy node of a graph is slower


def product_TFLOPs(dtype: str) -> float:
    """Operations of a product of square matrices of a torch dtype on tensor cores, two a multiply-add, in 10^12 a second.  float32 is
    multiplied as TF32; 0 for a type that torch multiplies on no unit of this GPU."""
    import torch

    element = getattr(torch, dtype)
    a, b = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda").to(element) for _ in range(2))
    if element.itemsize == 1:
        one = torch.ones((), device="cuda")
        run: Callable[[], Any] = lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)     # noqa: E731
    else:
        c = torch.empty_like(a)
        run = lambda: torch.matmul(a, b, out=c)     # noqa: E731
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        run()
    except RuntimeError:
        return 0.0
    else:
        return 2 * SIDE**3 / device_us(run) / 1e6
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def launch_us(chain: int = 400) -> float:
    """From one kernel's end to the end of the next, which has one element to do, in a CUDA graph: microseconds."""
    import torch

    x = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(chain):
            x.add_(1.0)
    times = []
    for _ in range(7):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(float(start.elapsed_time(stop)) * 1000 / chain)
    return median(times)


CHAINS, STEPS, THREADS = 16, 4096, 256
_KERNEL = """
extern "C" __global__ void chains(float* out, float a, float b) {{
  float x[{chains}];
  #pragma unroll
  for (int k = 0; k < {chains}; ++k) x[k] = threadIdx.x + k;
  #pragma unroll 8
  for (int n = 0; n < {steps}; ++n) {{
    #pragma unroll
    for (int k = 0; k < {chains}; ++k) {step}
  }}
  float sum = 0;
  #pragma unroll
  for (int k = 0; k < {chains}; ++k) sum += x[k];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""


def fma_TFLOPs() -> float:
    """Fused multiply-adds of fp32, two operations each, in 10^12 a second."""
    return 2 * _chains("x[k] = __fmaf_rn(x[k], a, b);")


def special_TOPs() -> float:
    """Special functions (ex2.approx), in 10^12 a second."""
    return _chains('asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[k]));')


def _chains(step: str) -> float:
    """Steps of independent chains on every multiprocessor, in 10^12 a second."""
    try:
        import cupy
    except ImportError as error:
        raise EmmyError("measuring the fp32 rate needs CuPy, which is not installed",
                        'Install it: pip install "emmy-egraph[cuda]".') from error
    import torch

    kernel = cupy.RawKernel(_KERNEL.format(chains=CHAINS, steps=STEPS, step=step), "chains")
    blocks = 16 * torch.cuda.get_device_properties("cuda").multi_processor_count
    out = torch.empty(blocks * THREADS, device="cuda")
    arguments = (cupy.uint64(out.data_ptr()), cupy.float32(0.999), cupy.float32(0.001))

    def run() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((blocks,), (THREADS,), arguments)

    return CHAINS * STEPS * THREADS * blocks / device_us(run) / 1e6
