"""Kernels for sm_90a written by hand: a product by one producer and two consumer warpgroups, and the statements that it does without."""

from __future__ import annotations

from math import prod

from emmy.instructions import (
    Arrive,
    ArrivePeer,
    Assign,
    Barrier,
    ClusterArrive,
    ClusterWait,
    CommitProducts,
    CommitStores,
    CopyBulk,
    CopyTile,
    Declare,
    DeclareArray,
    ExpectBytes,
    FenceAsync,
    FenceBarriers,
    FenceProducts,
    For,
    If,
    InitBarrier,
    Let,
    LoadGlobal,
    LoadShared,
    MultiplyWarpgroup,
    MultiplyWarpgroupRegisters,
    NamedBarrier,
    PrefetchMap,
    SetElement,
    SetRegisters,
    StoreGlobal,
    StoreMatrices,
    StoreShared,
    StoreTile,
    SyncWarp,
    WaitBarrier,
    WaitProducts,
    WaitStores,
)
from emmy.instructions.bulk_copy import swizzled
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import (
    Block,
    Convert,
    Element,
    Expr,
    GlobalBuffer,
    Kernel,
    SharedBuffer,
    Stmt,
    TensorMap,
    Thread,
    Var,
    const,
    fold,
    int32,
)

CONSUMERS, DEPTH = 2, 64


def i32(name: str) -> Var:
    return Var(name, dt.i32)


def count(v: Var, start: Expr | int, stop: Expr | int, step: int, *body: Stmt, unroll: bool = False) -> For:
    first, last = (e if isinstance(e, Expr) else int32(e) for e in (start, stop))
    return For(v, first, last, int32(step), unroll, body)


def advance(slot: Var, phase: Var, stages: int) -> tuple[Stmt, ...]:
    """The next slot of a ring; the phase turns where the ring begins anew."""
    return (Assign(slot, slot + 1), If(slot == stages, (Assign(slot, int32(0)), Assign(phase, phase ^ 1))))


