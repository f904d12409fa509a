"""Tile IR to Kernel IR: a fold tree and its schedule to statements, one module a form."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from emmy.ir import kernel_ir
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError
from emmy.lower.tensor_names import renamed
from emmy.lower.tile_to_kernel.one_row import with_row
from emmy.lower.tile_to_kernel.shared_keys import seen_by


def lower(kernel: tile.Kernel) -> kernel_ir.Kernel:
    """The Kernel IR of a scheduled kernel; IRError if it has no schedule."""
    from emmy.lower.tile_to_kernel import (
        contraction,
        cross,
        elementwise,
        fold,
        hopper,
        hopper_twist,
        look_back,
        resident,
        scan,
        staged_rows,
        tensor_core,
        tensor_twist,
        transpose,
        twist_tile,
        window,
    )

    if kernel.schedule is None:
        raise IRError(f"kernel {kernel.name} has no schedule")
    kernel = with_parameter_names(kernel)
    forms = {"map": elementwise.lower, "window": window.lower, "transpose": transpose.lower, "fold": fold.lower, "cross": cross.lower,
             "scan": scan.lower, "contraction": contraction.lower, "twist": twist_tile.lower}
    assert kernel.schedule is not None
    if kernel.schedule.form == "fold" and kernel.schedule.row.cluster > 1:
        return resident.lower(kernel, kernel.schedule)
    if kernel.schedule.form == "fold" and kernel.schedule.row.stage == "smem" and "x" in kernel.schedule.row.work:
        return staged_rows.lower(kernel, kernel.schedule)
    if kernel.schedule.row.stage.startswith("lookback"):
        forms |= {"scan": look_back.lower}
    if kernel.schedule.row.tile.startswith("mma"):
        forms |= {"contraction": tensor_core.lower, "twist": tensor_twist.lower}
    if kernel.schedule.row.tile.startswith("wgmma"):
        forms |= {**dict.fromkeys(("contraction", "convolution", "join", "layered"), hopper.lower), "twist": hopper_twist.lower}
    return forms[kernel.schedule.form](*with_row(seen_by(kernel, kernel.schedule), kernel.schedule))


def lower_launch(kernels: Sequence[tile.Kernel]) -> kernel_ir.Kernel:
    """The Kernel IR of one launch: of one kernel, or of several whose blocks lie beside each other."""
    from emmy.lower.tile_to_kernel.beside import beside

    parts = tuple(map(lower, kernels))
    return parts[0] if len(parts) == 1 else beside(tile.launch_name(kernels), parts)


def lower_launches(launches: Sequence[Sequence[tile.Kernel]], early: Collection[int]) -> tuple[kernel_ir.Kernel, ...]:
    """The functions that launches name, each once; those whose numbers are in `early` begin before the ones ahead have ended."""
    from emmy.lower.tile_to_kernel.early import following, leading

    functions: dict[str, kernel_ir.Kernel] = {}
    for kernels in launches:
        if (name := tile.launch_name(kernels)) not in functions:
            functions[name] = lower_launch(kernels)
    written: set[str] = set()                               # by the launches so far, of those of a call
    late: dict[str, set[str]] = {}                          # parameters of functions that begin early, which those ahead write
    for n, kernels in enumerate(launches):
        if n in early:
            parameters = [p for p in functions[tile.launch_name(kernels)].parameters if not p.own]
            late.setdefault(tile.launch_name(kernels), set()).update(
                p.name for p, tensor in zip(parameters, tile.arguments(kernels), strict=True) if tensor in written)
        written.update(t.name for k in kernels for t in k.outputs if not tile.is_once(k))
    ahead = {tile.launch_name(launches[n - 1]) for n in early}
    made = (following(f, late[name]) if name in late else f for name, f in functions.items())
    return tuple(leading(f) if f.name in ahead else f for f in made)


def with_parameter_names(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with its tensors named as parameters can be: identifiers that end in no digit, as every local name does, in the
    order of `kernel.tensors` and then the outputs."""
    names: dict[str, str] = {}
    for t in (*kernel.tensors, *kernel.outputs):
        name = re.sub(r"\W", "_", t.name, flags=re.ASCII)
        try:
            kernel_ir.check_name(name)
        except IRError:
            name = f"p_{name}_"
        name = f"{name}_" if name[-1].isdigit() else name
        while name in names.values():
            name += "_"
        names[t.name] = name

    folds, results = renamed(kernel, names)
    tensors, outputs = (tuple(t.replace(name=names[t.name]) for t in of) for of in (kernel.tensors, kernel.outputs))
    return kernel.replace(tensors=tensors, outputs=outputs, folds=folds, results=results)
