"""Copies by the copy engine: one thread asks for a whole tile of a tensor, which goes to shared memory or comes from there.

A copy to shared memory completes on a barrier (`emmy.instructions.mbarrier`); a store is waited for in groups by the thread that asked.
The engine sees what threads wrote to shared memory after their `fence_async` and a meeting with the thread that asks for the store.
Indices into shared buffers count elements as they lie there; `swizzled` tells where an element of a swizzled tile lies.
"""

from __future__ import annotations

from collections.abc import Mapping

from emmy.instructions.arithmetic import spell
from emmy.instructions.mbarrier import check_barrier
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, GlobalBuffer, Scope, SharedBuffer, Stmt, TensorMap
from emmy.ir.node import IRError

PIECE = 16      # bytes that a swizzle moves together


def swizzled(index: Expr, element: DType, span: int = 128) -> Expr:
    """Where the element lies that is `index` elements from the start of a buffer in row-major order; `span`: 128, 64, 32 or 0 bytes."""
    piece, row = PIECE // element.bytes, 128 // element.bytes
    return index ^ index // row % (span // PIECE) * piece if span else index


def check_tile(scope: Scope, name: str, coordinates: tuple[Expr, ...], buffer: str, index: Expr) -> None:
    """IRError unless tiles of the map `name` may lie in `buffer` at `index`."""
    tile, shared = scope.buffer(name, TensorMap), scope.buffer(buffer, SharedBuffer)
    if shared.element is not tile.element or shared.alignment < tile.alignment:
        raise IRError(f"{buffer} of {shared.element}, aligned to {shared.alignment} bytes, is no place for tiles of {name}: "
                      f"{tile.element}, aligned to {tile.alignment}")
    if len(coordinates) != len(tile.shape):
        raise IRError(f"{len(coordinates)} coordinates in {name}, whose tensor has {len(tile.shape)} dimensions")
    for e in coordinates:
        scope.expr(e, dt.i32)
    scope.expr(index, dt.i32, dt.i64)
    if isinstance(index, Const) and index.value * tile.element.bytes % tile.alignment:
        raise IRError(f"a tile of {name} at element {index.value} of {buffer}; it is aligned to {tile.alignment} bytes")


class PrefetchMap(Stmt):
    """The map is brought near, so that the first copy need not wait for it."""

    map: str
    syntax = "prefetch_map {map}"

    def check(self, scope: Scope) -> None:
        scope.buffer(self.map, TensorMap)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_prefetch_map(&{self.map});"]


class CopyTile(Stmt):
    """The tile of `map` at `coordinates`, outermost first, begins its way to `index` of the shared buffer `target`; its bytes count on
    a barrier.  Each active thread asks for one."""

    target: str
    index: Expr
    map: str
    coordinates: tuple[Expr, ...]
    barrier: str
    at: Expr
    syntax = "copy_tile {target}[{index}] = {map}{coordinates} on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        check_tile(scope, self.map, self.coordinates, self.target, self.index)
        if scope.buffer(scope.buffer(self.map, TensorMap).buffer, GlobalBuffer).access != "read":
            raise IRError(f"{self.map} describes a buffer that the kernel writes")
        check_barrier(scope, self.barrier, self.at)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        at = ", ".join(map(spell, self.coordinates))
        return [f"emmy_copy_tile_{len(self.coordinates)}(&{self.map}, &{self.target}[{spell(self.index)}], {at}, "
                f"&{self.barrier}[{spell(self.at)}]);"]


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
    syntax = "copy_bulk {target}[{index} +: {count}] = {buffer}[{source}] on {barrier}[{at}]"

    def check(self, scope: Scope) -> None:
        to, of = scope.buffer(self.target, SharedBuffer), scope.buffer(self.buffer, GlobalBuffer)
        if to.element is not of.element or self.count < 1 or self.count * of.element.bytes % PIECE:
            raise IRError(f"{self.count} elements from {of.element} to {to.element}; a bulk copy is a multiple of {PIECE} bytes of one dtype")
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


class StoreTile(Stmt):
    """The tile at `index` of the shared buffer `source` begins its way to `coordinates` of `map`, outermost first; elements outside the
    tensor are left out.  Each active thread asks for one."""

    map: str
    coordinates: tuple[Expr, ...]
    source: str
    index: Expr
    syntax = "store_tile {map}{coordinates} = {source}[{index}]"

    def check(self, scope: Scope) -> None:
        check_tile(scope, self.map, self.coordinates, self.source, self.index)
        if scope.buffer(scope.buffer(self.map, TensorMap).buffer, GlobalBuffer).access != "write":
            raise IRError(f"{self.map} describes a buffer that is only read")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        at = ", ".join(map(spell, self.coordinates))
        return [f"emmy_store_tile_{len(self.coordinates)}(&{self.map}, &{self.source}[{spell(self.index)}], {at});"]


class CommitStores(Stmt):
    """The stores of tiles that a thread has asked for since the last commit become its youngest group."""

    syntax = "commit_stores"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["emmy_commit_stores();"]


class WaitStores(Stmt):
    """A thread waits until at most `pending` of its groups of stores are under way; with `read`, until all but these have been read from
    shared memory, which may then be written."""

    pending: int
    read: bool
    syntax = "wait_stores {pending}{read}"

    def check(self, scope: Scope) -> None:
        if self.pending < 0:
            raise IRError(f"{self.pending} pending groups")

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_stores{'_read' * self.read}<{self.pending}>();"]


class FenceAsync(Stmt):
    """What this thread wrote to shared memory is seen by the copy engine and by products, once they meet the thread."""

    syntax = "fence_async"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["emmy_fence_async();"]
