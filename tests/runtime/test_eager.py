from __future__ import annotations

import torch

from emmy.ir.torch_ir import parse
from emmy.runtime.eager import module, resolve

PROGRAM = """
torch {
  %x = input("x") : f32[4, 6]
  %w = load("weight") : f32[8, 6]
  %arange = aten.arange.default(8, dtype=f32) : f32[8]
  %linear = aten.linear.default(%x, %w) : f32[4, 8]
  %add = aten.add.Tensor(%linear, %arange, alpha=2) : f32[4, 8]
  %max = aten.max.dim(%add, 1) : (f32[4], i64[4])
  %values = getitem(%max, 0) : f32[4]
  %view = aten.view.default(%add, [8, 4]) : f32[8, 4]
  return %values, %view
}
"""


def test_the_module_computes_the_program():
    x, w = torch.randn(4, 6), torch.randn(8, 6)
    graph = module(parse(PROGRAM), {"weight": w}, "cpu")
    y = torch.nn.functional.linear(x, w) + 2 * torch.arange(8.0)
    values, view = graph(x)
    assert torch.equal(values, y.max(1).values) and torch.equal(view, y.view(8, 4))
    assert {n.target for n in graph.graph.nodes if n.op == "call_function"} >= {torch.ops.aten.linear.default, torch.ops.aten.max.dim}


def test_operators_by_name():
    assert resolve("aten.rms_norm.default") is torch.ops.aten.rms_norm.default
    assert resolve("getitem")([3, 4], 1) == 4
