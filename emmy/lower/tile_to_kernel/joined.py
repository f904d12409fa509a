"""Form "join": sums of contractions with the same sides, as one contraction over their axes end to end.

x w + t b, where each is a sum over an axis of its own, is [x t] [w; b]: all products add up in the same registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value


def terms(v: Value) -> Iterator[Value]:
    """The terms of a sum of any nesting, left to right."""
    if isinstance(v, loop.Apply) and v.op == "add":
        for x in v.args:
            yield from terms(x)
    else:
        yield v


def addends(kernel: tile.Kernel) -> bool:
    """Whether all that a kernel makes of its folds, several, is to add up their results, each once, and whatever else is a term there."""
    sums, seen, stack = {f.result() for f in kernel.folds}, set[Value](), list(kernel.results)

    def whole(v: Value) -> bool:
        parts = list(terms(v))
        return sums <= set(parts) and sum(x in sums for x in parts) == len(sums)

    total = next(filter(whole, loop.walk(kernel.results)), None)
    while stack:
        v = stack.pop()
        if v in sums:
            return False
        if v not in seen:
            seen.add(v)
            stack += [x for x in terms(v) if x not in sums] if v is total else v.operands
    return total is not None and len(sums) > 1
