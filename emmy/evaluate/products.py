"""Products of a warpgroup in the simulator: operands by the layout that hardware reads, sums that are nobody's while they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.evaluate.async_memory import ANY
from emmy.evaluate.warp import Fault
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType

if TYPE_CHECKING:
    from emmy.evaluate.warp import Array, RegisterArray, Warp

ROW, PERIOD, PIECE, DEEP = 128, 1024, 16, 32     # bytes of a row, of the swizzle's period, of what it moves, of a product's depth
LANE = np.arange(32)


class Sums:
    """The sums of a warpgroup, 64 rows in fp32, as the registers of one of its warps hold them; `running` products are under way."""

    def __init__(self, matrix: Array, part: int) -> None:
        self.matrix, self.part, self.running, self.registers = matrix, part, 0, matrix.shape[1] // 2

    def done(self) -> None:
        self.running -= 1

    def values(self) -> Array:
        """By register and lane."""
        return np.asarray(self.matrix[fragment(self.part, self.registers)])


@cache
def fragment(part: int, registers: int) -> tuple[Array, Array]:
    """Rows and columns of the sums that a warp's registers hold, by register and lane."""
    r = np.arange(registers)[:, None]
    return 16 * part + LANE // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (LANE % 4) + r % 2


@cache
def layout(major: str, extent: int, chunk: int, offset: int, item: int) -> Array:
    """Where the elements (across, k) of `item` bytes of an operand lie, in elements from the start of the period in which it begins
    `offset` bytes on."""
    across, k, line = np.arange(extent)[:, None], np.arange(DEEP // item), ROW // item
    if major == "k":
        linear = across * ROW + k * item
    else:
        linear = across // line * chunk * item + k * ROW + across % line * item
    return swizzle(linear + offset, ROW) // item


def swizzle(address: Array, span: int) -> Array:
    """Addresses in bytes as a swizzle of `span` bytes permutes them; 0 leaves them."""
    return address ^ (address // ROW % (span // PIECE) * PIECE) if span else address


def common(warps: list[Warp], value: Callable[[Warp], Any], what: str) -> int:
    """What all threads of the warps agree on; Fault if they do not."""
    found = [w.uniform(value(w)) for w in warps]
    if any(np.ndim(x) for x in found) or len({int(x) for x in found}) > 1:
        raise Fault("warpgroup", f"the threads of the warpgroup disagree about {what}", warps[-1].threads)
    return int(found[0])


def shared_operand(warps: list[Warp], name: str, element: DType, at: int, major: str, extent: int, chunk: int) -> Array:
    """The operand of `element` at element `at` of a shared buffer, (across, k) in fp64; it stays in use until each warp has waited."""
    w, memory, item = warps[-1], warps[0].engine.shared[name], element.bytes
    offset = at * item % PERIOD
    if offset >= ROW:
        raise Fault("alignment", f"an operand at element {at} of {name}, which is not in the first row of {PERIOD} bytes", w.threads)
    place = layout(major, extent, chunk, offset, item) + (at * item - offset) // item
    memory.inside(w, int(place.min()), int(place.max()))
    seen = np.min([x.seen.min(axis=0) for x in warps], axis=0)
    memory.engine_read(w, place, seen, len(warps))
    for x in warps:
        x.products[-1].append(partial(memory.engine_done, x, place, ANY))
    values = memory.data[place]
    return np.asarray(dt.truncated(values) if element is dt.tf32 else values).astype(np.float64)


def require_told(w: Warp, array: RegisterArray) -> None:
    """Fault unless products know what the registers hold."""
    if not w.fenced or array.touched:
        raise Fault("fence", f"{array.name} was set, and no fence_products that names it stands before the product", w.threads)


def borrow(w: Warp, array: RegisterArray, first: int) -> None:
    """A product reads eight registers from `first` on until the warp has waited."""
    require_told(w, array)
    array.borrowed[first] = array.borrowed.get(first, 0) + 1

    def give_back() -> None:
        array.borrowed[first] -= 1
        if not array.borrowed[first]:
            del array.borrowed[first]
    w.products[-1].append(give_back)


def accumulate(warps: list[Warp], arrays: list[RegisterArray], first: int, product: Array, keep: bool) -> None:
    """The sums from register `first` on grow by `product`, or become it, in fp64 rounded to fp32; they are nobody's until waited for."""
    count = product.shape[1] // 2
    for w, array in zip(warps, arrays, strict=True):
        require_told(w, array)
        array._bounds(w, first)
        array._bounds(w, first + count - 1)
        for at, other in list(array.sums.items()):
            if at < first + count and first < at + other.registers and (at, other.registers) != (first, count):
                if other.running or keep:
                    raise Fault("race", f"{array.name}[{at} +: {other.registers}] is the sum of a product of another shape", w.threads)
                del array.sums[at]
    sums = [array.sums.get(first) for array in arrays]
    if keep:
        if all(s is not None and s.matrix is sums[0].matrix for s in sums if sums[0] is not None) and None not in sums:
            product = product + sums[0].matrix  # type: ignore[union-attr]
        else:
            product = product + _gathered(warps, arrays, first, count)
    matrix = product.astype(np.float32)
    for part, (w, array) in enumerate(zip(warps, arrays, strict=True)):
        mine = array.sums.setdefault(first, Sums(matrix, part))
        mine.matrix, mine.running = matrix, mine.running + 1
        array.rows[first:first + count], array.unset[first:first + count] = [None] * count, [None] * count
        w.products[-1].append(mine.done)


def _gathered(warps: list[Warp], arrays: list[RegisterArray], first: int, count: int) -> Array:
    """The sums that the registers of the warps hold."""
    out = np.empty((64, 2 * count))
    for part, (w, array) in enumerate(zip(warps, arrays, strict=True)):
        out[fragment(part, count)] = np.stack([w.spread(array.get(w, first + i)) for i in range(count)])
    return out


def pin(w: Warp, array: RegisterArray) -> None:
    """The warp may use the registers of the array: sums return to it."""
    for first, sums in array.sums.items():
        if sums.running:
            raise Fault("race", f"{array.name} is named while a product adds to {array.name}[{first} +: {sums.registers}]", w.threads)
        array.rows[first:first + sums.registers] = list(sums.values())
    array.sums = {}
