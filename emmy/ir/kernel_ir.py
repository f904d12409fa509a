"""Kernel IR: the text of a CUDA kernel as nodes.

Expressions are pure and belong to one thread: constants, registers, indices, operators of `emmy.ir.operators`.  Memory,
control and the meeting of threads are statements, defined by `emmy.instructions`: each class carries its text, its rules,
its CUDA, its meaning for the simulator and what it costs.  `verify` checks a kernel before anything reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_expr import (
    Apply,
    Block,
    Const,
    Convert,
    Element,
    Expr,
    Thread,
    Var,
    const,
    fold,
    int32,
    operands,
    subexpressions,
    substitute,
    widen,
)
from emmy.ir.node import IRError, Node
from emmy.ir.tensor_map import TensorMap, Windows

if TYPE_CHECKING:
    from emmy.evaluate.machine import Machine
    from emmy.evaluate.warp import Step

__all__ = ["GRID_LIMITS", "Apply", "Block", "Const", "Convert", "Element", "Expr", "GlobalBuffer", "Kernel", "Register", "Scope",
    "SharedBuffer", "Stmt", "TensorMap", "Thread", "Var", "Windows", "const", "fold", "int32", "operands", "subexpressions", "substitute",
    "verify", "walk", "widen"]


STATEMENTS: dict[str, type[Stmt]] = {}
GRID_LIMITS = 2**31 - 1, 65535, 65535     # blocks along x, y and z
Access = Literal["read", "write", "scratch", "exchange", "signals"]
ACCESSES: tuple[Access, ...] = ("read", "write", "scratch", "exchange", "signals")
WORDS = {"scratch": "published", "signals": "given"}
BODY = "tuple[Stmt, ...]"      # the annotation of a field that is a block of statements


class Stmt(Node):
    """Base of statements.  `syntax` is the statement's text, from which it is printed and parsed (`emmy.ir.kernel_text`).

    `asynchronous`: warps meet in part, or work goes on beside them.  `across`: blocks hand each other something.  `at_once`: all blocks of
    the launch run at once."""

    syntax: ClassVar[str]
    asynchronous: ClassVar[bool] = False
    across: ClassVar[bool] = False
    at_once: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        STATEMENTS[cls.__name__] = cls

    @property
    def bodies(self) -> tuple[tuple[Stmt, ...], ...]:
        """The statements inside, by block."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.type == BODY)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions it evaluates (and the variable it sets)."""
        values = [getattr(self, f.name) for f in fields(self) if f.type != BODY]
        return tuple(e for v in values for e in (v if isinstance(v, tuple) else (v,)) if isinstance(e, Expr))

    def check(self, scope: Scope) -> None:
        """IRError where the statement breaks a rule; defines its names in `scope`."""
        raise NotImplementedError

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        """Its lines of CUDA, given the stored dtype of each buffer."""
        raise NotImplementedError

    def meaning(self, machine: Machine) -> Step:
        """What a warp does: a function of the warp, or a generator function where the warp may have to wait."""
        raise NotImplementedError

    @property
    def trips(self) -> int:
        """How often its bodies run, as far as constants tell; 1 where they do not."""
        return 1

    @property
    def words(self) -> int:
        """The 32-bit registers its names hold."""
        return 0

    def traffic(self, kernel: Kernel) -> float:
        """The bytes of global memory that one thread of the kernel moves."""
        return 0

    @property
    def flops(self) -> float:
        """Operations of one thread besides those in its expressions."""
        return 0

    def substitute(self, values: Mapping[str, Expr]) -> Stmt:
        """The statement with variables replaced by the values of their names."""
        def new(v: object) -> object:
            match v:
                case tuple(): return tuple(map(new, v))
                case Stmt(): return v.substitute(values)
                case Expr(): return substitute(v, values)
            return v
        return type(self)(*(new(getattr(self, f.name)) for f in fields(self)))


class Bare(Stmt):
    """Base of statements that have no fields and break no rule: `call` is their CUDA."""

    call: ClassVar[str]

    def check(self, scope: Scope) -> None:
        pass

    def cuda(self, types: Mapping[str, DType]) -> list[str]:
        return [self.call]


class GlobalBuffer(Node):
    """A parameter of a kernel: `length` elements in global memory, aligned to 16 bytes.  If `late`, kernels launched before may still read
    or write it as this one begins, which touches it behind a `wait_kernels` only.

    Some are the kernel's `own`, and no tensors.  What is "scratch" is zeros before the launch, and its blocks hand each other words in it
    (`emmy.instructions.status`).  What is "exchange" holds nothing before the launch; its blocks read there what others have written
    before they gave "signals" (`emmy.instructions.signal`), which are zeros before each launch and after it."""

    name: str
    element: DType
    length: int
    access: Access
    late: bool = False

    @property
    def own(self) -> bool:
        return self.access not in ("read", "write")


