"""Tile rules: they derive schedules, not equalities.  Judged is that they fire and that they stop; the simulator judges the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from emmy.check.book import settle
from emmy.check.programs import along, apply, constant, product, view
from emmy.egraph.canonical import canonical
from emmy.egraph.kernel_facts import facts
from emmy.egraph.rows import options
from emmy.egraph.rulebook import hardware_rules, scope, targets
from emmy.egraph.rulefile import CLASSES, PHASES
from emmy.egraph.saturate import saturate
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tir
from emmy.ir import tile_ir as tile
from emmy.ir.index import Pos, add
from emmy.lower import loop_to_tile
from emmy.lower.tensor_to_loop import lower

ROUNDS, NODES = 16, 60_000
PINNED = [fact for row in ("WORK=g1x1/ws/c2,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8",
                           "WORK=g2x1/ws-turns,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k64,STAGE=d2/smem-tma,RASTER=gm8/p132",
                           "RASTER=gm8/p3/sk")
          for fact in options(tile.parse_row(row))]
LAUNCHES = ['(Part 0 128 0 32 "smem")', '(Part 1 128 1024 64 "reg")', '(Follows 1)',      # launches, what shares them, and weights
            '(set (Unchanging) (set-of "w"))', '(set (Holdable) (set-of "t"))', '(Uses 0 (set-of "w") (set-of "t"))']


def attention(score: tir.Tensor, values: tir.Tensor) -> tir.Tensor:
    """softmax(score) @ values"""
    shape = score.shape
    weight = apply("exp", apply("sub", score, along(tir.Reduce("max", (1,), score), shape, (0,))))
    return apply("div", product(weight, values), along(tir.Reduce("add", (1,), weight), (shape[0], values.shape[1]), (0,)))


def softmax(x: tir.Tensor, axis: int) -> tir.Tensor:
    """Of a matrix, along one of its axes."""
    weight = apply("exp", apply("sub", x, along(tir.Reduce("max", (axis,), x), x.shape, (1 - axis,))))
    return apply("div", weight, along(tir.Reduce("add", (axis,), weight), x.shape, (1 - axis,)))


def causal(score: tir.Tensor) -> tir.Tensor:
    """The score, -inf where the key comes after the row."""
    before = apply("le", tir.IndexValue(score.shape, Pos(1)), tir.IndexValue(score.shape, Pos(0)))
    return apply("select", before, score, constant(float("-inf"), score.shape, dt.f32))


def begun(score: tir.Tensor) -> tir.Tensor:
    """The score, -inf where the key comes before the first of the row's document."""
    first = along(tir.Input("s", score.shape[:1], dt.i64), score.shape, (0,))
    return apply("select", apply("le", first, tir.IndexValue(score.shape, Pos(1))), score, constant(float("-inf"), score.shape, dt.f32))


def convolution(x: tir.Tensor, filters: tir.Tensor) -> tir.Tensor:
    """sum of x[n, p + r, c] * filters[o, r, c] over r and c, at [n, p, o]"""
    (images, length, channels), (results, places, _) = x.shape, filters.shape
    dims = images, length - places + 1, results, places, channels
    windows = view(x, dims, (Pos(0), add(Pos(1), Pos(3)), Pos(4)))
    return tir.Reduce("add", (3, 4), apply("mul", windows, along(filters, dims, (2, 3, 4))))


