"""Which kernels, which bodies, which rows: partition priced by the rows that the tile rules admit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import prod
from typing import NamedTuple

from emmy.egraph.identity import identify
from emmy.egraph.problem import Outlined, bodies, outline, problem
from emmy.egraph.regions import Stretch
from emmy.egraph.schedule import matches, schedules
from emmy.egraph.terms import Region
from emmy.errors import EmmyError
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value
from emmy.lower import loop_to_tile
from emmy.tune import pins as pinning
from emmy.tune.beside import Launch, Launcher
from emmy.tune.census import Census
from emmy.tune.evidence import Evidence
from emmy.tune.features import features
from extract import cost, hardware, partition

ALONE = "alone"     # PLACE=alone, pinned: every kernel has a launch of its own
RUNNERS_UP = 4      # partitions whose launches are weighed


class Scheduled(NamedTuple):
    """A kernel with its cheapest row: seconds predicted, and its identity without the row."""

    kernel: tile.Kernel
    seconds: float
    identity: str


class Choice(NamedTuple):
    """The program chosen, and each distinct kernel of it by name, as it is called first, with what was predicted.

    Kernels of one name are one function: they differ by the tensors they are called on.  `extracted` says of each stretch of the program
    where its kernels lie in the e-graph; `beside` has the seconds predicted of each launch of several kernels, by its name; `early` tells
    which launches, by number, begin while those ahead of them end.  Kernels that run once for all calls come first."""

    program: tile.Program
    scheduled: dict[str, Scheduled]
    extracted: tuple[Extracted, ...]
    beside: dict[str, float]
    early: frozenset[int]

    @property
    def launches(self) -> tuple[tuple[tile.Kernel, ...], ...]:
        """The kernels of each launch."""
        return launched(self.program.kernels)

    def seconds(self, launch: tuple[tile.Kernel, ...]) -> float:
        """What a launch is predicted to take."""
        return self.scheduled[launch[0].name].seconds if len(launch) == 1 else self.beside[tile.launch_name(launch)]

    @property
    def predicted(self) -> float:
        """The seconds of the launches of a call."""
        return sum(self.seconds(launch) for launch in self.launches if not tile.is_once(launch[0]))

    @property
    def once(self) -> float:
        """The seconds of the launches that are done once for all calls."""
        return sum(self.seconds(launch) for launch in self.launches if tile.is_once(launch[0]))

    @property
    def outlined(self) -> Outlined:
        """The classes of a program that is one stretch."""
        return self._one.outlined

    @property
    def kernels(self) -> tuple[partition.Kernel, ...]:
        """The extracted bodies of a program that is one stretch, in the order of the program's kernels."""
        return self._one.kernels

    @property
    def _one(self) -> Extracted:
        if len(self.extracted) != 1 or len(self.extracted[0].kernels) != len(self.program.kernels):
            raise EmmyError(f"the program is cut into stretches, {len(self.extracted)} of them distinct, each an e-graph of its own",
                            "ask for a program without repeating layers, or use Program.regions")
        return self.extracted[0]


def launched(kernels: Sequence[tile.Kernel]) -> tuple[tuple[tile.Kernel, ...], ...]:
    """The kernels of each launch; those of nothing are not launched."""
    return tile.launches([k for k in kernels if prod(k.shape)])


class Extracted(NamedTuple):
    """The kernels of a stretch, in launch order, as bodies from the classes of `outlined` and as calls; and their launches, of kernels next
    to each other."""

    outlined: Outlined
    kernels: tuple[partition.Kernel, ...]
    calls: tuple[Call, ...]
    launches: tuple[Launch, ...]


class Alternative(NamedTuple):
    """A program, and the seconds at which the search weighs it: what its kernels are predicted to take, and rents between them."""

    seconds: float
    choice: Choice


class Call(NamedTuple):
    """A kernel by its identity, and the tensors it is called on, in the order in which its bodies meet them."""

    identity: str
    reads: tuple[tile.Tensor, ...]
    outputs: tuple[tile.Tensor, ...]


