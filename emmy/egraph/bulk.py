"""What tensor maps can move of a kernel, as the facts that rules/tile/wgmma.egg declares."""

from __future__ import annotations

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value, load_of
from emmy.lower.tile_to_kernel import hopper_maps as maps
from emmy.lower.tile_to_kernel.register_tile import parts_of
from emmy.lower.tile_to_kernel.staging import factors

HALVES = (dt.bf16, dt.f16)


def bulk_facts(kernel: tile.Kernel, free: dict[Value, frozenset[int]]) -> list[str]:
    """Of each sum of products of two loads of halves: how tensor maps have its operands; and what the result keeps of each side."""
    out: dict[str, None] = {}
    tensors, outs = {t.name: t for t in kernel.tensors}, frozenset(kernel.outer)
    operands: dict[frozenset[int], set[loop.Load]] = {}
    pairs: dict[tuple[frozenset[int], frozenset[int]], None] = {}
    for f in kernel.folds:
        for half in HALVES:
            loads = [load for x in factors(f.lifts[0]) if (load := load_of(x, half)) is not None]
            if f.kind != "reduce" or f.recipe != "add" or len(loads) != 2 or len(factors(f.lifts[0])) != 2:
                continue
            sides = [free[x] - free[y] - {f.axis} for x, y in (loads, loads[::-1])]
            for n, (load, side) in enumerate(zip(loads, sides, strict=True)):
                batch = sorted(outs - sides[0] - sides[1])
                view = maps.operand(tensors[load.tensor], load.point, f.axis, sorted(side), batch, kernel.extents)
                if view is not None and side <= outs:
                    out[f'(BulkOperand "{f.name}" {n} "{half}" {axes(side)})'] = None
                    out[f"(set (SideUnit {axes(side)}) {view.unit})"] = None
                    operands.setdefault(side, set()).add(load)
            pairs |= {(sides[0], sides[1]): None, (sides[1], sides[0]): None}
    out |= {f"(set (SideOperands {axes(side)}) {len(loads)})": None for side, loads in operands.items()}
    for rows, columns in pairs:
        if rows in operands and columns in operands:
            kept = parts_of(free, kernel.results, columns, rows, {f.result() for f in kernel.folds})
            boxed = sum(maps.in_lines(t, kernel.outer, sorted(columns), kernel.extents) for t in kernel.outputs)
            out[f"(set (SideValues {axes(rows)} {axes(columns)}) {len(kept)})"] = None
            out[f"(set (BoxedResults {axes(rows)} {axes(columns)}) {boxed})"] = None
    return list(out)


def axes(of: frozenset[int]) -> str:
    return f"(set-of {' '.join(map(str, sorted(of)))})" if of else "(set-empty)"
