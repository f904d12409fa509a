"""Which tiles of keys a tile of rows goes through, from the last to the first, and in which of them no score needs a mask.

What indices tell is known of each tile of rows; what values of rows tell, where a document begins or how long it is, when the kernel
runs.  How many tiles such values leave is not known before: they are counted as if the values ruled out none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

from emmy.ir import index as ix
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ix, IxConst
from emmy.ir.kernel_ir import Expr, fold, int32
from emmy.lower.tile_to_kernel.live import ALL, Live, live, normal
from emmy.lower.tile_to_kernel.read_bounds import Keys, ReadBounds
from emmy.lower.tile_to_kernel.scalar import Emitter


class Order(NamedTuple):
    """In which order blocks take tiles of rows: those of `layers` points of the batch together, row by row; a block every
    `blocks`-th.  Where tiles are `uneven` the last rows come first, and every other round goes the other way."""

    down: int
    batch: int
    layers: int
    blocks: int
    uneven: bool

    @property
    def tiles(self) -> int:
        return self.down * self.batch

    def loads(self, cost: Sequence[float]) -> list[float]:
        """What each block has to do, given what a tile of each row takes."""
        number = np.arange(self.tiles)
        turn, block = number // self.blocks, number % self.blocks
        block = np.where(turn % 2 == 1, self.blocks - 1 - block, block) if self.uneven else block
        group = number // (self.layers * self.down) * self.layers
        row = number % (self.layers * self.down) // np.minimum(self.batch - group, self.layers)
        return np.bincount(block, np.asarray(cost)[self.down - 1 - row if self.uneven else row], self.blocks).tolist()    # type: ignore[no-any-return]


class Range(NamedTuple):
    """The tiles of keys of a tile of rows: the last, how many there are, and the keys that values tell."""

    last: Expr
    steps: Expr
    keys: Keys


class KeyTiles:
    """Tiles of `width` keys for tiles of `height` rows.  With `skip`, those are left out that hold no key that counts.

    `masked` is the score, `whole` the same where the mask holds and no key is beyond the end; `masked_first`: whether the first tile may
    need the mask; `skips`: whether indices leave some out, so that tiles of rows have more or less to do; `read`: what values tell."""

    def __init__(self, kernel: tile.Kernel, fold: tile.Fold, rows: tuple[int, ...], height: int, width: int, skip: bool):
        extent = kernel.extents[fold.axis]
        self.tiles = -(-prod(kernel.extents[a] for a in rows) // height)
        self.count, self.width = -(-extent // width), width
        found = live(kernel, fold, rows, height) if skip else Live(ALL, ALL, fold.lifts[0], fold.lifts[0])
        self.masked, self.whole, self.skips = found.masked, found.score, found.some.indices != ALL
        self.read = ReadBounds(kernel, fold, rows, height, found)
        up = width - 1
        self.firsts = self.above(ix.div(x, width) for x in found.some.lows)
        self.ends = self.below((ix.div(ix.add(x, IxConst(up)), width) for x in found.some.highs), self.count)
        tail = [IxConst(extent // width)] if extent % width else []
        self.whole_firsts = self.above(ix.div(ix.add(x, IxConst(up)), width) for x in found.whole.lows)
        self.whole_ends = self.below((*tail, *(ix.div(x, width) for x in found.whole.highs)), self.count)
        self.masked_first = bool(tail) or found.whole != ALL

    @property
    def counts(self) -> list[int]:
        """How many tiles of keys each tile of rows goes through."""
        def at(terms: list[Ix], row: int) -> list[int]:
            return [ix.evaluate(x, lambda leaf: row) for x in terms]

        return [max(min(at(self.ends, r)) - max([0, *at(self.firsts, r)]), 1) for r in range(self.tiles)]

    def bounds(self, x: Ix) -> tuple[int, int]:
        return ix.bounds(x, lambda leaf: self.tiles)

    def above(self, lows: Iterable[Ix]) -> list[Ix]:
        """Lower bounds, but for those that are 0 or less."""
        return [x for x in sorted({normal(x, self.tiles) for x in lows}, key=str) if self.bounds(x)[1] > 0]

    def below(self, highs: Iterable[Ix], most: int) -> list[Ix]:
        """Upper bounds and `most`, but for those that others imply."""
        terms = [x for x in sorted({normal(x, self.tiles) for x in highs}, key=str) if self.bounds(x)[0] < most]
        return terms if any(self.bounds(x)[1] <= most for x in terms) else [*terms, IxConst(most)]

    def range(self, scope: Emitter, row: Expr, whole: bool = False) -> Range:
        """The tiles for a tile of rows: at least one.  Where values of rows tell them, all lanes of a warp must be there; `whole`: whether
        `loops` is asked for as well."""
        keys = self.read.of_tile(scope, row, whole) if self.read else Keys()
        end = self._least(self.ends, row, self._tile(keys.end, True))
        if not self.firsts and keys.first is None:
            if keys.end is not None or any(self.bounds(x)[0] < 1 for x in self.ends):
                end = fold("max", end, int32(1))
            count = scope.let("count", end)
            return Range(scope.let("last", count - 1), count, keys)
        first = scope.let("first", fold("min", self._most(self.firsts, row, self._tile(keys.first, False)), int32(self.count - 1)))
        count = scope.let("count", fold("max", end - first, int32(1)))
        return Range(scope.let("last", first + count - 1), count, keys)

    def loops(self, scope: Emitter, row: Expr, r: Range) -> list[tuple[Expr, Expr, bool]]:
        """The steps after the first, as ranges (from, below, whether the mask is needed)."""
        if not self.masked_first:
            return [(int32(1), r.steps, False)]
        out: list[tuple[Expr, Expr, bool]] = []
        begin: Expr = int32(1)
        if not self._at_once():
            below = self._least(self.whole_ends, row, self._tile(r.keys.whole_end, False))
            begin = scope.let("whole", fold("max", fold("min", r.last + 1 - below, r.steps), begin))
            out.append((int32(1), begin, True))
        if not self.whole_firsts and r.keys.whole_first is None:
            return [*out, (begin, r.steps, False)]
        above = self._most(self.whole_firsts, row, self._tile(r.keys.whole_first, True))
        end = scope.let("masked", fold("max", fold("min", r.last + 1 - above, r.steps), begin))
        return [*out, (begin, end, False), (end, r.steps, True)]

    def _at_once(self) -> bool:
        """Whether at most one tile lies beyond those where the mask holds."""
        if self.read or self.firsts or len(self.ends) != 1 or len(self.whole_ends) != 1:
            return False
        beyond = normal(ix.add(self.ends[0], ix.mul(self.whole_ends[0], -1)), self.tiles)
        return self.bounds(beyond)[1] <= 1

    def _tile(self, key: Expr | None, up: bool) -> Expr | None:
        """The tile that begins with a key, or else the one after it or, not `up`, before it."""
        return None if key is None else (key + (self.width - 1) * up) // self.width

    def _least(self, terms: list[Ix], row: Expr, read: Expr | None = None) -> Expr:
        told = [read] if read is not None else []
        return reduce(lambda x, y: fold("min", x, y), (*(self._at(x, row) for x in terms), *told))

    def _most(self, terms: list[Ix], row: Expr, read: Expr | None = None) -> Expr:
        zero: Expr = int32(0)
        told = [read] if read is not None else []
        return reduce(lambda x, y: fold("max", x, y), (*(self._at(x, row) for x in terms), *told), zero)

    def _at(self, x: Ix, row: Expr) -> Expr:
        value = ix.evaluate(x, lambda leaf: row)
        return int32(value) if isinstance(value, int) else value
