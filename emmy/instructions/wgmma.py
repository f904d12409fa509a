"""Products of a warpgroup: four warps multiply a 64 x 16 by a 16 x n matrix of half elements and add in fp32, while they go on.

Operands are tiles in shared memory, rows of 128 bytes swizzled by 128, as a copy of a tile with a box of 64 inner elements leaves them.
"k": a row is 64 elements along k of one row of the left or column of the right matrix.  "mn": a row is 64 elements across, for one k;
the next 64 across lie `chunk` elements on.  16 further k are 16 or 1024 elements on.

Of the sum, a thread holds rows 16 warp + lane / 4 + 8h and columns 8j + 2 (lane % 4) + e as elements 4j + 2h + e, the warp counted in
its warpgroup; of a left matrix in registers, what `emmy.instructions.mma` says, each warp its 16 rows.

Products are asynchronous.  Registers that a thread has set are theirs after a `fence_products` that names them; sums and operands are
free after a `wait_products` that covers the group, and sums may be read when it names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from emmy.instructions.arithmetic import spell
from emmy.instructions.mma import LEFT
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Const, Expr, Scope, SharedBuffer, Stmt
from emmy.ir.node import IRError

WARPGROUP, M, K, ALIGNMENT = 128, 64, 16, 1024
MAJORS = ("k", "mn")


def place(register: int) -> tuple[int, int, int]:
    """(h, j, e) of an element of the sum in a thread's registers: row 16 warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + e."""
    return register // 2 % 2, register // 4, register % 2


def check_operand(scope: Scope, element: DType, buffer: str, at: Expr, major: str) -> None:
    """IRError unless an operand may lie in `buffer` at `at`."""
    found = scope.buffer(buffer, SharedBuffer)
    if found.element is not element or found.alignment < ALIGNMENT:
        raise IRError(f"{buffer} of {found.element}, aligned to {found.alignment} bytes; an operand is {element}, aligned to {ALIGNMENT}")
    if major not in MAJORS:
        raise IRError(f"{buffer} by {major!r}; the rows of an operand run along 'k' or 'mn'")
    scope.expr(at, dt.i32, dt.i64)
    if isinstance(at, Const) and at.value * element.bytes % ALIGNMENT >= 128:
        raise IRError(f"an operand at element {at.value} of {buffer}; it begins in the first row of {ALIGNMENT} bytes")


class _Product(Stmt):
    """What both products have in common; `columns` is n."""

    element: DType
    columns: int
    into: str
    into_at: Expr

    def check_product(self, scope: Scope, right: str, right_at: Expr, right_major: str, right_chunk: int, accumulate: Expr) -> None:
        if self.element not in (dt.f16, dt.bf16):
            raise IRError(f"matrices of {self.element}; a warpgroup multiplies f16 and bf16")
        if not 8 <= self.columns <= 256 or self.columns % 8:
            raise IRError(f"{self.columns} columns; a product has 8 to 256, a multiple of 8")
        scope.elements(self.into, dt.f32, self.into_at, self.columns // 2)
        check_operand(scope, self.element, right, right_at, right_major)
        if right_chunk < 512 or right_chunk % 512:
            raise IRError(f"{right_chunk} elements from 64 columns to the next; they are whole rows, a multiple of 512")
        scope.expr(accumulate, dt.bool_)
        scope.assigned.add(self.into)

    def call(self, left: str, left_text: str, right: str, right_at: Expr, right_major: str, right_chunk: int, accumulate: Expr) -> str:
        chunk = right_chunk * self.element.bytes if right_major == "mn" else 16
        return (f"emmy_product_{self.element}_{self.columns}_{left}{right_major[0]}(&{self.into}[{spell(self.into_at)}], {left_text}, "
                f"emmy_tile(&{right}[{spell(right_at)}], {chunk}), {spell(accumulate)});")

    @property
    def flops(self) -> float:
        return 2 * M * self.columns * K / WARPGROUP


class MultiplyWarpgroup(_Product):
    """`columns` / 2 elements of `into` from `into_at` on grow by the product of two tiles, or become it where `accumulate` is false."""

    left: str
    left_at: Expr
    left_major: str
    right: str
    right_at: Expr
    right_major: str
    accumulate: Expr
    right_chunk: int = 4096
    syntax = ("wgmma_m64k16 {element} {columns} {into}[{into_at}] += {left}[{left_at}] {left_major} * {right}[{right_at}] {right_major} "
              "chunk {right_chunk} if {accumulate}")

    def check(self, scope: Scope) -> None:
        self.check_product(scope, self.right, self.right_at, self.right_major, self.right_chunk, self.accumulate)
        check_operand(scope, self.element, self.left, self.left_at, self.left_major)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        left = f"emmy_tile(&{self.left}[{spell(self.left_at)}], 16)"
        return [self.call(self.left_major[0], left, self.right, self.right_at, self.right_major, self.right_chunk, self.accumulate)]


class MultiplyWarpgroupRegisters(_Product):
    """Like `MultiplyWarpgroup`, with the left matrix in registers: 8 elements of the array `left` from `left_at` on."""

    left: str
    left_at: Expr
    right: str
    right_at: Expr
    right_major: str
    accumulate: Expr
    right_chunk: int = 4096
    syntax = ("wgmma_m64k16_registers {element} {columns} {into}[{into_at}] += {left}[{left_at}] * {right}[{right_at}] {right_major} "
              "chunk {right_chunk} if {accumulate}")

    def check(self, scope: Scope) -> None:
        self.check_product(scope, self.right, self.right_at, self.right_major, self.right_chunk, self.accumulate)
        scope.elements(self.left, self.element, self.left_at, len(LEFT))

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        left = f"&{self.left}[{spell(self.left_at)}]"
        return [self.call("r", left, self.right, self.right_at, self.right_major, self.right_chunk, self.accumulate)]


def _pins(scope: Scope, arrays: tuple[str, ...]) -> None:
    for name in arrays:
        found = scope.register(name, "array")
        if found.dtype not in (dt.f32, dt.f16, dt.bf16) or found.dtype is not dt.f32 and found.length % 2:
            raise IRError(f"{name} of {found.length} {found.dtype} takes no part in a product")


class FenceProducts(Stmt):
    """What this thread has set in the arrays `registers` is there for the products that follow."""

    registers: tuple[str, ...] = ()
    syntax = "fence_products< of {registers}>"

    def check(self, scope: Scope) -> None:
        _pins(scope, self.registers)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [*(f"emmy_pin({name});" for name in self.registers), "emmy_fence_products();"]


class CommitProducts(Stmt):
    """The products since the last commit become the youngest group of the warpgroup."""

    syntax = "commit_products"

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return ["emmy_commit_products();"]


class WaitProducts(Stmt):
    """Waits until at most `pending` groups of products are under way.  The sums in the arrays `registers` may then be read and set."""

    pending: int
    registers: tuple[str, ...] = ()
    syntax = "wait_products {pending}< of {registers}>"

    def check(self, scope: Scope) -> None:
        if not 0 <= self.pending <= 7:
            raise IRError(f"{self.pending} pending groups; there are 0 to 7")
        _pins(scope, self.registers)

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [f"emmy_wait_products<{self.pending}>();", *(f"emmy_pin({name});" for name in self.registers)]
