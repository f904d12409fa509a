"""Evaluation on the CPU: Torch IR through torch, Tensor IR on NumPy."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import tensor_ir as tir
from emmy.ir import torch_ir
from emmy.ir.dtype import DType
from emmy.ir.index import IxConst, Pos
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS, apply, unit

Array = np.ndarray[Any, np.dtype[Any]]
# Torch IR says nothing of strides, so a view that eager could take of an operand may need a copy of it here.
_VIEWS = {f"aten.{op}.default": "aten.reshape.default" for op in ("view", "_unsafe_view")}


def evaluate_torch(program: torch_ir.Program, tensors: Mapping[str, torch.Tensor], float64: bool = False) -> list[torch.Tensor]:
    """The program's results in eager torch.  `tensors`: inputs, weights and constants by name.

    With `float64`, every floating input, result and dtype argument is float64: eager computed in double, the judge of errors.
    EmmyError where an operator raises, as one does on an index out of bounds."""
    results: dict[torch_ir.Value, Any] = {}
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if float64 else default)
        with torch.no_grad():
            for node in program.nodes:
                if isinstance(node, torch_ir.Input):
                    made = _bound(node.target, node.type.shape, node.type.dtype, tensors,
                                  lambda t: (tuple(t.shape), str(t.dtype).removeprefix("torch.")))
                else:
                    assert isinstance(node, torch_ir.Call)
                    try:
                        made = _call(node, results, float64)
                    except (RuntimeError, IndexError, ValueError) as problem:
                        raise EmmyError(f"{node.op} ({node.source}) raised {type(problem).__name__}: {problem}",
                                        "make it run in PyTorch first") from problem
                results[node] = _doubled(made) if float64 else made
    finally:
        torch.set_default_dtype(default)
    return [results[o] for o in program.outputs]


def _bound(name: str, shape: tuple[int, ...], element: DType, tensors: Mapping[str, Any], describe: Any) -> Any:
    if name not in tensors:
        raise EmmyError(f"no value for {name!r}", f"pass {name}: {element}{list(shape)}")
    found = describe(tensors[name])
    if found != (shape, element.torch_name):
        raise EmmyError(f"{name!r} is {found[1]}{list(found[0])}, not {element.torch_name}{list(shape)}", "pass a tensor like the example")
    return tensors[name]


def _doubled(made: Any) -> Any:
    if isinstance(made, tuple | list):
        return tuple(map(_doubled, made))
    return made.double() if made.is_floating_point() else made


def _argument(arg: torch_ir.Arg, results: dict[torch_ir.Value, Any], float64: bool) -> Any:
    match arg:
        case tuple(): return [_argument(a, results, float64) for a in arg]
        case torch_ir.Value(): return results[arg]
        case torch_ir.Literal(): return arg.value
    assert isinstance(arg, DType)
    return torch.float64 if float64 and arg.kind == "float" else getattr(torch, arg.torch_name)


def _call(call: torch_ir.Call, results: dict[torch_ir.Value, Any], float64: bool) -> Any:
    args, kwargs = [_argument(a, results, float64) for a in call.args], {k: _argument(v, results, float64) for k, v in call.kwargs}
    if float64 and call.op == "aten._scaled_mm.default":
        return _scaled_mm(*args, **kwargs)
    if call.op in ("aten._grouped_mm.default", "aten._scaled_grouped_mm.default") and (float64 or not args[0].is_cuda):
        return (_grouped_mm if "scaled" not in call.op else _scaled_grouped_mm)(*args, **kwargs)
    if call.op == "torch_attn._varlen_attn.default" and (float64 or not args[0].is_cuda):
        return _packed_attention(*args, **kwargs)
    if call.op == "operator.getitem":
        return operator.getitem(*args)
    fn: Any = torch.ops
    for part in _VIEWS.get(call.op, call.op).split("."):
        fn = getattr(fn, part)
    schema = fn._schema.arguments
    device = next((t.device for t in results.values() if isinstance(t, torch.Tensor)), torch.device("cpu"))
    for k, parameter in enumerate(schema):
        if parameter.name == "device" and k < len(args):
            args[k] = device
        elif parameter.name == "device" and k >= len(args):
            kwargs["device"] = device
        elif parameter.name == "eps" and float64 and (args[k] if k < len(args) else kwargs.get("eps")) is None:
            kwargs["eps"] = _default_eps(call)  # the default is that of the type computed in, which must not change
    return fn(*args, **kwargs)


def _scaled_mm(x: torch.Tensor, y: torch.Tensor, scale_x: torch.Tensor, scale_y: torch.Tensor, bias: torch.Tensor | None = None,
               scale_result: None = None, out_dtype: object = None, use_fast_accum: bool = False) -> torch.Tensor:
    """In float64, of which torch has no such product."""
    scales = (s.reshape(()) if s.numel() == 1 else s for s in (scale_x, scale_y))
    return torch.add(math.prod(scales, start=x @ y), 0 if bias is None else bias)


def _grouped_mm(x: torch.Tensor, y: torch.Tensor, offs: torch.Tensor | None = None, bias: None = None,
                out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Group by group, 0 behind the last: torch has it for some types, and leaves what is there."""
    if offs is None:
        return (x @ y).to(out_dtype or x.dtype)
    groups = [*pairwise((0, *offs.tolist()))]
    if x.dim() == y.dim():
        made = torch.stack([x[:, a:b] @ y[a:b] for a, b in groups])
    elif x.dim() == 2:
        made = torch.cat([x[a:b] @ y[g] for g, (a, b) in enumerate(groups)])
        made = torch.nn.functional.pad(made, (0, 0, 0, len(x) - len(made)))
    else:
        made = torch.cat([x[g] @ y[:, a:b] for g, (a, b) in enumerate(groups)], 1)
        made = torch.nn.functional.pad(made, (0, y.shape[1] - made.shape[1]))
    return made.to(out_dtype or x.dtype)


