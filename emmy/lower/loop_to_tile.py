"""Loop IR bodies to fold trees: each reduction of a kernel's body becomes a fold placed by its dependencies.

Twisted reductions over one axis with one score are one fold: the pivot and every channel of a carrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix, IxConst
from emmy.ir.loop_ir import IxOf, Value
from emmy.lower.matrix import as_matrix
from emmy.lower.scopes import distinct
from emmy.lower.tensor_names import renamed
from emmy.lower.tensor_to_loop import rename

Carrier = tuple[str, int, Value, int]      # recipe, axis, score, pass


def kernel(name: str, bodies: tuple[Value, ...], outputs: tuple[tile.Tensor, ...], axes: tuple[int, ...], extents: dict[int, int],
           tensors: dict[str, tile.Tensor]) -> tile.Kernel:
    """The fold tree that computes each of `outputs` at every point of `axes` by its body; `tensors` are those the bodies may load.  A
    reduction over an axis that is the outputs' too takes an axis of its own; outputs that are folded rows have axes of rows (`matrix`)."""
    both = sorted({v.binds for v in loop.walk(bodies) if v.binds is not None and v.binds in axes})
    own = {a: max(extents) + 1 + k for k, a in enumerate(both)}
    bodies, extents = tuple(rename(body, {}, bound=own) for body in bodies), extents | {own[a]: extents[a] for a in both}
    bodies, axes, extents = as_matrix(bodies, axes, extents)
    bodies, extents = distinct(bodies, axes, extents)
    order = loop.walk(bodies)
    free = loop.free_axes(bodies)
    folded = [free[v] for v in order if v.binds is not None]
    alone = {a for a in axes if extents[a] == 1 and folded and a not in frozenset[int]().union(*folded)}   # what folds read of them is at 0
    carriers: dict[Carrier, list[loop.Channel]] = {}
    home: dict[Value, Carrier] = {}
    for v in order:
        if isinstance(v, loop.Channel | loop.Pivot):
            # a channel whose value reads the carrier's own results comes a pass later
            carrier = v.recipe, v.axis, v.score
            inside = loop.walk((v.x,)) if isinstance(v, loop.Channel) else ()
            below = [home[w][3] for w in inside if w in home and home[w][:3] == carrier]
            home[v] = *carrier, 1 + max(below, default=-1)
            carriers.setdefault(home[v], [])
            if isinstance(v, loop.Channel):
                carriers[home[v]].append(v)
    folds: list[tile.Fold] = []
    made: dict[Value, Value] = {}
    twists: dict[Carrier, tile.Fold] = {}

    def at(x: Ix) -> Ix:
        return ix.substitute(x, at_leaf)

    def at_leaf(x: Ix) -> Ix:
        return IxOf(convert(x.value)) if isinstance(x, IxOf) else IxConst(0) if isinstance(x, Ax) and x.a in alone else x

    def fold(kind: str, recipe: str, axis: int, lifts: tuple[Value, ...], upto: Ix | None, needs: tuple[frozenset[int], ...]) -> tile.Fold:
        folds.append(tile.Fold(f"f{len(folds)}", kind, recipe, axis, lifts, upto, needs))
        return folds[-1]

    def twist(key: Carrier) -> tile.Fold:
        if key not in twists:
            recipe, axis, score, _ = key
            values = tuple(convert(c.x) for c in carriers[key])
            needs = free[score] - {axis}, *((free[score] | free[c.x]) - {axis} for c in carriers[key])
            twists[key] = fold("twist", recipe, axis, (convert(score), *values), None, needs)
        return twists[key]

    def convert(v: Value) -> Value:
        if v in made:
            return made[v]
        match v:
            case loop.Load(t, element, point): out: Value = loop.Load(t, element, tuple(map(at, point)))
            case loop.IndexOf(x): out = loop.IndexOf(at(x))
            case loop.Const(): out = v
            case loop.Apply(op, args): out = loop.Apply(op, tuple(map(convert, args)))
            case loop.Cast(element, x): out = loop.Cast(element, convert(x))
            case loop.Round(element, x): out = loop.Round(element, convert(x))
            case loop.Reduce(monoid, axis, x): out = fold("reduce", monoid, axis, (convert(x),), None, (free[v],)).result()
            case loop.Scan(monoid, axis, upto, x): out = fold("scan", monoid, axis, (convert(x),), at(upto), (free[v],)).result()
            case loop.Pivot(): out = twist(home[v]).result()
            case loop.Channel(): out = twist(home[v]).result(1 + carriers[home[v]].index(v))
            case _: raise AssertionError(type(v))
        made[v] = out
        return out

    for v in order:     # leaves first: bodies may be deeper than the stack
        convert(v)
    results = tuple(map(convert, bodies))
    loads = {v.tensor for v in order if isinstance(v, loop.Load)}
    bound = sorted({f.axis for f in folds})
    made_kernel = tile.Kernel(name, tuple(t for n, t in tensors.items() if n in loads), outputs, tuple((a, extents[a]) for a in axes),
                              tuple((a, extents[a]) for a in bound), tuple(folds), results)
    tile.verify(made_kernel)
    return made_kernel


def called(kernel: tile.Kernel, name: str, tensors: Sequence[tile.Tensor], outputs: Sequence[tile.Tensor]) -> tile.Kernel:
    """The same kernel as `name` on other tensors of the same types: it reads `tensors` and writes `outputs`, in the order of its own."""
    folds, results = renamed(kernel, {old.name: new.name for old, new in zip(kernel.tensors, tensors, strict=True)})
    made = tile.Kernel(name, tuple(tensors), tuple(outputs), kernel.axes, kernel.inner, folds, results, kernel.schedule)
    tile.verify(made)
    return made
