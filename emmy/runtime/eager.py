"""A captured program as a torch module: what eager and torch.compile run beside Emmy's kernels."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from emmy.ir import torch_ir
from emmy.ir.dtype import DType


def module(program: torch_ir.Program, weights: Mapping[str, torch.Tensor], device: torch.device | str) -> fx.GraphModule:
    """The program with its weights and constants (tensors on `device` by name) as buffers; called with the inputs, it returns a tuple."""
    root, graph = torch.nn.Module(), fx.Graph()
    made: dict[torch_ir.Value, fx.Node] = {}

    def argument(x: torch_ir.Arg) -> Any:
        match x:
            case tuple(): return [argument(item) for item in x]
            case torch_ir.Value(): return made[x]
            case torch_ir.Literal(): return x.value
            case DType(): return getattr(torch, x.torch_name)
        raise TypeError(f"{x!r} is no argument of a torch operator")

    for k, node in enumerate(program.nodes):
        if isinstance(node, torch_ir.Input):
            if node.role == "input":
                made[node] = graph.placeholder(node.target)
            else:
                root.register_buffer(f"tensor{k}", weights[node.target])
                made[node] = graph.get_attr(f"tensor{k}")
        elif isinstance(node, torch_ir.Call):
            function = resolve(node.op)
            kwargs = {name: argument(x) for name, x in node.kwargs}
            if not node.operands and any(a.name == "device" for a in function._schema.arguments):
                kwargs["device"] = device  # a factory
            made[node] = graph.call_function(function, tuple(argument(x) for x in node.args), kwargs)
    graph.output(tuple(made[x] for x in program.outputs))
    return fx.GraphModule(root, graph).eval()


def resolve(op: str) -> Any:
    """The callable named "aten.add.Tensor" and the like in torch.ops, or else a function of the standard module operator."""
    namespace, *path = op.split(".")
    if len(path) < 2:
        return getattr(operator, op.rpartition(".")[2])
    found: Any = getattr(torch.ops, namespace)
    for name in path:
        found = getattr(found, name)
    return found
