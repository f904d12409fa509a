"""Which keys values of rows tell to count, such as where a row's document begins and ends, for a tile of rows, found when it runs.

Each warp that goes through keys finds them for itself: a lane takes every 32nd row of the tile, and the least and the largest of what
the lanes have go round by shuffles.  Nothing is assumed of the values: they may lie in any order, and beyond the keys that there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import prod
from typing import NamedTuple

from emmy.instructions.registers import Assign
from emmy.instructions.shuffle import ShuffleXor
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Expr, Thread, Var, fold, int32
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.live import Live
from emmy.lower.tile_to_kernel.scalar import Emitter
from emmy.lower.tile_to_kernel.staging import counted


class Keys(NamedTuple):
    """From `first` on and below `end` are the keys that some row of a tile may see, from `whole_first` on and below `whole_end` those that
    every row does: i32 from 0 to as many as there are.  None where no value tells."""

    first: Expr | None = None
    end: Expr | None = None
    whole_first: Expr | None = None
    whole_end: Expr | None = None


class ReadBounds:
    """What values tell of the keys of `fold` for tiles of `height` positions of `rows`."""

    def __init__(self, kernel: tile.Kernel, fold: tile.Fold, rows: tuple[int, ...], height: int, found: Live):
        self.rows, self.height, self.extent = rows, height, prod(kernel.extents[a] for a in rows)
        self.keys, self.found = kernel.extents[fold.axis], found
        self.vary = (found.some & found.whole).varies(rows)

    def __bool__(self) -> bool:
        return bool(self.found.some.starts or self.found.some.ends)

    def of_tile(self, scope: Emitter, row: Expr, whole: bool) -> Keys:
        """The keys of the tile `row`; all lanes of a warp must be there.  `whole`: whether those are asked for that every row sees."""
        some, every = self.found.some, self.found.whole
        kinds = [(some.starts, "max", "min"), (some.ends, "min", "max")]
        kinds += [(every.starts, "max", "max"), (every.ends, "min", "min")] if whole else []
        if not self.vary:
            return Keys(*(self._joined(scope, bounds, inner) for bounds, inner, _ in kinds))
        held = [scope.declare("bound", int32(self.keys if outer == "min" else 0)) if bounds else None for bounds, _, outer in kinds]
        line = Var(scope.name("i"), dt.i32)
        body = scope.child()
        inside = fold("min", line * 32 + Thread() % 32, int32(self.height - 1))
        body.place(self.rows, body.whole(body.let("p", fold("min", row * self.height + inside, int32(self.extent - 1)))))
        for var, (bounds, inner, outer) in zip(held, kinds, strict=True):
            found = self._joined(body, bounds, inner)
            if var is not None and found is not None:
                body.emit(Assign(var, fold(outer, var, found)))
        scope.emit(counted(line, -(-self.height // 32), body))
        return Keys(*(None if var is None else self._round(scope, var, outer) for var, (_, _, outer) in zip(held, kinds, strict=True)))

    def _joined(self, scope: Emitter, bounds: Iterable[Value], how: str) -> Expr | None:
        """The largest or least of some bounds at the current row."""
        values = [scope.value(b) for b in sorted(bounds, key=repr)]
        return scope.let("bound", reduce(lambda x, y: fold(how, x, y), values)) if values else None

    @staticmethod
    def _round(scope: Emitter, value: Expr, how: str) -> Expr:
        """The least or largest that the lanes of a warp have."""
        for mask in (16, 8, 4, 2, 1):
            other = Var(scope.name("o"), dt.i32)
            scope.emit(ShuffleXor(other, value, mask))
            value = scope.let("bound", fold(how, value, other))
        return value
