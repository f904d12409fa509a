"""Which kernels of a stretch share a launch, and by which rows: those that `rules/tile/group.egg` admits, where it is predicted to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from emmy.egraph.rulebook import hardware_rules, scope
from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.tune.features import Census, features
from extract import cost
from extract.cost import Features
from extract.grouping import grouped
from extract.hardware import Hardware


class Part(NamedTuple):
    """A kernel by its best row of some number of threads."""

    schedule: tile.Schedule
    features: Features


class Launch(NamedTuple):
    """Kernels of one launch, by number, with the schedule of each (none where it is launched alone) and the seconds predicted."""

    kernels: tuple[int, ...]
    schedules: tuple[tile.Schedule, ...]
    seconds: float


class Machine(NamedTuple):
    """What rows are derived for and priced on; `pins` fixes fields."""

    gpu: Hardware
    target: str
    math: str
    extra: tuple[tuple[str, str], ...]
    pins: str = ""


def launches(machine: Machine, kernels: Sequence[tile.Kernel], seconds: Sequence[float], waits: Sequence[frozenset[int]]) -> list[Launch]:
    """The launches of `kernels`, in order: alone they take so many `seconds`, and each comes after those that it `waits` for."""
    if not any(i not in waits[j] for j in range(len(kernels)) for i in range(j)):
        return [Launch((n,), (), s) for n, s in enumerate(seconds)]
    parts = [of_threads(machine, k) for k in kernels]
    admitted = together(machine, parts)
    found: dict[frozenset[int], Launch] = {}

    def price(group: frozenset[int]) -> float:
        found[group] = best(machine.gpu, group, kernels, seconds, parts, admitted)
        return found[group].seconds

    return [found[group] for group in grouped(waits, price)]


def best(gpu: Hardware, group: frozenset[int], kernels: Sequence[tile.Kernel], seconds: Sequence[float],
         parts: Sequence[Mapping[int, Part]], admitted: frozenset[tuple[int, int, int]]) -> Launch:
    """The launch of a group by the number of threads that is predicted to take the least; infinite seconds where none is admitted."""
    order = tuple(sorted(group, key=lambda n: (-seconds[n], n)))      # what takes longest begins first
    if len(order) == 1:
        return Launch(order, (), seconds[order[0]])
    choices = [Launch(order, (), float("inf"))]
    again = read_again([kernels[n] for n in order])
    for t in sorted(set[int]().union(*(parts[n] for n in order))):
        if all((p, q, t) in admitted for p, q in permutations(order, 2)):
            chosen = [parts[n][t] for n in order]
            predicted = cost.seconds(cost.beside([p.features for p in chosen], again), gpu)
            choices.append(Launch(order, tuple(p.schedule for p in chosen), predicted))
    return min(choices, key=lambda launch: launch.seconds)


def of_threads(machine: Machine, kernel: tile.Kernel) -> dict[int, Part]:
    """The best row of a kernel for each number of threads that a row has; none for a kernel of nothing."""
    if 0 in kernel.shape:
        return {}
    bare = kernel.replace(schedule=None)
    try:
        legal = schedules(bare, machine.target, machine.math, machine.pins, machine.extra)
    except EmmyError:       # no row of this kernel has the pinned fields
        legal = schedules(bare, machine.target, machine.math, "", machine.extra)
    census, found = Census(bare), dict[int, tuple[float, Part]]()
    for schedule in legal:
        made = features(census, schedule)
        predicted, threads = cost.seconds(made, machine.gpu), schedule.row.threads
        if threads not in found or predicted < found[threads][0]:
            found[threads] = predicted, Part(schedule, made)
    return {threads: part for threads, (_, part) in found.items()}


def together(machine: Machine, parts: Sequence[Mapping[int, Part]]) -> frozenset[tuple[int, int, int]]:
    """The pairs of kernels, with numbers of threads, that rules let share a launch."""
    facts = [f'(Part {n} {t} {part.features.shared_bytes} {part.features.registers} "{part.schedule.row.stage.split("/")[-1]}")'
             for n, by_threads in enumerate(parts) for t, part in by_threads.items()]
    with scope("tile", [hardware_rules(machine.target), *machine.extra]) as graph:
        graph.run("\n".join([*facts, f"(run-schedule (saturate {graph.phase('strategy')}))"]), "<launches>")
        rows = graph.engine.freeze().functions["Beside"].rows
        p, q, t = ([graph.engine.value_to_i64(r.inputs[k]) for r in rows] for k in range(3))
        return frozenset(zip(p, q, t, strict=True))


def read_again(kernels: Sequence[tile.Kernel]) -> float:
    """Bytes of tensors that several kernels read, but for the one that reads most of each."""
    read: dict[str, list[float]] = {}
    for k in kernels:
        for tensor, touched in Census(k).touched().items():
            read.setdefault(tensor, []).append(touched)
    return sum(sum(each) - max(each) for each in read.values())
