"""Kernels written by hand, which together use every statement."""

from __future__ import annotations

from emmy.instructions import (
    Assign,
    Await,
    AwaitSignal,
    Barrier,
    ClusterArrive,
    ClusterWait,
    CommitCopies,
    CopyAsync,
    Declare,
    DeclareArray,
    ExpectBytes,
    FenceBarriers,
    FirstLane,
    For,
    GiveSignal,
    If,
    InitBarrier,
    LaunchDependents,
    Let,
    LoadGlobal,
    LoadGlobalVector,
    LoadMatrix,
    LoadShared,
    LoadSharedVector,
    MultiplyMatrices,
    Publish,
    SetElement,
    ShuffleUp,
    ShuffleXor,
    StoreCluster,
    StoreClusterVector,
    StoreGlobal,
    StoreGlobalVector,
    StoreShared,
    StoreSharedVector,
    TakeTicket,
    WaitBarrier,
    WaitCopies,
    WaitKernels,
    While,
)
from emmy.ir import dtype as dt
from emmy.ir.dtype import DTYPES, DType
from emmy.ir.kernel_ir import (
    Apply,
    Block,
    Const,
    Convert,
    Element,
    Expr,
    GlobalBuffer,
    Kernel,
    SharedBuffer,
    Stmt,
    Thread,
    Var,
    const,
    fold,
    int32,
)
from emmy.ir.node import IRError
from emmy.ir.operators import OPERATORS, result_dtype
from tests import hopper_kernels, window_kernels

MINUS_INFINITY = const(dt.f32, float("-inf"))
ZERO = const(dt.f32, 0)


def f32(name: str) -> Var:
    return Var(name, dt.f32)


def i32(name: str) -> Var:
    return Var(name, dt.i32)


