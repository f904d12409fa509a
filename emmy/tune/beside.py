"""Which kernels of a stretch share a launch, and by which rows: those that `rules/tile/group.egg` admits, where it is predicted to save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import NamedTuple

from emmy.egraph.rulebook import hardware_rules, scope
from emmy.egraph.schedule import schedules
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.tune.census import Census
from emmy.tune.features import features
from extract import cost
from extract.cost import Features
from extract.grouping import grouped
from extract.hardware import Hardware


class Part(NamedTuple):
    """A kernel by its best row of some number of threads."""

    schedule: tile.Schedule
    features: Features


class Launch(NamedTuple):
    """Kernels of one launch, by number, with the schedule of each (none where it is launched alone) and the seconds predicted; whether it
    is done once for all calls."""

    kernels: tuple[int, ...]
    schedules: tuple[tile.Schedule, ...]
    seconds: float
    once: bool = False


class Launcher:
    """Rows of kernels, derived for a target and priced on a GPU; each kernel's once, by its name and the pinned fields."""

    def __init__(self, gpu: Hardware, target: str, math: str, extra: tuple[tuple[str, str], ...]):
        self.gpu, self.target, self.math, self.extra = gpu, target, math, extra
        self.known: dict[tuple[str, str], dict[int, Part]] = {}

    def launches(self, kernels: Sequence[tile.Kernel], seconds: Sequence[float], waits: Sequence[frozenset[int]],
                 pins: str = "", apart: frozenset[int] = frozenset()) -> list[Launch]:
        """The launches of `kernels`, in order: alone they take so many `seconds`, each comes after those that it `waits` for, and those
        `apart` share none."""
        if not any(i not in waits[j] for j in range(len(kernels)) for i in range(j)):
            return [Launch((n,), (), s) for n, s in enumerate(seconds)]
        parts = [{} if n in apart else self.of_threads(k, pins) for n, k in enumerate(kernels)]
        admitted = self.admitted(parts)
        found: dict[frozenset[int], Launch] = {}

        def price(group: frozenset[int]) -> float:
            order = sorted(group, key=lambda n: (-seconds[n], n))       # what takes longest begins first
            found[group] = self.best(order, kernels, parts, admitted) if len(order) > 1 else Launch((order[0],), (), seconds[order[0]])
            return found[group].seconds

        return [found[group] for group in grouped(waits, price)]

    def best(self, order: Sequence[int], kernels: Sequence[tile.Kernel], parts: Sequence[Mapping[int, Part]],
             admitted: frozenset[tuple[int, int, int]]) -> Launch:
        """The launch of several by the number of threads that is predicted to take the least; infinite seconds where none is admitted."""
        choices = [Launch(tuple(order), (), float("inf"))]
        again = read_again([kernels[n] for n in order])
        for t in sorted(set[int]().union(*(parts[n] for n in order))):
            if all((p, q, t) in admitted for p, q in permutations(order, 2)):
                chosen = [parts[n][t] for n in order]
                predicted = cost.seconds_beside([p.features for p in chosen], again, self.gpu)
                choices.append(Launch(tuple(order), tuple(p.schedule for p in chosen), predicted))
        return min(choices, key=lambda launch: launch.seconds)

    def of_threads(self, kernel: tile.Kernel, pins: str) -> dict[int, Part]:
        """The best row of a kernel for each number of threads that a row has; none for a kernel of nothing."""
        if (kernel.name, pins) not in self.known:
            self.known[kernel.name, pins] = self._of_threads(kernel.replace(schedule=None), pins) if prod(kernel.shape) else {}
        return self.known[kernel.name, pins]

    def _of_threads(self, kernel: tile.Kernel, pins: str) -> dict[int, Part]:
        try:
            legal = schedules(kernel, self.target, self.math, pins, self.extra)
        except EmmyError:       # no row of this kernel has the pinned fields
            legal = schedules(kernel, self.target, self.math, "", self.extra)
        census, found = Census(kernel), dict[int, tuple[float, Part]]()
        for schedule in legal:
            made = features(census, schedule)
            predicted, threads = cost.seconds(made, self.gpu), schedule.row.threads
            if threads not in found or predicted < found[threads][0]:
                found[threads] = predicted, Part(schedule, made)
        return {threads: part for threads, (_, part) in found.items()}

    def early(self, count: int) -> frozenset[int]:
        """Which of so many launches in a row, by number, begin while those ahead of them end."""
        facts = [f"(Follows {n})" for n in range(1, count)]
        if not facts:
            return frozenset()
        with scope("tile", [hardware_rules(self.target), *self.extra]) as graph:
            graph.run("\n".join([*facts, f"(run-schedule (saturate {graph.phase('strategy')}))"]), "<launches>")
            return frozenset(graph.engine.value_to_i64(r.inputs[0]) for r in graph.engine.freeze().functions["Early"].rows)

    def once(self, kernels: Sequence[tile.Kernel], weights: frozenset[str], lasting: frozenset[str]) -> frozenset[int]:
        """Which kernels, by number, rules let run once for all calls: of `weights`, and of what such write; `lasting`: what may stay."""
        if not weights:
            return frozenset()
        facts = [f"(set (Unchanging) {_names(weights)})", f"(set (Holdable) {_names(lasting)})"]
        facts += [f"(Uses {n} {_names(t.name for t in k.tensors)} {_names(t.name for t in k.outputs)})" for n, k in enumerate(kernels)]
        with scope("tile", [hardware_rules(self.target), *self.extra]) as graph:
            graph.run("\n".join([*facts, f"(run-schedule (saturate {graph.phase('strategy')}))"]), "<launches>")
            return frozenset(graph.engine.value_to_i64(r.inputs[0]) for r in graph.engine.freeze().functions["Hoisted"].rows)

    def admitted(self, parts: Sequence[Mapping[int, Part]]) -> frozenset[tuple[int, int, int]]:
        """The pairs of kernels, with numbers of threads, that rules let share a launch."""
        facts = [f'(Part {n} {t} {part.features.shared_bytes} {part.features.registers} "{staged_by(part.schedule.row)}")'
                 for n, by_threads in enumerate(parts) for t, part in by_threads.items()]
        with scope("tile", [hardware_rules(self.target), *self.extra]) as graph:
            graph.run("\n".join([*facts, f"(run-schedule (saturate {graph.phase('strategy')}))"]), "<launches>")
            rows = graph.engine.freeze().functions["Beside"].rows
            p, q, t = ([graph.engine.value_to_i64(r.inputs[k]) for r in rows] for k in range(3))
            return frozenset(zip(p, q, t, strict=True))


def _names(tensors: Iterable[str]) -> str:
    """A set of tensors as egglog text."""
    return f"(set-of {' '.join(f'"{name}"' for name in sorted(tensors))})"


def staged_by(row: tile.Row) -> str:
    """What a row brings its operands to shared memory by, or "cluster": what matters to a launch of several kernels."""
    return "cluster" if row.cluster > 1 else row.stage.split("/")[-1].removesuffix("-once")


def read_again(kernels: Sequence[tile.Kernel]) -> float:
    """Bytes of tensors that several kernels read, but for the one that reads most of each."""
    read: dict[str, list[float]] = {}
    for k in kernels:
        for tensor, touched in Census(k).touched().items():
            read.setdefault(tensor, []).append(touched)
    return sum(sum(each) - max(each) for each in read.values())