def kernels() -> Iterator[tile.Kernel]:
    """A kernel of each kind: elementwise, of odd lines and octets too, transposing, sums of rows, very long ones too, and of columns, a
    scan, softmax of rows, long and very long ones too, and of columns, windows, products, those of a byte's types, of a computed side,
    long and tall ones too, a convolution and added products of halves, and attention of fp32 and halves, that of all rows to all keys,
    causal, of documents, and of one row."""
    n = 64

    def matrix(name: str, element: dt.DType = dt.f32, rows: int = n, columns: int = n) -> tir.Tensor:
        return tir.Input(name, (rows, columns), element)

    def wide(x: tir.Tensor) -> tir.Tensor:
        return x if x.dtype is dt.f32 else tir.Cast(dt.f32, x)

    x, y = matrix("x"), matrix("y")
    centred = apply("sub", x, along(tir.Reduce("add", (1,), x), (n, n), (0,)))
    flipped = view(y, (n, n), (Pos(1), Pos(0)))
    windows = view(x, (n, 30, 3), (Pos(0), ix.add(ix.mul(Pos(1), 2), Pos(2))))
    results = [apply("exp", x), apply("exp", matrix("o", columns=37)), softmax(x, 1), softmax(x, 0), apply("add", x, flipped),
               softmax(matrix("l", rows=2, columns=32768), 1), tir.Reduce("max", (1,), matrix("l", rows=2, columns=32768)),
               tir.Reduce("add", (1,), x), tir.Reduce("max", (0,), x), tir.Scan("add", 1, x),
               apply("div", x, along(tir.Reduce("add", (1,), x), (n, n), (0,))), tir.Reduce("add", (1,), apply("mul", centred, centred)),
               softmax(matrix("l", columns=1024), 1), tir.Reduce("max", (2,), windows)]
    for element in (dt.f32, dt.bf16):
        a, b, c = (matrix(name, element) for name in "abc")
        keys = wide(view(b, (n, n), (Pos(1), Pos(0))))
        results += [product(wide(a), wide(b)), *(attention(score, wide(c)) for score in (
            product(wide(a), keys), causal(product(wide(a), keys)), begun(product(wide(a), keys)),
            product(wide(matrix("q", element, 1)), keys)))]
    results.append(tir.Cast(dt.f32, matrix("i", dt.i8)))
    a, b = (matrix(name, dt.e4m3) for name in "ab")
    results.append(product(wide(a), wide(view(b, (n, n), (Pos(1), Pos(0))))))
    a, b = (matrix(name, dt.bf16) for name in "ab")
    results.append(product(wide(matrix("a", dt.bf16, 2 * n, 1024)), wide(matrix("b", dt.bf16, 1024))))
    results.append(product(wide(matrix("a", dt.bf16, rows=16384)), wide(b)))
    results += [product(apply("exp", wide(a)), wide(b)), product(wide(a), apply("exp", wide(view(b, (n, n), (Pos(1), Pos(0))))))]
    asked, layers = tir.Input("n", (n,), dt.i64), tir.Input("w", (3, n, n), dt.bf16)
    chosen = tir.Gather(0, (ix.IxConst(0), Pos(1), Pos(2)), layers, along(asked, (n, n, n), (0,)))
    terms = apply("mul", along(wide(a), (n, n, n), (0, 2)), wide(view(chosen, (n, n, n), (Pos(0), Pos(2), Pos(1)))))
    results.append(tir.Reduce("add", (2,), terms))
    d, e = matrix("d", dt.bf16, columns=32), matrix("e", dt.bf16, 32)
    results.append(apply("add", product(wide(a), wide(b)), product(wide(d), wide(e))))
    results.append(convolution(*(wide(tir.Input(name, shape, dt.bf16)) for name, shape in (("x", (2, 9, n)), ("w", (n, 3, n))))))
    for result in results:
        program = lower(tir.Program((("out", result),)))
        region = saturate(program)
        bodies = canonical(region)
        tensors = {name: tile.Tensor(name, t.shape if isinstance(t, loop.Definition) else t.dims, t.element)
                   for name, t in program.tensors.items()}
        name = program.outputs[0][1]
        yield loop_to_tile.kernel("k", (bodies[region.home[name]],), (tensors[name],), region.output_axes[name], region.extents, tensors)


def judged(extra: Iterable[tuple[str, str]] = ()) -> tuple[Counter[str], str]:
    """How often each rule fires on these kernels on each target, a row being pinned, and how a graph grows that does not stop; "" where
    all do."""
    fired: Counter[str] = Counter()
    extra = tuple(extra)
    for stated in (LAUNCHES, *([*facts(k), *PINNED] for k in kernels())):
        for target in targets():
            with scope("tile", [hardware_rules(target), *extra]) as graph:
                graph.run("\n".join(stated), "<kernel>")
                for phase in PHASES["tile"]:
                    sizes = settle(graph, graph.phase(phase, CLASSES), ROUNDS, NODES)
                    if len(sizes) > ROUNDS or sizes[-1] > NODES:
                        return fired, f"phase {phase} on {target}: {', '.join(map(str, sizes[:6]))} … {sizes[-1]} rows"
                fired.update({rule: n for rule, n in graph.fired.items() if n})
    return fired, ""
