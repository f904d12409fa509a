"""Golden texts, the `gpu` marker, and hypothesis profiles (`HYPOTHESIS_PROFILE=deep` looks longer)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["EMMY_TUNE_DB"] = "off"     # what a user has measured is none of the tests' affair, nor of the processes they start
GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what the tests produced to tests/golden instead of comparing")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch  # seconds, so only where a test asks for a GPU

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU; torch.cuda.is_available() is false")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("softmax/loop.txt", text)` compares `text` with that file under tests/golden, or writes it under `--update-golden`."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text.rstrip("\n") + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists():
            pytest.fail(f"tests/golden/{name} does not exist; run pytest --update-golden, read what it wrote and commit it", pytrace=False)
        elif (wanted := path.read_text()) != text:
            diff = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"tests/golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*diff, "", "run pytest --update-golden if the change is meant"]), pytrace=False)

    return compare
