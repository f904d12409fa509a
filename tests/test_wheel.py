"""The wheel carries the code, the rules and the GPU descriptions, and compiles where no checkout is in sight."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".egg", ".toml", ".html", ".css", ".js")
pytest.importorskip("hatchling", reason="building the wheel needs hatchling: pip install -e '.[test]'")


def command(*words: str | Path, cwd: Path) -> str:
    """What a command prints; fails with what it complains about.  The checkout is not on the path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and the dependencies of the one that runs this test."""
    folder = tmp_path_factory.mktemp("venv")
    command(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    packages = Path(command(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip())
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    command(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=folder)
    return python


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for source, target in (("emmy", "emmy"), ("extract", "extract"), ("rules", "emmy/rules")):
        files = {p.relative_to(ROOT / source) for p in (ROOT / source).rglob("*") if p.suffix in SUFFIXES}
        assert files, source
        assert {f"{target}/{file.as_posix()}" for file in files} <= names
    assert not {name for name in names if name.startswith(("tests", "benchmarks")) or "__pycache__" in name}


def test_compiles_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    origin = command(installed, "-c", "import emmy, extract; print(emmy.__file__, extract.__file__)", cwd=tmp_path).split()
    assert all(Path(file).is_relative_to(installed.parents[1]) for file in origin), origin
    assert "__global__" in command(installed, "-m", "emmy", "compile", "-c", "(torch.randn(8,8)*2)", "--ir", "cuda", cwd=tmp_path)


def test_the_console_script_is_installed(installed: Path, tmp_path: Path) -> None:
    assert "compile" in command(installed.parent / "emmy", "--help", cwd=tmp_path)
