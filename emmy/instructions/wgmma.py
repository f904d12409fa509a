"""Products of a warpgroup: four warps multiply a 64 x k by a k x n matrix and add in fp32, while they go on.

k is 32 bytes: 16 halves, 8 elements of tf32, which is f32 in memory with the low 13 bits of the mantissa unread, or 32 of e4m3 or e5m2,
whose sums an H100 keeps to some 14 bits as it adds; the simulator adds exactly and rounds each product's sum to fp32.

Operands are tiles in shared memory, rows of 128 bytes swizzled by 128, as a copy of a tile with a box of 128 inner bytes leaves them.
"k": a row lies along k of one row of the left or column of the right matrix, which 32 bytes on is another product's.  "mn", of halves
alone: a row is 64 elements across, for one k; the next 64 across lie `chunk` elements on, and 16 further k 1024 elements on.

Of the sum, a thread holds rows 16 warp + lane / 4 + 8h and columns 8j + 2 (lane % 4) + e as elements 4j + 2h + e, the warp counted in
its warpgroup; of a left matrix in registers, what `emmy.instructions.mma` says, each warp its 16 rows.

Products are asynchronous.  Registers that a thread has set are theirs after a `fence_products` that names them; sums and operands are
free after a `wait_products` that covers the group, and sums may be read when it names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from emmy.instructions.arithmetic import spell
from emmy.instructions.mma import LEFT, depth, gather
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Bare, Const, Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Array, Step, Warp

WARPGROUP, M, K, ALIGNMENT = 128, 64, 16, 1024
MAJORS = {dt.f16: ("k", "mn"), dt.bf16: ("k", "mn"), dt.tf32: ("k",), dt.e4m3: ("k",), dt.e5m2: ("k",)}    # how rows of operands run


def place(register: int) -> tuple[int, int, int]:
    """(h, j, e) of an element of the sum in a thread's registers: row 16 warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + e."""
    return register // 2 % 2, register // 4, register % 2


def check_operand(scope: Scope, element: DType, buffer: str, at: Expr, major: str) -> None:
    """IRError unless an operand may lie in `buffer` at `at`."""
    found = scope.buffer(buffer, SharedBuffer)
    if found.element is not element.stored or found.alignment < ALIGNMENT:
        raise IRError(f"{buffer} of {found.element}, aligned to {found.alignment} bytes; an operand is {element}, aligned to {ALIGNMENT}")
    if major not in MAJORS[element]:
        raise IRError(f"{buffer} by {major!r}; the rows of an operand of {element} run along {' or '.join(map(repr, MAJORS[element]))}")
    scope.expr(at, dt.i32, dt.i64)
    if isinstance(at, Const) and at.value * element.bytes % ALIGNMENT >= 128:
        raise IRError(f"an operand at element {at.value} of {buffer}; it begins in the first row of {ALIGNMENT} bytes")


class _Multiply(Stmt):
    """Base of products of 64 rows, which go on beside the warps."""

    element: DType
    columns: int
    into: str
    into_at: Expr
    asynchronous = True

    @property
    def flops(self) -> float:
        return 2 * M * self.columns * depth(self.element) / WARPGROUP


class MultiplyWarpgroup(_Multiply):
    """`columns` / 2 elements of `into` from `into_at` on grow by the product of two tiles, or become it where `accumulate` is false."""

    left: str
    left_at: Expr
    left_major: str
    right: str
    right_at: Expr
    right_major: str
    accumulate: Expr
    right_chunk: int = 4096
    syntax = ("wgmma_m64 {element} {columns} {into}[{into_at}] += {left}[{left_at}] {left_major} * {right}[{right_at}] {right_major} "
              "chunk {right_chunk} if {accumulate}")

    def check(self, scope: Scope) -> None:
        _check(scope, self)
        check_operand(scope, self.element, self.left, self.left_at, self.left_major)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [_call(self, self.left_major[0], f"emmy_tile(&{self.left}[{spell(self.left_at)}], 16)")]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.products import common, shared_operand

        at = machine.value(self.left_at)
        return _meaning(machine, self, lambda warps: shared_operand(
            warps, self.left, self.element, common(warps, at, "where an operand begins"), self.left_major, M, 0))


class MultiplyWarpgroupRegisters(_Multiply):
    """Like `MultiplyWarpgroup`, with the left matrix in registers: 8 elements of the array `left` from `left_at` on."""

    left: str
    left_at: Expr
    right: str
    right_at: Expr
    right_major: str
    accumulate: Expr
    right_chunk: int = 4096
    syntax = ("wgmma_m64_registers {element} {columns} {into}[{into_at}] += {left}[{left_at}] * {right}[{right_at}] {right_major} "
              "chunk {right_chunk} if {accumulate}")

    def check(self, scope: Scope) -> None:
        _check(scope, self)
        if self.element.bytes != 2:
            raise IRError(f"a matrix of {self.element} in registers; there it is of f16 or bf16")
        scope.elements(self.left, self.element, self.left_at, len(LEFT))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [_call(self, "r", f"&{self.left}[{spell(self.left_at)}]")]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.products import borrow, common

        slot, at = machine.slot(self.left), machine.value(self.left_at)

        def left(warps: list[Warp]) -> Array:
            first = common(warps, at, "where an operand begins")
            for w in warps:
                borrow(w, w.registers[slot], first)
            return np.concatenate([gather(w, w.registers[slot], first, LEFT, (K, K)) for w in warps])
        return _meaning(machine, self, left)

