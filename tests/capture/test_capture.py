"""What is an input, a weight or a constant; the names they get; and the errors."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from emmy.capture.dynamo import backend
from emmy.capture.export import Captured, capture
from emmy.capture.snippet import _Tape, capture_file, capture_snippet, programs
from emmy.errors import EmmyError
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import torch_ir
from emmy.runtime.execute import returned


def results(captured: Captured) -> list[torch.Tensor]:
    return evaluate_torch(captured.program, captured.tensors)


def test_text_of_a_snippet() -> None:
    captured = capture_snippet("nn.RMSNorm(16)(torch.randn(1, 4, 16))")
    assert torch_ir.print_program(captured.program) == (
        'torch {\n'
        '  %weight = load("weight") : f32[16]\n'
        '  %x0 = input("x0") : f32[1, 4, 16]\n'
        '  %rms_norm = aten.rms_norm.default(%x0, [16], %weight) : f32[1, 4, 16]  # <snippet>:1: nn.RMSNorm(16)(torch.randn(1, 4, 16))\n'
        '  return %rms_norm\n'
        '}\n')


def test_tensors_in_another_order_of_memory() -> None:
    """Inputs, weights, constants and results: the program has them row-major, and permutes."""
    model = nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)
    x = torch.randn(4, 2, 5, 6).to(memory_format=torch.channels_last)
    captured = capture(model, (x,))
    assert captured.orders == {"input": (0, 2, 3, 1), 0: (0, 2, 3, 1)} and captured.strides == ((90, 1, 18, 3),)
    assert all(t.is_contiguous() for t in captured.tensors.values()) and captured.inputs["input"].data_ptr() == x.data_ptr()
    text = torch_ir.print_program(captured.program)
    assert "%input_1 = aten.permute.default(%input, [0, 3, 1, 2]) : f32[4, 2, 5, 6]\n" in text
    assert "%conv2d_1 = aten.permute.default(%conv2d, [0, 2, 3, 1]) : f32[4, 5, 6, 3]\n  return %conv2d_1" in text
    torch.testing.assert_close(results(captured)[0].permute(0, 3, 1, 2), model(x))
    table = torch.randn(3, 4, 5).permute(2, 0, 1)
    captured = capture(lambda x: x + table, (torch.randn(5, 3, 4),))
    assert captured.constants["c0"].shape == (3, 4, 5) and captured.orders == {}
    assert capture(lambda x: x + 1, (torch.randn(5, 6)[:, :3].t(),)).orders == {}       # what has gaps is copied
    assert capture(lambda x: x + 1, (torch.randn(5, 6).t(),)).orders == {"x": (1, 0)}


@pytest.mark.parametrize(("source", "inputs", "weights"), [
    ("x = torch.randn(3); y = torch.tensor(2.); x * y", ["x", "y"], []),
    ("a, b = torch.rand(2), torch.rand(2); a + b", ["a", "b"], []),
    ("torch.rand(2) + torch.rand(2)", ["x0", "x1"], []),
    ("x = torch.randn(3); y = x * torch.arange(3) + torch.zeros(3)", ["x"], []),
    ("x = torch.randn(3).bfloat16(); x.exp()", ["x"], []),
    ("w = nn.Parameter(torch.randn(3)); torch.randn(3) * w", ["x0"], ["w"]),
    ("nn.Linear(3, 4)(torch.randn(3))", ["x0"], ["weight", "bias"]),
    ("fc = nn.Linear(3, 3); x = torch.randn(3); y = fc(nn.Linear(3, 3)(x))", ["x"],
     ["fc.weight", "fc.bias", "linear.weight", "linear.bias"]),
    ("nn.Linear(3, 3)(nn.Linear(3, 3)(torch.randn(3)))", ["x0"],
     ["linear.weight", "linear.bias", "linear_1.weight", "linear_1.bias"]),
    ("nn.Sequential(nn.Linear(3, 4), nn.ReLU())(torch.randn(3))", ["x0"], ["0.weight", "0.bias"]),
    ("nn.Linear(3, 4).bfloat16()(torch.randn(3, dtype=torch.bfloat16))", ["x0"], ["weight", "bias"]),
    ("class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(3, 3)\n"
     "        self.w = nn.Parameter(torch.randn(3))\n"
     "    def forward(self, x):\n        return self.fc(x) * self.w\nM()(torch.randn(3))", ["x0"], ["fc.weight", "fc.bias", "w"]),
    ("xs = [torch.randn(2) for _ in range(3)]; sum(xs)", ["x0", "x1", "x2"], []),
])
def test_names(source: str, inputs: list[str], weights: list[str]) -> None:
    captured = capture_snippet(source)
    assert list(captured.inputs) == inputs and sorted(captured.weights) == sorted(weights)
    assert {i.target for i in captured.program.inputs} == {*inputs, *weights, *captured.constants}


def test_replay_computes_what_the_snippet_does() -> None:
    source = "x = torch.randn(3, 4); fc = nn.Linear(4, 4); h = fc(x)\nfor _ in range(2):\n    h = F.gelu(fc(h)) + x\nh, h.sum()"
    scope = {"torch": torch, "nn": nn, "F": nn.functional}
    torch.manual_seed(0)
    exec(source.replace("\nh, h.sum()", ""), scope)
    both = results(capture_snippet(source))
    torch.testing.assert_close(both[0], scope["h"].detach())
    torch.testing.assert_close(both[1], scope["h"].detach().sum())


def test_what_inputs_lead_to_is_not_computed() -> None:
    captured = capture_snippet("q = torch.randn(300_000, 1); (q @ q.T).sum()")      # 360 GB between the two
    assert captured.strides == ((),)


@pytest.mark.parametrize(("source", "weight"), [
    ("w = nn.Parameter(torch.randn(3) * 2); torch.randn(3) + w", "torch.randn(3) * 2"),
    ("w = nn.Parameter(torch.randn(3)); torch.randn(3) + w", "torch.randn(3)"),
    ("class M(nn.Module):\n    def __init__(self, w):\n        super().__init__()\n        self.w = nn.Parameter(w)\n"
     "    def forward(self, x):\n        return x + self.w\nM(1 + torch.randn(3))(torch.randn(3))", "1 + torch.randn(3)"),
    ("m = nn.BatchNorm1d(3)\nm.register_buffer('running_var', torch.rand(3).exp())\nm(torch.randn(2, 3))", "torch.rand(3).exp()"),
])
def test_weights_have_their_values(source: str, weight: str) -> None:
    captured = capture_snippet(source)
    torch.manual_seed(0)
    torch.testing.assert_close(captured.weights["running_var" if "running_var" in source else "w"].detach(), eval(weight))
    assert len(results(captured)) == 1


def test_a_draw_like_a_tensor_made_of_others() -> None:
    captured = capture_snippet("x = torch.randn(3, 4); y = torch.randn_like(x.T @ x); z = torch.bernoulli(torch.sigmoid(x)); x @ y + z")
    assert list(captured.inputs) == ["x", "y", "z"] and captured.inputs["y"].shape == (4, 4)
    assert set(captured.inputs["z"].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("source", "message"), [
    ("torch.randn(3", r"line 1: .*\n.*\n +\^"),
    ("torch.randn(3) @ torch.randn(4)", "RuntimeError.*\n.*<snippet>:1"),
    ("torch.randn(3).shape", "is Size|is int"),
    ("3", "is int, not a tensor"),
    ("", "no result"),
    ("x = torch.randn(3)\nif x.sum() > 0:\n    x = -x\nx", "(?i)data"),
    ("x = torch.randn(3); x.add_(1)", "writes to its input x"),
    ("torch.randn(3, dtype=torch.complex64)", "unsupported dtype torch.complex64"),
    ("import nowhere_to_be_found\ntorch.randn(3)", "nowhere_to_be_found"),
])
def test_errors_name_the_fault(source: str, message: str) -> None:
    with pytest.raises(EmmyError, match=message) as raised:
        capture_snippet(source)
    assert raised.value.remedy


FILE = """
import torch
from torch import nn