def gemm(m: int, n: int, k: int, *, element: DType = dt.bf16, columns: int = 256, stages: int = 4, left_major: str = "k",
         right_major: str = "k", blocks: int = 132, group: int = 8, leave_out: str = "", bytes_more: int = 0, swizzle: int = 128,
         parity: int = 0, read_major: str = "", early: bool = False) -> Kernel:
    """c[m, n] = a b, in tiles of 128 x `columns` that persistent blocks take in groups of `group` rows.

    a is stored [m, k] if its major is "k", else [k, m]; b [n, k] or [k, n].  The rest plants faults: a statement to `leave_out`,
    more bytes to expect, another `swizzle` of b, another parity for consumers, b read by another major, slots given back `early`."""
    rows = 64 * CONSUMERS
    size_a, size_b, size_c = rows * DEPTH, columns * DEPTH, 64 * 64
    across, down, steps = -(-n // columns), -(-m // rows), -(-k // DEPTH)
    t, tile, step, slot, phase, q, piece = Thread(), i32("tile"), i32("step"), i32("slot"), i32("phase"), i32("q"), i32("piece")
    part, turn, lane = i32("part"), i32("turn"), i32("lane")
    row, column = i32("row"), i32("column")

    def operand(name: str, extent: int, size: int, major: str, swizzle: int = 128) -> TensorMap:
        by_k = major == "k"
        shape, box = ((extent, k), (size, DEPTH)) if by_k else ((k, extent), (DEPTH, 64))
        return TensorMap(f"map_{name}", name, element, shape, box, swizzle)

    def copy(name: str, first: Var, size: int, major: str) -> tuple[Stmt, ...]:
        def one(at: Expr | int, coordinates: tuple[Expr, ...]) -> Stmt:
            return CopyTile(f"tile_{name}", slot * size * DEPTH + at, f"map_{name}", coordinates, "full", slot)
        if major == "k":
            return (one(0, (first, step * DEPTH)),)
        return tuple(one(64 * DEPTH * j, (step * DEPTH, first + 64 * j)) for j in range(size // 64))

    def place(*body: Stmt) -> For:
        """A loop over the tiles of a block: groups of `group` rows of tiles, column by column."""
        in_group, first = tile % (group * across), tile // (group * across) * group
        height = fold("min", down - first, int32(group))
        return count(tile, Block(0), down * across, blocks,
            Let(row, (first + in_group % height) * rows), Let(column, in_group // height * columns), *body)

    def at(major: str) -> Expr:
        """Where the operand of the q-th 16 along k begins, from where its tile does."""
        return q * 16 if major == "k" else q * 16 * 64

    def unless[Part](name: str, *s: Part) -> tuple[Part, ...]:
        return () if name == leave_out else s

    producer = (
        SetRegisters(40, False),
        If(t == 0, (
            Declare(slot, int32(0)), Declare(phase, int32(0)),
            place(count(step, 0, steps, 1,
                *unless("empty", WaitBarrier("empty", slot, phase if leave_out == "turn" else phase ^ 1)),
                *unless("expect", ExpectBytes("full", slot, (size_a + size_b) * element.bytes + bytes_more)),
                *copy("a", row, rows, left_major), *copy("b", column, columns, right_major),
                *advance(slot, phase, stages))))))
    release = If(lane == 0, (Arrive("empty", slot),))
    read = read_major or right_major
    products = count(q, 0, DEPTH // 16, 1,
        MultiplyWarpgroup(element, columns, "acc", int32(0), "tile_a", slot * size_a + part * 64 * DEPTH + at(left_major), left_major,
            "tile_b", slot * size_b + at(read), read, (step > 0) | (q > 0)), unroll=True)
    line = t % 128 // 32 * 16 + lane % 16
    buffer = (part * 2 + turn) * size_c
    epilogue = count(piece, 0, columns // 64, 1,
        *unless("wait_stores", If(t % 128 == 0, (WaitStores(1, True),))),
        *unless("named_barrier", NamedBarrier(part + 1, 128)),
        count(q, 0, 4, 1, StoreMatrices("tile_c", buffer + swizzled(line * 64 + q * 16 + lane // 16 * 8, element),
            "acc", piece * 32 + q * 8, 8), unroll=True),
        *unless("fence_async", FenceAsync()),
        *unless("second_barrier", NamedBarrier(part + 1, 128)),
        If(t % 128 == 0, (StoreTile("map_c", (row + part * 64, column + piece * 64), "tile_c", buffer), CommitStores())),
        Assign(turn, turn ^ 1), unroll=True)
    consumer = (
        SetRegisters(232, True),
        Let(part, t // 128 - 1), Let(lane, t % 32), DeclareArray("acc", dt.f32, columns // 2),
        Declare(slot, int32(0)), Declare(phase, int32(parity)), Declare(turn, int32(0)),
        place(
            count(step, 0, steps, 1,
                *unless("full", WaitBarrier("full", slot, phase)),
                *unless("fence_products", FenceProducts(*unless("wait_products", ("acc",)))), products, CommitProducts(),
                *((release,) if early else ()),
                *unless("wait_products", WaitProducts(0)),
                *(() if early else (release,)),
                *advance(slot, phase, stages)),
            *unless("pin", WaitProducts(0, ("acc",))),
            epilogue),
        If(t % 128 == 0, (WaitStores(0, False),)))
    s = i32("s")
    start = (
        PrefetchMap("map_a"), PrefetchMap("map_b"), PrefetchMap("map_c"),
        count(s, 0, stages, 1, InitBarrier("full", s, 1), InitBarrier("empty", s, 4 * CONSUMERS), unroll=True),
        *unless("fence_barriers", FenceBarriers()))
    return Kernel(f"gemm_{element}_{left_major}{right_major}_{columns}",
        (GlobalBuffer("a", element, m * k, "read"), GlobalBuffer("b", element, n * k, "read"), GlobalBuffer("c", element, m * n, "write")),
        (SharedBuffer("tile_a", element, stages * size_a, 1024), SharedBuffer("tile_b", element, stages * size_b, 1024),
         SharedBuffer("tile_c", element, 2 * CONSUMERS * size_c, 1024), SharedBuffer("full", dt.i64, stages),
         SharedBuffer("empty", dt.i64, stages)),
        (min(blocks, down * across), 1, 1), 128 * (1 + CONSUMERS), (
        If(t == 0, start), *unless("barrier", Barrier()), If(t < 128, producer, consumer)),
        (operand("a", m, rows, left_major), operand("b", n, columns, right_major, swizzle),
         TensorMap("map_c", "c", element, (m, n), (64, 64))))


def registers_product(columns: int = 64, *, element: DType = dt.f16, by_thread: bool = False, leave_out: str = "", major: str = "mn",
                      bulk: int = 64, again: bool = False) -> Kernel:
    """c[64, columns] = a[64, 16] b[16, columns] + bias, by one warpgroup with a in registers.

    b comes as a tile, or is written by the threads if `by_thread`.  Faults: a statement to `leave_out`, another `major` of b, another
    `bulk` of the bias to expect, or an operand that is set `again` while the product reads it."""
    t, lane, warp, e, x, y = Thread(), i32("lane"), i32("warp"), i32("e"), Var("x", element), Var("y", dt.f32)
    k, j, at = i32("k"), i32("j"), i32("at")
    row = warp * 16 + lane // 4 + e // 2 % 2 * 8
    acc, zero = Element("acc", dt.f32, e), int32(0)
    chunks = columns // 64

    def unless[Part](name: str, *s: Part) -> tuple[Part, ...]:
        return () if name == leave_out else s

    tiles = tuple(CopyTile("tile", int32(16 * 64 * p), "map_b", (zero, int32(64 * p)), "full", zero) for p in range(chunks))
    written = count(at, t, 16 * columns, 128, Let(k, at // columns), Let(j, at % columns), LoadGlobal(x, "b", at),
        StoreShared("tile", j // 64 * 1024 + swizzled(k * 64 + j % 64, element), x))
    multiply = MultiplyWarpgroupRegisters(element, columns, "acc", zero, "left", zero, "tile", zero, major, const(dt.bool_, False), 1024)
    return Kernel(f"registers_product_{element}",
        (GlobalBuffer("a", element, 64 * 16, "read"), GlobalBuffer("b", element, 16 * columns, "read"),
         GlobalBuffer("bias", dt.f32, 64, "read"), GlobalBuffer("c", dt.f32, 64 * columns, "write")),
        (SharedBuffer("tile", element, 16 * columns + 512, 1024), SharedBuffer("offset", dt.f32, 64), SharedBuffer("full", dt.i64, 1)),
        (1, 1, 1), 128, (
        Let(lane, t % 32), Let(warp, t // 32),
        If(t == 0, (InitBarrier("full", zero, 1), FenceBarriers())), Barrier(),
        If(t == 0, (
            ExpectBytes("full", zero, bulk * 4 + (0 if by_thread else 32 * columns)),
            CopyBulk("offset", zero, "bias", zero, 64, "full", zero), *(() if by_thread else tiles))),
        DeclareArray("acc", dt.f32, columns // 2), DeclareArray("left", element, 8),
        count(e, 0, 8, 1, LoadGlobal(x, "a", row * 16 + lane % 4 * 2 + e % 2 + e // 4 * 8), SetElement("left", element, e, x), unroll=True),
        *((written, *unless("fence_async", FenceAsync()), *unless("named_barrier", NamedBarrier(int32(1), 128))) if by_thread else ()),
        *unless("wait", WaitBarrier("full", zero, zero)),
        FenceProducts(*unless("fence", ("left",))), multiply,
        *((SetElement("left", element, zero, Element("left", element, zero)),) if again else ()),
        CommitProducts(), WaitProducts(0, *unless("pin", ("acc",))), SyncWarp(),
        count(e, 0, columns // 2, 1, LoadShared(y, "offset", (e // 4 * 8 + lane % 4 * 2 + e % 2) % 64),
            StoreGlobal("c", row * columns + e // 4 * 8 + lane % 4 * 2 + e % 2, acc + y), unroll=True)),
        (TensorMap("map_b", "b", element, (16, columns), (16, 64)),))


def shared_tiles(rounds: int = 3, cluster: int = 2, *, element: DType = dt.bf16) -> Kernel:
    """c = a + b + ... of `rounds` tiles of src, 8 * cluster by 64 each: once by each block of two clusters, whose blocks bring each other a
    share of every tile to the one place that they have for it."""
    t, lane, r, e, zero = Thread(), i32("lane"), i32("r"), i32("e"), int32(0)
    x, acc, high, rank = Var("x", element.compute), Element("acc", dt.f32, e), 8 * cluster, Block(0) % cluster
    phase, size, lanes = i32("phase"), 8 * cluster * 64, 8 * cluster * 64 // 32
    copy = CopyTile("tile", rank * (8 * 64), "map_src", (r * high + rank * 8, zero), "full", zero, False, int32((1 << cluster) - 1))
    copying = (Declare(phase, zero),
               count(r, 0, rounds, 1, WaitBarrier("empty", zero, phase ^ 1), ExpectBytes("full", zero, size * element.bytes), copy,
                     Assign(phase, phase ^ 1)),
               WaitBarrier("empty", zero, phase ^ 1))
    adding = (Let(lane, t % 32), DeclareArray("acc", dt.f32, lanes, const(dt.f32, 0)), Declare(phase, zero),
              count(r, 0, rounds, 1, WaitBarrier("full", zero, phase),
                    count(e, 0, lanes, 1, LoadShared(x, "tile", e * 32 + lane), SetElement("acc", dt.f32, e, acc + x), unroll=True),
                    SyncWarp(), If(lane < cluster, (ArrivePeer("empty", zero, lane),)), Assign(phase, phase ^ 1)),
              count(e, 0, lanes, 1, StoreGlobal("c", Block(0) * size + e * 32 + lane, acc), unroll=True))
    return Kernel("shared_tiles",
        (GlobalBuffer("src", element, rounds * size, "read"), GlobalBuffer("c", dt.f32, 2 * cluster * size, "write")),
        (SharedBuffer("tile", element, size, 1024), SharedBuffer("full", dt.i64, 1), SharedBuffer("empty", dt.i64, 1)),
        (2 * cluster, 1, 1), 64, (
        If(t == 0, (InitBarrier("full", zero, 1), InitBarrier("empty", zero, cluster), FenceBarriers())), ClusterArrive(), ClusterWait(),
        If(t < 32, (If(t == 0, copying),), adding)),
        (TensorMap("map_src", "src", element, (rounds * high, 64), (8, 64), 0),), cluster)


EVERY = (gemm(128, 256, 128), gemm(200, 136, 72, element=dt.f16, columns=128, left_major="mn", right_major="mn"), registers_product(),
         shared_tiles())


def layout_probe(shape: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...], *, to: tuple[int, ...] = (),
                 element: DType = dt.bf16, swizzle: int = 128, name: str = "layout_probe") -> Kernel:
    """The tile of a at `corner`, as it lies in shared memory, goes to raw by threads and by the copy engine to c, at the same corner or
    where `to` says."""
    t, at, x, zero = Thread(), i32("at"), Var("x", element), int32(0)
    tile, where, there = prod(box), tuple(map(int32, corner)), tuple(map(int32, to or corner))
    maps = tuple(TensorMap(f"map_{of}", of, element, shape, box, swizzle) for of in "ac")
    size = prod(shape)
    return Kernel(name, (GlobalBuffer("a", element, size, "read"), GlobalBuffer("raw", element, tile, "write"),
                         GlobalBuffer("c", element, size, "write")),
        (SharedBuffer("tile", element, tile, 1024), SharedBuffer("full", dt.i64, 1)), (1, 1, 1), 32, (
        If(t == 0, (InitBarrier("full", zero, 1), FenceBarriers())), Barrier(),
        If(t == 0, (ExpectBytes("full", zero, tile * element.bytes), CopyTile("tile", zero, "map_a", where, "full", zero))),
        WaitBarrier("full", zero, zero),
        count(at, t, tile, 32, LoadShared(x, "tile", at), StoreGlobal("raw", at, x)),
        FenceAsync(), Barrier(),
        If(t == 0, (StoreTile("map_c", there, "tile", zero), CommitStores(), WaitStores(0, False)))), maps)


def matrices_probe(width: int, transposed: bool, *, element: DType = dt.bf16, sums: bool = True, name: str = "matrices_probe") -> Kernel:
    """What a warp stores as `width` / 2 matrices of its lanes' numbers, as it lies in a swizzled tile of 32 rows."""
    t, e, at, x = Thread(), i32("e"), i32("at"), Var("x", element)
    held = dt.f32 if sums else element
    return Kernel(name, (GlobalBuffer("raw", element, 32 * 64, "write"),), (SharedBuffer("tile", element, 32 * 64, 1024),), (1, 1, 1), 32, (
        count(at, t, 32 * 64, 32, StoreShared("tile", at, const(element, 0))),
        DeclareArray("held", held, width),
        count(e, 0, width, 1, SetElement("held", held, e, Convert(held, t * 8 + e)), unroll=True),
        SyncWarp(),
        StoreMatrices("tile", swizzled(t % 16 * 2 * 64 + t // 16 * 8, element), "held", int32(0), width, transposed),
        SyncWarp(),
        count(at, t, 32 * 64, 32, LoadShared(x, "tile", at), StoreGlobal("raw", at, x))))


def product_probe(columns: int, left_major: str, right_major: str, *, element: DType = dt.bf16, depth: int = 64, wide: int = 0,
                  name: str = "product_probe") -> Kernel:
    """c[64, columns] = a[64, depth] b[depth, columns], by one warpgroup out of two tiles; the boxes of b across hold `depth` rows, which
    makes `right_chunk`; `wide`: the columns of b that are there, if more."""
    t, e, q, lane, zero = Thread(), i32("e"), i32("q"), i32("lane"), int32(0)
    wide = wide or columns
    chunks = -(-columns // 64)
    shape_a, box_a = ((64, depth), (64, 64)) if left_major == "k" else ((depth, 64), (depth, 64))
    shape_b, box_b = ((wide, depth), (columns, 64)) if right_major == "k" else ((depth, wide), (depth, 64))
    step = {"k": 16, "mn": 16 * 64}
    copies = [CopyTile("tile_a", zero, "map_a", (zero, zero), "full", zero)]
    copies += [CopyTile("tile_b", int32(depth * 64 * p), "map_b", (zero, int32(64 * p)), "full", zero)
               for p in range(1 if right_major == "k" else chunks)]
    size_b = prod(box_b) * (1 if right_major == "k" else chunks)
    multiply = MultiplyWarpgroup(element, columns, "acc", zero, "tile_a", q * step[left_major], left_major,
                                 "tile_b", q * step[right_major], right_major, q > 0, depth * 64)
    row = t // 32 * 16 + lane // 4 + e // 2 % 2 * 8
    return Kernel(name,
        (GlobalBuffer("a", element, 64 * depth, "read"), GlobalBuffer("b", element, wide * depth, "read"),
         GlobalBuffer("c", dt.f32, 64 * columns, "write")),
        (SharedBuffer("tile_a", element, prod(box_a), 1024), SharedBuffer("tile_b", element, size_b, 1024),
         SharedBuffer("full", dt.i64, 1)), (1, 1, 1), 128, (
        If(t == 0, (InitBarrier("full", zero, 1), FenceBarriers())), Barrier(),
        If(t == 0, (ExpectBytes("full", zero, (prod(box_a) + size_b) * element.bytes), *copies)),
        Let(lane, t % 32), DeclareArray("acc", dt.f32, columns // 2),
        WaitBarrier("full", zero, zero), FenceProducts(("acc",)), count(q, 0, depth // 16, 1, multiply, unroll=True),
        CommitProducts(), WaitProducts(0, ("acc",)),
        count(e, 0, columns // 2, 1,
            StoreGlobal("c", row * columns + e // 4 * 8 + lane % 4 * 2 + e % 2, Element("acc", dt.f32, e)), unroll=True)),
        (TensorMap("map_a", "a", element, shape_a, box_a), TensorMap("map_b", "b", element, shape_b, box_b)))


PROBES = (
    *(layout_probe((40, 96), (16, span // 2), (3, 32), swizzle=span, name=f"layout_{span}") for span in (32, 64, 128)),
    layout_probe((40, 96), (24, 80), (-5, 48), to=(30, 24), swizzle=0, name="layout_linear"),
    layout_probe((40, 96), (16, 64), (-5, 56), to=(0, 40), name="layout_corner"),
    layout_probe((40, 96), (16, 64), (33, -24), to=(30, 72), name="layout_other_corner"),
    layout_probe((100,), (64,), (48,), element=dt.f32, swizzle=0, name="layout_1d"),
    layout_probe((5, 6, 64), (2, 4, 64), (4, 3, 8), name="layout_3d"),
    layout_probe((3, 2, 6, 64), (2, 1, 8, 64), (1, 1, -2, 0), to=(2, 1, 3, 0), name="layout_4d"),
    layout_probe((2, 3, 2, 6, 32), (1, 2, 2, 4, 32), (1, 2, 0, 4, 0), element=dt.f32, name="layout_5d"),
    *(matrices_probe(width, transposed, sums=sums, element=element, name=f"matrices_{width}{'t' * transposed}{'s' * sums}_{element}")
      for width in (2, 4, 8) for transposed in (False, True) for sums, element in ((True, dt.bf16), (False, dt.f16))),
    *(product_probe(columns, left, right, depth=depth, wide=-(-columns // 64) * 64, name=f"product_{columns}_{left}_{right}_{depth}")
      for columns, left, right, depth in ((8, "k", "k", 64), (24, "mn", "k", 64), (40, "k", "mn", 64), (96, "mn", "mn", 32),
                                          (136, "k", "mn", 16), (256, "mn", "mn", 48), (256, "k", "k", 64))),
)
