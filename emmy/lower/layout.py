"""In which order the dimensions of tensors between others lie in memory.

A tensor that only the program's own kernels write and read may have its dimensions in any order.  It keeps that of the program, but where
another dimension than the last is read along what lies contiguous there, an input or what is written, and the last one is neither read so
nor reduced along: then that other one is the last.  So a convolution's result has its channels side by side where the filters of the next
one have them so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, Ix, Pos, leaves
from emmy.ir.loop_ir import Load, Value
from emmy.ir.tensor_ir import Shape

Order = tuple[int, ...]


def orders(bodies: Sequence[tuple[str, Shape, Value]], inputs: Mapping[str, Shape], outputs: frozenset[str]) -> dict[str, Order]:
    """The dimensions, outermost first, of each tensor that has them in another order than its own.  `bodies`: tensors with their shapes and
    what they are at parameters, operands before users; `inputs` and `outputs` lie as they are."""
    found: dict[str, Order] = {}
    reads: dict[str, Counter[int]] = {name: Counter() for name, _, _ in bodies}     # by dimension: how much is read beside it
    used: dict[str, set[int]] = {name: set() for name, _, _ in bodies}              # dimensions read so, be it in part, or reduced along
    for name, shape, body in reversed(bodies):      # readers first
        order = tuple(range(len(shape))) if name in outputs else _order(shape, reads[name], used[name])
        if order != tuple(range(len(shape))):
            found[name] = order
        loads = [v for v in loop.walk((body,)) if isinstance(v, Load)]
        beside: Counter[Ix] = Counter({Pos(k): prod(shape) for k in _last(order, [shape[k] for k in order])})
        for v in loads:
            of = inputs.get(v.tensor, ())
            beside.update({x: prod(of) for x in _last(v.point[:len(of)], of) if isinstance(x, Ax)})
        for v in loads:
            if v.tensor in reads:
                reads[v.tensor].update({k: beside[x] for k, x in enumerate(v.point) if x in beside})
                used[v.tensor] |= {k for k, x in enumerate(v.point) if isinstance(x, Ax) or leaves(x) & beside.keys()}
    return found


def _order(shape: Shape, reads: Counter[int], used: set[int]) -> Order:
    """The dimensions, that one last which is read beside most, unless the last has such a use of its own."""
    last = max((k for k, n in enumerate(shape) if n > 1), default=-1)
    most = max((k for k in reads if shape[k] > 1), key=lambda k: (reads[k], -k), default=last)
    if most == last or last in used:
        return tuple(range(len(shape)))
    return *(k for k in range(len(shape)) if k != most), most


def _last[T: int | Ix](along: Sequence[T], shape: Sequence[int]) -> Sequence[T]:
    """The one along which a tensor is contiguous, if it has more than one element."""
    return [x for x, n in zip(along, shape, strict=True) if n > 1][-1:]
