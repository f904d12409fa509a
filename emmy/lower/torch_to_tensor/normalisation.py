"""Softmax and the norms, written as the reductions and pointwise work they are; each rounds once, at its end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from emmy.errors import EmmyError
from emmy.ir.dtype import DType
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import add, apply, axis, broadcast, constant, convert, div, mean, mul, reduce, reshape, sub
from emmy.lower.torch_to_tensor.registry import lowers


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x - max) / sum along `dim` of a tensor in a compute type."""
    over = (dim,) if x.shape else ()
    exponential = apply("exp", sub(x, reduce("max", x, over, keepdim=True)))
    return div(exponential, reduce("add", exponential, over, keepdim=True))


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """(x - max) - log(sum exp(x - max)) along `dim`."""
    over = (dim,) if x.shape else ()
    shifted = sub(x, reduce("max", x, over, keepdim=True))
    return sub(shifted, apply("log", reduce("add", apply("exp", shifted), over, keepdim=True)))


@lowers("aten.softmax.int", "aten._softmax.default", "aten.special_softmax.int")
def _softmax(out: Type, x: Tensor, dim: int, dtype: DType | bool | None = None) -> Tensor:
    return softmax(convert(x, out.dtype), axis(dim, len(x.shape)))


@lowers("aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.int")
def _log_softmax(out: Type, x: Tensor, dim: int, dtype: DType | bool | None = None) -> Tensor:
    return log_softmax(convert(x, out.dtype), axis(dim, len(x.shape)))


def _affine(x: Tensor, out: Type, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else mul(x, convert(weight, weight.dtype))
    return scaled if bias is None else add(scaled, convert(bias, bias.dtype))


def normalise(x: Tensor, over: Sequence[int], eps: float) -> Tensor:
    """(x - mean) * rsqrt(mean of its square + eps): the variance of centred values, so that a large mean costs nothing."""
    centred = sub(x, mean(x, over, keepdim=True))
    return mul(centred, apply("rsqrt", add(mean(mul(centred, centred), over, keepdim=True), eps)))


@lowers("aten.layer_norm.default")
def _layer_norm(out: Type, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
                cudnn_enable: bool = True) -> Tensor:
    over = range(len(x.shape) - len(shape), len(x.shape))
    return _affine(normalise(convert(x, out.dtype), over, eps), out, weight, bias)


@lowers("aten.rms_norm.default")
def _rms_norm(out: Type, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x * rsqrt(mean(x*x) + eps) * w; by default eps is the machine epsilon of the compute type."""
    value = convert(x, out.dtype)
    over = range(len(x.shape) - len(shape), len(x.shape))
    margin = torch.finfo(getattr(torch, value.dtype.torch_name)).eps if eps is None else eps
    root = apply("rsqrt", add(mean(mul(value, value), over, keepdim=True), margin))
    return _affine(mul(value, root), out, weight, None)


@lowers("aten.group_norm.default", "aten.instance_norm.default")
def _group_norm(out: Type, x: Tensor, groups: int | Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None, *rest: object,
                op: str) -> Tensor:
    """Statistics over each sample's group of channels; an instance norm has one group a channel."""
    eps = 1e-5
    if op == "aten.instance_norm.default":  # (x, weight, bias, running mean, running var, use input statistics, momentum, eps, cudnn)
        given = (groups, weight, bias, *rest)
        weight, bias = (t if isinstance(t, Tensor) else None for t in given[:2])
        if not given[4]:
            raise EmmyError("an instance norm with running statistics is not covered", "leave track_running_stats off")
        eps, groups = float(given[6]), x.shape[1]  # type: ignore[arg-type]
    elif rest:
        eps = float(rest[0])  # type: ignore[arg-type]
    assert isinstance(groups, int)
    value = convert(x, out.dtype)
    rows = reshape(value, (x.shape[0], groups, prod(x.shape[1:]) // groups))
    channels = (1, x.shape[1], *[1] * (len(x.shape) - 2))
    flat = reshape(normalise(rows, (2,), eps), x.shape)
    return _affine(flat, out, None if weight is None else reshape(weight, channels), None if bias is None else reshape(bias, channels))


@lowers("aten.batch_norm.default")
def _batch_norm(out: Type, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
                training: bool, momentum: float, eps: float, cudnn: bool = True) -> Tensor:
    """(x - running mean) * rsqrt(running var + eps) * w + b, channels on dimension 1."""
    if training or running_mean is None or running_var is None:
        raise EmmyError("a batch norm in training mode is not covered", "call .eval() on the module")
    channels = (1, x.shape[1], *[1] * (len(x.shape) - 2))
    centre, spread = (reshape(convert(t, t.dtype), channels) for t in (running_mean, running_var))
    scaled = mul(sub(convert(x, out.dtype), centre), apply("rsqrt", add(spread, eps)))
    return _affine(scaled, out, None if weight is None else reshape(weight, channels), None if bias is None else reshape(bias, channels))


@lowers("aten._native_batch_norm_legit_no_training.default")
def _batch_norm_and_statistics(out: tuple[Type, Type, Type], x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
                               running_var: Tensor, momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """With the statistics that it saved for a backward pass, which are empty."""
    mean, spread = (broadcast(constant(t.dtype.compute, 0), t.shape) for t in out[1:])
    return _batch_norm(out[0], x, weight, bias, running_mean, running_var, False, momentum, eps), mean, spread
