"""Evaluation of Tile IR on NumPy, kernel by kernel.

A fold means the Loop IR reduction that it was made from: `unfold` puts the reductions back, and the body is evaluated at every
point of the kernel's axes.  A schedule row places the work and does not change its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emmy.errors import EmmyError
from emmy.evaluate.loop import bound
from emmy.evaluate.values import Array, Space, evaluate, stored
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import IxOf, Value


def evaluate_tile(program: tile.Program, arrays: Mapping[str, Array]) -> list[Array]:
    """The program's outputs; every tensor a kernel writes is rounded to its stored dtype.  `arrays`: the inputs by name, and what kernels
    write that are not to be run."""
    for name in program.inputs:
        if name not in arrays:
            raise EmmyError(f"no value for {name!r}", f"pass an array for each of {', '.join(program.inputs)}")
    tensors = evaluate_kernels(program.kernels, arrays)
    return [tensors[name] for _, name in program.outputs]


def evaluate_kernels(kernels: Iterable[tile.Kernel], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """`arrays`, and what kernels write of which it has not all."""
    tensors = dict(arrays)
    for kernel in kernels:
        if any(o.name not in tensors for o in kernel.outputs):
            tensors |= zip((o.name for o in kernel.outputs), evaluate_kernel(kernel, tensors), strict=True)
    return tensors


def evaluate_kernel(kernel: tile.Kernel, tensors: Mapping[str, Array]) -> tuple[Array, ...]:
    """The kernel's outputs.  `tensors`: those it reads; EmmyError where one is missing or of another type."""
    read = bound(((t.name, t.shape, t.element) for t in kernel.tensors), tensors)
    space = Space({Ax(a): n for a, n in (*kernel.axes, *kernel.inner)})
    values = zip(unfold(kernel), kernel.outputs, strict=True)
    return tuple(stored(evaluate(value, space, read), kernel.shape, output.element).reshape(output.shape) for value, output in values)


def unfold(kernel: tile.Kernel) -> tuple[Value, ...]:
    """The Loop IR bodies of a kernel over its output axes: the inverse of `emmy.lower.loop_to_tile.kernel`."""
    made: dict[Value, Value] = {}

    def at(x: Ix) -> Ix:
        return ix.substitute(x, lambda leaf: IxOf(made[leaf.value]) if isinstance(leaf, IxOf) else leaf)

    def reduction(fold: tile.Fold, channel: int) -> Value:
        x = made[fold.lifts[channel]]
        if fold.kind == "twist":
            score = made[fold.lifts[0]]
            return loop.Channel(fold.recipe, fold.axis, score, x) if channel else loop.Pivot(fold.recipe, fold.axis, score)
        return loop.Reduce(fold.recipe, fold.axis, x) if fold.upto is None else loop.Scan(fold.recipe, fold.axis, at(fold.upto), x)

    folds = {f.name: f for f in kernel.folds}
    roots = [x for f in kernel.folds for x in (*f.lifts, *(loop.indices(f.upto) if f.upto is not None else ()))]
    for v in loop.walk((*roots, *kernel.results)):
        match v:
            case tile.FoldResult(name, channel): made[v] = reduction(folds[name], channel)
            case loop.Load(t, element, point): made[v] = loop.Load(t, element, tuple(map(at, point)))
            case loop.IndexOf(x): made[v] = loop.IndexOf(at(x))
            case loop.Apply(op, args): made[v] = loop.Apply(op, tuple(made[a] for a in args))
            case loop.Cast(element, x): made[v] = loop.Cast(element, made[x])
            case loop.Round(element, x): made[v] = loop.Round(element, made[x])
            case _: made[v] = v
    return tuple(made[result] for result in kernel.results)
