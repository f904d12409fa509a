"""The machine that runs Kernel IR: warps of 32 lanes, their registers, and memory that watches every access.

A value is a NumPy scalar where all lanes agree and an array of 32 otherwise.  A mask is None where all 32 lanes are active.
Memory remembers who last wrote and read each element, as a tag: epoch * threads + thread.  A barrier starts an epoch, and so
does a block; accesses of two threads are ordered when they lie in different epochs of one block, or when one thread has seen the
other's in a kernel whose warps meet in part too (see `emmy.evaluate.asynchronous`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import Apply, Block, Const, Convert, Element, Expr, Kernel, Stmt, Thread, Var
from emmy.ir.operators import OPERATORS

if TYPE_CHECKING:
    from emmy.evaluate.asynchronous import Engine
    from emmy.evaluate.products import Sums

Value = Any
Array = np.ndarray[Any, np.dtype[Any]]
Mask = Array | None
Step = Callable[["Warp"], Iterator[object] | None]
Evaluator = Callable[["Warp"], Value]


UNDER_WAY = 1 << 48     # the epoch of a write that has not arrived


class Fault(Exception):
    """What went wrong at a statement; the statement's place is added by whoever runs it."""

    def __init__(self, kind: str, detail: str, threads: Any = ()) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.threads = kind, detail, [int(t) for t in np.ravel(threads)]