def choose(program: loop.Program, stretches: Sequence[Stretch], regions: Sequence[Region], target: str, math: str = "fast", pins: str = "",
           extra: Iterable[tuple[str, str]] = (), evidence: Evidence | None = None) -> Choice:
    """The kernels of least time on the GPU of `target`, measured (`evidence`) or predicted, for each stretch of `program` with its region,
    put together in the order of their uses.  `pins` fixes row fields (`emmy.tune.pins`); EmmyError if no kernel has them, or not the one
    that they are for.  PLACE=alone among them gives every kernel a launch of its own."""
    return alternatives(program, stretches, regions, target, math, 1, pins, extra, evidence)[0].choice


def alternatives(program: loop.Program, stretches: Sequence[Stretch], regions: Sequence[Region], target: str, math: str, count: int,
                 pins: str = "", extra: Iterable[tuple[str, str]] = (), evidence: Evidence | None = None) -> tuple[Alternative, ...]:
    """The `count` best programs of different kernels, cheapest first: `choose` takes the first, and its errors and options hold.

    Each keeps other tensors in a stretch, and a stretch is the same wherever it is used.  Of a stretch with few tensors they are the best
    that there are, else those that the search met on its way (`extract.partition.ranked`).
    """
    if (place := tile.parse_row(pinning.parse(pins).everywhere).place) not in ("", ALONE):
        raise EmmyError(f"no kernel can be pinned to PLACE={place}", f"PLACE={ALONE} gives every kernel a launch of its own")
    rows = Rows(target, math, tuple(extra), evidence)
    best: list[tuple[float, tuple[Extracted, ...]]] = [(0.0, ())]
    wanted = count if count == 1 else 2 * count     # different tensors may be kept by equal kernels
    for stretch, region in zip(stretches, regions, strict=True):
        found = rows.extract(outline(region), wanted, pins)
        sums = ((total + len(stretch.uses) * seconds, (*picked, one)) for total, picked in best for seconds, one in found)
        best = sorted(sums, key=lambda pair: pair[0])[:wanted]
    made: dict[tuple[str, ...], Alternative] = {}
    for seconds, picked in best:
        kernels = tuple(sorted(call.identity for one in picked for call in one.calls))
        if kernels not in made and len(made) < count:
            made[kernels] = Alternative(seconds, rows.together(program, stretches, picked, pins))
    return tuple(made.values())


