"""Machine code as text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from emmy.errors import EmmyError
from emmy.lower.kernel_to_cuda import emit
from emmy.runtime import sass
from emmy.runtime.build import build
from tests import hopper_kernels

TEXT = """
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDL.64 R2, [R1] ;
        /*0020*/            @!UPT0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
.L_x_1:
        /*0030*/                   BRA `(.L_x_1);
.text.second:
        /*0000*/                   EXIT ;
"""


def test_instructions_by_kernel() -> None:
    assert sass.counted(TEXT) == {"first": {"LDC": 1, "LDL": 1, "HGMMA": 1, "BRA": 1}, "second": {"EXIT": 1}}


@pytest.mark.skipif(not sass.disassembler() or not shutil.which("nvcc"), reason="there is no nvdisasm, or no nvcc")
def test_a_kernel_of_tensor_cores() -> None:
    kernel = next(k for k in hopper_kernels.EVERY if any("wgmma" in line for line in emit(k).splitlines()))
    counts = sass.instructions(build(emit(kernel), "sm_90a").cubin)[kernel.name]
    assert counts["HGMMA"] > 0 and not counts["LDL"] + counts["STL"]


@pytest.mark.skipif(not sass.disassembler(), reason="there is no nvdisasm")
def test_what_is_no_machine_code() -> None:
    with pytest.raises(EmmyError, match="nvdisasm does not read"):
        sass.instructions(b"not a cubin")


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(EmmyError, match="no nvdisasm"):
        sass.instructions(b"")
