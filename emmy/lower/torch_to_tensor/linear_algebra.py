"""Contractions: every product of matrices is one sum of products over index maps, whatever torch calls it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from emmy.errors import EmmyError
from emmy.ir import index as ix
from emmy.ir.dtype import DType
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import Shape, Tensor
from emmy.ir.torch_ir import Type
from emmy.lower.torch_to_tensor.build import (
    Number,
    add,
    apply,
    broadcast_shape,
    convert,
    mul,
    position,
    reduce,
    remap,
    reshape,
    select,
    widen,
)
from emmy.lower.torch_to_tensor.registry import lowers
from emmy.lower.torch_to_tensor.views import pad


def contract(dims: Shape, operands: Sequence[tuple[Tensor, Sequence[int]]], summed: int) -> Tensor:
    """The sum over the last `summed` of `dims` of the product of operands; an operand's list names, for each of its dimensions, the
    one of `dims` it runs along (an extent of 1 is broadcast)."""
    product: Tensor | None = None
    for x, labels in operands:
        view = remap(x, dims, [IxConst(0) if n == 1 else Pos(d) for n, d in zip(x.shape, labels, strict=True)])
        product = view if product is None else mul(product, view)
    assert product is not None
    return reduce("add", product, range(len(dims) - summed, len(dims)))


def matmul(x: Tensor, y: Tensor, transposed: bool = False) -> Tensor:
    """torch.matmul of operands in a compute type; `transposed`: y is [..., n, k]."""
    if len(x.shape) == 1:
        return _drop(matmul(reshape(x, (1, *x.shape)), y, transposed), -2 if len(y.shape) > 1 else -1)
    if len(y.shape) == 1:
        return _drop(matmul(x, reshape(y, (1, *y.shape)), True), -1)
    m, k = x.shape[-2:]
    n = y.shape[-2] if transposed else y.shape[-1]
    batch = broadcast_shape(x.shape[:-2], y.shape[:-2])
    b = len(batch)
    dims = (*batch, m, n, k)
    left = [*range(b - len(x.shape) + 2, b), b, b + 2]
    right = [*range(b - len(y.shape) + 2, b), *((b + 1, b + 2) if transposed else (b + 2, b + 1))]
    return contract(dims, ((x, left), (y, right)), 1)


def _drop(x: Tensor, dim: int) -> Tensor:
    d = dim % len(x.shape)
    return reshape(x, x.shape[:d] + x.shape[d + 1:])


@lowers(*(f"aten.{op}.default" for op in ("matmul", "mm", "bmm", "dot", "mv", "vdot", "linalg_matmul")))
def _matmul(out: Type, x: Tensor, y: Tensor) -> Tensor:
    return matmul(convert(x, out.dtype), convert(y, out.dtype))


@lowers("aten.inner.default")
def _inner(out: Type, x: Tensor, y: Tensor) -> Tensor:
    """Every row of x with every row of y; a tensor of no dimensions is a factor."""
    a, b = convert(x, out.dtype), convert(y, out.dtype)
    if not x.shape or not y.shape:
        return mul(a, b)
    rows, columns = (reshape(t, (prod(t.shape[:-1]), t.shape[-1])) for t in (a, b))
    return reshape(matmul(rows, columns, transposed=True), out.shape)


@lowers("aten.linear.default")
def _linear(out: Type, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = matmul(convert(x, out.dtype), convert(weight, out.dtype), transposed=len(weight.shape) > 1)
    return product if bias is None else add(product, convert(bias, out.dtype))


@lowers("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default", "aten.addbmm.default")
def _addmm(out: Type, c: Tensor, x: Tensor, y: Tensor, *, beta: Number = 1, alpha: Number = 1, op: str) -> Tensor:
    """beta*c + alpha*(x @ y); at beta = 0 the values of c do not count, NaN included."""
    product = matmul(convert(x, out.dtype), convert(y, out.dtype))
    product = reduce("add", product, (0,)) if op == "aten.addbmm.default" else product
    product = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        return product
    addend = convert(c, out.dtype)
    return add(addend if beta == 1 else mul(addend, beta), product)


@lowers("aten._scaled_mm.default")
def _scaled_mm(out: Type, x: Tensor, y: Tensor, scale_x: Tensor, scale_y: Tensor, bias: Tensor | None = None,
               scale_result: Tensor | None = None, out_dtype: object = None, use_fast_accum: bool = False) -> Tensor:
    """(x @ y) * scale_x * scale_y + bias: one scale of each, or one of each row of x and each column of y.  The sum is in fp32, however
    fast torch may add."""
    (m, _), (_, n) = x.shape, y.shape
    if scale_result is not None:
        raise EmmyError("a scale of the result", "scale what _scaled_mm returns")
    for scale, rows in ((scale_x, (m, 1)), (scale_y, (1, n))):
        if scale.size != 1 and scale.shape != rows:
            raise EmmyError(f"scales of shape {list(scale.shape)}", f"pass one scale, or scales of shape {list(rows)}")
    product = matmul(widen(x), widen(y))
    for scale in (scale_x, scale_y):
        product = mul(product, widen(reshape(scale, ()) if scale.size == 1 else scale))
    return product if bias is None else add(product, widen(bias))


@lowers("aten.bilinear.default")
def _bilinear(out: Type, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W[o] y for each o, and the bias."""
    (o, i, j), n = weight.shape, prod(x.shape[:-1])
    rows = [reshape(convert(t, out.dtype), (n, t.shape[-1])) for t in (x, y)]
    product = contract((n, o, i, j), ((rows[0], (0, 2)), (convert(weight, out.dtype), (1, 2, 3)), (rows[1], (0, 3))), 2)
    made = reshape(product, out.shape)
    return made if bias is None else add(made, convert(bias, out.dtype))


