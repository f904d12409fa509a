"""Which kernels, which bodies, which rows: partition priced by the rows that the tile rules admit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from emmy.tune.features import Census, features
from extract import cost, hardware, partition


class Scheduled(NamedTuple):
    """A kernel with its cheapest row: seconds predicted, and its identity without the row."""

    kernel: tile.Kernel
    seconds: float
    identity: str


class Choice(NamedTuple):
    """The program chosen, and each distinct kernel of it by name, as it is called first, with what was predicted.

    Kernels of one name are one function: they differ by the tensors they are called on.  `extracted` says of each stretch of the program
    where its kernels lie in the e-graph."""

    program: tile.Program
    scheduled: dict[str, Scheduled]
    extracted: tuple[Extracted, ...]

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


class Extracted(NamedTuple):
    """The kernels of a stretch, in launch order, as bodies from the classes of `outlined` and as calls."""

    outlined: Outlined
    kernels: tuple[partition.Kernel, ...]
    calls: tuple[Call, ...]


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
           extra: Iterable[tuple[str, str]] = ()) -> Choice:
    """The kernels of least predicted time on the GPU of `target`, for each stretch of `program` with its region, put together in the
    order of their uses.  `pins` fixes row fields wherever a kernel has such a row; EmmyError if none has."""
    return alternatives(program, stretches, regions, target, math, 1, pins, extra)[0].choice


def alternatives(program: loop.Program, stretches: Sequence[Stretch], regions: Sequence[Region], target: str, math: str, count: int,
                 pins: str = "", extra: Iterable[tuple[str, str]] = ()) -> tuple[Alternative, ...]:
    """The `count` best programs of different kernels, cheapest first: `choose` takes the first, and its errors and options hold.

    Each keeps other tensors in a stretch, and a stretch is the same wherever it is used.  Of a stretch with few tensors they are the best
    that there are, else those that the search met on its way (`extract.partition.ranked`).
    """
    rows = Rows(target, math, tuple(extra))
    best: list[tuple[float, tuple[Extracted, ...]]] = [(0.0, ())]
    wanted = count if count == 1 else 2 * count     # different tensors may be kept by equal kernels
    for stretch, region in zip(stretches, regions, strict=True):
        found = rows.extract(region, wanted)
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

    def __init__(self, target: str, math: str = "fast", extra: tuple[tuple[str, str], ...] = ()):
        self.target, self.math, self.extra = target, math, extra
        self.gpu = hardware.for_target(target)
        self.found: dict[str, Scheduled] = {}

    def extract(self, region: Region, count: int) -> list[tuple[float, Extracted]]:
        """The best ways to compute a region, each with its weight, cheapest first."""
        outlined = outline(region)
        found = partition.ranked(problem(outlined, self.gpu), self.price(outlined), count)
        return [(s.seconds, Extracted(outlined, s.kernels, tuple(self.call(outlined, kernel) for kernel in s.kernels))) for s in found]

    def price(self, outlined: Outlined) -> Callable[[partition.Kernel], float]:
        """The predicted seconds of a kernel of a region."""
        return lambda kernel: self.found[self.call(outlined, kernel).identity].seconds

    def together(self, program: loop.Program, stretches: Sequence[Stretch], picked: tuple[Extracted, ...], pins: str) -> Choice:
        """The program of what was picked for each stretch, in the order of its uses."""
        uses = {use.place: (use.names, one.calls) for stretch, one in zip(stretches, picked, strict=True) for use in stretch.uses}
        ordered = [(call, names, f"_{place}" if len(uses) > 1 else "") for place, (names, calls) in sorted(uses.items()) for call in calls]
        chosen = {call.identity: self.found[call.identity] for call, _, _ in ordered}
        if pins:
            chosen = self.pinned(chosen, pins)
        kernels: list[tile.Kernel] = []
        scheduled: dict[str, Scheduled] = {}
        for call, names, place in ordered:
            s = chosen[call.identity]
            assert s.kernel.schedule is not None
            reads, outputs = ([t.replace(name=names.get(t.name, f"{t.name}{place}")) for t in of] for of in (call.reads, call.outputs))
            kernels.append(loop_to_tile.called(s.kernel, f"{s.kernel.schedule.form}_{s.identity}", reads, outputs))
            scheduled.setdefault(kernels[-1].name, s._replace(kernel=kernels[-1]))
        return Choice(tile.Program(tuple(i.name for i in program.inputs), tuple(kernels), program.outputs), scheduled, picked)

    def call(self, outlined: Outlined, kernel: partition.Kernel) -> Call:
        """A kernel of a region as a call of what `found` then has by its identity."""
        return self.computed(outlined, kernel.writes, bodies(outlined, kernel))

    def computed(self, outlined: Outlined, writes: Sequence[str], values: Sequence[Value]) -> Call:
        """The kernel that writes tensors of a region by bodies over the axes of the first, as a call of what `found` then has."""
        outputs = [outlined.tensors[w] for w in writes]
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
        """The kernel, named by its identity, with the row of least predicted time; ties go to the first spelling."""
        legal = schedules(kernel, self.target, self.math, pins, self.extra)
        census = Census(kernel)
        priced = [(cost.seconds(features(census, s), self.gpu), k) for k, s in enumerate(legal)]
        seconds, k = min(priced)
        return Scheduled(kernel.replace(schedule=legal[k]), seconds, kernel.name)

    def pinned(self, chosen: dict[str, Scheduled], pins: str) -> dict[str, Scheduled]:
        """The kernels with the pinned fields in each that has such a row.  EmmyError with the first kernel's reason if none has."""
        wanted = tile.parse_row(pins)
        out, problems = {}, []
        for identity, s in chosen.items():
            try:
                out[identity] = self.best(s.kernel.replace(schedule=None), pins)
            except EmmyError as error:
                problems.append(error)
                out[identity] = s
        if not any(s.kernel.schedule and matches(s.kernel.schedule.row, wanted) for s in out.values()):
            raise problems[0]
        return out
