"""What a program costs as it is written: a kernel for each tensor that it names."""

from __future__ import annotations

import dataclasses

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.tensor_ir import Input
from emmy.tune.choose import Rows


def as_written(program: loop.Program, rows: Rows) -> dict[str, float]:
    """Seconds predicted for the kernel of each tensor that the outputs of `program` need, by its body as it stands; nothing is rewritten
    or fused."""
    tensors = {t.name: tile.Tensor(t.name, t.dims if isinstance(t, Input) else t.shape, t.element) for t in program.everything}
    needed = {tensor for _, tensor in program.outputs}
    found: dict[str, float] = {}
    for d in reversed(program.definitions):
        if d.name in needed:
            needed |= {v.tensor for v in loop.walk((d.body,)) if isinstance(v, loop.Load)}
            axes = tuple(a + max(program.extents, default=-1) + 1 for a in range(len(d.shape)))
            extents = program.extents | dict(zip(axes, d.shape, strict=True))
            found[d.name] = rows.found[rows.stored((instance(d.body, axes),), (tensors[d.name],), axes, extents, tensors).identity].seconds
    return dict(reversed(found.items()))


def instance(body: Value, axes: tuple[int, ...]) -> Value:
    """A definition's body at the point of `axes`."""
    made: dict[Value, Value] = {}

    def leaf(x: Ix) -> Ix:
        return Ax(axes[x.k]) if isinstance(x, Pos) else IxOf(made[x.value]) if isinstance(x, IxOf) else x

    def field(x: object) -> object:
        match x:
            case Value(): return made[x]
            case Ix(): return ix.substitute(x, leaf)
            case tuple(): return tuple(map(field, x))
        return x

    for v in loop.walk((body,)):
        made[v] = type(v)(*(field(getattr(v, f.name)) for f in dataclasses.fields(v)))
    return made[body]