def helper(x):
    return x * 2

def alone():
    x = torch.randn(4)
    return helper(x) + nn.Linear(4, 4)(x)

def get_inputs():
    return [torch.rand(2, 4)]

def get_init_inputs():
    return [4]

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, 3)

    def forward(self, x):
        return torch.relu(self.fc(x))
"""


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(FILE)
    captured = capture_file(f"{path}:Model")
    assert list(captured.inputs) == ["x"] and sorted(captured.weights) == ["fc.bias", "fc.weight"] and results(captured)[0].shape == (2, 3)
    path.write_text(FILE.replace("get_", "no_"))
    captured = capture_file(f"{path}:alone")
    assert list(captured.inputs) == ["x"] and sorted(captured.weights) == ["bias", "weight"]
    assert "model.py:10: return helper(x)" in torch_ir.print_program(captured.program)
    for spec, message in ((f"{path}:none", "defines no none"), (f"{path}:Model", "no example inputs"), ("nothing.py:f", "no file"),
                          ("f", "FILE.py:NAME")):
        with pytest.raises(EmmyError, match=message):
            capture_file(spec)


DEFINITIONS = """import torch
from torch import nn
from torch.nn.functional import gelu

class Size(int):
    pass

class Model(nn.Module):
    def forward(self, x):
        return gelu(x)