def vector_map(n: int, element: DType = dt.f32) -> Kernel:
    """y = exp(-x), one thread an element, the tail guarded."""
    i, x = i32("i"), Var("x", element.compute)
    buffers = (GlobalBuffer("src", element, n, "read"), GlobalBuffer("dst", element, n, "write"))
    return Kernel("vector_map", buffers, (), (-(-n // 128), 1, 1), 128, (
        Let(i, Block(0) * 128 + Thread()),
        LoadGlobal(x, "src", i, i < n, const(x.element, 1)),
        StoreGlobal("dst", i, Apply("exp", (Apply("neg", (x,)),)), i < n)))


def vector_copy(n: int, element: DType, width: int) -> Kernel:
    """dst = 2 src in vectors, through shared memory and back."""
    i, parts = i32("i"), "parts"
    c = element.compute
    doubled = [SetElement(parts, c, int32(j), Element(parts, c, int32(j)) + Element(parts, c, int32(j))) for j in range(width)]
    return Kernel("vector_copy", (GlobalBuffer("src", element, n, "read"), GlobalBuffer("dst", element, n, "write")),
        (SharedBuffer("tile", element, 64 * width),), (-(-n // (64 * width)), 1, 1), 64, (
        Let(i, (Block(0) * 64 + Thread()) * width),
        DeclareArray(parts, c, width, const(c, 0)),
        If(i < n, (
            LoadGlobalVector(parts, 0, "src", i, width), *doubled,
            StoreSharedVector("tile", Thread() * width, parts, 0, width),
            LoadSharedVector(parts, 0, "tile", Thread() * width, width),
            StoreGlobalVector("dst", i, parts, 0, width)))))


def warp_sum(value: Expr, name: str = "s") -> tuple[list[Stmt], Var]:
    """The sum over a warp, by shuffles."""
    out: list[Stmt] = []
    for mask in (16, 8, 4, 2, 1):
        other, total = f32(f"{name}_other{mask}"), f32(f"{name}{mask}")
        out += [ShuffleXor(other, value, mask), Let(total, value + other)]
        value = total
    return out, total


def warp_reduction(rows: int, n: int) -> Kernel:
    """A row sum, one warp a row, four rows a block."""
    row, k, x, acc = i32("row"), i32("k"), f32("x"), f32("acc")
    lane = Thread() % 32
    shuffles, total = warp_sum(acc)
    return Kernel("warp_reduction", (GlobalBuffer("src", dt.f32, rows * n, "read"), GlobalBuffer("dst", dt.f32, rows, "write")), (),
        (-(-rows // 4), 1, 1), 128, (
        Let(row, Block(0) * 4 + Thread() // 32),
        If(row < rows, (
            Declare(acc, ZERO),
            For(k, lane, int32(n), int32(32), False, (LoadGlobal(x, "src", row * n + k), Assign(acc, acc + x))),
            *shuffles,
            StoreGlobal("dst", row, total, lane == 0)))))


def block_reduction(n: int, threads: int = 256, barrier: bool = True) -> Kernel:
    """The sum of a block's row through a tree in shared memory; `barrier=False` forgets one."""
    t, k, x, acc, a, b = Thread(), i32("k"), f32("x"), f32("acc"), f32("a"), f32("b")
    tree: list[Stmt] = []
    half = threads // 2
    while half:
        tree += [If(t < half, (LoadShared(a, "part", t), LoadShared(b, "part", t + half), StoreShared("part", t, a + b))),
                 *([Barrier()] if barrier or half != 16 else [])]
        half //= 2
    return Kernel("block_reduction", (GlobalBuffer("src", dt.f32, 3 * n, "read"), GlobalBuffer("dst", dt.f32, 3, "write")),
        (SharedBuffer("part", dt.f32, threads),), (3, 1, 1), threads, (
        Declare(acc, ZERO),
        For(k, t, int32(n), int32(threads), False, (LoadGlobal(x, "src", Block(0) * n + k), Assign(acc, acc + x))),
        StoreShared("part", t, acc), Barrier(), *tree,
        LoadShared(x, "part", int32(0)),
        StoreGlobal("dst", Block(0), x, t == 0)))


def matmul(m: int, k: int, n: int, tile: int = 64, depth: int = 8, element: DType = dt.f32, second_barrier: bool = True) -> Kernel:
    """C[m, n] = A[m, k] B[k, n]: square tiles staged in shared memory, 16 x 16 threads of (tile / 16) squared results each."""
    per, t = tile // 16, Thread()
    row, col, step, kk, i, j, at = (i32(x) for x in ("row", "col", "step", "kk", "i", "j", "at"))
    r, c, x = i32("r"), i32("c"), f32("x")

    def stage(name: str, buffer: str, height: int, width: int, r0: Expr, c0: Expr, rows: int, cols: int) -> Stmt:
        return For(at, t, int32(height * width), int32(256), False, (
            Let(r, r0 + at // width), Let(c, c0 + at % width),
            LoadGlobal(x, buffer, r * cols + c, (r < rows) & (c < cols)),
            StoreShared(name, at, x)))

    def unrolled(v: Var, count: int, *body: Stmt) -> Stmt:
        return For(v, int32(0), int32(count), int32(1), True, body)

    acc = Element("acc", dt.f32, i * per + j)
    main = For(step, int32(0), int32(k), int32(depth), False, (
        stage("tile_a", "a", tile, depth, Block(1) * tile, step, m, k),
        stage("tile_b", "b", depth, tile, step, Block(0) * tile, k, n),
        Barrier(),
        For(kk, int32(0), int32(depth), int32(1), False, (
            unrolled(i, per, LoadShared(x, "tile_a", (row + i) * depth + kk), SetElement("left", dt.f32, i, x)),
            LoadSharedVector("right", 0, "tile_b", kk * tile + col, per),
            unrolled(i, per, unrolled(j, per, SetElement("acc", dt.f32, i * per + j, Apply("fma", (
                Element("left", dt.f32, i), Element("right", dt.f32, j), acc))))))),
        *([Barrier()] if second_barrier else [])))
    store = unrolled(i, per, unrolled(j, per, Let(r, Block(1) * tile + row + i), Let(c, Block(0) * tile + col + j),
        StoreGlobal("out", r * n + c, acc, (r < m) & (c < n))))
    buffers = (GlobalBuffer("a", element, m * k, "read"), GlobalBuffer("b", element, k * n, "read"),
               GlobalBuffer("out", element, m * n, "write"))
    return Kernel("matmul", buffers, (SharedBuffer("tile_a", dt.f32, tile * depth), SharedBuffer("tile_b", dt.f32, depth * tile)),
        (-(-n // tile), -(-m // tile), 1), 256, (
        Let(row, t // 16 * per), Let(col, t % 16 * per),
        DeclareArray("acc", dt.f32, per * per, ZERO), DeclareArray("left", dt.f32, per), DeclareArray("right", dt.f32, per),
        main, store))


def online_softmax(rows: int, n: int) -> Kernel:
    """A softmax row a warp: a running maximum and a sum that is rescaled where it moves."""
    row, k, x, top, total, new = i32("row"), i32("k"), f32("x"), f32("top"), f32("total"), f32("now")

    def exp(e: Expr) -> Expr:
        return Apply("exp", (e,))
    merge: list[Stmt] = []
    m: Expr = top
    s: Expr = total
    for mask in (16, 8, 4, 2, 1):
        om, os, nm, ns = (f32(f"{v}{mask}") for v in ("other_top", "other_total", "top", "total"))
        merge += [ShuffleXor(om, m, mask), ShuffleXor(os, s, mask), Let(nm, Apply("max", (m, om))),
                  Let(ns, s * exp(m - nm) + os * exp(om - nm))]
        m, s = nm, ns
    lane = Thread()
    return Kernel("online_softmax", (GlobalBuffer("src", dt.f32, rows * n, "read"), GlobalBuffer("dst", dt.f32, rows * n, "write")), (),
        (rows, 1, 1), 32, (
        Let(row, Block(0) * n), Declare(top, const(dt.f32, -3e38)), Declare(total, ZERO),
        For(k, lane, int32(n), int32(32), False, (
            LoadGlobal(x, "src", row + k), Let(new, Apply("max", (top, x))),
            Assign(total, total * exp(top - new) + exp(x - new)), Assign(top, new))),
        *merge,
        For(k, lane, int32(n), int32(32), False, (
            LoadGlobal(x, "src", row + k), StoreGlobal("dst", row + k, Apply("div", (exp(x - m), s)))))))


def elementwise(name: str, n: int, operands: list[DType], value: Expr) -> Kernel:
    """out[i] = value of x0[i], x1[i], …, which the expression knows as variables v0, v1, …"""
    i = i32("i")
    buffers = [GlobalBuffer(f"x{k}", d, n, "read") for k, d in enumerate(operands)]
    loads = [LoadGlobal(Var(f"v{k}", d), f"x{k}", i, i < n) for k, d in enumerate(operands)]
    return Kernel(name, (*buffers, GlobalBuffer("out", value.dtype, n, "write")), (), (-(-n // 64), 1, 1), 64, (
        Let(i, Block(0) * 64 + Thread()), *loads, StoreGlobal("out", i, value, i < n)))


def branches() -> Kernel:
    """Both sides of a branch, a value of every dtype, a shuffle of booleans, an element of a half type kept as it is."""
    t, odd, flag, other, half = Thread(), Var("odd", dt.bool_), Var("flag", dt.bool_), Var("other", dt.bool_), Var("half", dt.bf16)
    acc, wide = f32("acc"), Var("wide", dt.f64)
    return Kernel("branches", (GlobalBuffer("src", dt.bf16, 32, "read"), GlobalBuffer("dst", dt.f32, 32, "write"),
                               GlobalBuffer("raw", dt.bf16, 32, "write"), GlobalBuffer("odds", dt.bool_, 32, "write")), (), (1, 1, 1), 32, (
        Let(odd, t % 2 == 1),
        Declare(acc, const(dt.f32, 1)),
        LoadGlobal(half, "src", t),
        StoreGlobal("raw", t, half),
        Let(wide, const(dt.f64, 0.1)),
        If(odd, (Assign(acc, Const(dt.f32, 0x7FC00000)),), (If(t < 16, (Assign(acc, MINUS_INFINITY),)),)),
        ShuffleXor(other, odd, 1),
        Let(flag, fold("xor", odd, other)),
        StoreGlobal("dst", t, fold("select", flag, acc, ZERO)),
        StoreGlobal("odds", t, odd)))


def lane_sums(total: Var) -> tuple[list[Stmt], Var]:
    """Each lane's sum of its `total` and those of the lanes before it."""
    body: list[Stmt] = []
    for delta in (1, 2, 4, 8, 16):
        below, longer = f32(f"below_{delta}x"), f32(f"total_{delta}x")
        body += [ShuffleUp(below, total, delta), Let(longer, total + fold("select", Thread() >= delta, below, ZERO))]
        total = longer
    return body, total


def warp_scan() -> Kernel:
    """dst[t] = src[0] + ... + src[t], by the lanes of a warp."""
    x = f32("total")
    sums, total = lane_sums(x)
    return Kernel("warp_scan", (GlobalBuffer("src", dt.f32, 32, "read"), GlobalBuffer("dst", dt.f32, 32, "write")), (), (1, 1, 1), 32,
                  (LoadGlobal(x, "src", Thread()), *sums, StoreGlobal("dst", Thread(), total)))


def look_back_scan(tiles: int = 40) -> Kernel:
    """dst[i] = src[0] + ... + src[i], a warp a tile of 32 elements, each looking back at what the tiles before it have published: their own
    sums (1), or those of all up to them (2)."""
    t, taken, n, at, flag, seen, nearest = Thread(), *map(i32, ("taken", "n", "at", "flag", "seen", "nearest"))
    x, carry, value, found, more = *map(f32, ("x", "carry", "value", "found")), Var("more", dt.bool_)
    sums, total = lane_sums(x)
    met, met_sum = warp_sum(value)
    last, own, every = t == 31, int32(1), int32(2)
    step = (Declare(flag, every), Declare(value, ZERO),
            If(int32(0) <= at, (Await("words", 1 + at, seen, found), Assign(flag, seen), Assign(value, found))),
            FirstLane(nearest, flag == every), Assign(value, fold("select", t <= nearest, value, ZERO)), *met,
            Assign(carry, carry + met_sum), Assign(at, at - 32), Assign(more, nearest == 32))
    buffers = (GlobalBuffer("src", dt.f32, 32 * tiles, "read"), GlobalBuffer("dst", dt.f32, 32 * tiles, "write"),
               GlobalBuffer("words", dt.i64, 1 + tiles, "scratch"))
    return Kernel("look_back_scan", buffers, (SharedBuffer("ticket", dt.i32, 1),), (tiles, 1, 1), 32, (
        If(t == 0, (TakeTicket("words", int32(0), taken), StoreShared("ticket", int32(0), taken))), Barrier(),
        LoadShared(n, "ticket", int32(0)), LoadGlobal(x, "src", n * 32 + t), *sums,
        If(last, (Publish("words", 1 + n, fold("select", n == 0, every, own), total),)),
        Declare(carry, ZERO), Declare(at, n - 1 - t), Declare(more, int32(0) < n), While(more, step),
        If(last & (int32(0) < n), (Publish("words", 1 + n, every, carry + total),)),
        StoreGlobal("dst", n * 32 + t, carry + total)))


def tensor_product(element: DType = dt.bf16, by_column: bool = True, wait: bool = True, barrier: bool = True,
                   transposed: bool | None = None) -> Kernel:
    """dst[16, 8] = a[16, 16] b, once by each of two warps: b is stored [n, k] if `by_column`, else [k, n]; its last 16 bytes lie beyond
    the buffer's end and are zeros.  `wait`, `barrier`: whether the copies are waited for; `transposed`: how b is read."""
    t, lane = Thread(), i32("lane")
    parts = Element("acc", dt.f32, i32("e"))
    row, column = lane // 4 + i32("e") // 2 * 8, lane % 4 * 2 + i32("e") % 2
    begin = lane % 8 * 16 + lane // 8 % 2 * 8 if by_column else lane % 16 * 8
    return Kernel(f"tensor_product_{element}", (GlobalBuffer("a", element, 256, "read"), GlobalBuffer("b", element, 120, "read"),
                                     GlobalBuffer("dst", dt.f32, 256, "write")),
        (SharedBuffer("left", element, 256), SharedBuffer("right", element, 128)), (1, 1, 1), 64, (
        Let(lane, t % 32),
        If(t < 32, (CopyAsync("left", t * 8, 8, "a", t * 8),), (If(t < 48, (CopyAsync("right", lane * 8, 8, "b", lane * 8, lane < 15),)),)),
        CommitCopies(),
        *([WaitCopies(0)] if wait else []), *([Barrier()] if barrier else []),
        DeclareArray("x", element, 8), DeclareArray("y", element, 4), DeclareArray("acc", dt.f32, 4, ZERO),
        LoadMatrix("x", int32(0), 8, "left", lane % 16 * 16 + lane // 16 * 8),
        LoadMatrix("y", int32(0), 4, "right", begin, not by_column if transposed is None else transposed),
        MultiplyMatrices(element, "acc", int32(0), "x", int32(0), "y", int32(0)),
        For(i32("e"), int32(0), int32(4), int32(1), True, (StoreGlobal("dst", t // 32 * 128 + row * 8 + column, parts),))))


def rotation(cluster: int = 2, grid: int = 4, element: DType = dt.f32) -> Kernel:
    """Each block sends its elements, in reverse, to the next block of its cluster, and writes what has come."""
    t, x, y = Thread(), Var("x", element), Var("y", element)
    buffers = GlobalBuffer("src", element, 64 * grid, "read"), GlobalBuffer("dst", element, 64 * grid, "write")
    return Kernel("rotation", buffers, (SharedBuffer("part", element, 64), SharedBuffer("met", dt.i64, 1)), (grid, 1, 1), 64, (
        LoadGlobal(x, "src", Block(0) * 64 + t),
        If(t == 0, (InitBarrier("met", int32(0), 1), ExpectBytes("met", int32(0), 64 * element.bytes), FenceBarriers())),
        ClusterArrive(), ClusterWait(),
        StoreCluster("part", 63 - t, (Block(0) % cluster + 1) % cluster, x, "met", int32(0)), WaitBarrier("met", int32(0), int32(0)),
        LoadShared(y, "part", t), StoreGlobal("dst", Block(0) * 64 + t, y)), (), cluster)


def runs(index: Expr | int = 0, rank: Expr | None = None, bytes: int = 64 * 4 * 4, element: dt.DType = dt.f32, offset: int = 4) -> Kernel:
    """Each block of two sends each thread's run of four to the other, and writes what has come."""
    t, other = Thread(), (Block(0) + 1) % 2 if rank is None else rank
    return Kernel("runs", (GlobalBuffer("src", element, 512, "read"), GlobalBuffer("dst", element, 512, "write")),
        (SharedBuffer("part", element, 256), SharedBuffer("met", dt.i64, 1)), (2, 1, 1), 64, (
        If(t == 0, (InitBarrier("met", int32(0), 1), ExpectBytes("met", int32(0), bytes), FenceBarriers())), ClusterArrive(),
        DeclareArray("x", element, 8), LoadGlobalVector("x", 4, "src", Block(0) * 256 + t * 4, 4), ClusterWait(),
        StoreClusterVector("part", t * 4 + index, other, "x", offset, "met", int32(0)), WaitBarrier("met", int32(0), int32(0)),
        LoadSharedVector("x", 0, "part", t * 4, 4), StoreGlobalVector("dst", Block(0) * 256 + t * 4, "x", 0, 4)), (), 2)


def relay(grid: int = 4) -> Kernel:
    """The first block adds up what all blocks have read, each after it has given a signal for it."""
    t, slot, e, other = Thread(), i32("slot"), i32("e"), Block(0) - 1
    add = SetElement("x", dt.f32, e, Element("x", dt.f32, e) + Element("y", dt.f32, e))
    give = (StoreGlobalVector("partial", other * 256 + t * 4, "x", 0, 4), Barrier(), If(t == 0, (GiveSignal("given", other),)))
    take = (For(slot, int32(0), int32(grid - 1), int32(1), False, (
        If(t == 0, (AwaitSignal("given", slot),)), Barrier(), DeclareArray("y", dt.f32, 4),
        LoadGlobalVector("y", 0, "partial", slot * 256 + t * 4, 4), For(e, int32(0), int32(4), int32(1), True, (add,)))),
        StoreGlobalVector("dst", t * 4, "x", 0, 4))
    buffers = (GlobalBuffer("src", dt.f32, 256 * grid, "read"), GlobalBuffer("dst", dt.f32, 256, "write"),
               GlobalBuffer("partial", dt.f32, 256 * (grid - 1), "exchange"), GlobalBuffer("given", dt.i32, grid - 1, "signals"))
    return Kernel("relay", buffers, (), (grid, 1, 1), 64, (
        DeclareArray("x", dt.f32, 4), LoadGlobalVector("x", 0, "src", Block(0) * 256 + t * 4, 4), If(Block(0) > 0, give, take)))


def squares(wait: bool = True) -> Kernel:
    """dst[n] = src[n]^2, where kernels ahead write `src` and this one lets the next begin.  `wait`: whether it waits for them."""
    x = f32("x")
    return Kernel("squares", (GlobalBuffer("src", dt.f32, 64, "read", late=True), GlobalBuffer("dst", dt.f32, 64, "write", late=True)), (),
                  (2, 1, 1), 32, (LaunchDependents(), *([WaitKernels()] if wait else []), LoadGlobal(x, "src", Block(0) * 32 + Thread()),
                                  StoreGlobal("dst", Block(0) * 32 + Thread(), x * x)))


def operator_cases() -> list[tuple[str, DType]]:
    """Each operator on each dtype that it takes."""
    out = []
    for name, op in OPERATORS.items():
        for d in (dt.f32, dt.f64, dt.i8, dt.u8, dt.i32, dt.i64, dt.bool_):
            operands = (dt.bool_, d, d) if name == "select" else (d,) * op.arity
            try:
                result_dtype(name, operands)
            except IRError:
                continue
            out.append((name, d))
    return out


def every_operator(element: DType) -> Kernel:
    """Each operator that takes `element`, on three inputs and a flag, and each conversion of it; one output each."""
    flag, v = Var("flag", dt.bool_), [Var(f"v{k}", element.compute) for k in range(3)]
    values: dict[str, Expr] = {}
    for op, d in operator_cases():
        if d is element:
            values[op] = Apply(op, (flag, v[0], v[1]) if op == "select" else tuple(v[:OPERATORS[op].arity]))
    values |= {f"to_{d}": Convert(d, Convert(element, v[0])) for d in DTYPES.values()}
    loads = [LoadGlobal(x, f"in{k}", Thread()) for k, x in enumerate(v)]
    return Kernel(f"every_{element}", (*(GlobalBuffer(f"in{k}", element, 32, "read") for k in range(3)),
        *(GlobalBuffer(f"out_{name}", e.dtype, 32, "write") for name, e in values.items())), (), (1, 1, 1), 32, (
        *loads, Let(flag, Thread() < 7), *(StoreGlobal(f"out_{name}", Thread(), e) for name, e in values.items())))


EVERY = (vector_map(1000), vector_copy(1024, dt.bf16, 8), warp_reduction(6, 100), block_reduction(1000), matmul(37, 129, 37),
         online_softmax(5, 77), branches(), warp_scan(), look_back_scan(), squares(), rotation(), runs(), relay(),
         tensor_product(dt.bf16), tensor_product(dt.f16, by_column=False), *hopper_kernels.EVERY, *window_kernels.EVERY)
