"""Losses, reduced as torch's codes say: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from emmy.ir import dtype as dt
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    add,
    apply,
    axes,
    cast,
    constant,
    convert,
    div,
    mean,
    mul,
    reduce,
    reshape,
    select,
    sub,
)
from emmy.lower.torch_to_tensor.indexing import pick, take
from emmy.lower.torch_to_tensor.normalisation import log_softmax
from emmy.lower.torch_to_tensor.registry import lowers


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    """torch's codes: 0 none, 1 mean, 2 sum."""
    over = axes(None, len(loss.shape))
    return loss if reduction == 0 else mean(loss, over) if reduction == 1 else reduce("add", loss, over)


@lowers("aten.mse_loss.default", "aten.l1_loss.default")
def _distance(out: Type, x: Tensor, y: Tensor, reduction: int = 1, *, op: str) -> Tensor:
    gap = sub(convert(x, out.dtype), convert(y, out.dtype))
    return _reduced(mul(gap, gap) if op == "aten.mse_loss.default" else apply("abs", gap), reduction)


@lowers("aten.huber_loss.default", "aten.smooth_l1_loss.default")
def _huber(out: Type, x: Tensor, y: Tensor, reduction: int = 1, delta: float = 1.0, *, op: str) -> Tensor:
    """Quadratic below `delta`, linear above; smooth L1 is the same divided by its `beta`."""
    gap = apply("abs", sub(convert(x, out.dtype), convert(y, out.dtype)))
    if op == "aten.smooth_l1_loss.default" and delta == 0:
        return _reduced(gap, reduction)
    loss = select(apply("lt", gap, delta), mul(mul(gap, gap), 0.5), mul(sub(gap, 0.5 * delta), delta))
    return _reduced(loss if op == "aten.huber_loss.default" else mul(loss, 1 / delta), reduction)


@lowers("aten.kl_div.default")
def _kl_div(out: Type, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    a, t = convert(x, out.dtype), convert(target, out.dtype)
    if log_target:
        return _reduced(mul(apply("exp", t), sub(t, a)), reduction)
    return _reduced(sub(select(apply("eq", t, 0), constant(t.dtype, 0), mul(t, apply("log", t))), mul(t, a)), reduction)


@lowers("aten.binary_cross_entropy.default")
def _binary_cross_entropy(out: Type, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), a logarithm being -100 at least."""
    value, t = convert(x, out.dtype), convert(target, out.dtype)
    of_one, of_zero = (apply("max", v, -100) for v in (apply("log", value), apply("log1p", apply("neg", value))))
    loss = sub(mul(sub(t, 1), of_zero), mul(t, of_one))
    return _reduced(loss if weight is None else mul(loss, convert(weight, out.dtype)), reduction)


@lowers("aten.binary_cross_entropy_with_logits.default")
def _binary_cross_entropy_with_logits(out: Type, x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None,
                                      reduction: int = 1) -> Tensor:
    """(1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)), with the exponential of what is negative."""
    value, t = convert(x, out.dtype), convert(target, out.dtype)
    soft = add(apply("log1p", apply("exp", apply("neg", apply("abs", value)))), apply("max", apply("neg", value), 0))
    if pos_weight is not None:
        soft = mul(soft, add(mul(sub(convert(pos_weight, out.dtype), 1), t), 1))
    loss = add(mul(sub(constant(t.dtype, 1), t), value), soft)
    return _reduced(loss if weight is None else mul(loss, convert(weight, out.dtype)), reduction)


@lowers("aten.cross_entropy_loss.default", "aten.nll_loss.default", "aten.nll_loss_nd.default")
def _cross_entropy(out: Type, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100,
                   label_smoothing: float = 0.0, *, op: str) -> Tensor:
    """-(log softmax)[target], classes on dimension 1 (0 where x is one row); the ignored count for nothing, others for their class's
    weight.  Smoothed labels are e / classes everywhere, and 1 - e more at the target."""
    value, classes = convert(x, out.dtype), 1 if len(x.shape) > 1 else 0
    logs = log_softmax(value, classes) if op == "aten.cross_entropy_loss.default" else value
    count = x.shape[classes]
    weights = None if weight is None else convert(weight, out.dtype)
    weighted = logs if weights is None else mul(logs, reshape(weights, [count if k == classes else 1 for k in range(len(x.shape))]))
    if target.dtype.kind == "float":
        t = convert(target, out.dtype)
        t = add(mul(t, 1 - label_smoothing), label_smoothing / count) if label_smoothing else t
        loss = apply("neg", reduce("add", mul(weighted, t), (classes,)))
        return loss if reduction == 0 else mul(_reduced(loss, 2), 1 / max(loss.size, 1) if reduction == 1 else 1)
    counted = apply("ne", target, ignore_index)
    place = select(counted, target, constant(dt.i64, 0))
    loss = apply("neg", pick(weighted, classes, place))
    if label_smoothing:
        even = apply("neg", reduce("add", weighted, (classes,)))
        loss = add(mul(loss, 1 - label_smoothing), mul(even, label_smoothing / count))
    loss = select(counted, loss, 0.0)
    if reduction == 0:
        return loss
    over = axes(None, len(loss.shape))
    total = reduce("add", loss, over)
    if reduction == 2:
        return total
    parts = cast(loss.dtype, counted) if weights is None else select(counted, take(weights, 0, place), 0.0)
    return div(total, reduce("add", parts, over))