class Warp:
    """32 threads: their registers by slot, the lanes that are active, and the memory they see."""

    __slots__ = ("registers", "mask", "full", "threads", "agents", "block", "memory", "tags", "base", "first", "steps", "limit", "size",
                 "copies", "number", "span", "engine", "seen", "products", "stores", "fenced", "known", "late")

    def __init__(self, first_thread: int, size: int, block: tuple[int, ...], slots: int, memory: dict[str, Memory], limit: int,
                 engine: Engine | None = None) -> None:
        self.registers: list[Any] = [None] * slots
        self.threads = np.arange(first_thread, first_thread + 32, dtype=np.int32)
        self.full: Mask = self.threads < size if first_thread + 32 > size else None
        self.mask, self.block, self.memory, self.size = self.full, tuple(map(np.int32, block)), memory, size
        self.steps, self.limit, self.number = 0, limit, first_thread // 32
        self.copies: list[list[Callable[[], None]]] = [[]]      # groups of copies under way, the open one last
        self.engine: Any = engine
        self.span = size if engine is None else engine.span
        self.agents = self.threads.astype(np.int64) + (0 if engine is None else engine.first)     # the threads, as tags number them
        self.seen: Any = None if engine is None else np.full((32, self.span), -1, np.int64)
        self.products: list[list[Callable[[], None]]] = [[]]    # of products
        self.stores: dict[int, list[list[Callable[[], None]]]] = {}     # of stores, by lane
        self.fenced = False     # whether products may begin
        self.known: set[object] = set()     # barriers of the cluster that were made before its blocks met
        self.late = np.zeros(32, bool)  # lanes that have waited for the kernels before

    def enter(self, epoch: int, first_epoch: int) -> None:
        """Starts an epoch of a block whose first one is `first_epoch`."""
        self.base, self.first = epoch * self.span, first_epoch * self.span
        self.tags = self.agents + self.base
        if self.seen is not None:
            self.seen[np.arange(32), self.agents] = self.tags

    def advance(self) -> None:
        """Begins a new moment within an epoch."""
        self.tags = self.tags + self.span
        self.seen[np.arange(32), self.agents] = self.tags

    @property
    def clock(self) -> int:
        return int(self.tags[0]) // self.span

    def lanes(self, condition: Value) -> Mask:
        """The active lanes where `condition` holds."""
        if np.ndim(condition) == 0:
            return self.mask if condition else np.zeros(32, bool)
        inside: Array = condition if self.mask is None else condition & self.mask
        return None if self.mask is None and inside.all() else inside

    def active_of(self, condition: Value) -> Array:
        """The active lanes where `condition` holds, as an array of 32."""
        lanes = self.lanes(condition)
        return np.full(32, True) if lanes is None else lanes

    def active(self, lanes: Mask) -> Array:
        return self.threads if lanes is None else self.threads[lanes]

    def among(self, lanes: Mask) -> Array:
        """The given lanes, as tags number threads."""
        return self.agents if lanes is None else self.agents[lanes]

    def merge(self, new: Value, old: Value) -> Value:
        """`new` on the active lanes, `old` elsewhere."""
        return new if self.mask is None else np.where(self.mask, new, old)

    def uniform(self, value: Value) -> Value:
        """`value`, as a scalar where all active lanes agree."""
        if np.ndim(value) == 0:
            return value
        among = value if self.mask is None else value[self.mask]
        return among[0] if (among == among[0]).all() else value

    @staticmethod
    def spread(value: Value) -> Array:
        """`value` as an array of 32."""
        return value if np.ndim(value) else np.full(32, value)

    def count_step(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise Fault("steps", f"more than {self.limit} loop iterations in a warp", self.active(self.mask))

    def require_positive(self, step: Value) -> None:
        if not (step > 0 if np.ndim(step) == 0 else (step > 0)[self.spread(True) if self.mask is None else self.mask].all()):
            raise Fault("steps", "the loop's step is not positive", self.active(self.mask))

    def require_all(self, kind: str, detail: str, lanes: int | None = None) -> None:
        """Fault `kind` unless all live lanes are active (all `lanes`, if given)."""
        wanted = self.full if lanes is None else None
        if self.mask is not None and (wanted is None or not np.array_equal(self.mask, wanted)):
            raise Fault(kind, detail, self.active(self.mask))


class RegisterArray:
    """An array of one warp's registers: a value for each element, and the lanes that have not set it yet."""

    def __init__(self, name: str, rows: list[Value]) -> None:
        self.name, self.rows = name, rows
        self.unset: list[Mask] = [None] * len(rows)
        self.touched = any(row is not None for row in rows)     # since products were last told
        self.sums: dict[int, Sums] = {}                         # sums of products, by their first register
        self.borrowed: dict[int, int] = {}                      # first registers of operands under way, and of how many products

    def _bounds(self, w: Warp, i: int) -> None:
        if not 0 <= i < len(self.rows):
            raise Fault("bounds", f"{self.name}[{i}] of {len(self.rows)} registers", w.active(w.mask))

    def get(self, w: Warp, i: int) -> Value:
        self._bounds(w, i)
        row, unset = self.rows[i], self.unset[i]
        if row is None or unset is not None and np.any(w.active_of(unset)):
            self._own(w, i)
            readers = w.threads[w.active_of(True if unset is None else unset)]
            raise Fault("uninitialised", f"{self.name}[{i}] is read before it is set", readers)
        return row

    def _own(self, w: Warp, i: int) -> None:
        """Fault if the register is a product's."""
        for first, sums in self.sums.items():
            if first <= i < first + sums.registers:
                raise Fault("race", f"{self.name}[{i}] is a product's sum, and no wait_products that names {self.name} stands between",
                            w.active(w.mask))
        if any(first <= i < first + 8 for first in self.borrowed):
            raise Fault("race", f"{self.name}[{i}] is set while a product reads it", w.active(w.mask))

    def set(self, w: Warp, i: int, value: Value) -> None:
        self._bounds(w, i)
        if self.sums or self.borrowed:
            self._own(w, i)
        self.touched = True
        if w.mask is None:
            self.rows[i], self.unset[i] = value, None
        elif self.rows[i] is None:
            self.rows[i], self.unset[i] = value, ~w.mask
        else:
            self.rows[i] = np.where(w.mask, value, self.rows[i])
            if (unset := self.unset[i]) is not None:
                self.unset[i] = unset & ~w.mask


class Memory:
    """A buffer.  `written` says that its contents were there before the launch: such a buffer is read-only, or scratch, and not watched.
    `late`: kernels launched before may still be at it."""

    def __init__(self, name: str, data: Array, *, written: bool, late: bool = False) -> None:
        self.name, self.data, self.watched, self.late = name, data, not written, late
        if self.watched:
            self.writer, self.reader, self.several, self.first_reader = (np.full(len(data), -1, np.int64) for _ in range(4))

    def locate(self, w: Warp, index: Value, lanes: Mask) -> Array:
        """Which element each lane names; Fault where an active one's is none."""
        return self._locate(w, index, lanes, None)

    def _locate(self, w: Warp, index: Value, lanes: Mask, width: int | None) -> Array:
        at = w.spread(index).astype(np.int64)
        bad = (at < 0) | (at > len(self.data) - (width or 1))
        if width:
            bad |= at % width != 0
        if lanes is not None:
            bad &= lanes
        if bad.any():
            k = int(np.argmax(bad))
            what = f"elements {at[k]} to {at[k] + width - 1} as one aligned vector" if width and width > 1 else f"element {at[k]}"
            raise Fault("bounds", f"{what} of {self.name}, which has {len(self.data)}", w.threads[bad])
        return at if width is None else at + np.arange(width)[:, None]

    def meet(self, w: Warp, lanes: Mask) -> None:
        """Fault if kernels launched before may be at the buffer, as far as the active lanes know."""
        if self.late and (early := ~w.late if lanes is None else ~w.late & lanes).any():
            raise Fault("race", f"{self.name} is read or written while kernels launched before may write or read it: "
                                "no wait_kernels stands before", w.threads[early])

    def read(self, w: Warp, index: Value, lanes: Mask, width: int | None = None) -> Array:
        """The elements at `index`, an array of (32,), or of (width, 32) for vectors; zeros in lanes that do not read."""
        self.meet(w, lanes)
        at = self._locate(w, index, lanes, width)
        if lanes is None:
            if self.watched:
                self._watch_read(w, at, w.tags)
            return np.asarray(self.data[at])
        out = np.zeros(at.shape, self.data.dtype)
        if lanes.any():
            some = at[..., lanes]
            if self.watched:
                self._watch_read(w, some, w.tags[lanes])
            out[..., lanes] = self.data[some]
        return out

    def write(self, w: Warp, index: Value, value: Value, lanes: Mask, width: int | None = None) -> None:
        """Sets the elements at `index` to `value`, of the same shape as `read` returns."""
        self.meet(w, lanes)
        at = self._locate(w, index, lanes, width)
        value = np.broadcast_to(value, at.shape)
        tags = w.tags
        if lanes is not None:
            if not lanes.any():
                return
            at, value, tags = at[..., lanes], value[..., lanes], tags[lanes]
        self._watch_write(w, at, tags)
        self.data[at] = value

    def put(self, w: Warp, at: Array, values: Array, lane: int) -> None:
        """Sets elements on behalf of one lane."""
        self.meet(w, np.arange(32) == lane)
        self._watch_write(w, at, np.full(at.shape, w.tags[lane]))
        self.data[at] = values

    def copy(self, w: Warp, index: Value, value: Value, lanes: Mask, width: int) -> Callable[[], None]:
        """Like `write`, but the elements arrive when the function returned is called; until then any access to them is a race."""
        at = self._locate(w, index, lanes, width)
        if lanes is not None:
            at, value = at[..., lanes], value[..., lanes]
        self._watch_write(w, at, w.tags if lanes is None else w.tags[lanes])
        self.writer[at] = UNDER_WAY * w.span + w.among(lanes)

        def arrive() -> None:
            self.data[at] = value
            self.writer[at] = w.tags if lanes is None else w.tags[lanes]
        return arrive

    @staticmethod
    def _unordered(w: Warp, tags: Array, other: Array) -> Array:
        """Where `other` was another thread, in this epoch or in an earlier block."""
        bad = np.asarray((other != tags) & ((other >= w.base) | (other < w.first) & (other >= 0)))
        if w.seen is not None and bad.any():
            bad &= other > w.seen[tags % w.span % 32, other % w.span]
        return bad

    def _watch_read(self, w: Warp, at: Array, tags: Array) -> None:
        writer = self.writer[at]
        if (writer < 0).any():
            self._fault(w, "uninitialised", at, tags, writer < 0, writer, "is read and nobody wrote it")
        if (bad := self._unordered(w, tags, writer)).any():
            self._fault(w, "race", at, tags, bad, writer, "is read and written by {other} with no barrier between")
        before = self.reader[at]
        self.reader[at] = tags
        shared = (self.reader[at] != tags) | (before != tags) & (before >= w.base)
        if shared.any():
            self.several[at[shared]] = w.base
        new = self.first_reader[at] < 0
        if new.any():
            self.first_reader[at[new]] = np.broadcast_to(tags, at.shape)[new]

    def _watch_write(self, w: Warp, at: Array, tags: Array) -> None:
        for verb, others in (("written", self.writer), ("read", self.reader), ("read", self.first_reader)):
            if (bad := self._unordered(w, tags, others[at])).any():
                self._fault(w, "race", at, tags, bad, others[at], f"is written and {verb} by {{other}} with no barrier between")
        if (bad := self.several[at] >= w.base).any():
            self._fault(w, "race", at, tags, bad, self.reader[at], "is written and read by other threads with no barrier between")
        self.writer[at] = tags
        if (bad := self.writer[at] != tags).any():
            self._fault(w, "race", at, tags, bad, self.writer[at], "is written by {other} in the same statement")

    def _fault(self, w: Warp, kind: str, at: Array, tags: Array, bad: Array, other: Array, what: str) -> None:
        k = tuple(np.argwhere(bad)[0])
        threads = w.threads[np.unique(np.broadcast_to(tags, at.shape)[bad] % w.span) % 32]
        raise Fault(kind, f"element {at[k]} of {self.name} {what.format(other=self._who(w, int(other[k])))}", threads)

    def _who(self, w: Warp, tag: int) -> str:
        """Whose tag it is."""
        when = " of an earlier block" if tag < w.first else ", whose copy is under way" if tag >= UNDER_WAY * w.span else ""
        return f"thread {tag % w.span}{when}"


class Machine:
    """Compiles a kernel: a function for each expression and each statement, slots for its registers."""

    def __init__(self, kernel: Kernel, explain: Callable[[Warp, Fault, Stmt], Exception]) -> None:
        self.kernel, self._explain = kernel, explain
        self.arrays: dict[str, DType] = {}
        self.slots: dict[str, int] = {}
        self._sites = 0
        self._values: dict[Expr, Evaluator] = {}
        self.main = self.body(kernel.body)

    def slot(self, name: str) -> int:
        """Where a register is kept."""
        return self.slots.setdefault(name, len(self.slots))

    def site(self) -> int:
        """A number for a place where warps meet."""
        self._sites += 1
        return self._sites

    def body(self, body: tuple[Stmt, ...]) -> Callable[[Warp], Iterator[object]]:
        """A block of statements: yields what the warp waits for, which is a barrier's site or a function that says when to go on."""
        steps = [(step, isgeneratorfunction(step), s) for s in body for step in (s.meaning(self),)]
        explain = self._explain

        def run(w: Warp) -> Iterator[object]:
            for step, waits, s in steps:
                try:
                    if waits:
                        yield from step(w)  # type: ignore[misc]
                    else:
                        step(w)
                except Fault as fault:
                    raise explain(w, fault, s) from None
        return run

    def value(self, e: Expr) -> Evaluator:
        """The expression as a function of the warp."""
        if e not in self._values:
            self._values[e] = self._compile(e)
        return self._values[e]

    def _compile(self, e: Expr) -> Evaluator:
        match e:
            case Const():
                constant = e.value
                return lambda w: constant
            case Var(name, _):
                slot = self.slot(name)
                return lambda w: w.registers[slot]
            case Thread(): return lambda w: w.threads
            case Block(axis): return lambda w: w.block[axis]
            case Element(array, _, index):
                slot, at = self.slot(array), self.value(index)
                if isinstance(index, Const):
                    element_number = int(index.value)
                    return lambda w: w.registers[slot].get(w, element_number)
                return lambda w: w.registers[slot].get(w, int(at(w)))
            case Convert(element, x):
                convert, of = converter(x.dtype, element), self.value(x)
                return lambda w: convert(of(w))
            case Apply(op, args):
                f = meaning(op, e.dtype)
                match [self.value(a) for a in args]:
                    case [a]: return lambda w: f(a(w))
                    case [a, b]: return lambda w: f(a(w), b(w))
                    case [a, b, c]: return lambda w: f(a(w), b(w), c(w))
        raise AssertionError(e)


def _fused(x: Value, y: Value, z: Value) -> Value:
    """x * y + z in fp64, where the product of two fp32 is exact, rounded to fp32."""
    return (np.multiply(x, y, dtype=np.float64) + z).astype(np.float32)


def meaning(op: str, dtype: DType) -> Callable[..., Value]:
    """The operator on scalars and arrays; the result has the operands' dtype."""
    return _fused if op == "fma" and dtype is dt.f32 else OPERATORS[op].meaning


def converter(source: DType, target: DType) -> Callable[[Value], Value]:
    """The conversion of values; anything but fp32 becomes a half type by way of fp32, as in torch."""
    if source.stored is target:
        return lambda x: x
    if target is dt.tf32:
        return lambda x: dt.rounded(np.asarray(x, np.float32), even=False)
    to = target.numpy
    if target is not target.compute and source is not dt.f32:
        return lambda x: x.astype(np.float32).astype(to)
    return lambda x: dt.converted(x, target)
