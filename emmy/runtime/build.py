"""CUDA text to a cubin, by nvcc, once for each text, target and compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from emmy import __version__
from emmy.errors import EmmyError

TARGETS = ("sm_90a", "sm_80", "sm_89", "sm_120")
_FLAGS = ("-cubin", "-O3", "--fmad=false", "-std=c++17", "-Xptxas", "-v")


@dataclass(frozen=True)
class FunctionReport:
    """What the assembler says of a kernel: registers of a thread; static shared memory, spills (stored and loaded) and stack in bytes."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True)
class Built:
    """A cubin and a report for each kernel in it."""

    cubin: bytes
    functions: dict[str, FunctionReport]


def build(source: str, target: str, *, cache: Path | None = None, timeout: float | None = None) -> Built:
    """Compiles CUDA text for one of `TARGETS`.

    The result is kept under `cache`, by default $EMMY_CACHE or ~/.cache/emmy.  EmmyError where there is no nvcc, the target
    is unknown, or the text does not compile, within `timeout` seconds if that is given.
    """
    if target not in TARGETS:
        raise EmmyError(f"unknown target {target!r}", f"choose one of {', '.join(TARGETS)}")
    nvcc = _nvcc()
    flags = (*_FLAGS, f"-gencode=arch=compute_{target[3:]},code={target}")
    key = hashlib.sha256("\0".join((source, _version(nvcc), *flags)).encode()).hexdigest()
    folder = (cache or default_cache()) / "cubin" / key[:2]
    cubin, report = folder / f"{key}.cubin", folder / f"{key}.json"
    if report.exists():  # written last, so the cubin is there
        return Built(cubin.read_bytes(), {name: FunctionReport(**r) for name, r in json.loads(report.read_text()).items()})
    built = _compile(nvcc, flags, source, target, timeout)
    folder.mkdir(parents=True, exist_ok=True)
    _write(cubin, built.cubin)
    _write(report, json.dumps({name: asdict(r) for name, r in built.functions.items()}).encode())
    return built


def _compile(nvcc: str, flags: tuple[str, ...], source: str, target: str, timeout: float | None) -> Built:
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        text.write_text(source)
        try:
            done = subprocess.run([nvcc, *flags, "-o", str(out), str(text)], capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise EmmyError(f"nvcc has not compiled this for {target} within {timeout:g} s",
                "allow more time, or take another row") from error
        if done.returncode:
            raise EmmyError(f"nvcc does not compile this for {target}:\n{(done.stderr + done.stdout).strip()}",
                "generated text always should: report it with the program; for text of your own, correct it")
        log = done.stderr + done.stdout
        if complaints := re.findall(r".*\(C75\d\d\).*", log):     # right, but products run one by one or registers do not move
            raise EmmyError(f"ptxas does not assemble this as it is meant for {target}:\n" + "\n".join(complaints),
                "generated text always should: report it with the program; for text of your own, correct it")
        return Built(out.read_bytes(), report(log))


def report(log: str) -> dict[str, FunctionReport]:
    """The functions in what `ptxas -v` prints."""
    functions = {}
    for part in re.split(r"Compiling entry function '", log)[1:]:
        def number(pattern: str, part: str = part) -> int:
            found = re.search(pattern, part)
            return int(found[1]) if found else 0
        functions[part[:part.index("'")]] = FunctionReport(number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"),
            number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"), number(r"(\d+) bytes stack frame"))
    return functions


def compiler() -> str:
    """What compiles a kernel, in words under which measurements are filed: Emmy's version and nvcc's; EmmyError where there is no nvcc."""
    found = re.search(r"\bV([\d.]+)", _version(_nvcc()))
    return f"emmy {__version__}, nvcc {found[1] if found else 'unknown'}"


def _nvcc() -> str:
    homes = [os.environ[v] for v in ("CUDA_HOME", "CUDA_PATH") if v in os.environ]
    found = shutil.which("nvcc") or next(filter(None, (shutil.which("nvcc", path=f"{h}/bin") for h in (*homes, "/usr/local/cuda"))), None)
    if not found:
        raise EmmyError("there is no nvcc to compile kernels with",
            "install the CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME")
    return found


@cache
def _version(nvcc: str) -> str:
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout


def default_cache() -> Path:
    """$EMMY_CACHE, or the folder emmy of the user's cache."""
    return Path(os.environ.get("EMMY_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emmy")


def _write(path: Path, data: bytes) -> None:
    """Writes a file that others see whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
