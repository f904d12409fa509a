"""torch.compile(model, backend="emmy"): each graph that Dynamo finds is captured and compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from emmy.capture.export import capture
from emmy.errors import EmmyError


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The compiled graph.  Shapes are static.  Parameters and buffers, which torch marks as static inputs, are taken to be steady."""
    from emmy.pipeline import compile_captured

    if not all(isinstance(e, torch.Tensor) and all(isinstance(n, int) for n in e.shape) for e in example_inputs):
        raise EmmyError("torch.compile asks for a graph of dynamic shapes", 'use torch.compile(model, backend="emmy", dynamic=False)')
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    captured = capture(graph, example_inputs, names)
    marked = {name for name, e in zip(names, example_inputs, strict=True) if getattr(e, "_dynamo_static_input_type", None)}
    return compile_captured(dataclasses.replace(captured, steady=frozenset(marked - {*captured.mutated})))
