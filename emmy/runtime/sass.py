"""Machine code as text: which instructions the assembler made of a kernel.

(CUDA Binary Utilities, "nvdisasm" and "Instruction Set Reference".)
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from emmy.errors import EmmyError

_FUNCTION = re.compile(r"^\.text\.(\S+):$")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


def disassembler() -> str | None:
    """The path of nvdisasm: of the CUDA toolkit, or the one that comes with Triton; None where there is neither."""
    homes = [f"{os.environ[v]}/bin" for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    triton = importlib.util.find_spec("triton")
    theirs = [f"{p}/backends/nvidia/bin" for p in (triton and triton.submodule_search_locations) or ()]
    folders = [None, *homes, "/usr/local/cuda/bin", *theirs]
    return next(filter(None, (shutil.which("nvdisasm", path=folder) for folder in folders)), None)


def instructions(cubin: bytes) -> dict[str, Counter[str]]:
    """How often each instruction stands in each kernel of a cubin, by its name without modifiers (HGMMA, LDL, ...).

    EmmyError where there is no nvdisasm, or it cannot read the cubin."""
    tool = disassembler()
    if tool is None:
        raise EmmyError("there is no nvdisasm to read machine code with", "install the CUDA toolkit and put its bin folder on PATH")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True)
    if done.returncode:
        raise EmmyError(f"nvdisasm does not read the cubin: {done.stderr.strip()}", "use the nvdisasm of the toolkit that made it")
    return counted(done.stdout)


def counted(text: str) -> dict[str, Counter[str]]:
    """The instructions in what nvdisasm prints."""
    found: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            current = found.setdefault(function[1], Counter())
        elif instruction := _INSTRUCTION.match(line):
            current[instruction[1]] += 1
    return found