Product = MultiplyWarpgroup | MultiplyWarpgroupRegisters


def _check(scope: Scope, s: Product) -> None:
    if s.element not in MAJORS:
        raise IRError(f"matrices of {s.element}; a warpgroup multiplies {', '.join(map(str, MAJORS))}")
    if not 8 <= s.columns <= 256 or s.columns % 8:
        raise IRError(f"{s.columns} columns; a product has 8 to 256, a multiple of 8")
    scope.elements(s.into, dt.f32, s.into_at, s.columns // 2)
    check_operand(scope, s.element, s.right, s.right_at, s.right_major)
    if s.right_chunk < 512 or s.right_chunk % 512:
        raise IRError(f"{s.right_chunk} elements from 64 columns to the next; they are whole rows, a multiple of 512")
    scope.expr(s.accumulate, dt.bool_)
    scope.assigned.add(s.into)


def _call(s: Product, left: str, operand: str) -> str:
    chunk = s.right_chunk * s.element.bytes if s.right_major == "mn" else 16
    return (f"emmy_product_{s.element}_{s.columns}_{left}{s.right_major[0]}(&{s.into}[{spell(s.into_at)}], {operand}, "
            f"emmy_tile(&{s.right}[{spell(s.right_at)}], {chunk}), {spell(s.accumulate)});")


def _meaning(machine: Machine, s: Product, left: Callable[[list[Warp]], Array]) -> Step:
    from emmy.evaluate.products import accumulate, common, shared_operand

    site, into, into_at, keep = machine.site(), machine.slot(s.into), machine.value(s.into_at), machine.value(s.accumulate)
    right_at = machine.value(s.right_at)

    def act(warps: list[Warp]) -> None:
        warps = sorted(warps, key=lambda w: w.number)
        a = left(warps)
        first = common(warps, right_at, "where an operand begins")
        b = shared_operand(warps, s.right, s.element, first, s.right_major, s.columns, s.right_chunk)
        accumulate(warps, [w.registers[into] for w in warps], common(warps, into_at, "where the sums begin"), a @ b.T,
                   bool(common(warps, keep, "whether sums are kept")))

    def run(w: Warp) -> Iterator[object]:
        w.require_all("warpgroup", "is reached by a part of a warp only", lanes=32)
        yield from w.engine.group(w).join(w, site, 4, "warpgroup", "waits for the other warps of its group at a product", act)
    return run


def _pins(scope: Scope, arrays: tuple[str, ...]) -> None:
    for name in arrays:
        found = scope.register(name, "array")
        if found.dtype not in (dt.f32, dt.f16, dt.bf16) or found.dtype is not dt.f32 and found.length % 2:
            raise IRError(f"{name} of {found.length} {found.dtype} takes no part in a product")


class FenceProducts(Stmt):
    """What this thread has set in the arrays `registers` is there for the products that follow."""

    registers: tuple[str, ...] = ()
    asynchronous = True
    syntax = "fence_products< of {registers}>"

    def check(self, scope: Scope) -> None:
        _pins(scope, self.registers)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [*(f"emmy_pin({name});" for name in self.registers), "emmy_fence_products();"]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.products import pin

        slots = [machine.slot(name) for name in self.registers]

        def run(w: Warp) -> None:
            w.require_all("warpgroup", "is reached by a part of a warp only", lanes=32)
            w.fenced = True
            for slot in slots:
                pin(w, w.registers[slot])
                w.registers[slot].touched = False
        return run


class CommitProducts(Bare):
    """The products since the last commit become the youngest group of the warpgroup."""

    asynchronous = True
    syntax = "commit_products"
    call = "emmy_commit_products();"

    def meaning(self, machine: Machine) -> Step:
        def run(w: Warp) -> None:
            w.require_all("warpgroup", "is reached by a part of a warp only", lanes=32)
            w.products.append([])
        return run


class WaitProducts(Stmt):
    """Waits until at most `pending` groups of products are under way.  The sums in the arrays `registers` may then be read and set."""

    pending: int
    registers: tuple[str, ...] = ()
    asynchronous = True
    syntax = "wait_products {pending}< of {registers}>"

    def check(self, scope: Scope) -> None:
        if not 0 <= self.pending <= 7:
            raise IRError(f"{self.pending} pending groups; there are 0 to 7")
        _pins(scope, self.registers)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_products<{self.pending}>();", *(f"emmy_pin({name});" for name in self.registers)]

    def meaning(self, machine: Machine) -> Step:
        from emmy.evaluate.products import pin

        slots = [machine.slot(name) for name in self.registers]

        def run(w: Warp) -> None:
            w.require_all("warpgroup", "is reached by a part of a warp only", lanes=32)
            while len(w.products) - 1 > self.pending:
                for done in w.products.pop(0):
                    done()
            for slot in slots:
                pin(w, w.registers[slot])
                w.registers[slot].touched = True
        return run
