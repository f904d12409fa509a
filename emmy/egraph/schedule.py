"""Schedules of a kernel: its fold tree as facts, the rules of `rules/tile` and `rules/hardware`, and the rows they admit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from emmy.egraph.bulk import HALVES, OPERANDS, bulk_facts, twist_facts
from emmy.egraph.rulebook import EGraph, emptied, hardware_rules, math_classes, scope
from emmy.errors import EmmyError
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value, load_of
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.address import repeats, stride, usual_step, vectorises
from emmy.lower.tile_to_kernel.held import at_position, kept, levels
from emmy.lower.tile_to_kernel.scan import scanned
from emmy.lower.tile_to_kernel.shared_keys import packed
from emmy.lower.tile_to_kernel.staged_rows import row_tensors
from emmy.lower.tile_to_kernel.strip import strip_loads

PREMISES = {"FitsThreads": "more threads a block than the target has", "FitsShared": "more shared memory than a block may hold",
            "FitsRegisters": "more registers than the register file holds",
            "Divides": "its width does not divide the axis it runs along or is too wide for its elements, "
                       "its threads do not share out its tile, or its tile is no multiple of an instruction"}
FORMS = {"MapForm": "map", "WindowForm": "window", "TransposeForm": "transpose", "FoldForm": "fold", "CrossForm": "cross",
         "ScanForm": "scan", "ContractionForm": "contraction", "ConvolutionForm": "convolution", "JoinForm": "join", "TwistForm": "twist"}
OCTETS = 16         # integers of a byte in one access
WINDOW = 1024       # points of folded axes beyond which no step of a load is worth stating
ROWS = ("MapRow", "WindowRow", "TransposeRow", "FoldRow", "KeptRow", "StagedRow", "StripRow", "ScanRow", "LookBackRow", "CrossRow",
        "TiledRow", "TiledRingRow", "MmaRow", "MmaTwistRow", "WgmmaRow", "WgmmaTwistRow", "ClusterStripRow", "ResidentRow", "Once")


def schedules(kernel: tile.Kernel, target: str, math: str = "fast", pins: str = "",
              extra: Iterable[tuple[str, str]] = ()) -> tuple[tile.Schedule, ...]:
    """Every legal schedule of `kernel` on `target` ("sm_90a", …), in a fixed order.

    `pins` fixes fields ("WORK=t256,TILE=v4"); EmmyError if no legal row has them, naming the premise that fails.
    """
    wanted = tile.parse_row(pins)
    with saturated(kernel, target, math, wanted, extra) as graph:
        read = _Reader(graph)
        rows = read.rows("Scheduled", lambda r: r.output == read.kernel)
        legal = [s for s in rows if matches(s.row, wanted)]
        if not legal:
            raise EmmyError(f"no legal row of kernel {kernel.name} has {pins!r}", why_not(read, wanted, rows))
    return tuple(legal)


def candidates(kernel: tile.Kernel, target: str, math: str = "fast", pins: str = "",
               extra: Iterable[tuple[str, str]] = ()) -> dict[tile.Schedule, tuple[str, ...]]:
    """Every schedule that a rule proposes for `kernel`, in a fixed order, and which of `PREMISES` it fails: none if it is legal."""
    wanted = tile.parse_row(pins)
    with saturated(kernel, target, math, wanted, extra) as graph:
        read = _Reader(graph)
        legal = set(read.rows("Scheduled", lambda r: r.output == read.kernel))
        held = {premise: set(read.rows(premise)) for premise in PREMISES}
        return {s: () if s in legal else tuple(p for p, those in held.items() if s not in those)
                for s in read.rows("Candidate") if matches(s.row, wanted)}


@contextlib.contextmanager
def saturated(kernel: tile.Kernel, target: str, math: str, pins: tile.Row, extra: Iterable[tuple[str, str]] = ()) -> Iterator[EGraph]:
    """The e-graph of a kernel's forms and rows, until the end of a `with` block."""
    rules, classes, added = (hardware_rules(target), *extra), math_classes(math), options(pins)
    with scope("tile", rules) if added else emptied("tile", rules, classes) as graph:
        graph.run("\n".join([*facts(kernel), *added, graph.saturation(classes)]), "<kernel>")
        yield graph