class Rows:
    """The cheapest row of each kernel met, by identity: equal kernels, of one region or of several, are scheduled and priced once."""

    def __init__(self, target: str, math: str = "fast", extra: tuple[tuple[str, str], ...] = (), evidence: Evidence | None = None):
        self.target, self.math, self.extra, self.evidence = target, math, extra, evidence or Evidence()
        self.gpu = hardware.for_target(target)
        self.found: dict[str, Scheduled] = {}
        self.launcher = Launcher(self.gpu, target, math, extra)

    def extract(self, outlined: Outlined, count: int, pins: str = "") -> list[tuple[float, Extracted]]:
        """The best ways to compute a region, each with its weight, cheapest first.  Which partition is best may turn on what shares a
        launch: of a program of few tensors and several kernels, some more are looked at."""
        found = partition.ranked(problem(outlined, self.gpu, self.math), self.price(outlined), count, RUNNERS_UP)
        return sorted((self.launched(outlined, s, pins) for s in found), key=lambda pair: pair[0])[:count]

    def launched(self, outlined: Outlined, solution: partition.Solution, pins: str = "") -> tuple[float, Extracted]:
        """The kernels of a partition as launches, and its weight: those that do not wait for each other share one where that saves."""
        calls = [self.call(outlined, kernel) for kernel in solution.kernels]
        alone = [self.found[call.identity].seconds for call in calls]
        wanted = pinning.parse(pins)
        kernels = [loop_to_tile.called(self.found[c.identity].kernel, c.identity, c.reads, c.outputs) for c in calls]
        once = self.launcher.once(kernels, outlined.region.weights, outlined.lasting)
        if tile.parse_row(wanted.everywhere).place == ALONE:
            launches = [Launch((n,), (), s) for n, s in enumerate(alone)]
        else:
            writer = {w: n for n, k in enumerate(solution.kernels) for w in k.writes}
            waits = [frozenset(writer[r] for r in k.reads) for k in solution.kernels]
            named = [[*names(self.found[c.identity]), *(t.name for t in c.outputs)] for c in calls]
            apart = frozenset(n for n, of in enumerate(named) if wanted.at(of)[0])      # what is pinned there is a row of its own
            launches = self.launcher.launches(kernels, alone, waits, wanted.everywhere, apart | once)
        launches = [launch._replace(once=not once.isdisjoint(launch.kernels)) for launch in launches]
        order = [n for launch in launches for n in launch.kernels]
        weight = solution.seconds + sum(launch.seconds for launch in launches) - sum(alone)
        return weight, Extracted(outlined, tuple(solution.kernels[n] for n in order), tuple(calls[n] for n in order), tuple(launches))

    def price(self, outlined: Outlined) -> Callable[[partition.Kernel], float]:
        """The predicted seconds of a kernel of a region."""
        return lambda kernel: self.found[self.call(outlined, kernel).identity].seconds

    def together(self, program: loop.Program, stretches: Sequence[Stretch], picked: tuple[Extracted, ...], pins: str) -> Choice:
        """The program of what was picked for each stretch, in the order of its uses."""
        uses = {use.place: (use.names, one) for stretch, one in zip(stretches, picked, strict=True) for use in stretch.uses}
        chosen = {call.identity: self.found[call.identity] for _, (_, one) in sorted(uses.items()) for call in one.calls}
        if pins:
            written = ((call.identity, of.get(t.name, t.name)) for of, one in uses.values() for call in one.calls for t in call.outputs)
            chosen = self.pinned(chosen, pins, written)
        ahead: list[tile.Kernel] = []       # of all calls
        kernels: list[tile.Kernel] = []
        scheduled: dict[str, Scheduled] = {}
        shared: dict[str, float] = {}
        for place, (names, one) in sorted(uses.items()):
            end, calls = f"_{place}" if len(uses) > 1 else "", iter(one.calls)
            for launch in one.launches:
                made = []
                for k, call in enumerate(islice(calls, len(launch.kernels))):
                    s = placed(chosen[call.identity], launch, k)
                    assert s.kernel.schedule is not None
                    tensors = [t.replace(name=names.get(t.name, f"{t.name}{end}")) for t in (*call.reads, *call.outputs)]
                    reads = len(call.reads)
                    made.append(loop_to_tile.called(s.kernel, s.kernel.name, tensors[:reads], tensors[reads:]))
                    scheduled.setdefault(s.kernel.name, s._replace(kernel=made[-1]))
                if len(made) > 1:
                    shared[tile.launch_name(made)] = launch.seconds
                (ahead if launch.once else kernels).extend(made)
        whole = tile.Program(tuple(i.name for i in program.inputs), (*ahead, *kernels), program.outputs)
        alone = tile.parse_row(pinning.parse(pins).everywhere).place == ALONE
        early = () if alone else self.launcher.early(len(launched(kernels)))
        return Choice(whole, scheduled, picked, shared, frozenset(len(launched(ahead)) + n for n in early))

    def call(self, outlined: Outlined, kernel: partition.Kernel) -> Call:
        """A kernel of a region as a call of what `found` then has by its identity."""
        return self.computed(outlined, kernel.writes, bodies(outlined, kernel))

    def computed(self, outlined: Outlined, writes: Sequence[str], values: Sequence[Value]) -> Call:
        """The kernel that writes tensors of a region by bodies over the axes of the first, as a call of what `found` then has."""
        outputs = [outlined.tensors[w] for w in outlined.whole(writes)]
        return self.stored(values, outputs, outlined.kept[writes[0]].axes, outlined.region.extents, outlined.tensors)

    def stored(self, values: Sequence[Value], outputs: Sequence[tile.Tensor], axes: tuple[int, ...], extents: dict[int, int],
               tensors: dict[str, tile.Tensor]) -> Call:
        """The kernel that stores values at every point of `axes` in `outputs`, as a call of what `found` then has."""
        identity, reads, order = identify(values, outputs, axes, extents, tensors)
        ordered = tuple(outputs[k] for k in order)
        if identity not in self.found:
            kernel = loop_to_tile.kernel(identity, tuple(values[k] for k in order), ordered, axes, extents, reads)
            self.found[identity] = self.best(kernel)
        return Call(identity, tuple(reads.values()), ordered)

    def best(self, kernel: tile.Kernel, pins: str = "") -> Scheduled:
        """The kernel, named by its identity, with the row of least time; ties go to the first spelling."""
        legal = schedules(kernel, self.target, self.math, pins, self.extra)
        census = Census(kernel)
        predicted = [(s.row, cost.seconds(features(census, s), self.gpu)) for s in legal]
        seconds, k = min((seconds, k) for k, seconds in enumerate(self.evidence.prices(kernel.name, predicted)))
        return Scheduled(kernel.replace(schedule=legal[k]), seconds, kernel.name)

    def pinned(self, chosen: dict[str, Scheduled], pins: str, written: Iterable[tuple[str, str]]) -> dict[str, Scheduled]:
        """The kernels with the pinned fields in each that has such a row, and in each whose site they are pinned at.  EmmyError with the
        reason if such a kernel has none, or no kernel has what is pinned everywhere, or there is no such site.  `written`: the tensors that
        kernels write, by identity."""
        wanted = pinning.parse(pins)
        named = {identity: names(s) for identity, s in chosen.items()}
        for identity, tensor in written:
            named[identity].append(tensor)
        for site in wanted.sites:
            if not any(pinning.stands_for(site, name) for those in named.values() for name in those):
                raise EmmyError(f"knobs: no kernel is at {site!r}", f"the kernels are {', '.join(those[2] for those in named.values())}; "
                                "name one by the beginning of that, or by the tensor that it writes")
        out, problems, everywhere = {}, [], tile.parse_row(wanted.everywhere)
        for identity, s in chosen.items():
            must, may = wanted.at(named[identity])
            out[identity] = s
            for fields in dict.fromkeys((may, must)):
                try:
                    if fields:
                        out[identity] = self.best(s.kernel.replace(schedule=None), fields)
                    break
                except EmmyError as error:
                    if fields == must:
                        raise
                    problems.append(error)
        if problems and not any(s.kernel.schedule and matches(s.kernel.schedule.row, everywhere) for s in out.values()):
            raise problems[0]
        return out


def names(s: Scheduled) -> list[str]:
    """What a kernel can be named by: its identity, its form, and its name, which is both."""
    assert s.kernel.schedule is not None
    return [s.identity, s.kernel.schedule.form, f"{s.kernel.schedule.form}_{s.identity}"]


def placed(best: Scheduled, launch: Launch, number: int) -> Scheduled:
    """A kernel of a launch, named by its form and identity, and by its threads where it takes another row than alone."""
    alone = best.kernel.schedule
    schedule = launch.schedules[number] if launch.schedules else alone
    assert schedule is not None
    name = f"{schedule.form}_{best.identity}" + (f"_t{schedule.row.threads}" if schedule != alone else "")
    row = schedule.row.replace(place=tile.ONCE if launch.once else tile.BESIDE) if number or launch.once else schedule.row
    return best._replace(kernel=best.kernel.replace(name=name, schedule=schedule.replace(row=row)))
