"""Building: reports, the cache, errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emmy.errors import EmmyError
from emmy.runtime import build as module
from emmy.runtime.build import TARGETS, FunctionReport, build, report

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 24 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 5.000 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_report() -> None:
    assert report(LOG) == {"first": FunctionReport(40, 4096, 20, 24), "second": FunctionReport(10, 0, 0, 0)}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_cache_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    built = build(source, "sm_80", cache=tmp_path)
    assert built.cubin[:4] == b"\x7fELF" and built.functions["twice"].registers > 0
    with pytest.raises(EmmyError, match="nvcc does not compile this for sm_80"):
        build("nonsense", "sm_80", cache=tmp_path)

    def refuse(*args: object) -> None:
        raise AssertionError("compiled again")
    monkeypatch.setattr(module, "_compile", refuse)
    assert build(source, "sm_80", cache=tmp_path) == built
    with pytest.raises(AssertionError, match="compiled again"):
        build(source, "sm_89", cache=tmp_path)
    assert sorted(p.suffix for p in tmp_path.rglob("*") if p.is_file()) == [".cubin", ".json"]


def test_targets_and_a_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EmmyError, match=TARGETS[0]):
        build("", "sm_75", cache=tmp_path)
    monkeypatch.setattr(shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(EmmyError, match="install the CUDA toolkit"):
        build("", "sm_80", cache=tmp_path)