def options(pins: tile.Row) -> list[str]:
    """Facts that put a pinned row on the menu, should it not be there."""
    out = [f"(ThreadsOption {t})" for t in re.findall(r"^t(\d+)$", pins.work)]
    out += [f"(WarpsOption {w})" for w in re.findall(r"^w(\d+)$", pins.work)]
    out += [f"(WidthOption {v})" for v in re.findall(r"^v(\d+)$", pins.tile)]
    row = f"{pins.work} {pins.tile}"
    out += [f"(TransposeOption {' '.join(numbers)})" for numbers in re.findall(r"^t(\d+) (\d+)x(\d+)$", row)]
    out += [f"(StagedRowsOption {' '.join(numbers)})" for numbers in re.findall(r"^t(\d+)x(\d+) (?:v\d+)?$", row)]
    out += [f"(ClusterStripOption {' '.join((*numbers[2:], *numbers[:2]))})"
            for numbers in re.findall(r"^t(\d+)x(\d+)/c(\d+) (?:v\d+)?$", row)]
    out += [f"(ResidentOption {blocks or 1} {t})" for t, blocks in re.findall(r"^t(\d+)(?:/c(\d+))? (?:v\d+)?$", row)]
    out += [f"({option} {' '.join(numbers)})" for option in ("CrossOption", "StripOption")
            for numbers in re.findall(r"^t(\d+)x(\d+) (?:v\d+)?$", row)]
    warps, stages = re.match(r"^w(\d+)x(\d+)$", pins.work), re.match(r"^d(\d+)/smem-async$", pins.stage)
    cover = re.match(r"^mma_m16n8k(\d+)_\w+/f(\d+)x(\d+)/k(\d+)$", pins.tile)
    out += [f"(StagesOption {stages[1]})"] if stages else []
    warp, pieces = re.match(r"^w(\d+)$", pins.work), re.match(r"^mma_\w+/f(\d+)x(\d+)$", pins.tile)
    out += [f"(MmaTwistOption {warp[1]} {pieces[1]} {pieces[2]})"] if warp and pieces else []
    if warps and cover:
        deep, rows, columns, depth = cover.groups()
        out += [f"(MmaOption {' '.join((*warps.groups(), rows, columns, str(int(depth) * 16 // int(deep))))})"]     # in halves
    grid, cut = re.match(r"^t(\d+)x(\d+)$", pins.work), re.match(r"^\w+/f(\d+)x(\d+)/k(\d+)$", pins.tile)
    if grid and cut:
        out += [f"({option} {' '.join((*grid.groups(), *cut.groups()))})" for option in ("TileOption", "TwistOption")]
        out += [f"(TileRingOption {' '.join((*grid.groups(), *cut.groups(), stages[1]))})"] if stages else []
    group, blocks = re.match(r"^g(\d+)x1/ws$", pins.work), re.match(r"^gm(\d+)(/p\d+)?$", pins.raster)
    cover = re.match(r"^wgmma_m64n(\d+)k(\d+)_\w+/f(\d+)x(\d+)/k(\d+)$", pins.tile)
    ring = re.match(r"^d(\d+)/smem-tma(-once)?$", pins.stage)
    if group and cover:
        wide, deep, rows, columns, depth = cover.groups()
        tiles = " ".join((group[1], rows, wide, columns, str(int(depth) * 16 // int(deep))))     # in halves
        out += [f"(WgmmaOption {tiles})", *([f"(RingOption {tiles} {ring[1]})"] if ring else [])]
    out += [f"(RasterOption {blocks[1]})", f"(BlocksOption {(blocks[2] or '/p0').removeprefix('/p')})"] if blocks else []
    crew, keys = re.match(r"^g(\d+)/ws(-turns)?$", pins.work), re.match(r"^wgmma_m64n(\d+)k16_\w+/f1x1$", pins.tile)
    rings, layers = re.match(r"^d(\d+)q(\d+)/smem-tma$", pins.stage), re.match(r"^gb(\d+)/p(\d+)(/live)?$", pins.raster)
    if crew and keys and rings:
        out += [f"(WgmmaTwistOption {crew[1]} {int(bool(crew[2]))} {keys[1]} {rings[1]} {rings[2]})"]
    out += [f"(LayersOption {layers[1]})", f"(BlocksOption {layers[2]})"] if layers else []
    return out


def matches(row: tile.Row, pins: tile.Row) -> bool:
    """Whether `row` has every field that `pins` gives."""
    fields = (pins.work, row.work), (pins.tile, row.tile), (pins.reduce, row.reduce), (pins.stage, row.stage), (pins.raster, row.raster)
    return all(not want or want == have for want, have in fields)


def why_not(read: _Reader, wanted: tile.Row, legal: Iterable[tile.Schedule]) -> str:
    """What is missing for a pinned row: the premise that fails, or the rows there are."""
    for candidate in read.rows("Candidate"):
        if matches(candidate.row, wanted):
            missing = [f"{premise} ({reason})" for premise, reason in PREMISES.items() if candidate not in read.rows(premise)]
            if missing:
                return f"row {candidate.row} fails {', '.join(missing)}"
    return "no rule proposes it; legal rows are " + " · ".join(sorted({str(s.row) for s in legal})[:12])


# -- a kernel as facts ----------------------------------------------------------------------------------------------
def facts(kernel: tile.Kernel) -> list[str]:
    """The fold tree as the facts that rules/tile/syntax.egg declares."""
    free = tile.free_axes(kernel.roots)
    outs = frozenset(kernel.outer)
    last = kernel.axes[-1] if kernel.axes else (-1, 1)
    top = [f.name for f in kernel.folds if f.span <= outs]
    span = frozenset[int]().union(*(f.span for f in kernel.folds if f.span <= outs))
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
            f"(set (Kept) {kept(kernel, tuple(outs - span)).most})"]
    rows, columns = tuple(sorted(span)), tuple(sorted(outs - span))
    out += [*load_facts(kernel, free), *row_facts(kernel, rows, columns), *kept_row_facts(kernel, columns), *strip_facts(kernel, columns),
            *scan_facts(kernel), *window_facts(kernel, free), *bulk_facts(kernel, free), *twist_facts(packed(kernel))]
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
        parts = factors(f.lifts[0]) if f.kind == "reduce" else f.lifts[:1]
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
    tops = [f for level in levels(kernel) for f in level]
    lengths = {kernel.extents[f.axis] for f in tops} | {kernel.extents[a] for a in columns}
    one = tops and len(lengths) == 1 and len(columns) <= 1 and columns == kernel.outer[len(rows):]
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
    out = [f"(set (FoldedElements) {prod(folded.values())})"]
    if not kernel.outer or prod(folded.values()) > WINDOW:
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


def factors(v: Value) -> tuple[Value, ...]:
    """The factors of a product."""
    if isinstance(v, loop.Apply) and v.op == "mul":
        return *factors(v.args[0]), *factors(v.args[1])
    return (v,)


def half_valued(v: Value, half: DType) -> bool:
    """Whether `v` has values of the half type, or is computed from such values alone, with no cast of the program's to another type."""
    return load_of(v, half) is not None or computed_from(v, half)


def computed_from(v: Value, half: DType) -> bool:
    match v:
        case loop.Load(_, element, _): return element is half
        case loop.Cast(dt.f32, x) if x.dtype in (dt.i8, dt.u8): return True     # whole numbers of 8 bits are values of each half type
        case loop.Cast(element, _) | loop.Round(element, _): return element is half
        case loop.Const(element, _): return element is dt.f32
        case loop.Apply("select", (_, x, y)): return computed_from(x, half) and computed_from(y, half)
        case loop.Apply(_, args): return v.dtype is dt.f32 and all(computed_from(x, half) for x in args)
    return False


def in_runs(kernel: tile.Kernel, v: Value, element: DType, axis: int | None = None) -> bool:
    """Whether `v` is a load of `element` that lies in aligned runs of 16 bytes, which an asynchronous copy moves, along the axis or any."""
    load, n = load_of(v, element.stored), 16 // element.bytes
    along = kernel.extents if axis is None else (axis,)
    return load is not None and any(kernel.extents[a] % n == 0 and vectorises(kernel, load, a, n) for a in along)


def axes(of: Iterable[int]) -> str:
    return f"(set-of {' '.join(map(str, items))})" if (items := sorted(of)) else "(set-empty)"


def names(of: Iterable[str]) -> str:
    return "(set-of " + " ".join(f'"{n}"' for n in items) + ")" if (items := sorted(of)) else "(set-empty)"


# -- rows back ------------------------------------------------------------------------------------------------------
class _Reader:
    """Forms and rows of a saturated graph as schedules."""

    def __init__(self, graph: EGraph):
        self.engine = graph.engine
        self.tables = graph.engine.freeze().functions
        self.kernel = self.tables["Kernel"].rows[0].output if self.tables["Kernel"].rows else None
        self.terms = {r.output: (name, r.inputs) for name in (*FORMS, *ROWS) for r in self.tables[name].rows}
        self.forms: dict[Any, tuple[str, tuple[tuple[int, ...], ...]]] = {}
        self.spelled: dict[Any, tile.Row] = {}

    def rows(self, table: str, where: Any = lambda r: True) -> list[tile.Schedule]:
        """The schedules in a table of (Form, Row), sorted."""
        found = {self.schedule(*r.inputs[:2]) for r in self.tables[table].rows if where(r)}
        return sorted(found, key=lambda s: (s.form, str(s.row), s.rows, s.columns, s.batch))

    def schedule(self, form: Any, row: Any) -> tile.Schedule:
        if form not in self.forms:
            name, args = self.terms[form]
            sets = args[-3 if len(args) == 4 else 0:]
            self.forms[form] = FORMS[name], tuple(tuple(sorted(map(self.engine.value_to_i64, self.engine.value_to_set(x)))) for x in sets)
        if row not in self.spelled:
            self.spelled[row] = self.row(row)
        name, sets = self.forms[form]
        return tile.Schedule(self.spelled[row], name, *sets)

    def row(self, value: Any) -> tile.Row:
        name, args = self.terms[value]
        number = self.engine.value_to_i64
        if name == "Once":
            row: tile.Row = self.row(args[0]).replace(stage=f"{self.row(args[0]).stage}-once")
            return row
        if name == "MapRow":
            return tile.Row(f"t{number(args[0])}", _width(number(args[1])))
        if name == "WindowRow":
            return tile.Row(f"t{number(args[0])}", _width(number(args[1])), "window")
        if name == "FoldRow":
            how, threads, width, runs = self.engine.value_to_string(args[0]), *map(number, args[1:])
            work = f"w{threads // 32}" if how.startswith("warp") else f"t{threads}"
            return tile.Row(work, _width(width), how, "reg" if runs else "")
        if name == "KeptRow":
            return tile.Row(f"t{number(args[0])}", _width(number(args[1])), "coop", "smem")
        if name in ("ScanRow", "LookBackRow"):
            return tile.Row(f"t{number(args[0])}", _width(number(args[1])), "scan", "lookback" if name == "LookBackRow" else "")
        if name == "StagedRow":
            rows, lanes, width = map(number, args)
            return tile.Row(f"t{rows}x{lanes}", _width(width), "coop", "smem")
        if name == "TransposeRow":
            threads, rows, columns = map(number, args)
            return tile.Row(f"t{threads}", f"{rows}x{columns}", "", "smem")
        if name in ("CrossRow", "StripRow"):
            down, across, width = map(number, args)
            return tile.Row(f"t{down}x{across}", _width(width), "cross", "smem" if name == "StripRow" else "")
        if name == "ClusterStripRow":
            blocks, down, across, width = map(number, args)
            return tile.Row(f"t{down}x{across}/c{blocks}", _width(width), "cross", "smem")
        if name == "ResidentRow":
            how, blocks, threads, width = self.engine.value_to_string(args[0]), *map(number, args[1:])
            return tile.Row(f"t{threads}" + f"/c{blocks}" * (blocks > 1), _width(width), how, "smem")
        if name == "MmaTwistRow":
            p, m, n, d, live = map(number, args[1:])
            return tile.Row(f"w{p}", f"{self.engine.value_to_string(args[0])}/f{m}x{n}", "", f"d{d}/smem-async", "live" * live)
        if name == "WgmmaTwistRow":
            groups, turns, keys, d, q, layers, blocks, live = map(number, args[1:])
            atom = f"wgmma_m64n{keys}k16_{self.engine.value_to_string(args[0])}_f32"
            raster = f"gb{layers}/p{blocks}" + "/live" * live
            return tile.Row(f"g{groups}/ws" + "-turns" * turns, f"{atom}/f1x1", "", f"d{d}q{q}/smem-tma", raster)
        if name == "WgmmaRow":
            groups, m, wide, n, k, d, together, blocks = map(number, args[1:])
            element = dt.named(self.engine.value_to_string(args[0]))
            atom = f"wgmma_m64n{wide}k{32 // element.bytes}_{element}_f32"
            raster = f"gm{together}" + f"/p{blocks}" * (blocks > 0)
            return tile.Row(f"g{groups}x1/ws", f"{atom}/f{m}x{n}/k{k}", "", f"d{d}/smem-tma", raster)
        p, q, m, n, k, d = map(number, args[1:])
        if name == "MmaRow":
            return tile.Row(f"w{p}x{q}", f"{self.engine.value_to_string(args[0])}/f{m}x{n}/k{k}", "", f"d{d}/smem-async")
        stage = f"d{d}/smem" + "-async" * (name == "TiledRingRow")
        return tile.Row(f"t{p}x{q}", f"{self.engine.value_to_string(args[0])}/f{m}x{n}/k{k}", "", stage)


def _width(width: int) -> str:
    return f"v{width}" if width > 1 else ""
