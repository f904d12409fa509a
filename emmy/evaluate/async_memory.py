"""Shared memory of a kernel whose warps meet in part and whose copies and products are asynchronous.

Besides its last writer, an element remembers for each warp when it last read it and by which lane, how many asynchronous reads are under
way, and whether a thread wrote it that has not fenced the write for the copy engine and for products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emmy.evaluate.memory import UNDER_WAY, Memory
from emmy.evaluate.warp import Fault

if TYPE_CHECKING:
    from emmy.evaluate.warp import Array, Mask, Value, Warp

SEVERAL, ANY = 32, 33   # in place of a lane: all lanes that read must be seen; any lane that went on after a product
Place = slice | np.ndarray[Any, np.dtype[Any]]


class AsyncMemory(Memory):
    """A shared buffer.  `readers[warp, element]` is clock * 64 + lane of the last read, -1 if there was none since the last write."""

    def __init__(self, name: str, data: Array, warps: int) -> None:
        super().__init__(name, data, written=False)
        self.readers = np.full((warps, len(data)), -1, np.int64)
        self.reading = np.zeros(len(data), np.int32)
        self.unfenced = np.zeros(len(data), bool)

    # ---- accesses by the lanes of a warp

    def _watch_read(self, w: Warp, at: Array, tags: Array) -> None:
        writer = self.writer[at]
        if (writer < 0).any():
            self._fault(w, "uninitialised", at, tags, writer < 0, writer, "is read and nobody wrote it")
        lanes = np.broadcast_to(tags % w.span % 32, at.shape)
        if (bad := writer > w.seen[lanes, writer % w.span]).any():
            self._fault(w, "race", at, tags, bad, writer, "is read and written by {other} with nothing that orders them")
        readers, now = self.readers[w.agents[0] // 32], tags // w.span * 64
        before = readers[at]
        code = np.where((before >= 0) & (before % 64 != lanes) & (before % 64 != ANY), SEVERAL, lanes) + now
        readers[at] = code
        again = readers[at] != code
        if again.any():
            readers[at[again]] = np.broadcast_to(now, at.shape)[again] + SEVERAL

    def _watch_write(self, w: Warp, at: Array, tags: Array) -> None:
        lanes = np.broadcast_to(tags % w.span % 32, at.shape)
        writer = self.writer[at]
        if (bad := writer > w.seen[lanes, writer % w.span]).any():
            self._fault(w, "race", at, tags, bad, writer, "is written and written by {other} with nothing that orders them")
        self._require_read(w, at, w.seen, lanes)
        self.writer[at] = tags
        if (bad := self.writer[at] != tags).any():
            self._fault(w, "race", at, tags, bad, self.writer[at], "is written by {other} in the same statement")
        self.readers[:, at] = -1
        self.unfenced[at] = True

    def _require_read(self, w: Warp, at: Place, seen: Array, lanes: Array | int) -> None:
        """Fault unless all reads of these elements are over, as far as the given lanes have `seen`."""
        if (flying := self.reading[at] > 0).any():
            k = self._first(at, flying)
            raise Fault("race", f"element {k} of {self.name} is written while a store or product reads it", w.active(w.mask))
        lasts = self.readers[:, at]
        for v in np.flatnonzero(lasts.reshape(len(lasts), -1).max(axis=1, initial=-1) >= 0):
            last = lasts[v]
            # no read is -1, at a clock before all that a lane may have seen
            clocks = seen[:, 32 * v:32 * v + 32] // w.span
            known = np.concatenate([clocks, clocks.min(axis=1, keepdims=True), clocks.max(axis=1, keepdims=True)], axis=1)
            if (bad := last // 64 > known[lanes, np.maximum(last, 0) % 64]).any():
                raise Fault("race", f"element {self._first(at, bad)} of {self.name} is written and read by {w.engine.warp(int(v))} "
                                    "with nothing that orders them", w.active(w.mask))

    @staticmethod
    def _first(at: Place, bad: Array) -> int:
        k = np.argwhere(bad)[0]
        return at.start + int(k[0]) if isinstance(at, slice) else int(at[tuple(k)])

    def check_made(self, w: Warp, index: Value, lanes: Mask) -> None:
        """Fault unless the barrier at `index` was made, and the active lanes have seen it."""
        at = self._locate(w, index, lanes, None)
        at, tags = (at, w.tags) if lanes is None else (at[lanes], w.tags[lanes])
        writer = self.writer[at]
        if (writer < 0).any():
            self._fault(w, "uninitialised", at, tags, writer < 0, writer, "is used as a barrier and nobody made it one")
        if (bad := writer > w.seen[tags % w.span % 32, writer % w.span]).any():
            self._fault(w, "race", at, tags, bad, writer, "is used as a barrier and made by {other} with nothing that orders them")

    # ---- accesses by the copy engine and by products, on behalf of what `row` has seen

    def inside(self, w: Warp, first: int, last: int) -> None:
        """Fault unless the buffer has the elements `first` to `last`."""
        if first < 0 or last >= len(self.data):
            raise Fault("bounds", f"elements {first} to {last} of {self.name}, which has {len(self.data)}", w.active(w.mask))

    def engine_write(self, w: Warp, start: int, count: int, lane: int, *, by_engine: bool = True) -> slice:
        """A copy to these elements begins, of the copy engine or a thread's; until `land` any access to them is a race."""
        self.inside(w, start, start + count - 1)
        at, row = slice(start, start + count), np.maximum(w.seen[lane:lane + 1], w.over[lane:lane + 1])
        writer = self.writer[at]
        by = writer % w.span
        if (bad := writer > np.where(by < w.engine.crowd, w.seen[lane, by], row[0, by])).any():
            k = int(np.argmax(bad))
            raise Fault("race", f"a copy goes to element {start + k} of {self.name}, written by {self._who(w, int(writer[k]))} "
                                "with nothing that orders them", w.threads[lane])
        self._require_read(w, at, row, 0)
        if by_engine:
            self._require_fence(w, at)
        self.writer[at] = UNDER_WAY * w.span + int(w.agents[lane])
        return at

    def land(self, at: slice, values: Array, tag: int) -> None:
        """The copy has arrived; `tag` tells in which phase of which barrier."""
        self.data[at], self.writer[at] = values, tag
        self.readers[:, at] = -1

    def engine_read(self, w: Warp, at: Place, row: Array, times: int) -> None:
        """`times` asynchronous reads of these elements begin, by threads that have all seen `row`; each ends by `engine_done`."""
        writer = self.writer[at]
        for bad, kind, what in ((writer < 0, "uninitialised", "which nobody wrote"),
                                (writer > row[writer % w.span], "race", "with nothing that orders them")):
            if bad.any():
                k = tuple(np.argwhere(bad)[0])
                by = f"written by {self._who(w, int(writer[k]))}, " * (kind == "race")
                raise Fault(kind, f"a store or product reads element {self._first(at, bad)} of {self.name}, {by}{what}", w.active(w.mask))
        self._require_fence(w, at)
        self.reading[at] += times

    def engine_done(self, w: Warp, at: Place, lane: int) -> None:
        """An asynchronous read is over for `lane` of the warp, or for all that go on: ANY."""
        self.reading[at] -= 1
        self.readers[w.agents[0] // 32][at] = int(w.tags[0]) // w.span * 64 + lane

    def _require_fence(self, w: Warp, at: Place) -> None:
        if (bad := self.unfenced[at]).any():
            k = self._first(at, bad)
            writer = w.engine.who(int(self.writer[k] % w.span))
            raise Fault("fence", f"element {k} of {self.name} is met by the copy engine or a product, and {writer}, which wrote it, "
                                 "made no fence_async since", w.active(w.mask))

    def fence(self, w: Warp, lanes: Mask) -> None:
        """What the active lanes wrote is fenced."""
        at = np.flatnonzero(self.unfenced)
        self.unfenced[at[np.isin(self.writer[at] % w.span, w.among(lanes))]] = False

    def _who(self, w: Warp, tag: int) -> str:
        return f"{w.engine.who(tag % w.span)}{', whose copy is under way' * (tag >= UNDER_WAY * w.span)}"
