"""The warps that run Kernel IR: 32 lanes, which of them are active, and their registers.

A value is a NumPy scalar where all lanes agree and an array of 32 otherwise.  A mask is None where all 32 lanes are active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from emmy.evaluate.asynchronous import Engine
    from emmy.evaluate.memory import Memory
    from emmy.evaluate.products import Sums

Value = Any
Array = np.ndarray[Any, np.dtype[Any]]
Mask = Array | None
Step = Callable[["Warp"], Iterator[object] | None]


EPOCHS = 1 << 20        # of a block, at most, where other blocks are under way


class Fault(Exception):
    """What went wrong at a statement; the statement's place is added by whoever runs it."""

    def __init__(self, kind: str, detail: str, threads: Any = ()) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.threads = kind, detail, [int(t) for t in np.ravel(threads)]


class Warp:
    """32 threads: their registers by slot, the lanes that are active, and the memory they see."""

    __slots__ = ("registers", "mask", "full", "threads", "agents", "block", "memory", "tags", "base", "first", "steps", "limit", "size",
                 "copies", "number", "span", "engine", "seen", "heard", "products", "stores", "fenced", "known", "late", "over")

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
        self.heard: dict[int, Array] = {}       # the same of other blocks, as signals told, by block
        self.over: Any = None if engine is None else np.full((32, self.span), -1, np.int64)   # what it was told is read or has come
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

    def latest(self, tags: Array, other: Array) -> Array:
        """The latest tags that the lanes of `tags` have seen of the threads, of this block or of others, of `other`; -1 for none."""
        lanes, of = tags % self.span % 32, other % self.span
        seen: Array = self.seen[lanes, of]
        if (foreign := (other < self.first) | (other >= self.first + EPOCHS * self.span)).any():
            seen = np.where(foreign, -1, seen)
            for block, rows in self.heard.items():
                seen = np.where(foreign & (other // (EPOCHS * self.span) == block), rows[lanes, of], seen)
        return seen

    def tell(self, lane: int) -> dict[int, Array]:
        """What a lane has seen, by block."""
        own = self.first // (EPOCHS * self.span)
        return {own: self.seen[lane].copy(), **{block: rows[lane].copy() for block, rows in self.heard.items()}}

    def hear(self, lane: int, told: dict[int, Array]) -> None:
        """A lane has seen what one of another block told."""
        for block, row in told.items():
            rows = self.heard.setdefault(block, np.full_like(self.seen, -1))
            np.maximum(rows[lane], row, out=rows[lane])

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
