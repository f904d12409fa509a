"""What tensor maps can move of a kernel, as the facts that rules/tile/wgmma.egg declares."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value, load_of
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel import hopper_windows as windows
from emmy.lower.tile_to_kernel.joined import addends
from emmy.lower.tile_to_kernel.live import ALL, live
from emmy.lower.tile_to_kernel.one_row import with_row
from emmy.lower.tile_to_kernel.register_tile import parts_of
from emmy.lower.tile_to_kernel.staging import factors

HALVES = (dt.bf16, dt.f16)
A_BOUND = 8     # registers of a thread for what its rows' bounds of keys are: of two rows each, and where loops begin and end
OPERANDS = (*HALVES, dt.tf32, dt.e4m3, dt.e5m2)       # what products of matrices take


def bulk_facts(kernel: tile.Kernel, free: dict[Value, frozenset[int]]) -> list[str]:
    """Of each sum of products of two loads of one type: how tensor maps have its operands; and what the result keeps of each side."""
    out: dict[str, None] = {}
    outs = frozenset(kernel.outer)
    operands: dict[tuple[frozenset[int], int], set[loop.Load]] = {}        # of a side, of sums over an axis
    alike: dict[frozenset[int], set[bool]] = {}         # whether the operands of a side lie contiguous along the folded axis
    pairs: dict[tuple[frozenset[int], frozenset[int]], None] = {}
    for nest in windows.nests(kernel):
        f, parts, summed = nest[-1], factors(nest[0].lifts[0]), {f.axis for f in nest}
        out |= {f'(SumOf "{g.name}" "{f.name}")': None for f, g in pairwise(nest)}
        if not windows.summing(nest[0]) or len(parts) != 2:
            continue
        sides = free[parts[0]] - free[parts[1]] - summed, free[parts[1]] - free[parts[0]] - summed
        for element in OPERANDS:
            found = windows.summed(kernel, nest, element, parts, (sorted(side) for side in sides), sorted(outs - sides[0] - sides[1]))
            if found is None or not sides[0] | sides[1] <= outs:
                continue
            for n, (load, view) in enumerate(found.operands):
                out[f'(BulkOperand "{f.name}" {n} "{element}" {axes(sides[n])})'] = None
                out[f"(set (SideUnit {axes(sides[n])}) {view.unit})"] = None
                operands.setdefault((sides[n], found.axis), set()).add(load)
                alike.setdefault(sides[n], set()).add(view.by_depth)
        pairs |= {(sides[0], sides[1]): None, (sides[1], sides[0]): None}
    for side in alike:
        most = max(len(loads) for (of, _), loads in operands.items() if of == side)
        out[f"(set (SideOperands {axes(side)}) {most})"] = None
        out[f"(set (SidePositions {axes(side)}) {prod(kernel.extents[a] for a in side)})"] = None
    for rows, columns in pairs:
        if rows in alike and columns in alike:
            kept = parts_of(free, kernel.results, columns, rows, {f.result() for f in kernel.folds})
            boxed = sum(maps.in_lines(t, kernel.outer, sorted(columns), kernel.extents) for t in kernel.outputs)
            out[f"(set (SideValues {axes(rows)} {axes(columns)}) {len(kept)})"] = None
            out[f"(set (BoxedResults {axes(rows)} {axes(columns)}) {boxed})"] = None
    if alike and all(len(lie) == 1 for lie in alike.values()) and addends(kernel):
        out |= {f'(Addend "{f.name}")': None for f in kernel.folds}
    return list(out)


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


def axes(of: Iterable[int]) -> str:
    """A set of axes as a term."""
    return f"(set-of {' '.join(map(str, items))})" if (items := sorted(of)) else "(set-empty)"
