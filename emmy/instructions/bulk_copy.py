"""Copies by the copy engine: one thread asks for a whole tile of a tensor, which goes to shared memory or comes from there.

A copy to shared memory completes on a barrier (`emmy.instructions.mbarrier`); a store is waited for in groups by the thread that asked.
The engine sees what threads wrote to shared memory after their `fence_async` and a meeting with the thread that asks for the store.
Indices into shared buffers count elements as they lie there; `swizzled` tells where an element of a swizzled tile lies.

A tile begins at a multiple of 16 bytes along the innermost dimension, and where it is stored at no negative coordinate: an H200 stops at
others with an illegal instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from emmy.instructions.arithmetic import spell
from emmy.instructions.cluster import MOST, check_mask
from emmy.instructions.lanes import lane_by_lane
from emmy.instructions.mbarrier import check_barrier
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, GlobalBuffer, Kernel, Scope, SharedBuffer, Stmt, TensorMap
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step, Warp
    from emmy.instructions.window_copy import CopyWindows

PIECE = 16      # bytes that a swizzle moves together


def swizzled(index: Expr, element: DType, span: int = 128) -> Expr:
    """Where the element lies that is `index` elements from the start of a buffer in row-major order; `span`: 128, 64, 32 or 0 bytes."""
    piece, row = PIECE // element.bytes, 128 // element.bytes
    return index ^ index // row % (span // PIECE) * piece if span else index


def check_tile(scope: Scope, name: str, access: str, coordinates: tuple[Expr, ...], buffer: str, index: Expr,
               windows: bool = False) -> None:
    """IRError unless tiles of the map `name`, which has windows or none and describes what the kernel has `access` to ("read" or "write"),
    may lie in `buffer` at `index`."""
    tile, shared = scope.buffer(name, TensorMap), scope.buffer(buffer, SharedBuffer)
    if shared.element is not tile.element.stored or shared.alignment < tile.alignment:
        raise IRError(f"{buffer} of {shared.element}, aligned to {shared.alignment} bytes, is no place for tiles of {name}: "
                      f"{tile.element}, aligned to {tile.alignment}")
    if windows != (tile.windows is not None):
        raise IRError(f"{name} is a map {'without' if windows else 'of'} windows")
    if len(coordinates) != len(tile.shape):
        raise IRError(f"{len(coordinates)} coordinates in {name}, whose tensor has {len(tile.shape)} dimensions")
    if scope.buffer(tile.buffer, GlobalBuffer).access != access:
        raise IRError(f"{name} describes a buffer that {'the kernel writes' if access == 'read' else 'is only read'}")
    for e in coordinates:
        scope.expr(e, dt.i32)
    if isinstance(inner := coordinates[-1], Const) and inner.value * tile.element.bytes % PIECE:
        raise IRError(f"a tile of {name} at element {inner.value} of its innermost dimension; it begins at a multiple of {PIECE} bytes")
    scope.expr(index, dt.i32, dt.i64)
    if isinstance(index, Const) and index.value * tile.element.bytes % tile.alignment:
        raise IRError(f"a tile of {name} at element {index.value} of {buffer}; it is aligned to {tile.alignment} bytes")


def tile_traffic(kernel: Kernel, name: str) -> float:
    """The bytes of a tile, as a share of each thread: one of the block asks for it."""
    return sum(m.bytes for m in kernel.maps if m.name == name) / kernel.block


class PrefetchMap(Stmt):
    """The map is brought near, so that the first copy need not wait for it."""

    map: str
    syntax = "prefetch_map {map}"

    def check(self, scope: Scope) -> None:
        scope.buffer(self.map, TensorMap)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_prefetch_map(&{self.map});"]

    def meaning(self, machine: Machine) -> Step:
        return lambda w: None


def copies(s: CopyTile | CopyWindows | CopyBulk, machine: Machine, buffer: str, count: int, place: tuple[Expr, ...],
           check: Callable[[Warp, int, Sequence[int]], None], read: Callable[[Any, Sequence[int]], Any], mask: Expr | None = None) -> Step:
    """What a statement does whose active threads each ask for `count` elements of a global buffer: `check` faults unless they may begin at
    a place of shared memory with these values of `place`, and `read` has them in the buffer's data.  They go to the blocks of a `mask`."""
    item, bits, stated = machine.kernel.types[buffer].bytes, int(mask.value) if isinstance(mask, Const) else 0, machine.stated(s)

    def one(w: Warp, lane: int, start: int, barrier: int, *where: int) -> None:
        check(w, start, where)
        source = w.memory[buffer]
        source.meet(w, w.mask)
        data = read(source.data, where)
        for engine in [w.engine.peer(w, rank) for rank in range(MOST) if bits >> rank & 1] or [w.engine]:
            phases = engine.barrier(w, s.barrier, barrier, w.mask, by_engine=True)
            memory = engine.shared[s.target]
            target = memory.engine_write(w, start, count, lane)
            engine.fly(w, stated, phases, count * item, partial(memory.land, target, data))
    return lane_by_lane(machine, (s.index, s.at, *place), one)


