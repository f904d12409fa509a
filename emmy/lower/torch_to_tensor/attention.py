"""Attention: of batches of sequences, and of sequences packed one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir.dtype import DType
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    Operand,
    add,
    apply,
    cast,
    constant,
    convert,
    mul,
    permute,
    position,
    reduce,
    remap,
    reshape,
    select,
    sub,
)
from emmy.lower.torch_to_tensor.indexing import take
from emmy.lower.torch_to_tensor.linear_algebra import matmul
from emmy.lower.torch_to_tensor.normalisation import softmax
from emmy.lower.torch_to_tensor.registry import lowers

LOW = float("-inf")


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Grouped queries: head h reads key or value head h // group."""
    at = [ix.div(Pos(d), heads // x.shape[-3]) if d == len(x.shape) - 3 else Pos(d) for d in range(len(x.shape))]
    return remap(x, (*x.shape[:-3], heads, *x.shape[-2:]), at)


@lowers("aten.scaled_dot_product_attention.default")
def _attention(out: Type, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """softmax(q k^T * scale + mask) v; a row with everything masked is 0."""
    if dropout_p:
        raise EmmyError("attention with dropout is not covered", "pass dropout_p=0")
    if enable_gqa:
        k, v = (_repeat_heads(t, q.shape[-3]) for t in (k, v))
    scores = _scores(out.dtype, q, k, scale)
    if is_causal:
        rank = len(scores.shape)
        scores = select(apply("le", position(scores.shape, rank - 1), position(scores.shape, rank - 2)), scores, LOW)
    if attn_mask is not None:
        scores = select(attn_mask, scores, LOW) if attn_mask.dtype.kind == "bool" else add(scores, convert(attn_mask, attn_mask.dtype))
    result = matmul(softmax(scores, len(scores.shape) - 1), convert(v, out.dtype))
    return result if attn_mask is None else _zero_unseen(result, scores)


def _scores(dtype: DType, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """q k^T times a scale, 1 over the root of the depth unless it is given."""
    factor: Operand = scale if scale is not None else 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    return mul(matmul(convert(q, dtype), convert(k, dtype), transposed=True), factor)


def _zero_unseen(result: Tensor, scores: Tensor) -> Tensor:
    """The result, and 0 in rows whose scores are all -inf."""
    most = reduce("max", scores, (len(scores.shape) - 1,), keepdim=True)
    return select(apply("eq", most, LOW), constant(result.dtype, 0), result)


@lowers("torch_attn._varlen_attn.default")
def _packed_attention(out: tuple[Type, ...], q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, key_offsets: Tensor, max_q: int, max_k: int,
                      is_causal: bool = False, scale: float | None = None, window: Sequence[int] | None = None) -> tuple[Tensor, ...]:
    """Attention of packed sequences [tokens, heads, depth], each within its own: a token's is as many as end at or before it.

    `offsets` and `key_offsets`: where sequences begin and, last, where the last ends.  A window (before, after), -1 for no end, lies about
    the key that is as far from its sequence's end as the row is.  A row that sees no key is 0, its log-sum-exp +inf."""
    rows, keys, count = q.shape[0], k.shape[0], offsets.shape[0] - 1
    before, after = window or (-1, -1)
    ends = remap(cast(dt.i64, offsets), (rows, count), [ix.add(Pos(1), IxConst(1))])
    sequence = reduce("add", cast(dt.i64, apply("le", ends, position((rows, count), 0))), (1,))
    following = apply("min", add(sequence, 1), count)

    def at(table: Tensor, index: Tensor) -> Tensor:
        return reshape(take(cast(dt.i64, table), 0, index), (rows, 1))

    start, end = at(key_offsets, sequence), at(key_offsets, following)
    row, key = position((rows, 1), 0), position((1, keys), 1)
    middle = row if key_offsets is offsets else add(row, sub(end, at(offsets, following)))
    seen = apply("and", apply("le", start, key), apply("lt", key, end))
    if is_causal or after >= 0:
        seen = apply("and", seen, apply("le", key, middle if is_causal or not after else add(middle, after)))
    if before >= 0:
        seen = apply("and", seen, apply("le", sub(middle, before) if before else middle, key))
    query, key_, value = (permute(x, (1, 0, 2)) for x in (q, k, v))
    key_, value = (_repeat_heads(x, q.shape[1]) for x in (key_, value))
    scores = select(seen, _scores(out[0].dtype, query, key_, scale), LOW)
    result = _zero_unseen(matmul(softmax(scores, 2), convert(value, out[0].dtype)), scores)
    if len(out) == 1:
        return (permute(result, (1, 0, 2)),)
    most = reduce("max", scores, (2,), keepdim=True)
    total = reduce("add", apply("exp", sub(scores, most)), (2,))
    peak = reshape(most, total.shape)
    return permute(result, (1, 0, 2)), select(apply("eq", peak, LOW), constant(dt.f32, float("inf")), add(peak, apply("log", total)))