def _scaled_grouped_mm(x: torch.Tensor, y: torch.Tensor, scale_x: torch.Tensor, scale_y: torch.Tensor, offs: torch.Tensor,
                       bias: None = None, scale_result: None = None, out_dtype: torch.dtype | None = None,
                       use_fast_accum: bool = False) -> torch.Tensor:
    wide, own = torch.promote_types(x.dtype, torch.float32) if x.dtype is torch.float64 else torch.float32, scale_x[:, None]
    number = torch.searchsorted(offs.to(torch.int64), torch.arange(len(x), device=x.device), right=True).clamp_max(len(offs) - 1)
    return (_grouped_mm(x.to(wide), y.to(wide), offs) * own * scale_y[number]).to(out_dtype or wide)


def _packed_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, key_offsets: torch.Tensor, max_q: int,
                      max_k: int, is_causal: bool = False, scale: float | None = None,
                      window: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence by sequence: torch has it for halves on a GPU alone."""
    out, most = torch.zeros_like(q), torch.full((q.shape[1], q.shape[0]), math.inf, dtype=torch.promote_types(q.dtype, torch.float32))
    (before, after), most = window or (-1, -1), most.to(q.device)
    for (a, b), (c, d) in zip(pairwise(offsets.tolist()), pairwise(key_offsets.tolist()), strict=True):
        row, key = torch.arange(b - a, device=q.device)[:, None] + (d - c) - (b - a), torch.arange(d - c, device=q.device)
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device)
        seen &= key <= row + (0 if is_causal else after) if is_causal or after >= 0 else seen
        seen &= key >= row - before if before >= 0 else seen
        x, y, z = (t.repeat_interleave(q.shape[1] // t.shape[1], 1).transpose(0, 1) for t in (q[a:b], k[c:d], v[c:d]))
        scores = (x @ y.mT * (q.shape[2] ** -0.5 if scale is None else scale)).masked_fill(~seen, -math.inf).to(most.dtype)
        out[a:b] = scores.softmax(2).nan_to_num(0).to(z.dtype).matmul(z).transpose(0, 1)
        most[:, a:b] = torch.where(seen.any(1), scores.logsumexp(2), math.inf)
    return out, most


def _default_eps(call: torch_ir.Call) -> float:
    assert isinstance(call.results, torch_ir.Type)
    return torch.finfo(getattr(torch, call.results.dtype.compute.torch_name)).eps


def evaluate_tensor(program: tir.Program, arrays: Mapping[str, Array]) -> list[Array]:
    """The program's results on NumPy, each node in its stored dtype.

    An f32 sum or product accumulates in float64 and rounds once.  A sum of products of broadcasts is one matrix product, so
    that nothing of the size of all its axes is made."""
    results: dict[tir.Tensor, Array] = {}
    stack = [(t, False) for _, t in reversed(program.outputs)]
    while stack:
        node, ready = stack.pop()
        if node in results:
            continue
        contraction = _contraction(node)
        if not ready:
            needed = [contraction[0].x, contraction[1].x] if contraction else node.operands
            stack += [(node, True), *((n, False) for n in needed)]
        elif contraction:
            results[node] = _contract(node, *contraction, results)
        else:
            results[node] = _node(node, results, arrays)
        if ready and (results[node].shape, results[node].dtype) != (node.shape, node.dtype.numpy):
            raise IRError(f"{type(node).__name__} evaluates to {results[node].dtype}{results[node].shape}, not {node.dtype}{node.shape}")
    return [results[t] for _, t in program.outputs]


def _node(node: tir.Tensor, results: dict[tir.Tensor, Array], arrays: Mapping[str, Array]) -> Array:
    args = [results[x] for x in node.operands]
    with np.errstate(all="ignore"):
        match node:
            case tir.Input(name, dims, element, _):
                return np.asarray(_bound(name, dims, element, arrays, lambda a: (a.shape, str(a.dtype))))
            case tir.Constant(element, bits):
                return np.asarray(dt.value(element, bits))
            case tir.IndexValue(dims, at):
                return np.broadcast_to(ix.evaluate(at, _coordinates(dims)), dims).astype(np.int64)
            case tir.Elementwise(op, _):
                return np.asarray(apply(op, *args))
            case tir.Cast(element, _) | tir.Round(element, _):
                return dt.converted(args[0], element)
            case tir.Reduce(monoid, axes, _):
                total = MONOIDS[monoid].reduce(_wide(args[0], monoid), axis=axes, initial=unit(monoid, node.dtype))
                return np.asarray(total).astype(node.dtype.numpy)
            case tir.Scan(monoid, axis, _):
                return MONOIDS[monoid].scan(_wide(args[0], monoid), axis=axis).astype(node.dtype.numpy)  # type: ignore[no-any-return]
            case tir.IndexMap(dims, at, _):
                return np.broadcast_to(args[0][_points(at, dims)], dims) if node.size else np.empty(dims, node.dtype.numpy)
            case tir.Gather(axis, at, _, _):
                return args[0][_points(at, node.shape, {axis: args[1]})] if node.size else np.empty(node.shape, node.dtype.numpy)
    raise AssertionError(type(node))


def _wide(x: Array, monoid: str) -> Array:
    return x.astype(np.float64) if monoid in ("add", "mul") and x.dtype == np.float32 else x


def _coordinates(dims: tuple[int, ...]) -> Any:
    """The k-th coordinate, as an array that broadcasts to `dims`."""
    return lambda p: np.arange(dims[p.k]).reshape([-1 if d == p.k else 1 for d in range(len(dims))])


def _points(at: tuple[ix.Ix, ...], dims: tuple[int, ...], given: dict[int, Array] | None = None) -> tuple[Array, ...]:
    values = [(given or {})[k] if k in (given or {}) else ix.evaluate(x, _coordinates(dims)) for k, x in enumerate(at)]
    return tuple(np.broadcast_arrays(*values, np.empty(dims, bool))[:-1])


def _broadcast_axes(view: tir.IndexMap) -> list[int | None] | None:
    """For each dimension of the operand the one of the view it runs along (None: read at 0), if the view is a broadcast."""
    axes: list[int | None] = []
    for x, n in zip(view.at, view.x.shape, strict=True):
        match x:
            case Pos(k) if view.dims[k] == n and k not in axes: axes.append(k)
            case IxConst(0) if n == 1: axes.append(None)
            case _: return None
    return axes


def _contraction(node: tir.Tensor) -> tuple[tir.IndexMap, tir.IndexMap] | None:
    """The two broadcasts whose product `node` sums, if it is a sum of that kind."""
    match node:
        case tir.Reduce("add", _, tir.Elementwise("mul", (tir.IndexMap() as a, tir.IndexMap() as b))) \
                if node.dtype.kind == "float" and _broadcast_axes(a) is not None and _broadcast_axes(b) is not None: return a, b
    return None


def _contract(node: tir.Tensor, a: tir.IndexMap, b: tir.IndexMap, results: dict[tir.Tensor, Array]) -> Array:
    """The sum of products as one batched matrix product [batch, m, k] @ [batch, k, n], in float64."""
    assert isinstance(node, tir.Reduce)
    summed = set(node.axes)
    sides = [{d for d in _broadcast_axes(v) or () if d is not None} for v in (a, b)]
    batch, contracted = sorted((sides[0] & sides[1]) - summed), sorted(sides[0] & sides[1] & summed)
    rows, columns = (sorted(own - other - summed) for own, other in (sides, reversed(sides)))
    factor = 1  # a summed axis that neither operand has repeats the term
    for d in summed - sides[0] - sides[1]:
        factor *= a.dims[d]

    def matrix(view: tir.IndexMap, first: list[int], second: list[int]) -> Array:
        kept = [d for d in _broadcast_axes(view) or () if d is not None]
        values = results[view.x].reshape([view.dims[d] for d in kept]).astype(np.float64)
        alone = tuple(k for k, d in enumerate(kept) if d in summed and d not in contracted)
        values, kept = values.sum(axis=alone), [d for d in kept if d not in summed or d in contracted]
        order = [*batch, *first, *second]
        moved = values.transpose([kept.index(d) for d in order])
        size = [int(np.prod([a.dims[d] for d in part], dtype=np.int64)) for part in (batch, first, second)]
        return moved.reshape(size)

    with np.errstate(all="ignore"):
        product = matrix(a, rows, contracted) @ matrix(b, contracted, columns) * factor
    have = [*batch, *rows, *columns]
    missing = [d for d in range(len(a.dims)) if d not in summed and d not in have]
    shaped = product.reshape([a.dims[d] for d in have]).transpose([have.index(d) for d in sorted(have)])
    out = np.expand_dims(shaped, tuple(np.searchsorted([d for d in range(len(a.dims)) if d not in summed], missing)))
    return np.broadcast_to(out, node.shape).astype(node.dtype.numpy)
