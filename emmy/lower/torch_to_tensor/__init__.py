"""Torch IR -> Tensor IR: each call becomes elementwise work, reductions, scans, index maps and gathers."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import tensor_ir as tir
from emmy.ir import torch_ir
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.ir.tensor_ir import Tensor
from emmy.lower.torch_to_tensor import (
    attention,
    bits,
    factories,
    grouped,
    indexing,
    linear_algebra,
    losses,
    normalisation,
    ordering,
    pointwise,
    pooling,
    reductions,
    resampling,
    scattering,
    views,
)
from emmy.lower.torch_to_tensor.registry import LOWERINGS

FAMILIES = (pointwise, bits, reductions, views, linear_algebra, grouped, attention, normalisation, indexing, scattering, ordering,
            pooling, resampling, losses, factories)
_ROLES: dict[str, tir.Role] = {"input": "input", "load": "weight", "constant": "constant"}


def covered() -> frozenset[str]:
    """The torch operators that have a lowering, as "aten.add.Tensor"."""
    return frozenset(LOWERINGS)


def lower(program: torch_ir.Program) -> tir.Program:
    """The program in Tensor IR; its outputs are named after the values returned.  EmmyError names an operator that is not covered."""
    made: dict[torch_ir.Value, Any] = {}
    for node in program.nodes:
        if isinstance(node, torch_ir.Input):
            made[node] = tir.Input(node.target, node.type.shape, node.type.dtype, _ROLES[node.role])
        elif isinstance(node, torch_ir.Call):
            made[node] = _lower_call(node, made)
    names: dict[str, int] = {}
    outputs: list[tuple[str, Tensor]] = []
    for value in program.outputs:
        count = names[value.name] = names.get(value.name, -1) + 1
        outputs.append((f"{value.name}.{count}" if count else value.name, made[value]))
    return tir.Program(tuple(outputs))


def _lower_call(call: torch_ir.Call, made: dict[torch_ir.Value, Any]) -> Any:
    where = f" ({call.source})" if call.source else ""
    if call.op not in LOWERINGS:
        near = difflib.get_close_matches(call.op, LOWERINGS, 3, 0.5) or sorted(LOWERINGS)[:3]
        raise EmmyError(f"operator {call.op} of %{call.name}{where} is not covered",
                        f"write it with covered operators; the nearest by name are {', '.join(near)}")
    fn = LOWERINGS[call.op]
    kwargs = {k: _argument(v, made) for k, v in call.kwargs}
    if "op" in inspect.signature(fn).parameters:  # one function for several operators
        kwargs["op"] = call.op
    try:
        result = fn(call.results, *(_argument(a, made) for a in call.args), **kwargs)
        if isinstance(call.results, tuple):
            return tuple(_finish(r, t) for r, t in zip(result, call.results, strict=True))
        return _finish(result, call.results)
    except EmmyError as problem:
        raise EmmyError(f"{problem.message}: {call.op} of %{call.name}{where}", problem.remedy) from None
    except (IRError, TypeError, NotImplementedError) as problem:
        raise EmmyError(f"operator {call.op} of %{call.name}{where} is not covered on these arguments: {problem}",
                        f"write %{call.name} with other operators; its text is {torch_ir.print_node(call)}") from problem


def _argument(arg: torch_ir.Arg, made: dict[torch_ir.Value, Any]) -> Any:
    match arg:
        case tuple(): return tuple(_argument(a, made) for a in arg)
        case torch_ir.Value(): return made[arg]
        case torch_ir.Literal(): return arg.value
    assert isinstance(arg, DType)
    return arg


def _finish(result: Tensor, type: torch_ir.Type) -> Tensor:
    """The result as torch stores it: one rounding, from the compute type to the half type."""
    if result.dtype is dt.f32 and type.dtype in (dt.f16, dt.bf16):
        result = tir.Round(type.dtype, result)
    if result.dtype is dt.f32 and type.dtype in (dt.e4m3, dt.e5m2):
        result = tir.Cast(type.dtype, result)       # what the program asks for by the type of a result: no other operator returns it
    if (result.dtype, result.shape) != (type.dtype, type.shape):
        raise IRError(f"it lowers to {result.dtype}{list(result.shape)}, and torch returns {type}")
    return result
