"""What every form ends with: storing results, and the Kernel IR node around the statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd, prod

from emmy.instructions.control import For
from emmy.instructions.global_memory import StoreGlobal, StoreGlobalVector
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import GRID_LIMITS, Block, Element, Expr, GlobalBuffer, Kernel, SharedBuffer, TensorMap, Var, const, verify
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.blocks import placed
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter


def store(scope: Emitter) -> None:
    """Compute and store every result at the current point."""
    values = tuple(map(scope.value, scope.kernel.results))
    put(scope, values)


def put(scope: Emitter, values: tuple[Expr, ...]) -> None:
    """Store the results, which are `values`, at the current point."""
    offset = scope.output_offset()
    scope.emit(*(StoreGlobal(output.name, offset, value) for output, value in zip(scope.kernel.outputs, values, strict=True)))


def store_run(scope: Emitter, axis: int, start: Expr, width: int, bind: Callable[[Emitter, Expr], None] | None = None,
              arrays: Mapping[Value, str] | None = None) -> None:
    """Compute and store `width` elements of every output from `start` (a multiple of `width`) along `axis`, as vectors along the last axis.
    `bind` makes values that are known for the neighbour at an offset those of its scope; `arrays` hold values known already."""
    kernel = scope.kernel
    scope.hoist(kernel.results, axis)
    held = dict(arrays or {})
    if width == 1:
        scope.axes[axis] = start
        scope.values.update({v: Element(array, v.dtype, const(scope.integer, 0)) for v, array in held.items()})
        store(scope)
        return
    scope.hoist_run(kernel.results, axis, start, width, held)
    held |= scope.load_vectors(kernel.results, axis, start, width, held)
    outs, lane = [scope.name("y") for _ in kernel.outputs], Var(scope.name("e"), scope.integer)
    inner = scope.neighbour(axis, start, lane, held)
    if bind is not None:
        bind(inner, lane)
    if axis != kernel.outer[-1]:
        store(inner)
        scope.emit(For(lane, const(scope.integer, 0), const(scope.integer, width), const(scope.integer, 1), True, tuple(inner.body)))
        return
    named = list(zip(outs, kernel.outputs, strict=True))
    values = tuple(map(inner.value, kernel.results))
    inner.emit(*(SetElement(out, output.element.compute, lane, value) for (out, output), value in zip(named, values, strict=True)))
    scope.emit(*(DeclareArray(out, output.element.compute, width, None) for out, output in named))
    scope.emit(For(lane, const(scope.integer, 0), const(scope.integer, width), const(scope.integer, 1), True, tuple(inner.body)))
    scope.axes[axis] = start
    offset = scope.output_offset()
    for out, output in named:
        step = gcd(width, VECTOR_BYTES // output.element.bytes)
        scope.emit(*(StoreGlobalVector(output.name, offset + k, out, k, step) for k in range(0, width, step)))


def finish(kernel: tile.Kernel, scope: Emitter, grid: tuple[int, int, int], block: int, shared: tuple[SharedBuffer, ...] = (),
           maps: tuple[TensorMap, ...] = (), own: tuple[GlobalBuffer, ...] = (), cluster: int = 1) -> Kernel:
    """The verified Kernel IR of a kernel whose statements are in `scope`; its blocks lie along x if another axis has no room for them."""
    reads = tuple(GlobalBuffer(t.name, t.element, prod(t.shape), "read") for t in kernel.tensors)
    writes = tuple(GlobalBuffer(t.name, t.element, prod(t.shape), "write") for t in kernel.outputs)
    body = tuple(scope.body)
    if max(grid[1:]) > GRID_LIMITS[1]:
        grid, body = (prod(grid), 1, 1), placed(body, grid, Block(0), scope.name("block"))
    made = Kernel(kernel.name, (*reads, *writes, *own), shared, grid, block, body, maps, cluster)
    verify(made)
    return made
