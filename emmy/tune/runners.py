"""Runners-up: for each launch of a program the next best rows of its kernel, as the model ranks them, as functions beside the program's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from emmy.ir import tile_ir as tile
from emmy.ir.kernel_ir import Kernel
from emmy.lower import tile_to_kernel
from emmy.runtime.assemble import launch
from emmy.runtime.plan import Launch
from emmy.tune.candidate import function_name
from emmy.tune.tasks import Option, options
from extract import hardware

if TYPE_CHECKING:
    from emmy.pipeline import Program


def kind(schedule: tile.Schedule) -> str:
    """What rows of one kind have in common: form and row but for the numbers."""
    return f"{schedule.form} {re.sub(r'\d+', '#', str(schedule.row))}"


def runners_up(program: Program, most: int, distinct: bool = False) -> tuple[tuple[Kernel, ...], tuple[tuple[Launch, ...], ...]]:
    """The functions of up to `most` rows a kernel, or of the best of each kind (`distinct`), and, for each launch of the program's plan,
    what may stand in its place, some with buffers of their functions' own; nothing for a launch of several kernels, or of one that runs
    once for all calls."""
    gpu, choice = hardware.for_target(program.target), program.choice
    functions: dict[str, Kernel] = {}
    others: dict[str, list[Option]] = {}
    found: list[tuple[Launch, ...]] = []
    for kernels in choice.launches:
        made: list[Launch] = []
        if len(kernels) == 1 and not tile.is_once(kernels[0]):
            kernel, identity = kernels[0], choice.scheduled[kernels[0].name].identity
            if kernel.name not in others:
                legal = options(kernel, program.target, program.math, gpu, "", program.rules["tile"])
                rest = [o for o in legal if kernel.schedule is None or o.schedule.row != kernel.schedule.row.replace(place="")]
                if distinct:
                    rest = list({kind(o.schedule): o for o in reversed(rest)}.values())[::-1]
                others[kernel.name] = rest[:most]
            for option in others[kernel.name]:
                name = function_name(identity, option.schedule)
                tiled = kernel.replace(name=name, schedule=option.schedule)
                functions.setdefault(name, tile_to_kernel.lower(tiled))
                made.append(launch(functions[name], (tiled,), identity, option.seconds))
        found.append(tuple(made))
    return tuple(functions.values()), tuple(found)
