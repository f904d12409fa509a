"""Tile IR: a kernel as a tree of folds with a schedule row.

A fold runs over one axis: a `reduce` by a monoid, a `scan` up to a point, or a `twist` (a monoid conjugated by a
bijection; recipe "softmax") with a score and several channels.  It sits where its dependencies put it: computed once
for each setting of the axes it depends on.  A result is a value over the output axes that reads folds by name.

A schedule row is the canonical spelling of how the tree is placed on the machine; which rows a kernel has is derived by
`rules/tile`, and a row's `form` says which algorithm of `emmy.lower.tile_to_kernel` realises it and over which axes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from math import prod

from emmy.ir import loop_ir as loop
from emmy.ir.dtype import DType
from emmy.ir.index import Ix
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError, Node
from emmy.ir.operators import TWISTS
from emmy.ir.tensor_ir import Shape


class FoldResult(Value):
    """What fold `fold` yields at the axes it depends on.  Channel 0 of a twist is its pivot, 1… its channels."""

    fold: str
    channel: int
    element: DType
    needs: frozenset[int]

    @cached_property
    def dtype(self) -> DType:
        return self.element


class Fold(Node):
    """A fold over `axis`.

    `kind`: "reduce", "scan" or "twist"; `recipe`: the monoid, or the twist's recipe.  `lifts`: the value of one element,
    (x,) for a reduce or scan, (score, value, …) for a twist.  `upto`: for a scan, the index it stops at, inclusive.
    `needs`: for each result, the axes it depends on.
    """

    name: str
    kind: str
    recipe: str
    axis: int
    lifts: tuple[Value, ...]
    upto: Ix | None
    needs: tuple[frozenset[int], ...]

    @property
    def state(self) -> tuple[DType, ...]:
        """The types of what is accumulated."""
        kept = tuple(x.dtype for x in self.lifts)
        return kept + kept[:1] * (TWISTS[self.recipe].extra if self.kind == "twist" else 0)

    def result(self, channel: int = 0) -> FoldResult:
        return FoldResult(self.name, channel, self.lifts[channel].dtype, self.needs[channel])

    @property
    def span(self) -> frozenset[int]:
        """The axes that any of its results depends on."""
        return frozenset[int]().union(*self.needs)


class Tensor(Node):
    """A tensor in memory, row-major: its name, shape and stored dtype."""

    name: str
    shape: Shape
    element: DType


class Row(Node):
    """A schedule row.  Empty fields are not printed; `print ∘ parse` is the identity.  PLACE=beside: the kernel's blocks lie beside those
    of the kernel before it, in one launch.  PLACE=once: the kernel is launched once for all calls, before them."""

    work: str = ""
    tile: str = ""
    reduce: str = ""
    stage: str = ""
    raster: str = ""
    place: str = ""

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name in ("PLACE", *ROW_FIELDS[:-1]) if (value := getattr(self, name.lower())))

    @cached_property
    def threads(self) -> int:
        """Threads of a block: t256, t16x16, t256/c4 (in clusters), w4 (warps), g2x1/ws (groups of 128, and one that copies for them)."""
        size = 1
        for n in re.findall(r"\d+", self.work.split("/")[0]):
            size *= int(n)
        return 128 * (size + 1) if "/ws" in self.work else size * (32 if self.work.startswith("w") else 1)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster: of t256/c4 there are 4, of g2x1/ws/m2 there are 2."""
        found = re.search(r"/[cm](\d+)$", self.work)
        return int(found[1]) if found else 1

    @property
    def stack(self) -> int:
        """Blocks of a cluster whose tiles lie one above the other, and which bring each other columns: of g2x1/ws/m2 there are 2."""
        return self.cluster if "/m" in self.work else 1


ROW_FIELDS = ("WORK", "TILE", "REDUCE", "STAGE", "RASTER", "PLACE")


def parse_row(text: str) -> Row:
    """The row spelled `text`; IRError names an unknown or repeated field."""
    found: dict[str, str] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        name, eq, value = part.partition("=")
        if name not in ROW_FIELDS or not eq or not value or name in found:
            raise IRError(f"row field {part!r} in {text!r}: the fields are {', '.join(f + '=…' for f in ROW_FIELDS)}, each once")
        found[name] = value
    return Row(*(found.get(f, "") for f in ROW_FIELDS))


class Schedule(Node):
    """A row, and the form that realises it: "map", "window", "transpose", "fold", "cross", "scan", "contraction", "convolution", "join",
    "layered" or "twist", with its axes.

    transpose: tiles of one axis that loads are contiguous along (`rows`) by the output's last (`columns`), at each point of `batch`.
    cross: lanes run along the axis `rows`, and before it `batch`, and over `columns` after folding.
    scan: `rows` are the axes a block holds one point of, `columns` the one that the scan runs along.
    fold: `rows` are the axes a block (or warp) holds one point of, `columns` those it runs over after folding.
    contraction: tiles of `rows` by `columns`, one grid layer a point of `batch`.  convolution: the same, of sums over several axes.
    join: the same, of several sums, each over an axis of its own, that are added up.
    layered: the same, of rows that each ask for a matrix of a batch; no batch besides.
    twist: the same as a contraction, its score tile over (rows, the fold's axis).
    """

    row: Row
    form: str
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()


