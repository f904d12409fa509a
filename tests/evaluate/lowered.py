"""Tensor IR programs as Tile IR, each output one kernel with everything fused into it."""

from __future__ import annotations

from emmy.egraph.canonical import canonical
from emmy.egraph.saturate import saturate
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tir
from emmy.ir import tile_ir as tile
from emmy.lower import loop_to_tile
from emmy.lower.tensor_to_loop import lower


def fused(program: tir.Program, math: str = "fast") -> tile.Program:
    """The program with the canonical body of each output as its kernel."""
    source = lower(program)
    region = saturate(source, math)
    bodies = canonical(region)
    names = dict.fromkeys(name for _, name in source.outputs if name in region.home)
    tensors = {name: tensor(t) for name, t in source.tensors.items()}
    kernels = tuple(loop_to_tile.kernel(f"k{n}", (bodies[region.home[n]],), (tensors[n],), region.output_axes[n], region.extents, tensors)
                    for n in names)
    return tile.Program(tuple(i.name for i in source.inputs), kernels, source.outputs)


def tensor(t: tir.Input | loop.Definition) -> tile.Tensor:
    return tile.Tensor(t.name, t.dims if isinstance(t, tir.Input) else t.shape, t.element)
