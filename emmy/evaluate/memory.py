"""Memory that watches every access.

It remembers who last wrote and read each element, as a tag: epoch * threads + thread.  A barrier starts an epoch, and so does a block;
accesses of two threads are ordered when they lie in different epochs of one block, or when one thread has seen the other's in a kernel
whose warps meet in part too (see `emmy.evaluate.asynchronous`), or has been told of it by a signal if it is another block's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.evaluate.warp import Array, Fault, Mask, Value, Warp

UNDER_WAY = 1 << 48     # the epoch of a write that has not arrived


class Memory:
    """A buffer.  `written` says that its contents were there before the launch: such a buffer is read-only, or words, and not watched.
    `late`: kernels launched before may still be at it.  `told`: what whoever gave each signal had seen, if it has signals."""

    def __init__(self, name: str, data: Array, *, written: bool, late: bool = False) -> None:
        self.name, self.data, self.watched, self.late = name, data, not written, late
        self.told: dict[int, dict[int, Array]] = {}
        if self.watched:
            self.writer, self.reader, self.several, self.first_reader = (np.full(len(data), -1, np.int64) for _ in range(4))

    def locate(self, w: Warp, index: Value, lanes: Mask) -> Array:
        """Which element each lane names; Fault where an active one's is none."""
        return self._locate(w, index, lanes, None)

    def _locate(self, w: Warp, index: Value, lanes: Mask, width: int | None) -> Array:
        at = w.spread(index).astype(np.int64)
        # a negative one is larger than any without its sign
        bad = at.view(np.uint64) > np.uint64(len(self.data) - (width or 1)) if len(self.data) >= (width or 1) else np.full(32, True)
        if width and width > 1:
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
        """Where `other` was another thread, in this epoch or in another block."""
        bad = np.asarray((other != tags) & ((other >= w.base) | (other < w.first) & (other >= 0)))
        if w.seen is not None and bad.any():
            bad &= other > w.latest(tags, other)
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
