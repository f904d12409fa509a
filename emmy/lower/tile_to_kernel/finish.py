"""What every form ends with: storing results, and the Kernel IR node around the statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd, prod

from emmy.instructions.control import For
from emmy.instructions.global_memory import StoreGlobal, StoreGlobalVector
from emmy.instructions.registers import DeclareArray, SetElement
from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Element, Expr, GlobalBuffer, Kernel, SharedBuffer, Var, const, verify
from emmy.ir.loop_ir import Value
from emmy.lower.tile_to_kernel.scalar import VECTOR_BYTES, Emitter


def store_run(scope: Emitter, axis: int, start: Expr, width: int, bind: Callable[[Emitter, Expr], None] | None = None,
              arrays: Mapping[Value, str] | None = None) -> None:
    """Compute and store the `width` output elements from `start` (a multiple of `width`) along `axis`, as vectors along the last axis.
    `bind` makes values that are known for the neighbour at an offset those of its scope; `arrays` hold values known already."""
    kernel, output = scope.kernel, scope.kernel.output
    scope.hoist([kernel.result], axis)
    held = dict(arrays or {})
    if width == 1:
        scope.axes[axis] = start
        scope.values.update({v: Element(array, v.dtype, const(scope.integer, 0)) for v, array in held.items()})
        scope.emit(StoreGlobal(output.name, scope.output_offset(), scope.value(kernel.result)))
        return
    held |= scope.load_vectors([kernel.result], axis, start, width, held)
    out, lane = scope.name("y"), Var(scope.name("e"), scope.integer)
    inner = scope.neighbour(axis, start, lane, held)
    if bind is not None:
        bind(inner, lane)
    if axis != kernel.outer[-1]:
        inner.emit(StoreGlobal(output.name, inner.output_offset(), inner.value(kernel.result)))
        scope.emit(For(lane, const(scope.integer, 0), const(scope.integer, width), const(scope.integer, 1), True, tuple(inner.body)))
        return
    inner.emit(SetElement(out, output.element.compute, lane, inner.value(kernel.result)))
    scope.emit(DeclareArray(out, output.element.compute, width, None))
    scope.emit(For(lane, const(scope.integer, 0), const(scope.integer, width), const(scope.integer, 1), True, tuple(inner.body)))
    scope.axes[axis] = start
    offset = scope.output_offset()
    step = gcd(width, VECTOR_BYTES // output.element.bytes)
    for k in range(0, width, step):
        scope.emit(StoreGlobalVector(output.name, offset + k, out, k, step))


def finish(kernel: tile.Kernel, scope: Emitter, grid: tuple[int, int, int], block: int, shared: tuple[SharedBuffer, ...] = ()) -> Kernel:
    """The verified Kernel IR of a kernel whose statements are in `scope`."""
    reads = tuple(GlobalBuffer(t.name, t.element, prod(t.shape), "read") for t in kernel.tensors)
    write = GlobalBuffer(kernel.output.name, kernel.output.element, prod(kernel.output.shape), "write")
    made = Kernel(kernel.name, (*reads, write), shared, grid, block, tuple(scope.body))
    verify(made)
    return made