class Kernel(Node):
    """One kernel: reads `tensors`, writes each of `results` to its tensor of `outputs` at every point of `axes`.  The outputs, one or more,
    are of one shape, whose elements are the points of `axes` in row-major order: most often the extents of `axes`.  Their dtypes are their
    own."""

    name: str
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    axes: tuple[tuple[int, int], ...]
    inner: tuple[tuple[int, int], ...]
    folds: tuple[Fold, ...]
    results: tuple[Value, ...]
    schedule: Schedule | None = None

    @cached_property
    def extents(self) -> dict[int, int]:
        return dict((*self.axes, *self.inner))

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(a for a, _ in self.axes)

    @property
    def shape(self) -> Shape:
        """Of every output, as the kernel writes it."""
        return tuple(n for _, n in self.axes)

    @property
    def roots(self) -> tuple[Value, ...]:
        """All that it computes: what its folds take in, and its results."""
        return *(x for f in self.folds for x in f.lifts), *self.results

    def fold(self, name: str) -> Fold:
        return next(f for f in self.folds if f.name == name)


class Program(Node):
    """Kernels in launch order; `inputs` come from outside, `outputs` are (result name, tensor)."""

    inputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[tuple[str, str], ...]


BESIDE, ONCE = "beside", "once"


def launches(kernels: Sequence[Kernel]) -> tuple[tuple[Kernel, ...], ...]:
    """The kernels of each launch: one, and those that lie beside it.  IRError where one waits for another, or there is none before."""
    found: list[tuple[Kernel, ...]] = []
    for k in kernels:
        if k.schedule is None or k.schedule.row.place != BESIDE:
            found.append((k,))
            continue
        if not found:
            raise IRError(f"{k.name}: PLACE={BESIDE}, and no kernel is before it")
        written = {t.name: other.name for other in found[-1] for t in other.outputs}
        if waits := next((t.name for t in k.tensors if t.name in written), None):
            raise IRError(f"{k.name} reads {waits}, which {written[waits]} writes: they cannot lie beside each other")
        found[-1] += (k,)
    return tuple(found)


def is_once(kernel: Kernel) -> bool:
    """Whether a kernel is launched once for all calls."""
    return kernel.schedule is not None and kernel.schedule.row.place == ONCE


def arguments(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The tensors that a launch of these kernels is given, in the order of its parameters."""
    return tuple(t.name for k in kernels for t in (*k.tensors, *k.outputs))


def launch_name(kernels: Sequence[Kernel]) -> str:
    """The name of a launch's function: that of its kernel, or of several one that their names and rows give."""
    if len(kernels) == 1:
        return kernels[0].name
    text = "\n".join(f"{k.name} {k.schedule.row if k.schedule else ''}" for k in kernels)
    return f"beside_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def free_axes(roots: tuple[Value, ...]) -> dict[Value, frozenset[int]]:
    """Like `loop_ir.free_axes`, with fold results depending on the axes their fold needs."""
    free: dict[Value, frozenset[int]] = {}
    for v in loop.walk(roots):
        axes = v.needs if isinstance(v, FoldResult) else frozenset[int]().union(*(free[x] for x in v.operands))
        if isinstance(v, loop.Load):
            axes = axes.union(*(loop.axes_of(x, free) for x in v.point))
        elif isinstance(v, loop.IndexOf):
            axes |= loop.axes_of(v.at, free)
        free[v] = axes
    return free


def verify(kernel: Kernel) -> None:
    """IRError unless folds come before their users, every load names a tensor of the kernel, and every axis has an extent."""
    extents, tensors = kernel.extents, {t.name: t for t in kernel.tensors}
    seen: dict[str, Fold] = {}

    def check(value: Value, inside: frozenset[int], where: str) -> None:
        for v in loop.walk((value,)):
            if isinstance(v, FoldResult) and (v.fold not in seen or seen[v.fold].result(v.channel) is not v):
                raise IRError(f"{kernel.name}: {where} reads {v.fold}.{v.channel}, which no earlier fold yields")
            if isinstance(v, loop.Load) and (v.tensor not in tensors or len(v.point) != len(tensors[v.tensor].shape)):
                raise IRError(f"{kernel.name}: {where} loads {v.tensor!r} at {len(v.point)} coordinates")
            if v.binds is not None:
                raise IRError(f"{kernel.name}: {where} holds a reduction; in Tile IR it is a fold")
        free = free_axes((value,))[value]
        if not free <= inside:
            raise IRError(f"{kernel.name}: {where} depends on axes {sorted(free - inside)}")

    for fold in kernel.folds:
        if fold.axis not in extents or fold.kind not in ("reduce", "scan", "twist"):
            raise IRError(f"{kernel.name}: fold {fold.name} over a{fold.axis}")
        for lift in fold.lifts:
            check(lift, fold.span | {fold.axis}, f"fold {fold.name}")
        seen[fold.name] = fold
    names = [t.name for t in (*kernel.tensors, *kernel.outputs)]
    if not kernel.outputs or len(kernel.outputs) != len(kernel.results) or len(set(names)) < len(names):
        raise IRError(f"{kernel.name}: {len(kernel.results)} results for {len(kernel.outputs)} outputs, of tensors {', '.join(names)}")
    for output, result in zip(kernel.outputs, kernel.results, strict=True):
        check(result, frozenset(kernel.outer), f"the result {output.name}")
        if prod(output.shape) != prod(kernel.shape):
            raise IRError(f"{kernel.name}: output {output.name} of shape {output.shape} over axes {kernel.axes}")
