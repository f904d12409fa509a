"""The simulator on Hopper's instructions: right results, and a planted fault for each rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

import numpy as np
import pytest

from emmy.evaluate.simulate import SimulationError, simulate
from emmy.instructions import (
    Arrive,
    Barrier,
    CommitProducts,
    CommitStores,
    CopyBulk,
    CopyTile,
    DeclareArray,
    ExpectBytes,
    FenceAsync,
    FenceBarriers,
    FenceProducts,
    If,
    InitBarrier,
    LoadShared,
    MultiplyWarpgroup,
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
from emmy.ir.kernel_ir import BODY, Element, GlobalBuffer, Kernel, SharedBuffer, Stmt, TensorMap, Thread, Var, const, int32, walk
from emmy.ir.node import IRError
from tests.hopper_kernels import PROBES, gemm, registers_product

T, ZERO, ONE, X, FALSE = Thread(), int32(0), const(dt.f32, 1), Var("x", dt.f32), const(dt.bool_, False)


def product(m: int, n: int, k: int, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """What `gemm` gives, and the product in fp64."""
    kernel = gemm(m, n, k, **options)  # type: ignore[arg-type]
    rng, element = np.random.default_rng(0), kernel.parameters[0].element.numpy
    a, b = (rng.standard_normal(shape).astype(np.float32).astype(element) for shape in ((m, k), (n, k)))
    c = np.zeros(m * n, element)
    stored = [np.ascontiguousarray(x if options.get(f"{side}_major", "k") == "k" else x.T) for x, side in ((a, "left"), (b, "right"))]
    simulate(kernel, {"a": stored[0].reshape(-1), "b": stored[1].reshape(-1), "c": c})
    return c.reshape(m, n).astype(float), a.astype(float) @ b.astype(float).T


@pytest.mark.parametrize(("m", "n", "k", "options"), [
    (128, 128, 128, {"columns": 128}),
    (128, 256, 192, {}),
    (128, 256, 192, {"left_major": "mn", "right_major": "mn"}),
    (128, 192, 320, {"columns": 192, "stages": 2, "left_major": "mn"}),
    (200, 264, 104, {"columns": 128, "right_major": "mn", "blocks": 2, "element": dt.f16}),     # tails, and several tiles a block
    (136, 72, 40, {"columns": 64, "stages": 3, "blocks": 1, "group": 1}),
])
def test_products(m: int, n: int, k: int, options: Mapping[str, object]) -> None:
    found, wanted = product(m, n, k, **options)
    half_unit = 2.0 ** -8 if options.get("element", dt.bf16) is dt.bf16 else 2.0 ** -11
    np.testing.assert_allclose(found, wanted, rtol=half_unit * 1.01, atol=1e-4)


def registers(**options: object) -> tuple[np.ndarray, np.ndarray]:
    kernel = registers_product(**options)  # type: ignore[arg-type]
    rng, columns = np.random.default_rng(0), int(options.get("columns", 64))  # type: ignore[call-overload]
    a, b = rng.standard_normal((64, 16)).astype(np.float16), rng.standard_normal((16, columns)).astype(np.float16)
    bias, c = rng.standard_normal(64).astype(np.float32), np.zeros(64 * columns, np.float32)
    simulate(kernel, {"a": a.reshape(-1), "b": b.reshape(-1), "bias": bias, "c": c})
    return c.reshape(64, columns), a.astype(float) @ b.astype(float) + np.tile(bias, columns // 64)


@pytest.mark.parametrize("options", [{}, {"columns": 256}, {"by_thread": True}, {"by_thread": True, "columns": 128}], ids=str)
def test_products_of_registers(options: Mapping[str, object]) -> None:
    np.testing.assert_allclose(*registers(**options), rtol=1e-5, atol=1e-5)


def probed(kernel: Kernel) -> dict[str, np.ndarray]:
    """The buffers after a probe, which begins with small numbers in those it reads and zeros in others."""
    buffers = {p.name: (np.arange(p.length) % 251 * (p.access == "read")).astype(p.element.numpy) for p in kernel.parameters}
    simulate(kernel, buffers, poison=False)
    return {name: x.astype(float) for name, x in buffers.items()}


def named(name: str) -> list[Kernel]:
    return [k for k in PROBES if k.name.startswith(name)]


@pytest.mark.parametrize("kernel", named("layout"), ids=lambda k: k.name)
def test_tiles_lie_as_their_map_says(kernel: Kernel) -> None:
    found, tile = probed(kernel), kernel.maps[0]
    item, span = tile.element.bytes, tile.swizzle
    begin, to = ([int(e.value) for e in s.coordinates] for s in walk(kernel.body)  # type: ignore[attr-defined]
                 if isinstance(s, CopyTile | StoreTile))
    a, c = (found[name].reshape(tile.shape) for name in "ac")
    wanted = np.zeros(tile.shape)

    def place(corner: list[int], inside: tuple[int, ...]) -> tuple[int, ...] | None:
        at = tuple(x + y for x, y in zip(corner, inside, strict=True))
        return at if all(0 <= x < n for x, n in zip(at, tile.shape, strict=True)) else None
    for k, inside in enumerate(np.ndindex(*tile.box)):
        value = a[at] if (at := place(begin, inside)) else 0
        if there := place(to, inside):
            wanted[there] = value
        byte = k * item
        byte ^= (byte >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[span]) << 4
        assert found["raw"][byte // item] == value
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("kernel", named("matrices"), ids=lambda k: k.name)
def test_matrices_are_stored_by_rows(kernel: Kernel) -> None:
    (s,) = (s for s in walk(kernel.body) if isinstance(s, StoreMatrices))
    wanted = np.zeros((32, 64))
    for i in range(s.width // 2):
        for lane in range(32):
            for e in range(2):
                row, column = (lane % 4 * 2 + e, lane // 4) if s.transposed else (lane // 4, lane % 4 * 2 + e)
                giver = 8 * i + row     # the lane that says where the row lies
                wanted[giver % 16 * 2, giver // 16 * 8 + column] = lane * 8 + 2 * i + e
    raw = probed(kernel)["raw"]
    places = [int(swizzled(int32(k), dt.bf16).value) for k in range(32 * 64)]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(raw[places].reshape(32, 64), wanted)


@pytest.mark.parametrize("kernel", named("product"), ids=lambda k: k.name)
def test_products_of_every_layout(kernel: Kernel) -> None:
    multiply = next(s for s in walk(kernel.body) if isinstance(s, MultiplyWarpgroup))
    found, (of_a, of_b) = probed(kernel), kernel.maps
    a, b = found["a"].reshape(of_a.shape), found["b"].reshape(of_b.shape)
    a, b = a if multiply.left_major == "k" else a.T, b.T if multiply.right_major == "k" else b
    np.testing.assert_array_equal(found["c"].reshape(64, -1), (a @ b)[:, :multiply.columns])


@pytest.mark.parametrize("options", [{"swizzle": 0}, {"read_major": "mn"}], ids=str)
def test_the_wrong_layout_is_another_product(options: Mapping[str, object]) -> None:
    found, wanted = product(128, 128, 64, columns=128, **options)
    assert np.abs(found - wanted).max() > 1


@pytest.mark.parametrize(("options", "kind", "detail"), [
    ({"parity": 1}, "race", "wgmma.*under way"),
    ({"leave_out": "full"}, "race", "wgmma.*under way"),
    ({"leave_out": "empty"}, "barrier", "expect_bytes full.*more arrive"),
    ({"leave_out": "turn"}, "deadlock", r"empty\[0\] in phase 0 lacks 8 of 8 arrivals"),
    ({"early": True}, "race", "copy_tile"),
    ({"leave_out": "wait_products"}, "race", "copy_tile.*while a store or product reads it"),
    ({"leave_out": "expect"}, "deadlock", r"full\[0\] in phase 0 lacks 1 of 1 arrivals and -\d+ bytes"),
    ({"bytes_more": 64}, "deadlock", r"full\[0\] in phase 0 lacks 0 of 1 arrivals and 64 bytes"),
    ({"bytes_more": -32768}, "bytes", "32768 bytes, which it does not expect, are on their way"),
    ({"bytes_more": -64}, "bytes", "64 bytes more arrive"),
    ({"leave_out": "fence_barriers"}, "fence", "no fence_barriers followed"),
    ({"leave_out": "barrier"}, "race|uninitialised", "used as a barrier"),
    ({"leave_out": "fence_products"}, "fence", "fence_products"),
    ({"leave_out": "pin"}, "race", "store_matrices.*sum, and no wait_products that names acc"),
    ({"leave_out": "fence_async"}, "fence", "store_tile.*no fence_async since"),
    ({"leave_out": "second_barrier"}, "race|uninitialised", "store_tile"),
    ({"leave_out": "named_barrier"}, "race", "store_matrices"),
    ({"leave_out": "wait_stores"}, "race", "store_matrices.*while a store or product reads it"),
], ids=str)
def test_faults_of_a_ring(options: Mapping[str, object], kind: str, detail: str) -> None:
    with pytest.raises(SimulationError, match=f"(?s)({kind}): .*{detail}"):
        product(128, 256, 384, **{"columns": 256, "stages": 2, **options})


def without_one(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """Each statement, and the body without it."""
    for k, s in enumerate(body):
        yield s, body[:k] + body[k + 1:]
        for f in fields(s):
            for lacking, inner in without_one(getattr(s, f.name)) if f.type == BODY else ():
                yield lacking, (*body[:k], s.replace(**{f.name: inner}), *body[k + 1:])


def test_every_statement_of_the_ring_is_missed() -> None:
    """But for hints: maps may come late, and registers that nobody asked for do no harm."""
    kernel = gemm(128, 256, 192, columns=128, stages=2, blocks=1)
    arrays = {p.name: np.ones(p.length, p.element.numpy) for p in kernel.parameters}
    unmissed = []
    for s, body in without_one(kernel.body):
        try:
            simulate(kernel.replace(body=body), {name: a.copy() for name, a in arrays.items()})
            unmissed.append(s)
        except (SimulationError, IRError):
            continue
    assert unmissed == [*map(PrefetchMap, ("map_a", "map_b", "map_c")), SetRegisters(232, True)]


def test_a_clipped_tile_counts_whole() -> None:
    with pytest.raises(SimulationError, match="bytes: "):
        product(128, 128, 40, columns=128, bytes_more=-(256 * 24 * 2))      # the bytes that lie in the tensor


@pytest.mark.parametrize(("options", "kind", "detail"), [
    ({"leave_out": "fence"}, "fence", "left was set"),
    ({"leave_out": "pin"}, "race", "store_global.*sum"),
    ({"leave_out": "wait"}, "race", "under way"),
    ({"by_thread": True, "leave_out": "fence_async"}, "fence", "no fence_async"),
    ({"by_thread": True, "leave_out": "named_barrier"}, "race", "wgmma_m64_registers.*nothing that orders them"),
    ({"by_thread": True, "leave_out": "wait"}, "race", "load_shared.*under way"),
    ({"bulk": 32}, "bytes", "128 bytes more"),
    ({"again": True}, "race", r"left\[0\] is set while a product reads it"),
], ids=str)
def test_faults_of_a_product_of_registers(options: Mapping[str, object], kind: str, detail: str) -> None:
    with pytest.raises(SimulationError, match=f"(?s){kind}: .*{detail}"):
        registers(**options)


# ---- single rules, on small kernels

TILE = TensorMap("map_a", "a", dt.bf16, (64, 64), (64, 64))
OUT = TensorMap("map_c", "c", dt.bf16, (64, 64), (64, 64))
MADE = (If(T == 0, (InitBarrier("full", ZERO, 1), InitBarrier("full", int32(1), 32), FenceBarriers())), Barrier())
EXPECT, COPY = ExpectBytes("full", ZERO, 8192), CopyTile("tile", ZERO, "map_a", (ZERO, ZERO), "full", ZERO)
FETCH = (*MADE, If(T == 0, (EXPECT, COPY)), WaitBarrier("full", ZERO, ZERO))
SUMS, FENCE = DeclareArray("acc", dt.f32, 32), FenceProducts(("acc",))
MULTIPLY = MultiplyWarpgroup(dt.bf16, 64, "acc", ZERO, "tile", ZERO, "k", "tile", ZERO, "k", FALSE)
DONE = (CommitProducts(), WaitProducts(0, ("acc",)))


def run(*body: Stmt, block: int = 128) -> np.ndarray:
    """c after the body, which may leave it as it is."""
    kernel = Kernel("small", (GlobalBuffer("a", dt.bf16, 4096, "read"), GlobalBuffer("c", dt.bf16, 4096, "write")),
        (SharedBuffer("tile", dt.bf16, 8192, 1024), SharedBuffer("linear", dt.f32, 128), SharedBuffer("full", dt.i64, 2)),
        (1, 1, 1), block, body, (TILE, OUT))
    a, c = np.arange(4096).astype(dt.bf16.numpy), np.zeros(4096, dt.bf16.numpy)
    simulate(kernel, {"a": a, "c": c}, poison=False)
    return c.reshape(64, 64).astype(float)


def fails(kind: str, detail: str, *body: Stmt, block: int = 128) -> None:
    with pytest.raises(SimulationError, match=detail) as caught:
        run(*body, block=block)
    assert caught.value.kind == kind, caught.value


def store(row: int = 0, column: int = 0) -> Stmt:
    return If(T == 0, (StoreTile("map_c", (int32(row), int32(column)), "tile", ZERO), CommitStores(), WaitStores(0, True)))


def test_a_tile_goes_through() -> None:
    a = np.arange(4096).astype(dt.bf16.numpy).reshape(64, 64).astype(float)
    np.testing.assert_array_equal(run(*FETCH, store()), a)
    shifted = run(*FETCH, store(60, 8))
    np.testing.assert_array_equal(shifted[60:, 8:], a[:4, :56])
    assert not shifted[:60].any() and not shifted[:, :8].any()
    outside = CopyTile("tile", ZERO, "map_a", (int32(-2), int32(56)), "full", ZERO)
    corner = run(*MADE, If(T == 0, (EXPECT, outside)), WaitBarrier("full", ZERO, ZERO), store())
    np.testing.assert_array_equal(corner[2:, :8], a[:62, 56:])
    assert not corner[:2].any() and not corner[:, 8:].any()


def test_copies_keep_others_away() -> None:
    write = StoreShared("tile", T, const(dt.bf16, 1))
    fails("race", "copy goes to element 1 of tile, written by thread 1", *MADE, write, FenceAsync(), If(T == 0, (EXPECT, COPY)))
    fails("race", "copy is under way", *MADE, If(T == 0, (EXPECT, COPY)), write)
    fails("fence", "no fence_async since", *MADE, write, Barrier(), If(T == 0, (EXPECT, COPY)))
    fails("unfinished", "ends while copies or arrivals are on their way", *MADE, If(T == 0, (EXPECT, COPY)))
    fails("alignment", "element 4 of its innermost dimension", *MADE, If(T == 0, (COPY.replace(coordinates=(ZERO, T + 4)),)))
    fails("bounds", "elements 6144 to 10239 of tile", *MADE, If(T == 0, (COPY.replace(index=int32(6144)),)))
    fails("alignment", "multiple of 1024 bytes", *MADE, If(T == 0, (COPY.replace(index=T + 64),)))
    bulk = CopyBulk("tile", ZERO, "a", ZERO, 8, "full", ZERO)
    fails("alignment", "multiples of 16 bytes", *MADE, If(T == 0, (bulk.replace(source=T + 4),)))
    fails("bounds", "elements 4092 to 4099 of a|4096", *MADE, If(T == 0, (bulk.replace(source=T + 4096),)))


def test_only_who_waited_has_seen_a_copy() -> None:
    load = LoadShared(Var("half", dt.bf16), "tile", ZERO)
    one = (*MADE, If(T == 0, (EXPECT, COPY, WaitBarrier("full", ZERO, ZERO))))
    fails("race", "under way|did not wait for", *one, If(T == 32, (load,)))
    fails("race", "did not wait for", *one, If(T == 1, (load,)))
    run(*one, If(T == 0, (load,)))
    run(*one, SyncWarp(), If(T == 1, (load,)))
    run(*one, Barrier(), If(T == 127, (load,)))


def test_barriers_order_those_who_meet() -> None:
    write, read = StoreShared("linear", T, ONE), LoadShared(X, "linear", T % 32)
    backwards = LoadShared(X, "linear", T ^ 1)
    run(write, NamedBarrier(int32(3), 128), LoadShared(X, "linear", 127 - T))
    fails("race", "nothing that orders them", write, SyncWarp(), read)
    fails("race", "nothing that orders them", write, backwards, SyncWarp())
    run(write, SyncWarp(), backwards)
    first = If(T < 64, (write, NamedBarrier(int32(1), 64), LoadShared(X, "linear", 63 - T)), (NamedBarrier(int32(2), 64),))
    run(first)
    fails("race", "nothing that orders them", write, NamedBarrier(T // 64 + 1, 64), LoadShared(X, "linear", T % 64))
    fails("barrier", "barrier 1 of 128 threads", If(T < 64, (NamedBarrier(int32(1), 128),)))
    fails("barrier", "elsewhere", If(T < 64, (NamedBarrier(int32(1), 128),), (NamedBarrier(int32(1), 64),)))
    fails("barrier", "part of a warp", If(T < 65, (NamedBarrier(int32(1), 96),)))
    fails("barrier", "barrier 16; named ones are 1 to 15", NamedBarrier(T - T + 16, 128))
    fails("barrier", "one for all lanes", NamedBarrier(T % 2 + 1, 128))


def test_arrivals_release_what_came_before() -> None:
    def hand_over(*given: Stmt) -> tuple[Stmt, ...]:
        return (*MADE, If(T < 32, given, (If(T < 64, (WaitBarrier("full", int32(1), ZERO), LoadShared(X, "linear", T - 32))),)))
    write, arrive = StoreShared("linear", T, ONE), Arrive("full", int32(1))
    run(*hand_over(write, arrive))
    fails("deadlock", r"full\[1\] in phase 0 lacks 1 of 32 arrivals and 0 bytes", *hand_over(write, If(T > 0, (arrive,))))
    fails("race", "nothing that orders them", *hand_over(arrive, write))
    fails("barrier", "counts 1 arrivals", *MADE, If(T < 32, (Arrive("full", ZERO),)))
    fails("barrier", "made a second time", *MADE, If(T == 0, (InitBarrier("full", ZERO, 1),)))
    fails("uninitialised", "nobody made it one", If(T == 0, (Arrive("full", ZERO),)))
    fails("barrier", "parity 2", *MADE, WaitBarrier("full", ZERO, int32(2)))
    fails("barrier", "different barriers", *MADE, WaitBarrier("full", T % 2, ZERO))


def test_a_read_by_the_warp_is_released_by_one_lane_that_met_the_others() -> None:
    def body(*between: Stmt) -> tuple[Stmt, ...]:
        one = InitBarrier("full", int32(1), 1)
        made = (If(T == 0, (InitBarrier("full", ZERO, 1), one, FenceBarriers())), StoreShared("linear", T, ONE), Barrier())
        return (*made, If(T < 32, (LoadShared(X, "linear", T ^ 1), *between, If(T == 0, (Arrive("full", int32(1)),))),
                          (If(T < 64, (WaitBarrier("full", int32(1), ZERO), StoreShared("linear", T - 32, ONE))),)))
    run(*body(SyncWarp()))
    fails("race", "read by warp 0", *body())


def test_products_need_whole_warpgroups_and_their_operands() -> None:
    run(*FETCH, SUMS, FENCE, MULTIPLY, *DONE)
    fails("warpgroup", "waits for the other warps", *FETCH, SUMS, FENCE, If(T < 96, (MULTIPLY,)), *DONE)
    fails("warpgroup", "part of a warp", *FETCH, SUMS, FENCE, If(T < 90, (MULTIPLY,)), *DONE)
    fails("warpgroup", "elsewhere", *FETCH, SUMS, FENCE, If(T < 64, (MULTIPLY,), (MULTIPLY,)), *DONE)
    fails("warpgroup", "disagree about where an operand begins", *FETCH, SUMS, FENCE, MULTIPLY.replace(left_at=T // 32 * 16), *DONE)
    fails("warpgroup", "no part of four whole warps", *MADE, SUMS, FENCE, MULTIPLY, *DONE, block=96)
    fails("alignment", "not in the first row", *FETCH, SUMS, FENCE, MULTIPLY.replace(left_at=T - T + 64), *DONE)
    fails("bounds", "of tile, which has 8192", *FETCH, SUMS, FENCE, MULTIPLY.replace(left_at=T - T + 7680), *DONE)
    fails("uninitialised", "which nobody wrote", *FETCH, SUMS, FENCE, MULTIPLY.replace(left_at=T - T + 4096), *DONE)
    fails("fence", "acc was set", *FETCH, SUMS, MULTIPLY, *DONE)
    fails("unfinished", "products are under way", *FETCH, SUMS, FENCE, MULTIPLY)
    fails("unfinished", "products are under way", *FETCH, SUMS, FENCE, MULTIPLY, CommitProducts())


def test_sums_are_the_products_until_waited_for() -> None:
    begin = (*FETCH, SUMS, FENCE, MULTIPLY, CommitProducts())
    read = StoreGlobal("c", T, Element("acc", dt.f32, ZERO))
    grow = SetElement("acc", dt.f32, ZERO, ONE)
    again = MULTIPLY.replace(accumulate=const(dt.bool_, True))
    run(*begin, WaitProducts(0, ("acc",)), read)
    fails("race", "store_global.*no wait_products that names acc", *begin, read)
    fails("race", r"acc\[0\] = .*no wait_products that names acc", *begin, WaitProducts(0), grow)
    fails("race", "named while a product adds", *begin, again, CommitProducts(), WaitProducts(1, ("acc",)))
    run(*begin, again, CommitProducts(), WaitProducts(1), WaitProducts(0, ("acc",)), read)
    fails("fence", "acc was set", *begin, WaitProducts(0, ("acc",)), grow, again, *DONE)
    run(*begin, WaitProducts(0, ("acc",)), grow, FENCE, again, *DONE)
    fails("race", "sum of a product of another shape", *begin, again.replace(columns=32), *DONE)
    fails("uninitialised", r"acc\[0\] is read before it is set", *FETCH, SUMS, FENCE, again, *DONE)


def test_stores_need_fences_and_waits() -> None:
    write = StoreShared("tile", T, const(dt.bf16, 1))
    asked = (StoreTile("map_c", (ZERO, ZERO), "tile", ZERO), CommitStores())
    fails("bounds", r"a store of a tile of map_c at \(-1, 0\)", *FETCH, If(T == 0, (asked[0].replace(coordinates=(int32(-1), ZERO)),)))
    fails("race", "while a store or product reads it", *FETCH, If(T == 0, asked), write)
    fails("race", "read by warp 0", *FETCH, If(T == 0, (*asked, WaitStores(0, True))), write)
    run(*FETCH, If(T == 0, (*asked, WaitStores(0, True))), Barrier(), write)
    fails("fence", "no fence_async", *FETCH, Barrier(), write, Barrier(), store())
    run(*FETCH, Barrier(), write, FenceAsync(), Barrier(), store())
    fails("fence", "thread 1, which wrote it", *FETCH, Barrier(), write, If(T != 1, (FenceAsync(),)), Barrier(), store())
    fails("unfinished", "stores are still read", *FETCH, If(T == 0, asked))
    fails("unfinished", "stores are still read", *FETCH, If(T == 0, (asked[0], WaitStores(0, False))))
    fails("unfinished", "stores are still read", *FETCH, If(T == 0, (*asked, WaitStores(1, False))))
    fails("race", "is written and written", *FETCH, If(T % 32 == 0, (*asked, WaitStores(0, True))))


def test_registers_move_within_what_there_is() -> None:
    def moved(shrink: int, grow: int) -> tuple[Stmt, ...]:
        return (If(T < 128, (SetRegisters(shrink, False),), (SetRegisters(grow, True),)),)
    run(*moved(40, 232), block=384)
    fails("registers", "240 registers a thread", *moved(40, 240), block=384)
    fails("registers", "160 registers are less than the 168", *moved(40, 160), block=384)
    fails("registers", "176 registers are more than the 168", *moved(176, 232), block=384)
    fails("warpgroup", "part of a warp", If(T < 40, (SetRegisters(40, False),)))
    fails("warpgroup", "waits for the other warps", If(T < 64, (SetRegisters(40, False),)))


def test_names_in_messages() -> None:
    where = r"kernel small, `copy_tile tile\[0\] = map_a\(0, 0\) on full\[0\];`, block \(0, 0, 0\), thread 0: "
    with pytest.raises(SimulationError, match=where):
        run(If(T == 0, (COPY,)))
