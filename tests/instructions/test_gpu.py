"""The GPU computes what the simulator does."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emmy.evaluate.simulate import simulate
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel_ir import Kernel, walk
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime.build import build
from emmy.runtime.tensor_map import SIZE, HostMap
from tests import kernels
from tests.hopper_kernels import PROBES

pytestmark = pytest.mark.gpu


def launch(cupy: Any, kernel: Kernel, buffers: dict[str, np.ndarray], path: Path) -> None:
    """Runs the kernel on the device; written buffers are overwritten in place."""
    capability = cupy.cuda.Device().compute_capability
    target = {"90": "sm_90a", "80": "sm_80", "89": "sm_89", "120": "sm_120"}[capability]
    path.write_bytes(build(emit(kernel), target, cache=path.parent).cubin)
    function = cupy.RawModule(path=str(path)).get_function(kernel.name)
    device = {name: cupy.asarray(a.view(np.uint8)) for name, a in buffers.items()}
    function.max_dynamic_shared_size_bytes = kernel.dynamic_shared_bytes
    maps = []
    for m in kernel.maps:
        made = HostMap(m)
        made.point(device[m.buffer].data.ptr)
        maps.append(np.void(ctypes.string_at(made.address, SIZE)))
    arguments = (*(device[p.name] for p in kernel.parameters), *maps)
    function(kernel.grid, (kernel.block, 1, 1), arguments, shared_mem=kernel.dynamic_shared_bytes)
    for p in kernel.parameters:
        if p.access == "write":
            buffers[p.name][:] = device[p.name].get().view(p.element.numpy)


@pytest.mark.parametrize("kernel", [*kernels.EVERY, *map(kernels.every_operator, DTYPES.values()), *PROBES], ids=lambda k: k.name)
def test_gpu_agrees_with_the_simulator(kernel: Kernel, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    hopper = any(s.asynchronous for s in walk(kernel.body))
    if hopper and cupy.cuda.Device().compute_capability != "90":
        pytest.skip("the kernel is for sm_90a")
    random = np.random.default_rng(0)
    passed = [p for p in kernel.parameters if not p.own]
    given = {p.name: (random.standard_normal(p.length) * 3).astype(p.element.numpy) for p in passed}
    scratch = {p.name: np.zeros(p.length, p.element.numpy) for p in kernel.parameters if p.own}
    for a in given.values():
        if hopper:
            a[:] = np.rint(a.astype(np.float32))    # sums of products of small integers are exact in any order
        a[a == 0] = 1  # what an integer divided by zero is, C does not say
    expected = {name: a.copy() for name, a in given.items()}
    simulate(kernel, expected, poison=kernel not in PROBES)
    launch(cupy, kernel, given | scratch, tmp_path / "kernel.cubin")
    for p in passed:
        tolerance = {"bf16": 1e-2, "f16": 2e-3, "f32": 2e-5, "f64": 1e-12}.get(p.element.name, 0)
        np.testing.assert_allclose(given[p.name].astype(np.float64), expected[p.name].astype(np.float64), rtol=tolerance, atol=tolerance,
                                   err_msg=p.name)
