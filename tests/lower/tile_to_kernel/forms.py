"""Kernels of Tile IR written by hand, run by the simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emmy.evaluate.simulate import simulate
from emmy.ir import dtype as dt
from emmy.ir import kernel_ir
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import Apply, Load, Value
from emmy.lower import loop_to_tile

Form = Callable[[tile.Kernel, tile.Schedule], kernel_ir.Kernel]


def op(name: str, *args: Value) -> Value:
    return Apply(name, args)


def number(x: float) -> Value:
    return loop.Const(dt.f32, dt.bits(dt.f32, x))


def total(axis: int, x: Value) -> Value:
    return loop.Reduce("add", axis, x)


def load(tensors: dict[str, tile.Tensor], name: str, *point: int | Ix) -> Value:
    return Load(name, tensors[name].element, tuple(Ax(p) if isinstance(p, int) else p for p in point))


def tensors(element: DType = dt.f32, **shapes: tuple[int, ...]) -> dict[str, tile.Tensor]:
    return {n: tile.Tensor(n, s, element) for n, s in shapes.items()}


def kernel(body: Value, axes: tuple[int, ...], extents: dict[int, int], sources: dict[str, tile.Tensor], element: DType = dt.f32,
           name: str = "form") -> tile.Kernel:
    """`body` at every point of `axes`, stored as tensor "out"."""
    output = tile.Tensor("out", tuple(extents[a] for a in axes), element)
    return loop_to_tile.kernel(name, (body,), (output,), axes, extents, sources)


def schedule(form: str, row: str, rows: tuple[int, ...], columns: tuple[int, ...], batch: tuple[int, ...] = ()) -> tile.Schedule:
    return tile.Schedule(tile.parse_row(row), form, rows, columns, batch)


def random(k: tile.Kernel, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal inputs, in their stored dtypes."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32).astype(t.element.numpy) for t in k.tensors}


def run(k: tile.Kernel, made: kernel_ir.Kernel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What the simulated kernel leaves in its output, as float64."""
    (out,) = runs(k, made, inputs)
    return out


def runs(k: tile.Kernel, made: kernel_ir.Kernel, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """What the simulated kernel leaves in its outputs, as float64."""
    buffers = {n: np.ascontiguousarray(x).reshape(-1) for n, x in inputs.items()}
    buffers |= {o.name: np.zeros(int(np.prod(o.shape)), o.element.numpy) for o in k.outputs}
    simulate(made, buffers)
    return tuple(buffers[o.name].reshape(o.shape).astype(np.float64) for o in k.outputs)
