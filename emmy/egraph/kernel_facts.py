"""A kernel's fold tree as the facts that rules/tile/syntax.egg declares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from math import prod

from emmy.egraph.bulk import HALVES, OPERANDS, axes, bulk_facts, half_valued, layer_facts, twist_facts
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value, load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import repeats, stride, usual_step, vectorises
from emmy.lower.tile_to_kernel.held import at_position, kept, stages
from emmy.lower.tile_to_kernel.scan import scanned
from emmy.lower.tile_to_kernel.shared_keys import packed
from emmy.lower.tile_to_kernel.staged_rows import row_tensors
from emmy.lower.tile_to_kernel.staging import factors
from emmy.lower.tile_to_kernel.strip import strip_loads

OCTETS = 16         # integers of a byte in one access
WINDOW = 1024       # points of folded axes beyond which no step of a load is worth stating


def facts(kernel: tile.Kernel) -> list[str]:
    """Everything that the rules read of a kernel."""
    free = tile.free_axes(kernel.roots)
    outs = frozenset(kernel.outer)
    last = kernel.axes[-1] if kernel.axes else (-1, 1)
    top = [f.name for f in kernel.folds if f.span <= outs]
    span = frozenset[int]().union(*(f.span for f in kernel.folds if f.span <= outs))
    single = frozenset(a for a, n in kernel.axes if n == 1) if top else frozenset[int]()
    rows, columns = tuple(sorted(span | single)), tuple(sorted(outs - span - single))
    out = [f"(OutputAxis {k} {a} {n})" for k, (a, n) in enumerate(kernel.axes)]
    out += [f"(Extent {a} {n})" for a, n in kernel.extents.items()]
    out += [f"(set (OutputAxes) {axes(outs)})", f"(set (LastAxis) {last[0]})", f"(LastExtent {last[1]})",
            f"(Elements {prod(n for _, n in kernel.axes)})", f"(RowCount {prod(kernel.extents[a] for a in span)})",
            f"(OutputBytes {max(o.element.bytes for o in kernel.outputs)})",
            f"(set (OutputCount) {len(kernel.outputs)})",
            f"(set (Folds) {names(f.name for f in kernel.folds)})", f"(set (TopFolds) {names(top)})",
            f"(set (FoldCount) {len(kernel.folds)})",
            f"(set (StateBytes) {sum(x.bytes for f in kernel.folds if f.name in top for x in f.state)})",
            f"(set (Scans) {sum(f.kind == 'scan' for f in kernel.folds)})",
            f"(set (Reductions) {sum(f.kind == 'reduce' for f in kernel.folds)})",
            f"(set (Kept) {kept(kernel, columns).most})"]
    out += [*load_facts(kernel, free), *row_facts(kernel, rows, columns), *kept_row_facts(kernel, columns), *strip_facts(kernel, columns),
            *scan_facts(kernel), *window_facts(kernel, free), *bulk_facts(kernel, free), *layer_facts(kernel), *twist_facts(packed(kernel))]
    out += [f'(set (Span "{f.name}") {axes(f.span)})' for f in kernel.folds]
    kernel = packed(kernel)     # what twists see; the axes of every other kernel are its own
    free = tile.free_axes(kernel.roots)
    if frozenset(kernel.outer) != outs:
        out += [f"(Points {axes(kernel.outer)})", *(f"(Extent {a} {n})" for a, n in kernel.axes if a not in outs)]
    for f in kernel.folds:
        reads = sorted({v.fold for v in loop.walk(f.lifts) if isinstance(v, tile.FoldResult)})
        out += [f'(FoldsIn "{f.name}" "{f.lifts[0].dtype}")'] if all(x.dtype is f.lifts[0].dtype for x in f.lifts) else []
        out += [f'(Fold "{f.name}" "{f.kind}" "{f.recipe}" {f.axis})']
        out += [f'(Reads "{f.name}" "{g}")' for g in reads] or [f'(Independent "{f.name}")']
        parts = factors(f.lifts[0]) if f.kind == "reduce" else [f.lifts[0]]
        out += [f'(set (FactorCount "{f.name}") {len(parts)})', *(f'(Factor "{f.name}" {k} {axes(free[x])})' for k, x in enumerate(parts)),
                *(f'(HalfFactor "{f.name}" {k} "{half}")' for k, x in enumerate(parts) for half in HALVES if half_valued(x, half)),
                *(f'(HalfFactor "{f.name}" {k} "{x}")' for k, v in enumerate(parts) for x in OPERANDS
                  if x.bytes != 2 and in_runs(kernel, v, x, f.axis))]
        out += [f'(FloatFactor "{f.name}" {k})' for k, x in enumerate(parts) if load_of(x, dt.f32) is not None]
        copied = len(parts) == 2 and all(any(in_runs(kernel, v, x) for x in OPERANDS) for v in parts)
        out += [f'(set (ComputedOperands "{f.name}") {int(not copied)})']
        if f.kind == "twist":
            values = frozenset[int]().union(*(free[x] for x in f.lifts[1:]))
            wide = [x for x in f.lifts[1:] if free[x] - free[f.lifts[0]]]
            out += [f'(HalfChannels "{f.name}" "{half}")' for half in HALVES if all(half_valued(x, half) for x in wide)]
            depth = max((kernel.extents[g.axis] for g in kernel.folds if g.name in reads), default=0)
            out += [f'(set (ScoreDepth "{f.name}") {depth})', f'(set (ScoreAxes "{f.name}") {axes(free[f.lifts[0]])})',
                    f'(set (ChannelAxes "{f.name}") {axes(values)})', f'(set (ChannelCount "{f.name}") {len(wide)})',
                    f'(set (RowElements "{f.name}") {prod(kernel.extents[a] for a in free[f.lifts[0]] - values - {f.axis})})',
                    f'(set (ColumnElements "{f.name}") {prod(kernel.extents[a] for a in values - free[f.lifts[0]])})']
    return out


def load_facts(kernel: tile.Kernel, free: dict[Value, frozenset[int]]) -> list[str]:
    """Along which axes the loads lie contiguous, which fold lifts them, and what staging them would take."""
    out: list[str] = []
    last = kernel.outer[-1] if kernel.outer else -1
    number = {v: f"l{k}" for k, v in enumerate(v for v in free if isinstance(v, loop.Load))}
    staged: dict[int, list[int]] = {}
    for v, name in number.items():
        out.append(f'(set (LoadAxes "{name}") {axes(free[v])})')
        for a in sorted(free[v]):
            if kernel.extents[a] > 1 and stride(kernel, v, a) == 1:
                out.append(f'(Contiguous "{name}" {a})')
                staged.setdefault(a, []).extend([v.element.bytes] * (last in free[v]))
        if v.element in (dt.i8, dt.u8) and any(repeats(kernel, v, a, OCTETS) for a in free[v]):
            out.append(f'(Octets "{name}")')
    out += [f"(StagedBytes {a} {sum(sizes)} {sum(max(n, 4) for n in sizes)})" for a, sizes in staged.items()]
    return out + [f'(Lifted "{f.name}" "{number[v]}")' for f in kernel.folds for v in loop.walk(f.lifts) if isinstance(v, loop.Load)]


def row_facts(kernel: tile.Kernel, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[str]:
    """What a block would bring to shared memory of tensors that lie row by row, where all folds and the writing walk rows of one length."""
    walked = stages(kernel, columns)
    lengths = {kernel.extents[a] for stage in walked for _, a in stage}
    one = len(walked) > 1 and len(lengths) == 1 and len(columns) <= 1 and columns == kernel.outer[len(rows):]
    if not one or any(f.kind == "scan" for f in kernel.folds):
        return []
    held = list({v.tensor: v.element.bytes for v, _ in row_tensors(kernel, rows, columns)}.values())
    free, added = list(held), 0
    for t in kernel.outputs if columns else ():     # a result takes the place of a tensor as wide
        if t.element.bytes in free:
            free.remove(t.element.bytes)
        else:
            added += t.element.bytes
    narrowest = min((*held, *(t.element.bytes for t in kernel.outputs if columns)), default=0)
    count = prod(kernel.extents[a] for a in rows)
    return [f"(RowsInMemory {count} {max(lengths)} {sum(held) + added} {16 // narrowest})"] if held else []


def kept_row_facts(kernel: tile.Kernel, columns: tuple[int, ...]) -> list[str]:
    """What blocks would keep in shared memory of a row that several stages read."""
    found = strip_loads(kernel, None, columns) if columns in ((), kernel.outer[-1:]) and all(f.kind != "scan" for f in kernel.folds) else []
    if not found:
        return []
    positions, size = {at_position(v, a) for v, a in found}, found[0][0].element.bytes
    return [f"(RowInMemory {kernel.extents[found[0][1]]} {len(positions) * size} {16 // size})"]


def scan_facts(kernel: tile.Kernel) -> list[str]:
    """The output axis whose pieces a scan runs along, where every other fold depends on the piece alone."""
    out = []
    for c in kernel.outer if any(f.kind == "scan" for f in kernel.folds) else ():
        with contextlib.suppress(IRError):
            out.append(f"(ScansTo {c} {scanned(kernel, (c,))[1]})")
    return out


def window_facts(kernel: tile.Kernel, free: dict[Value, frozenset[int]]) -> list[str]:
    """How many points the folds have, and where they are few how far apart the loads of a fold lie along the axes that a window has."""
    folded = {a: kernel.extents[a] for a in dict.fromkeys(f.axis for f in kernel.folds)}
    points = min(prod(folded.values()), 1 << 40)    # of loops inside loops, more than integers of rules count
    out = [f"(set (FoldedElements) {points})"]
    if not kernel.outer or points > WINDOW:
        return out
    along = kernel.outer[-1], *folded
    return out + [f'(Steps "l{k}" {a} {usual_step(kernel, v, a)})' for k, v in enumerate(v for v in free if isinstance(v, loop.Load))
                  for a in along if a in free[v] and not v.operands]


def strip_facts(kernel: tile.Kernel, columns: tuple[int, ...]) -> list[str]:
    """What a strip of lanes would keep in shared memory, for each axis that lanes may run along."""
    out = []
    for c in kernel.outer:
        found = strip_loads(kernel, c, columns) if c not in columns else []
        if found:
            positions, size = {at_position(v, a) for v, a in found}, found[0][0].element.bytes
            out.append(f"(StripInMemory {c} {kernel.extents[columns[0]]} {len(positions) * size} {16 // size})")
    return out


def in_runs(kernel: tile.Kernel, v: Value, element: DType, axis: int | None = None) -> bool:
    """Whether `v` is a load of `element` that lies in aligned runs of 16 bytes, which an asynchronous copy moves, along the axis or any."""
    load, n = load_of(v, element.stored), 16 // element.bytes
    along = kernel.extents if axis is None else (axis,)
    return load is not None and any(kernel.extents[a] % n == 0 and vectorises(kernel, load, a, n) for a in along)


def names(of: Iterable[str]) -> str:
    return "(set-of " + " ".join(f'"{n}"' for n in items) + ")" if (items := sorted(of)) else "(set-empty)"