class SharedBuffer(Node):
    """`length` elements of a block's shared memory, aligned to `alignment` bytes; swizzled tiles need 1024.  It lies from byte `start` on,
    over others if no block uses both; or, if that is None, behind the buffer before it."""

    name: str
    element: DType
    length: int
    alignment: int = 16
    start: int | None = None

    @property
    def bytes(self) -> int:
        """Its size, padded so that the next buffer is aligned to 16 bytes."""
        return -(-self.length * self.element.bytes // 16) * 16


class Kernel(Node):
    """A kernel: `grid` blocks of `block` threads run `body`; `cluster` of them, neighbours along x, are placed together.

    `maps` are parameters that follow `parameters`, which hold the buffers that they describe."""

    name: str
    parameters: tuple[GlobalBuffer, ...]
    shared: tuple[SharedBuffer, ...]
    grid: tuple[int, int, int]
    block: int
    body: tuple[Stmt, ...]
    maps: tuple[TensorMap, ...] = ()
    cluster: int = 1

    @property
    def types(self) -> dict[str, DType]:
        """The stored dtype of each buffer."""
        return {b.name: b.element for b in self.parameters} | {b.name: b.element for b in self.shared}

    @property
    def shared_offsets(self) -> tuple[int, ...]:
        """Where each shared buffer begins, in bytes, and how many bytes they take."""
        offsets, end, most = [], 0, 0
        for b in self.shared:
            offsets.append(-(-end // b.alignment) * b.alignment if b.start is None else b.start)
            end = offsets[-1] + b.bytes
            most = max(most, end)
        return (*offsets, most)

    @property
    def shared_bytes(self) -> int:
        return self.shared_offsets[-1]

    @property
    def dynamic_shared_bytes(self) -> int:
        """What a launch must ask for: 0 where the buffers fit the 48 KB that a kernel may declare statically, and it has no maps."""
        return self.shared_bytes if self.shared_bytes > 48 * 1024 or self.maps else 0

    @property
    def threads(self) -> int:
        return prod(self.grid) * self.block


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for s in body:
        yield s
        for inner in s.bodies:
            yield from walk(inner)


class Register(NamedTuple):
    """What a name means: a value (`let`), a variable (`var`) or an array of `length`; `static` if known after unrolling."""

    kind: Literal["let", "var", "array"]
    dtype: DType
    length: int = 0
    static: bool = False


_CALLS = "fabs exp expm1 log log1p sqrt rsqrt sin cos tanh erf floor ceil trunc rint fmod pow"
_RESERVED = frozenset((
    "thread block_x block_y block_z shared_memory global shared let var array read write map barrier kernel unroll main isnan max min "
    "abs llabs asm auto bool break case char class const continue default delete do double else enum extern false float for goto if "
    "inline int long new operator private public register return short signed sizeof static struct switch template this true "
    "typedef typename union unsigned using virtual void volatile while and or xor not").split()
    + [f + end for f in _CALLS.split() for end in ("", "f")])


Parameter = GlobalBuffer | SharedBuffer | TensorMap


class Scope:
    """The names a statement sees; `assigned` gathers the registers set so far."""

    def __init__(self, buffers: Mapping[str, Parameter], names: Mapping[str, Register], assigned: set[str]) -> None:
        self.buffers, self.names, self.assigned = buffers, dict(names), assigned

    def body(self, body: tuple[Stmt, ...], *, define: Callable[[Scope], None] | None = None) -> set[str]:
        """Checks a block in a scope of its own; the names it assigns."""
        inner = Scope(self.buffers, self.names, set())
        if define:
            define(inner)
        for s in body:
            try:
                s.check(inner)
            except IRError as error:
                raise error if "\n" in str(error) else IRError(f"{error}\n  in {_head(s)}") from None
        self.assigned |= inner.assigned
        return inner.assigned

    def define(self, name: str, register: Register) -> None:
        check_name(name)
        if name in self.names or name in self.buffers:
            raise IRError(f"{name} is defined twice")
        self.names[name] = register

    def register(self, name: str, *kinds: str) -> Register:
        """What `name` means; IRError unless it is one of `kinds`."""
        if name not in self.names:
            raise IRError(f"{name} is not defined")
        if self.names[name].kind not in kinds:
            raise IRError(f"{name} is a {self.names[name].kind}, not {' or '.join(kinds)}")
        return self.names[name]

    def expr(self, e: Expr, *dtypes: DType) -> Expr:
        """Checks an expression, and that its dtype is one of `dtypes` if any is given."""
        if not isinstance(e, Expr):
            raise IRError(f"{e!r} is not an expression")
        for x in subexpressions(e):
            if isinstance(x, Var) and self.register(x.name, "let", "var").dtype is not x.element:
                raise IRError(f"{x.name} is {self.names[x.name].dtype}, not {x.element}")
            if isinstance(x, Element):
                self.element(x.array, x.element, x.index)
        if dtypes and e.dtype not in dtypes:
            raise IRError(f"{e!r} is {e.dtype}, not {' or '.join(map(str, dtypes))}")
        return e

    def element(self, array: str, dtype: DType | None, index: Expr) -> None:
        found = self.register(array, "array")
        if dtype not in (None, found.dtype):
            raise IRError(f"{array} is of {found.dtype}, not {dtype}")
        self.expr(index, dt.i32, dt.i64)
        if not self.static(index):
            raise IRError(f"the index of an element of {array} is not constant after unrolling; index with constants and unrolled loops")
        if isinstance(index, Const) and not 0 <= index.value < found.length:
            raise IRError(f"element {index.value} of {array}, which has {found.length}")

    def elements(self, array: str, dtype: DType, first: Expr, count: int) -> None:
        """Checks `count` elements of an array from `first` on."""
        self.element(array, dtype, first)
        if isinstance(first, Const) and first.value + count > self.names[array].length:
            raise IRError(f"elements {first.value} to {first.value + count - 1} of {array}, which has {self.names[array].length}")

    def static(self, e: Expr) -> bool:
        """Whether the value is known once unrolled loops are unrolled."""
        return all(self.names[x.name].static if isinstance(x, Var) else isinstance(x, Const | Apply | Convert) for x in subexpressions(e))

    def buffer[T: Parameter](self, name: str, kind: type[T], *, words: str = "") -> T:
        """The buffer or map of that name; IRError unless it is of that kind, and of those `words`, or of none."""
        if not isinstance(found := self.buffers.get(name), kind):
            raise IRError(f"{name} is not a {kind.__name__} of the kernel")
        has = found.access if isinstance(found, GlobalBuffer) and found.access in WORDS else ""
        if words != has:
            raise IRError(f"{name} is {f'no {words}' if words else f'{has}, whose words are {WORDS[has]} and awaited'}")
        return found


def _head(s: Stmt) -> str:
    from emmy.ir.kernel_text import print_statement

    return print_statement(s)[0]


def check_name(name: str) -> None:
    """IRError unless `name` is an identifier that neither CUDA nor the text of a kernel uses."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in _RESERVED or name in dt.DTYPES or name.startswith(("emmy_", "__")):
        raise IRError(f"{name!r} cannot name anything in a kernel")


def verify(kernel: Kernel) -> None:
    """IRError, naming the statement, where a kernel breaks a rule."""
    buffers: dict[str, Parameter] = {}
    every: tuple[Parameter, ...] = (*kernel.parameters, *kernel.shared, *kernel.maps)
    check_name(kernel.name)
    for b in every:
        check_name(b.name)
        if b.name in buffers or b.name == kernel.name:
            raise IRError(f"{kernel.name}: {b.name} is defined twice")
        match b:
            case GlobalBuffer(_, _, length, access) if length < 0 or access not in ACCESSES:
                raise IRError(f"{kernel.name}: buffer {b!r}")
            case SharedBuffer(_, _, length, alignment) if length < 0 or alignment not in (16, 32, 64, 128, 256, 512, 1024):
                raise IRError(f"{kernel.name}: buffer {b!r}; a shared buffer is aligned to a power of two from 16 to 1024 bytes")
            case SharedBuffer(_, _, _, alignment, start) if start is not None and (start < 0 or start % alignment):
                raise IRError(f"{kernel.name}: {b.name} begins at byte {start}, which its alignment, {alignment}, does not divide")
            case TensorMap(_, of, element, shape):
                found = buffers.get(of)
                if not isinstance(found, GlobalBuffer) or found.element is not element.stored or found.length < b.reach:
                    raise IRError(f"{kernel.name}: map {b.name} of {element}{list(shape)} does not fit the buffer {of}")
        buffers[b.name] = b
    if not 1 <= kernel.block <= 1024 or not all(1 <= n <= most for n, most in zip(kernel.grid, GRID_LIMITS, strict=True)):
        raise IRError(f"{kernel.name}: grid {kernel.grid} of {kernel.block} threads; a block has 1 to 1024, a grid up to {GRID_LIMITS}")
    if not 1 <= kernel.cluster <= 8 or kernel.grid[0] % kernel.cluster:
        raise IRError(f"{kernel.name}: clusters of {kernel.cluster} blocks in a grid {kernel.grid}; "
                      "they are of 1 to 8, and divide the grid along x")
    try:
        Scope(buffers, {}, set()).body(kernel.body)
    except IRError as error:
        raise IRError(f"kernel {kernel.name}: {error}") from None