@lowers("aten.outer.default", "aten.ger.default")
def _outer(out: Type, x: Tensor, y: Tensor) -> Tensor:
    return mul(reshape(convert(x, out.dtype), (x.size, 1)), convert(y, out.dtype))


@lowers("aten.einsum.default")
def _einsum(out: Type, equation: str, operands: Sequence[Tensor], *, path: object = None) -> Tensor:
    """The letters of the result, then the summed ones, are the dimensions of one product."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = [list(t) if "..." not in t else [*t[:t.index("...")], *_ellipsis(t, x), *t[t.index("...") + 3:]]
             for t, x in zip(left.split(","), operands, strict=True)]
    ellipsis = max((tuple(c for c in t if len(c) > 1) for t in terms), key=len)
    letters = sorted({c for t in terms for c in t if len(c) == 1})
    if arrow:
        result = [c for part in right.replace("...", "\0") for c in (ellipsis if part == "\0" else (part,))]
    else:
        result = [*ellipsis, *(c for c in letters if sum(t.count(c) for t in terms) == 1)]
    order = [*result, *(c for c in [*ellipsis, *letters] if c not in result)]
    places = [(c, n) for t, x in zip(terms, operands, strict=True) for c, n in zip(t, x.shape, strict=True)]
    extent = {c: broadcast_shape(*((n,) for d, n in places if d == c))[0] for c in order}
    values = [(convert(x, out.dtype), [order.index(c) for c in t]) for t, x in zip(terms, operands, strict=True)]
    return contract(tuple(extent[c] for c in order), values, len(order) - len(result))


def _ellipsis(term: str, x: Tensor) -> list[str]:
    """The dimensions that "..." stands for, named from the back."""
    count = len(x.shape) - len(term) + 3
    return [f"...{k}" for k in range(count, 0, -1)]


def spatial(x: Tensor, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, places: Shape, value: Number) -> Tensor:
    """Windows of the trailing dimensions: x[lead..., s...] as [lead..., places..., kernel...], `value` outside."""
    n = len(kernel)
    lead = x.shape[:len(x.shape) - n]
    need = [(p - 1) * s + (w - 1) * d + 1 for p, s, w, d in zip(places, stride, kernel, dilation, strict=True)]
    size = tuple(max(e + 2 * b, m) for e, b, m in zip(x.shape[len(lead):], padding, need, strict=True))
    padded = pad(x, (*[0] * len(lead), *padding), (*lead, *size), value)
    b = len(lead)
    at = [*map(Pos, range(b)), *(ix.add(ix.mul(Pos(b + k), stride[k]), ix.mul(Pos(b + n + k), dilation[k])) for k in range(n))]
    return remap(padded, (*lead, *places, *kernel), at)


def tuple_of(value: int | Sequence[int], n: int) -> Shape:
    """torch's short form: one number for all dimensions."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * n if len(given) == 1 else given