class CopyTile(Stmt):
    """The tile of `map` at `coordinates`, outermost first, begins its way to `index` of the shared buffer `target`; its bytes count on
    a barrier.  Each active thread asks for one.  What is read `once` is the first to leave the second-level cache.  With a `mask` the tile
    goes to those blocks of the cluster (`emmy.instructions.cluster`)."""

    target: str
    index: Expr
    map: str
    coordinates: tuple[Expr, ...]
    barrier: str
    at: Expr
    once: bool = False
    mask: Expr | None = None
    asynchronous = True
    syntax = "copy_tile {target}[{index}] = {map}{coordinates} on {barrier}[{at}]{once}< to {mask}>"

    def check(self, scope: Scope) -> None:
        check_tile(scope, self.map, "read", self.coordinates, self.target, self.index)
        check_barrier(scope, self.barrier, self.at)
        check_mask(scope, self.mask)
        if self.once and self.mask is not None:
            raise IRError(f"a tile of {self.map} is read once and goes to several blocks")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        at, way = ", ".join(map(spell, self.coordinates)), "_once" if self.once else "" if self.mask is None else "_to"
        return [f"emmy_copy_tile_{len(self.coordinates)}{way}(&{self.map}, &{self.target}[{spell(self.index)}], {at}, "
                f"&{self.barrier}[{spell(self.at)}]{'' if self.mask is None else f', {spell(self.mask)}'});"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.tiles import Tile

        tile = Tile(machine.kernel, self.map)
        return copies(self, machine, tile.map.buffer, tile.count, self.coordinates,
                      lambda w, start, where: tile.check(w, self.target, start, where), tile.read, self.mask)

    def traffic(self, kernel: Kernel) -> float:
        return tile_traffic(kernel, self.map)


class CopyBulk(Stmt):
    """`count` elements of a global buffer from `source` on, a multiple of 16 bytes at a multiple of 16, begin their way to `index` of the
    shared buffer `target`; their bytes count on a barrier.  Each active thread asks for one."""

    target: str
    index: Expr
    buffer: str
    source: Expr
    count: int
    barrier: str
    at: Expr
    asynchronous = True
    syntax = "copy_bulk {target}[{index} +: {count}] = {buffer}[{source}] on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        to, of = scope.buffer(self.target, SharedBuffer), scope.buffer(self.buffer, GlobalBuffer)
        if to.element is not of.element or self.count < 1 or self.count * of.element.bytes % PIECE:
            raise IRError(f"{self.count} elements from {of.element} to {to.element}; "
                          f"a bulk copy is a multiple of {PIECE} bytes of one dtype")
        if of.access != "read":
            raise IRError(f"{self.buffer} is written by the kernel")
        for index in (self.index, self.source):
            scope.expr(index, dt.i32, dt.i64)
            if isinstance(index, Const) and index.value * to.element.bytes % PIECE:
                raise IRError(f"index {index.value} of a bulk copy; it begins at a multiple of {PIECE} bytes")
        check_barrier(scope, self.barrier, self.at)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        size = self.count * types[self.buffer].bytes
        return [f"emmy_copy_bulk(&{self.target}[{spell(self.index)}], &{self.buffer}[{spell(self.source)}], {size}, "
                f"&{self.barrier}[{spell(self.at)}]);"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.warp import Fault

        item, count = machine.kernel.types[self.buffer].bytes, self.count

        def check(w: Warp, start: int, where: Sequence[int]) -> None:
            (first,), length = where, len(w.memory[self.buffer].data)
            if start * item % PIECE or first * item % PIECE:
                raise Fault("alignment", f"a copy from element {first} of {self.buffer} to {start} of {self.target}; "
                                         f"both begin at multiples of {PIECE} bytes", w.active(w.mask))
            if first < 0 or first + count > length:
                raise Fault("bounds", f"elements {first} to {first + count - 1} of {self.buffer}, which has {length}", w.active(w.mask))
        return copies(self, machine, self.buffer, count, (self.source,), check, lambda data, where: data[where[0]:where[0] + count].copy())

    def traffic(self, kernel: Kernel) -> float:
        return self.count * kernel.types[self.buffer].bytes / kernel.block


class StoreTile(Stmt):
    """The tile at `index` of the shared buffer `source` begins its way to `coordinates` of `map`, outermost first; elements beyond the
    tensor's ends are left out.  Each active thread asks for one."""

    map: str
    coordinates: tuple[Expr, ...]
    source: str
    index: Expr
    asynchronous = True
    syntax = "store_tile {map}{coordinates} = {source}[{index}]"

    def check(self, scope: Scope) -> None:
        check_tile(scope, self.map, "write", self.coordinates, self.source, self.index)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        at = ", ".join(map(spell, self.coordinates))
        return [f"emmy_store_tile_{len(self.coordinates)}(&{self.map}, &{self.source}[{spell(self.index)}], {at});"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.tiles import Tile
        from emmy.evaluate.warp import Fault

        tile = Tile(machine.kernel, self.map)

        def one(w: Warp, lane: int, start: int, *where: int) -> None:
            tile.check(w, self.source, start, where)
            if min(where) < 0:
                raise Fault("bounds", f"a store of a tile of {self.map} at {where}", w.active(w.mask))
            memory, place = w.engine.shared[self.source], slice(start, start + tile.count)
            memory.engine_read(w, place, w.seen[lane], 1)
            at, values = tile.written(memory.data[place], where)
            w.memory[tile.map.buffer].put(w, at, values, lane)
            w.stores.setdefault(lane, [[]])[-1].append(partial(memory.engine_done, w, place, lane))
        return lane_by_lane(machine, (self.index, *self.coordinates), one)

    def traffic(self, kernel: Kernel) -> float:
        return tile_traffic(kernel, self.map)


class CommitStores(Bare):
    """The stores of tiles that a thread has asked for since the last commit become its youngest group."""

    asynchronous = True
    syntax = "commit_stores"
    call = "emmy_commit_stores();"

    def meaning(self, machine: Machine) -> Step:
        def one(w: Warp, lane: int) -> None:
            w.stores.setdefault(lane, [[]]).append([])
        return lane_by_lane(machine, (), one)


class WaitStores(Stmt):
    """A thread waits until at most `pending` of its groups of stores are under way; with `read`, until all but these have been read from
    shared memory, which may then be written."""

    pending: int
    read: bool
    asynchronous = True
    syntax = "wait_stores {pending}{read}"

    def check(self, scope: Scope) -> None:
        if self.pending < 0:
            raise IRError(f"{self.pending} pending groups")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_stores{'_read' * self.read}<{self.pending}>();"]

    def meaning(self, machine: Machine) -> Step:
        def one(w: Warp, lane: int) -> None:
            groups = w.stores.get(lane, [[]])
            for group in groups[:max(0, len(groups) - 1 - self.pending)]:
                for done in group:
                    done()
                group.clear()
        return lane_by_lane(machine, (), one)


class FenceAsync(Bare):
    """What this thread wrote to shared memory is seen by the copy engine and by products, once they meet the thread."""

    asynchronous = True
    syntax = "fence_async"
    call = "emmy_fence_async();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            for memory in w.engine.shared.values():
                memory.fence(w, w.mask)
        return run