def takes(x, y=None):
    return x

def takes_nothing():
    return torch.randn(2)

def _own(x):
    return x

model = Model()
number = 7
"""
EVERY = ["Model", "takes", "takes_nothing", "model"]


@pytest.mark.parametrize(("more", "names"), [
    ("", ["takes_nothing"]), ("example_inputs = torch.randn(2)\n", EVERY),
    ("def get_inputs(): return [torch.randn(2)]\ndef get_init_inputs(): return []\n", EVERY)])
def test_the_programs_of_a_file(more: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(DEFINITIONS + more)
    assert programs(str(path)) == names
    for name in names:
        capture_file(f"{path}:{name}")



def test_module_inputs_are_named_after_forward() -> None:
    class M(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a + 1, b

    captured = capture(M(), (torch.randn(2), torch.randn(3)))
    assert list(captured.inputs) == ["a", "b"] and captured.strides == ((1,), (1,))


def test_torch_ir_keeps_what_python_confuses() -> None:
    program = capture_snippet("x = torch.randn(2); (x + 1, x + 1.0, x + True, x * -0.0)").program
    text = torch_ir.print_program(program)
    assert torch_ir.parse(text) is program and "1)" in text and "1.0)" in text and "True)" in text and "-0.0)" in text
    with pytest.raises(ValueError, match="line 2, column 23: %y is not defined"):
        torch_ir.parse("torch {\n  %a = aten.f.default(%y) : f32[]\n return %a\n}")


@pytest.mark.parametrize("fn, example, said", [(3, torch.randn(2), "3 is int, which cannot be called"),
                                               (torch.add, (torch.randn(2), 1), "example input 0 is tuple, not a tensor"),
                                               (torch.add, 2.0, "example input 0 is float 2.0, not a tensor")])
def test_what_cannot_be_captured(fn: Any, example: Any, said: str) -> None:
    with pytest.raises(EmmyError, match=said):
        capture(fn, [example])


def test_torch_says_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EmmyError, match="same reduction dim"):
        capture(nn.Linear(4, 4), [torch.randn(2, 5)])
    assert capfd.readouterr() == ("", "")


def test_torch_compile_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_captured(captured: Captured):  # type: ignore[no-untyped-def]
        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = evaluate_torch(captured.program, {**captured.tensors, **dict(zip(captured.inputs, tensors, strict=True))})
            return returned(captured, made, tensors)  # type: ignore[no-any-return]

        return run

    pipeline = types.ModuleType("emmy.pipeline")
    pipeline.compile_captured = compile_captured  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "emmy.pipeline", pipeline)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=False)(x), model(x))

    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(x.flip(0))
        return x.sum(1)

    a, b = x.clone(), x.clone()
    torch.testing.assert_close(torch.compile(writes, backend=backend, dynamic=False)(a), writes(b))
    torch.testing.assert_close(a, b)


def test_a_weight_made_by_calls_of_torch_costs_no_more_than_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are made for the weight alone; what is written to after a call is made anew with all values."""
    records: list[bool] = []
    record = _Tape.record
    monkeypatch.setattr(_Tape, "record", lambda tape, valued: (records.append(valued), record(tape, valued))[1])

    def weight(source: str) -> torch.Tensor:
        records.clear()
        (found,) = capture_snippet(source).weights.values()
        return found.detach()

    torch.manual_seed(0)
    torch.randn(2, 4)
    made = torch.randn(4, 4)
    start = "x = torch.randn(2, 4); y = torch.randn(4, 4)"
    assert torch.equal(weight(f"{start}; w = nn.Parameter(torch.softmax(y.to(torch.bfloat16), -1).float()); x @ w"),
                       made.bfloat16().softmax(-1).float())
    assert records == [True, False]                     # the first is of a tape that begins
    for source, wanted in (("z = y.exp(); z.mul_(2); w = nn.Parameter(z)", made.exp() * 2), ("w = nn.Parameter(y @ y)", made @ made)):
        assert torch.equal(weight(f"{start}; {source}; x @ w"), wanted) and records == [True, False, True]
