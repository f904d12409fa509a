"""Random Tensor IR programs, small enough to saturate in a moment: DAGs of every kind of node, and the shapes rules look for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from emmy.evaluate.values import Array
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import tensor_ir as tir
from emmy.ir.dtype import DType
from emmy.ir.index import IxConst, Pos
from emmy.ir.tensor_ir import Tensor

EXTENTS = (2, 3, 3, 4)
LARGEST = 200       # elements of a tensor
KINDS = ("unary", "binary", "binary", "reduction", "reduction", "biased", "scan", "views", "views", "matmul", "matmul", "chain", "softmax",
         "softmax", "rounded", "masked", "gathered", "scaled")
SPELLINGS = ("logarithm", "signs", "moments", "deviation", "low_rank", "shifted", "constants", "windows")     # kinds of several spellings
UNARY = ("exp", "neg", "abs", "recip", "sqrt", "tanh")
BINARY = ("add", "sub", "mul", "mul", "div", "max", "min")


def arrays(program: tir.Program, seed: int = 0) -> dict[str, Array]:
    """Inputs of a program: floats of one to two and both signs, and indices below the extent in the name of their input."""
    rng = np.random.default_rng(seed)

    def array(i: tir.Input) -> Array:
        if i.element.kind == "int":
            return rng.integers(0, int(i.name.split("_")[1]), i.dims, i.element.numpy)
        return (rng.uniform(1, 2, i.dims) * rng.choice((-1, 1, 1), i.dims)).astype(i.element.numpy)

    return {i.name: array(i) for i in program.inputs}


def view(x: Tensor, shape: tuple[int, ...], at: tuple[ix.Ix, ...]) -> Tensor:
    return tir.IndexMap(shape, at, x)


def apply(op: str, *args: Tensor) -> Tensor:
    return tir.Elementwise(op, args)


def along(x: Tensor, shape: tuple[int, ...], dims: tuple[int, ...]) -> Tensor:
    """`x` broadcast to `shape`, its dimensions at `dims`."""
    return view(x, shape, tuple(map(Pos, dims)))


def product(a: Tensor, b: Tensor) -> Tensor:
    """a[i, k] @ b[k, j]"""
    (i, k), j = a.shape, b.shape[1]
    return tir.Reduce("add", (2,), apply("mul", along(a, (i, j, k), (0, 2)), along(b, (i, j, k), (2, 1))))


def constant(value: float, shape: tuple[int, ...], element: DType) -> Tensor:
    return view(tir.Constant(element, dt.bits(element, value)), shape, ())


def convolution(x: Tensor, s: Tensor, b: Tensor, w: Tensor, step: int, low: int, change: str = "", sides: tuple[str, ...] = ("le", "lt"),
                channels: bool = True) -> Tensor:
    """x[batch, channel, ...] * s[channel], changed by b[channel] or a number, between `low` zeros where the `sides` are checked, and its
    windows by steps of `step` weighted with w[channel, ...]; summed over them, and over the channels too."""
    n, size = len(w.shape) - 1, x.shape[2]
    shape = (*x.shape[:2], *(2,) * n, *w.shape[1:])     # batch, channel, places, kernel
    at = [ix.add(Pos(2 + k), ix.mul(Pos(2 + n + k), step)) for k in range(n)]
    inner = (ix.mod(ix.add(i, IxConst(-low % size)), size) for i in at)
    value = apply("mul", view(x, shape, (Pos(0), Pos(1), *inner)), along(s, shape, (1,)))
    shift, number = along(b, shape, (1,)), constant(-2.0, shape, x.dtype)
    match change:
        case "add": value = apply("add", value, shift)
        case "sub": value = apply("sub", shift, value)
        case "mul": value = apply("mul", value, number)
    least, most = (view(tir.Constant(dt.i64, k), shape, ()) for k in (low, low + size))
    tests = {"le": lambda i: apply("le", least, i), "lt": lambda i: apply("lt", i, most)}
    both = partial(reduce, partial(apply, "and"))
    inside = both([both([tests[side](tir.IndexValue(shape, i)) for side in sides]) for i in at])
    kernel = tuple(range(2 + n, 2 + 2 * n))
    held = apply("select", inside, value, constant(0.0, shape, x.dtype))
    return tir.Reduce("add", (1, *kernel) if channels else kernel, apply("mul", along(w, shape, (1, *kernel)), held))


class Builder:
    """Draws nodes into a pool of floating-point tensors of one dtype."""

    def __init__(self, draw: Callable[..., Any], element: DType):
        self.draw, self.element = draw, element
        self.pool: list[Tensor] = []
        self.inputs = 0

    def choose(self, options: list[Any] | tuple[Any, ...]) -> Any:
        return self.draw(st.sampled_from(options))

    def input(self, shape: tuple[int, ...]) -> Tensor:
        self.inputs += 1
        return tir.Input(f"x{self.inputs}", shape, self.element)

    def fitting(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the pool of this shape, one broadcast to it, or a new input."""
        same = [x for x in self.pool if x.shape == shape]
        options: list[Tensor] = [*same, *same]
        for x in self.pool:
            if len(x.shape) < len(shape) and x.shape == shape[len(shape) - len(x.shape):]:
                options.append(along(x, shape, tuple(range(len(shape) - len(x.shape), len(shape)))))
            if 0 < len(x.shape) < len(shape) and x.shape == shape[:len(x.shape)]:
                options.append(along(x, shape, tuple(range(len(x.shape)))))
        return self.choose(options) if options and self.draw(st.integers(0, 5)) else self.input(shape)

    def any(self, rank: int = 0) -> Tensor:
        options = [x for x in self.pool if len(x.shape) >= rank]
        return self.choose(options) if options else self.input(tuple(self.choose(EXTENTS) for _ in range(rank)))

    def step(self, kinds: tuple[str, ...]) -> Tensor:
        made: Tensor = getattr(self, self.choose(kinds))()
        return made

    def unary(self) -> Tensor:
        return apply(self.choose(UNARY), self.any())

    def binary(self) -> Tensor:
        x = self.any()
        return apply(self.choose(BINARY), x, self.fitting(x.shape))

    def scaled(self) -> Tensor:
        x = self.any()
        return apply(self.choose(("mul", "div", "div", "add")), x, constant(self.choose((1.0, 1.0, -2.0)), x.shape, self.element))

    def reduction(self) -> Tensor:
        x = self.any(1)
        axes = self.draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))
        return tir.Reduce(self.choose(("add", "add", "add", "max", "min", "mul")), tuple(sorted(axes)), x)

    def biased(self) -> Tensor:
        x = self.any(1)
        return tir.Reduce("max", (len(x.shape) - 1,), apply("add", x, self.fitting(x.shape)))

    def scan(self) -> Tensor:
        x = self.any(1)
        return tir.Scan(self.choose(("add", "max")), self.draw(st.integers(0, len(x.shape) - 1)), x)

    def views(self) -> Tensor:
        x = self.any(1)
        last = len(x.shape) - 1
        points = [Pos(k) for k in range(len(x.shape))]
        match self.choose(("transpose", "slice", "pick", "flip", "reshape", "split")):
            case "transpose" if last:
                return view(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]), (*points[:-2], points[-1], points[-2]))
            case "slice" if x.shape[-1] > 1:
                return view(x, (*x.shape[:-1], x.shape[-1] - 1), (*points[:-1], ix.add(points[-1], IxConst(1))))
            case "pick" if last: return view(x, x.shape, (*points[:-1], IxConst(x.shape[-1] - 1)))
            case "reshape" if last: return view(x, (prod(x.shape),), ix.unflatten(Pos(0), x.shape))
            case "split" if x.shape[-1] == 4:
                return view(x, (*x.shape[:-1], 2, 2), (*points[:-1], ix.add(ix.mul(Pos(last), 2), Pos(last + 1))))
        return view(x, x.shape, (*points[:-1], ix.add(ix.mul(points[-1], -1), IxConst(x.shape[-1] - 1))))

    def matrix(self, rows: int | None = None) -> Tensor:
        options = [x for x in self.pool if len(x.shape) == 2 and rows in (None, x.shape[0])]
        return self.choose(options) if options else self.input((rows or self.choose(EXTENTS), self.choose(EXTENTS)))

    def matmul(self) -> Tensor:
        a = self.matrix()
        return product(a, view(a, a.shape[::-1], (Pos(1), Pos(0))) if self.draw(st.booleans()) else self.matrix(a.shape[1]))

    def chain(self) -> Tensor:
        b = self.matrix()
        return product(self.input((self.choose(EXTENTS), b.shape[0])), product(b, self.matrix(b.shape[1])))

    def softmax(self) -> Tensor:
        score = self.matrix()
        top = tir.Reduce("max", (1,), score)
        weight = apply("exp", apply("sub", score, along(top, score.shape, (0,))))
        total = tir.Reduce("add", (1,), weight)
        match self.choose(("weights", "total", "values", "scaled", "columns", "normalised")):
            case "weights": return apply("div", weight, along(total, score.shape, (0,)))
            case "total": return total
            case "values": return product(weight, self.matrix(score.shape[1]))
            case "scaled": return tir.Reduce("add", (1,), apply("mul", weight, self.fitting(score.shape)))
            case "columns": return tir.Reduce("add", (0,), apply("mul", weight, self.fitting(score.shape)))
        return product(apply("div", weight, along(total, score.shape, (0,))), self.matrix(score.shape[1]))

    def logarithm(self) -> Tensor:
        """Logarithms of exponentials and of their quotients, exponentials of logarithms, and roots."""
        x = self.any(1)
        y = apply("abs", self.fitting(x.shape))
        match self.choose(("exp", "quotient", "product", "reciprocal", "back", "back-less", "root")):
            case "exp": return apply("log", apply("exp", x))
            case "quotient": return apply("log", apply("div", apply("exp", x), y))
            case "product": return apply("log", apply("mul", apply("exp", x), y))
            case "reciprocal": return apply("neg", apply("log", y))
            case "back": return apply("exp", apply("add", x, apply("log", y)))
            case "back-less": return apply("exp", apply("sub", x, apply("log", y)))
        return apply("rsqrt", y)

    def signs(self) -> Tensor:
        """Differences and negatives, alone and summed."""
        x = self.any(1)
        y, last = self.fitting(x.shape), len(x.shape) - 1
        match self.choose(("sums", "back", "negated", "product", "difference", "less-sum", "less-difference")):
            case "sums": return tir.Reduce("add", (last,), apply("neg", x))
            case "back": return apply("neg", tir.Reduce("add", (last,), x))
            case "negated": return tir.Reduce(self.choose(("max", "min")), (last,), apply("neg", x))
            case "product": return apply("neg", apply("mul", x, y))
            case "difference": return apply("neg", apply("sub", x, y))
            case "less-sum": return apply("sub", x, apply("add", y, self.fitting(x.shape)))
        return apply("sub", apply("sub", x, y), self.fitting(x.shape))

    def mean(self, x: Tensor) -> Tensor:
        """The mean over the last dimension."""
        total = tir.Reduce("add", (len(x.shape) - 1,), x)
        return apply("mul", total, constant(1 / x.shape[-1], total.shape, self.element))

    def moments(self) -> Tensor:
        """Variances, in two passes and as mean squares less squared means, of numbers and of truths."""
        n = self.choose((2, 4))
        x = self.choose((self.input((self.choose(EXTENTS), n)), self.truths(n)))
        mean = self.mean(x)
        if self.draw(st.booleans()):
            return apply("sub", self.mean(apply("mul", x, x)), apply("mul", mean, mean))
        centred = apply("sub", x, along(mean, x.shape, (0,)))
        return self.mean(apply("mul", centred, centred))

    def truths(self, n: int) -> Tensor:
        """0 and 1, or the whole numbers of an index, [m, n]"""
        shape = (self.choose(EXTENTS), n)
        if self.draw(st.booleans()):
            return tir.Cast(self.element, tir.IndexValue(shape, Pos(1)))
        return tir.Cast(self.element, apply("lt", self.input(shape), self.input(shape)))

    def deviation(self) -> Tensor:
        """((x - mean) * r * g + b) @ w, of halves too: a norm before a matrix product."""
        half = self.draw(st.booleans()) and self.element is dt.f32
        m, n = self.choose(EXTENTS), self.choose((2, 4))
        self.inputs += 1
        x: Tensor = tir.Cast(dt.f32, tir.Input(f"x{self.inputs}", (m, n), dt.bf16)) if half else self.input((m, n))
        scaled = apply("mul", apply("sub", x, along(self.mean(x), (m, n), (0,))), along(self.input((m,)), (m, n), (0,)))
        scaled = apply("mul", scaled, along(self.input((n,)), (m, n), (1,)))
        if self.draw(st.booleans()):
            b = along(self.input((n,)), (m, n), (1,))
            scaled = self.choose((apply("add", scaled, b), apply("sub", b, scaled)))
        return product(scaled, self.input((n, self.choose(EXTENTS))))

    def low_rank(self) -> Tensor:
        """x @ (w + a @ b), or x @ w + x @ v."""
        k, j = self.choose(EXTENTS), self.choose(EXTENTS)
        x, w, op = self.matrix_of(k), self.input((k, j)), self.choose(("add", "sub"))
        if self.draw(st.booleans()):
            return apply(op, product(x, w), product(x, self.input((k, j))))
        return product(x, apply(op, w, product(self.input((k, 2)), self.input((2, j)))))

    def matrix_of(self, columns: int) -> Tensor:
        options = [x for x in self.pool if len(x.shape) == 2 and x.shape[1] == columns]
        return self.choose(options) if options else self.input((self.choose(EXTENTS), columns))

    def shifted(self) -> Tensor:
        """The maximum or minimum of what a value without the axis, or a number, shifts or scales."""
        x = self.matrix()
        b = along(self.input(x.shape[:1]), x.shape, (0,))
        number = constant(self.choose((2.0, -2.0)), x.shape, self.element)
        value = self.choose((apply("add", x, b), apply("sub", x, b), apply("sub", b, x), apply("mul", x, number)))
        return tir.Reduce(self.choose(("max", "min")), (1,), value)

    def constants(self) -> Tensor:
        """Arithmetic of constants, equal choices, and reductions of what does not vary."""
        x = self.any()
        p, q = (constant(v, x.shape, self.element) for v in (3.0, 0.5))
        match self.choose(("sum", "difference", "product", "negative", "twice", "select", "repeat")):
            case "sum": return apply("mul", x, apply("add", p, q))
            case "difference": return apply("mul", x, apply("sub", p, q))
            case "product": return apply("add", x, apply("mul", p, q))
            case "negative": return apply("mul", x, apply("neg", p))
            case "twice": return apply("mul", p, apply("mul", q, x))
            case "select": return apply("select", apply("lt", x, p), x, x)
        wide = along(x, (*x.shape, 3), tuple(range(len(x.shape))))
        return tir.Reduce(self.choose(("add", "max", "min")), (len(x.shape),), wide)

    def windows(self) -> Tensor:
        """A padded convolution over one dimension or two of what is scaled and shifted, whose windows may all reach inside or not."""
        n, step, low, size = self.choose((1, 2)), self.choose((1, 2)), self.choose((1, 2)), self.choose((1, 2, 2))
        x, s, b, w = self.input((2, 2, *(size,) * n)), self.input((2,)), self.input((2,)), self.input((2, *(2,) * n))
        s = apply("recip", s) if self.draw(st.booleans()) else s
        change, sides = self.choose(("", "", "add", "sub", "mul")), self.choose((("le", "lt"), ("le", "lt"), ("le",), ("lt",)))
        return convolution(x, s, b, w, step, low, change, sides, self.draw(st.booleans()))

    def rounded(self) -> Tensor:
        x = self.any()
        if self.element is not dt.f32:
            return tir.Cast(self.element, tir.Cast(dt.f16, x))
        kind = self.choose((tir.Round, tir.Cast))
        half = kind(dt.bf16, x)
        again = kind(dt.bf16, tir.Cast(dt.f32, half)) if self.draw(st.booleans()) else half
        return tir.Cast(dt.f32, again)

    def masked(self) -> Tensor:
        x = self.any(1)
        edge = self.choose(tuple(range(len(x.shape))))
        mask = apply("lt", tir.IndexValue(x.shape, Pos(edge)), view(tir.Constant(dt.i64, 2), x.shape, ()))
        return apply("select", mask, x, self.fitting(x.shape))

    def gathered(self) -> Tensor:
        x = self.any(1)
        self.inputs += 1
        index = tir.Input(f"i{self.inputs}_{x.shape[0]}", (self.choose(EXTENTS), *x.shape[1:]), dt.i64)
        return tir.Gather(0, (IxConst(0), *map(Pos, range(1, len(x.shape)))), x, index)


@st.composite
def programs(draw: Callable[..., Any], steps: int = 7, kinds: tuple[str, ...] = KINDS) -> tir.Program:
    """A program of up to `steps` drawn steps of these kinds, and one or two outputs."""
    made = Builder(draw, draw(st.sampled_from((dt.f32, dt.f32, dt.f32, dt.f64))))
    made.pool = [made.input((draw(st.sampled_from(EXTENTS)), draw(st.sampled_from(EXTENTS)))) for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(2, steps))):
        node = made.step(kinds)
        if node.size <= LARGEST and len(node.shape) <= 4:
            made.pool.append(node)
    outputs = [made.pool[-1], *([made.choose(made.pool[:-1])] if len(made.pool) > 3 and draw(st.booleans()) else [])]
    return tir.Program(tuple((f"y{k}", x) for k, x in enumerate(outputs)))