@lowers(*(f"aten.conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")))
def _conv(out: Type, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
          padding: int | str | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Tensor:
    """The sum over input channels of a group and kernel places of window times weight."""
    n = len(weight.shape) - 2
    if len(x.shape) == n + 1:
        wide = _conv(Type(out.dtype, (1, *out.shape)), reshape(x, (1, *x.shape)), weight, bias, stride, padding, dilation, groups)
        return reshape(wide, out.shape)
    steps, spread, kernel, places = tuple_of(stride, n), tuple_of(dilation, n), weight.shape[2:], out.shape[2:]
    if isinstance(padding, str):
        padding = [0] * n if padding == "valid" else [d * (w - 1) // 2 for d, w in zip(spread, kernel, strict=True)]
    windows = spatial(convert(x, out.dtype), kernel, steps, tuple_of(padding, n), spread, places, 0)
    channels, per = weight.shape[0] // groups, weight.shape[1]
    if groups == 1:
        dims, p, w = (x.shape[0], channels, *places, per, *kernel), range(2, 2 + n), range(3 + n, 3 + 2 * n)
        flat = contract(dims, ((windows, (0, 2 + n, *p, *w)), (convert(weight, out.dtype), (1, 2 + n, *w))), 1 + n)
        return _with_bias(flat, bias, out.dtype)
    data = reshape(windows, (x.shape[0], groups, per, *places, *kernel))
    filters = reshape(convert(weight, out.dtype), (groups, channels, per, *kernel))
    dims = (x.shape[0], groups, channels, *places, per, *kernel)
    p = range(3, 3 + n)
    w = range(4 + n, 4 + 2 * n)
    product = contract(dims, ((data, (0, 1, 3 + n, *p, *w)), (filters, (1, 2, 3 + n, *w))), 1 + n)
    return _with_bias(reshape(product, out.shape), bias, out.dtype)


def _with_bias(x: Tensor, bias: Tensor | None, dtype: DType) -> Tensor:
    """A number for each channel, dimension 1, added."""
    return x if bias is None else add(x, reshape(convert(bias, dtype), (1, prod(bias.shape), *[1] * (len(x.shape) - 2))))


@lowers("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _conv_transpose(out: Type, x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1,
                    padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1,
                    dilation: int | Sequence[int] = 1) -> Tensor:
    """Every element of x times the kernel, added up where they lie `stride` apart.

    Place o takes, of x at q - j, the kernel's place r + j stride, where o + padding = q stride + r: the sum is over channels of a group and
    the j, which are one where strides are as long as the kernel."""
    n = len(weight.shape) - 2
    if len(x.shape) == n + 1:
        wide = _conv_transpose(Type(out.dtype, (1, *out.shape)), reshape(x, (1, *x.shape)), weight, bias, stride, padding, output_padding,
                               groups, dilation)
        return reshape(wide, out.shape)
    steps, spread, pads, places = tuple_of(stride, n), tuple_of(dilation, n), tuple_of(padding, n), out.shape[2:]
    filters = _spread_out(convert(weight, out.dtype), spread)
    taps = tuple(-(-w // s) for w, s in zip(filters.shape[2:], steps, strict=True))
    filters = pad(filters, [0] * (n + 2), (*weight.shape[:2], *(t * s for t, s in zip(taps, steps, strict=True))), 0)
    most = [(o - 1 + p) // s for o, p, s in zip(places, pads, steps, strict=True)]
    held = pad(convert(x, out.dtype), (0, 0, *(t - 1 for t in taps)), (*x.shape[:2], *(m + t for m, t in zip(most, taps, strict=True))), 0)
    per, channels = x.shape[1] // groups, weight.shape[1]
    dims = (x.shape[0], groups, channels, *places, per, *taps)

    def padded(k: int) -> ix.Ix:
        return ix.add(Pos(3 + k), IxConst(pads[k]))

    channel = ix.add(ix.mul(Pos(1), per), Pos(3 + n))
    source = [ix.add(ix.div(padded(k), steps[k]), ix.add(ix.mul(Pos(4 + n + k), -1), IxConst(taps[k] - 1))) for k in range(n)]
    place = [ix.add(ix.mod(padded(k), steps[k]), ix.mul(Pos(4 + n + k), steps[k])) for k in range(n)]
    product = mul(remap(held, dims, [Pos(0), channel, *source]), remap(filters, dims, [channel, Pos(2), *place]))
    return _with_bias(reshape(reduce("add", product, range(3 + n, 4 + 2 * n)), out.shape), bias, out.dtype)


def _spread_out(weight: Tensor, spread: Shape) -> Tensor:
    """A kernel whose places lie `spread` apart, with zeros between."""
    for k, d in enumerate(spread, 2):
        if d > 1:
            dims = [(n - 1) * d + 1 if j == k else n for j, n in enumerate(weight.shape)]
            between = remap(weight, dims, [ix.div(Pos(j), d) if j == k else Pos(j) for j in range(len(dims))])
            weight = select(apply("eq", apply("mod", position(dims, k), d), 0), between, 0)
    return weight
