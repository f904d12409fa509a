"""Evaluation of Loop IR on NumPy, definition by definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from emmy.errors import EmmyError
from emmy.evaluate.values import Array, Space, evaluate, stored
from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Pos


def evaluate_loop(program: loop.Program, arrays: Mapping[str, Array]) -> list[Array]:
    """The program's outputs, each in its stored dtype.  `arrays`: the inputs by name; EmmyError where one is missing or of another type."""
    tensors = bound(((i.name, i.dims, i.element) for i in program.inputs), arrays)
    extents = program.extents
    for d in program.definitions:
        axes = sorted({v.binds for v in loop.walk((d.body,)) if v.binds is not None})
        space = Space({**{Pos(k): n for k, n in enumerate(d.shape)}, **{Ax(a): extents[a] for a in axes}})
        tensors[d.name] = stored(evaluate(d.body, space, tensors), d.shape, d.element)
    return [tensors[name] for _, name in program.outputs]


def bound(wanted: Iterable[tuple[str, tuple[int, ...], DType]], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the (name, shape, dtype) `wanted`; EmmyError where one is missing or of another type."""
    found: dict[str, Array] = {}
    for name, shape, element in wanted:
        if name not in arrays:
            raise EmmyError(f"no value for {name!r}", f"pass {name}: {element}{list(shape)}")
        x = arrays[name]
        if (x.shape, x.dtype) != (shape, element.numpy):
            raise EmmyError(f"{name!r} is {x.dtype}{list(x.shape)}", f"pass {element.numpy}{list(shape)}")
        found[name] = x
    return found
