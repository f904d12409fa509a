"""What tensor maps can move of a kernel, as the facts that rules/tile/wgmma.egg declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, permutations
from math import prod

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value, load_of
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel import hopper_windows as windows
from emmy.lower.tile_to_kernel.hopper_prologue import Prepared, prepared
from emmy.lower.tile_to_kernel.joined import addends
from emmy.lower.tile_to_kernel.layered import layered
from emmy.lower.tile_to_kernel.live import ALL, live
from emmy.lower.tile_to_kernel.one_row import with_row
from emmy.lower.tile_to_kernel.register_tile import parts_of
from emmy.lower.tile_to_kernel.staging import factors, split

HALVES = (dt.bf16, dt.f16)
A_BOUND = 8     # registers of a thread for what its rows' bounds of keys are: of two rows each, and where loops begin and end
OPERANDS = (*HALVES, dt.tf32, dt.e4m3, dt.e5m2)       # what products of matrices take


def bulk_facts(kernel: tile.Kernel, free: dict[Value, frozenset[int]], layers: frozenset[int] = frozenset()) -> list[str]:
    """Of each sum of products of two sides of one type, loads or what is computed of loads: how tensor maps have them; and what the result
    keeps of each side.  `layers`: the axis that an index has made room for (`layered`); then sums over one axis count, of loads alone."""
    out: dict[str, None] = {}
    outs = frozenset(kernel.outer)
    operands: dict[tuple[frozenset[int], int], set[loop.Load]] = {}        # of a side, of sums over an axis
    computed: dict[frozenset[int], set[Value]] = {}     # of a side, in registers
    alike: dict[frozenset[int], set[bool]] = {}         # whether the operands of a side lie contiguous along the folded axis
    pairs: dict[tuple[frozenset[int], frozenset[int]], None] = {}

    def lies(side: frozenset[int], axis: int, load: loop.Load, view: windows.View) -> None:
        out[f"(set (SideUnit {axes(side)}) {view.unit})"] = None
        out[f"(set (SideLine {axes(side)}) {maps.BYTES // load.element.bytes})"] = None
        operands.setdefault((side, axis), set()).add(load)
        alike.setdefault(side, set()).add(view.by_depth)

    for nest in windows.nests(kernel):
        f, parts, summed = nest[-1], factors(nest[0].lifts[0]), {f.axis for f in nest} | layers
        out |= {f'(SumOf "{g.name}" "{f.name}")': None for f, g in pairwise(nest)}
        if not windows.summing(nest[0]) or layers and len(nest) > 1:
            continue
        for element, rows, columns, p in prologues(kernel, free, f) if len(nest) == 1 and not layers else ():
            out[f'(Prologue "{f.name}" "{element}" {axes(rows)} {axes(columns)})'] = None
            computed.setdefault(rows, set()).add(p.value)
            for side, operand in (*((rows, x) for x in p.raw), (columns, p.right)):
                lies(side, f.axis, *operand)
            pairs |= {(rows, columns): None, (columns, rows): None}
        if len(parts) != 2:
            continue
        sides = free[parts[0]] - free[parts[1]] - summed, free[parts[1]] - free[parts[0]] - summed
        for element in OPERANDS:
            batch = sorted((outs | layers) - sides[0] - sides[1])
            found = windows.summed(kernel, nest, element, parts, (sorted(side) for side in sides), batch)
            if found is None or not sides[0] | sides[1] <= outs:
                continue
            asking = [view for x, (_, view) in zip(parts, found.operands, strict=True) if layers and free[x].isdisjoint(layers)]
            if any(not isinstance(view, maps.View) or len(view.side) > 1 for view in asking):
                continue    # tiles of a layer begin at any row: boxes of them cross no inner end where there is none
            for n, (load, view) in enumerate(found.operands):
                out[f'(BulkOperand "{f.name}" {n} "{element}" {axes(sides[n])})'] = None
                lies(sides[n], found.axis, load, view)
        pairs |= {(sides[0], sides[1]): None, (sides[1], sides[0]): None}
    for side in alike:
        most = max(sum(load.element.bytes for load in loads) for (of, _), loads in operands.items() if of == side)
        out[f"(set (SideBytes {axes(side)}) {most})"] = None
        out[f"(set (SideComputed {axes(side)}) {len(computed.get(side, ()))})"] = None
        out[f"(set (SidePositions {axes(side)}) {prod(kernel.extents[a] for a in side)})"] = None
    for rows, columns in pairs:
        if rows in alike and columns in alike:
            kept = parts_of(free, kernel.results, columns, rows, {f.result() for f in kernel.folds})
            boxed = sum(maps.in_lines(t, kernel.outer, sorted(columns), kernel.extents) for t in kernel.outputs)
            out[f"(set (SideValues {axes(rows)} {axes(columns)}) {len(kept)})"] = None
            out[f"(set (BoxedResults {axes(rows)} {axes(columns)}) {boxed})"] = None
    if alike and not computed and not layers and all(len(lie) == 1 for lie in alike.values()) and addends(kernel):
        out |= {f'(Addend "{f.name}")': None for f in kernel.folds}
    return list(out)


def layer_facts(kernel: tile.Kernel) -> list[str]:
    """Of a kernel whose folds read by one index: how they are products of all rows with every layer."""
    found = layered(kernel)
    if found is None:
        return []
    free = tile.free_axes((*found.kernel.roots, found.asked))
    out = [f"(Layer {found.axis} {axes(free[found.asked])})", f"(Extent {found.axis} {found.layers})"]
    out += bulk_facts(found.kernel, free, frozenset({found.axis}))
    return out + [f'(LayerFactor "{f.name}" {n} {axes(free[x])})' for f in found.kernel.folds if f.kind == "reduce"
                  for n, x in enumerate(factors(f.lifts[0]))]


def prologues(kernel: tile.Kernel, free: Mapping[Value, frozenset[int]],
              f: tile.Fold) -> Iterator[tuple[DType, frozenset[int], frozenset[int], Prepared]]:
    """How to see a sum as products of rows, computed of operands in memory, and of columns, one operand in memory: half type, rows,
    columns, what is computed.  Of two sides that may be the rows it is the one without the last axis."""
    parts, outs = factors(f.lifts[0]), frozenset(kernel.outer)
    seen = set[frozenset[frozenset[int]]]()
    varying = [free[x] - {f.axis} for x in parts if f.axis in free[x]]
    sides = dict.fromkeys((x - y, y - x) for x, y in permutations(varying, 2) if x - y and y - x and x | y <= outs)
    for rows, columns in sorted(sides, key=lambda side: kernel.outer[-1] in side[0]):
        left, right = split(parts, free, rows, columns) or (None, None)
        for element in HALVES if {rows, columns} not in seen else ():
            if left and right and load_of(right, element) and not load_of(left, element) and half_valued(left, element):
                p = prepared(kernel, free, f, left, right, element, (sorted(rows), sorted(columns)), sorted(outs - rows - columns))
                if p:
                    seen.add(frozenset({rows, columns}))
                    yield element, rows, columns, p


def twist_facts(kernel: tile.Kernel) -> list[str]:
    """Of each softmax twist whose score has one sum of products of two loads: which operands tensor maps have, and which keys count."""
    out: list[str] = []
    free = tile.free_axes(kernel.roots)
    tensors, outs = {t.name: t for t in kernel.tensors}, frozenset(kernel.outer)
    for t in kernel.folds:
        inner = [f for f in kernel.folds if f.name in {v.fold for v in loop.walk(t.lifts) if isinstance(v, tile.FoldResult)}]
        if t.kind != "twist" or t.recipe != "softmax" or len(inner) != 1 or inner[0].kind != "reduce":
            continue
        score, values = free[t.lifts[0]], frozenset[int]().union(*(free[v] for v in t.lifts[1:]))
        rows, columns = score - values - {t.axis}, values - score - {t.axis}
        batch, parts = sorted(outs - rows - columns), factors(inner[0].lifts[0])
        wide = [v for v in t.lifts[1:] if free[v] & columns]
        for half in HALVES:
            def view(v: Value, folded: int, side: frozenset[int], half: DType = half, batch: list[int] = batch) -> maps.View | None:
                load = load_of(v, half)
                return maps.operand(tensors[load.tensor], load.point, folded, sorted(side), batch, kernel.extents) if load else None

            queries = [view(x, inner[0].axis, rows) for x in parts if t.axis not in free[x]]
            keys = [view(x, inner[0].axis, frozenset({t.axis})) for x in parts if t.axis in free[x]]
            held = [view(v, t.axis, columns) for v in wide]
            for name, found in (("BulkQueries", queries), ("BulkKeys", keys), ("BulkValues", held)):
                whole = len(parts) == 2 and len(queries) == len(keys) == 1 or name == "BulkValues"
                out += [f'({name} "{t.name}" "{half}")'] if whole and found and all(found) else []
            units = [v.unit for v in keys if v] + [maps.LINE if v.by_depth else 16 for v in held if v]
            out += [f'(set (KeyUnit "{t.name}") {max(units)})'] if units and len(units) == len(keys) + len(held) else []
        out += [f'(set (TwistBatch "{t.name}") {prod(kernel.extents[a] for a in batch)})']
        boxed = sum(maps.in_lines(x, kernel.outer, sorted(columns), kernel.extents) for x in kernel.outputs) if columns else 0
        laid, placed = with_row(kernel, tile.Schedule(tile.Row(), "twist", tuple(sorted(rows)), tuple(sorted(columns)), tuple(batch)))
        sums = {laid.fold(t.name).result(c) for c in range(len(t.lifts))}
        kept = parts_of(tile.free_axes(laid.roots), laid.results, columns, placed.rows, sums)
        out += [f'(set (TwistBoxed "{t.name}") {boxed})', f'(set (TwistKept "{t.name}") {len(kept)})']
        told = live(kernel, t, tuple(sorted(rows)), 64).some if rows <= outs else ALL
        out += [f'(KeysByIndices "{t.name}")'] if told.indices != ALL else []
        out += [f'(KeysByRows "{t.name}")'] if told.starts or told.ends else []
        out += [f'(set (BoundRegisters "{t.name}") {A_BOUND * told.varies(rows)})']
    return out


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


def axes(of: Iterable[int]) -> str:
    """A set of axes as a term."""
    return f"(set-of {' '.join(map(str, items))})" if (items := sorted(of)) else "(set-empty)"
