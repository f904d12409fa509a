from __future__ import annotations

import pytest
import torch

from emmy.ir.dtype import bf16, f32
from emmy.ir.torch_ir import parse
from emmy.runtime.beside import Beside, alternatives, clocks, floor_us
from emmy.runtime.plan import Buffer, Plan
from emmy.runtime.rates import Rates
from emmy.runtime.timing import Timing
from tests.runtime.programs import product

DIFFERENCE = """torch {
  %b = input("b") : f32[2]
  %a = input("a") : f32[2]
  %sub = aten.sub.Tensor(%a, %b) : f32[2]
  return %sub
}
"""
RATES = Rates(copy_TBs=4.0, fp32_TFLOPs=50.0, bf16_TFLOPs=500.0)


@pytest.mark.parametrize(("plan", "us"), [
    (product(f32, 1000), 40.0),                    # 2e9 operations at 50 TFLOP/s, against 12 MB at 4 TB/s
    (product(bf16, 1000), 4.0),                    # the same at 500 TFLOP/s
    (product(bf16, 100), 0.015),                   # 60 kB at 4 TB/s, against 2e6 operations
    (product(bf16, 100, moved=10**9), 0.015),      # traffic beyond the compulsory is no part of a floor
    (product(bf16, 100, moved=40_000), 0.01),      # a launch that needs only part of its inputs
])
def test_floor(plan, us):
    assert floor_us(plan, RATES) == pytest.approx(us)


def test_what_torch_compile_raises_is_noted_and_eager_is_there(monkeypatch):
    program = parse(DIFFERENCE)
    buffers = tuple(Buffer(name, f32, (2,), role) for name, role in (("a", "input"), ("b", "input"), ("y", "output")))
    plan = Plan("difference", buffers, (), ("a", "b"), ("y",), "", "sm_90a", "fast")

    def refuse(*_, mode, **__):
        raise RuntimeError(f"no {mode}\nand more")

    monkeypatch.setattr(torch, "compile", refuse)
    arguments = torch.ones(2), torch.zeros(2)
    found, notes = alternatives(program, plan, {}, arguments, "cpu")
    assert list(found) == ["eager"] and torch.equal(found["eager"](*arguments)[0], torch.ones(2))
    assert notes["max_autotune_error"] == "RuntimeError: no max-autotune-no-cudagraphs"
    assert notes["compile_error"] == "RuntimeError: no None"


def test_fields_and_clocks(monkeypatch):
    times = {"emmy": Timing(2.0, 0.1), "eager": Timing(5.0, 0.1), "compile": Timing(3.0, 0.2)}
    found = Beside(times, {"eager": 1e-7}, {}, 1.5, ("a", "b"))
    assert found.fields()["ratio"] == 1.5 and found.fields()["compile_us"] == 3.0 and found.fields()["clocks"] == ["a", "b"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no nvidia-smi" in clocks()
