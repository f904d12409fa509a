"""torch.compile(model, backend="emmy") on the CPU, through the backend that pyproject.toml declares."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from emmy import pipeline
from emmy.evaluate import tile as tile_evaluation
from emmy.ir import tile_ir

NAME = "emmy"


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    """The declared entry point, registered where the checkout runs without being installed; no graph outlives its test."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    if NAME not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(EntryPoint(NAME, declared[NAME], "torch_dynamo_backends").load(), name=NAME)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def two_results(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.softmax(-1) @ y, (x * 2).sum(0)


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    print(end="")       # Dynamo breaks the graph here
    return y.amax(1) + 1


@pytest.mark.parametrize("model, shapes", [(Block(), [(2, 5, 16)]), (two_results, [(6, 8), (8, 3)]), (broken, [(4, 7)])],
                         ids=["module", "results", "break"])
def test_agrees_with_eager(model: Any, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    with torch.no_grad():
        wanted, found = model(*tensors), torch.compile(model, backend=NAME, dynamic=False)(*tensors)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_long_chain_is_followed_where_torch_compile_leaves_little_of_the_stack() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for k in range(500):
            x = x + k
        return x

    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    torch.testing.assert_close(torch.compile(long, backend=NAME, dynamic=False)(x), long(x))


def test_bf16_keeps_its_dtype() -> None:
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    found = torch.compile(lambda x: functional.rms_norm(x, [32]), backend=NAME)(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, functional.rms_norm(x, [32]), rtol=2e-2, atol=2e-2)


def test_compiles_again_for_another_shape() -> None:
    compiled = torch.compile(lambda x: x.cos() * 2, backend=NAME, dynamic=False)
    for n in (3, 5):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x.cos() * 2)


def test_writes_to_its_input() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert torch.compile(step, backend=NAME)(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


UNCOVERED = """import torch
from emmy.capture.dynamo import backend
def ordered(x):
    return torch.erfinv(x + 1)
torch.compile(ordered, backend=backend)(torch.randn(4))
"""


def test_an_uncovered_operator_is_named_with_its_line(tmp_path: Path) -> None:
    """In a process of its own: after an error inside a backend torch goes on to evaluate every frame, which slows Python and shortens its
    stack."""
    script = tmp_path / "ordered.py"
    script.write_text(UNCOVERED)
    done = subprocess.run([sys.executable, script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    named = re.search(r"(?s)aten\.erfinv\.default.*ordered\.py:4: return torch\.erfinv\(x \+ 1\)", done.stderr)
    assert done.returncode and named, done.stderr


def test_parameters_are_inputs_of_which_kernels_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that is cast: again where it is written to, replaced, or another module's is given."""
    made: list[Any] = []
    compiled = pipeline.compile_captured
    monkeypatch.setattr(pipeline, "compile_captured", lambda captured: made.append(compiled(captured)) or made[-1])
    ran: list[bool] = []
    evaluate = tile_evaluation.evaluate_kernel
    monkeypatch.setattr(tile_evaluation, "evaluate_kernel", lambda k, tensors: ran.append(tile_ir.is_once(k)) or evaluate(k, tensors))

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(512, 512, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(x, self.linear.weight.to(x.dtype))

    model, x = Cast(), torch.randn(16, 512, dtype=torch.bfloat16)
    fast = torch.compile(model, backend=NAME, dynamic=False)

    def once() -> int:
        ran.clear()
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
        return sum(ran)

    with torch.no_grad():
        assert [once(), once()] == [1, 0]
        model.linear.weight.add_(0.1)
        assert [once(), once()] == [1, 0]
        for _ in range(2):
            model.linear.weight.data = torch.randn(512, 512) / 16
        assert [once(), once()] == [1, 0]
        model.linear.weight = nn.Parameter(torch.randn(512, 512) / 16)
        assert once() == 1
    assert made[0].captured.steady and {i.role for i in made[0].plan.buffers} == {"input", "held", "output"}
