"""Which kernels, which bodies, which rows: partition priced by the rows that the tile rules admit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from emmy.egraph.canonical import digest, spell
from emmy.egraph.problem import Outlined, body, outline, problem
from emmy.egraph.schedule import matches, schedules
from emmy.egraph.terms import Region
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower import loop_to_tile
from emmy.tune.features import Census, features
from extract import cost, hardware, partition


class Scheduled(NamedTuple):
    """A kernel with its cheapest row: seconds predicted, and its identity without the row."""

    kernel: tile.Kernel
    seconds: float
    identity: str


class Choice(NamedTuple):
    """The program chosen, with what was predicted for each of its kernels, by name, and where it lies in the e-graph: `kernels` are the
    extracted bodies from the classes of `outlined`, in the order of the program's kernels."""

    program: tile.Program
    scheduled: dict[str, Scheduled]
    outlined: Outlined
    kernels: tuple[partition.Kernel, ...]


def choose(region: Region, target: str, math: str = "fast", pins: str = "", extra: Iterable[tuple[str, str]] = ()) -> Choice:
    """The program of least predicted time on the GPU of `target`.  `pins` fixes row fields wherever a kernel has such a row; EmmyError
    if none has."""
    gpu = hardware.for_target(target)
    extra = tuple(extra)
    outlined = outline(region)
    seconds: dict[str, float] = {}      # by identity: equal kernels have one price

    def build(kernel: partition.Kernel) -> tile.Kernel:
        value, output, axes = body(outlined, kernel), outlined.tensors[kernel.writes], outlined.kept[kernel.writes].axes
        identity, read = identify(value, output, axes, region.extents, outlined.tensors)
        return loop_to_tile.kernel(identity, value, output, axes, region.extents, read)

    @cache
    def cheapest(made: tile.Kernel) -> Scheduled:
        return best(made, target, math, "", extra, gpu)

    def price(kernel: partition.Kernel) -> float:
        made = build(kernel)
        if made.name not in seconds:
            seconds[made.name] = cheapest(made).seconds
        return seconds[made.name]

    solution = partition.search(problem(outlined, gpu), price)
    chosen = [cheapest(build(k)) for k in solution.kernels]
    if pins:
        chosen = pinned(chosen, pins, target, math, extra, gpu)
    kernels: list[tile.Kernel] = []
    scheduled: dict[str, Scheduled] = {}
    for s in chosen:
        assert s.kernel.schedule is not None
        stem = f"{s.kernel.schedule.form}_{s.identity}"
        name = stem if stem not in scheduled else f"{stem}_{len(scheduled)}"
        named = s.kernel.replace(name=name)
        kernels.append(named)
        scheduled[name] = s._replace(kernel=named)
    program = tile.Program(tuple(i.name for i in region.program.inputs), tuple(kernels), region.program.outputs)
    return Choice(program, scheduled, outlined, solution.kernels)


def best(kernel: tile.Kernel, target: str, math: str, pins: str, extra: tuple[tuple[str, str], ...], gpu: hardware.Hardware) -> Scheduled:
    """The kernel, named by its identity, with the row of least predicted time; ties go to the first spelling."""
    legal = schedules(kernel, target, math, pins, extra)
    census = Census(kernel)
    priced = [(cost.seconds(features(census, s), gpu), k) for k, s in enumerate(legal)]
    seconds, k = min(priced)
    return Scheduled(kernel.replace(schedule=legal[k]), seconds, kernel.name)


def pinned(chosen: list[Scheduled], pins: str, target: str, math: str, extra: tuple[tuple[str, str], ...],
           gpu: hardware.Hardware) -> list[Scheduled]:
    """The kernels with the pinned fields in each that has such a row.  EmmyError with the first kernel's reason if none has."""
    wanted = tile.parse_row(pins)
    out, problems = [], []
    for s in chosen:
        try:
            out.append(best(s.kernel.replace(schedule=None), target, math, pins, extra, gpu))
        except EmmyError as error:
            problems.append(error)
            out.append(s)
    if not any(s.kernel.schedule and matches(s.kernel.schedule.row, wanted) for s in out):
        raise problems[0]
    return out


def identify(value: Value, output: tile.Tensor, axes: tuple[int, ...], extents: dict[int, int],
             tensors: dict[str, tile.Tensor]) -> tuple[str, dict[str, tile.Tensor]]:
    """A kernel's identity, the digest of its body up to names and of its typed inputs and output; and the tensors it reads, in the order
    in which the body meets them, so that kernels of one identity take their arguments in one order."""
    text, speller = spell(value, {a: k for k, a in enumerate(axes)}, extents)
    inputs = [f"{short}:{tensors[name].element}{list(tensors[name].shape)}" for name, short in speller.tensors.items()]
    return digest("\n".join([*inputs, f"{output.element}{list(output.shape)}", text])), {name: tensors[name] for name in speller.tensors}
