"""Rows between an e-graph and their text: pinned ones as facts that put them on the menu, those that rules admit as schedules."""

from __future__ import annotations

import re
from typing import Any

from emmy.egraph.rulebook import EGraph
from emmy.ir import dtype as dt
from emmy.ir import tile_ir as tile

FORMS = {"MapForm": "map", "WindowForm": "window", "TransposeForm": "transpose", "FoldForm": "fold", "CrossForm": "cross",
         "ScanForm": "scan", "ContractionForm": "contraction", "ConvolutionForm": "convolution", "JoinForm": "join",
         "LayeredForm": "layered", "TwistForm": "twist"}
ROWS = ("MapRow", "WindowRow", "TransposeRow", "FoldRow", "KeptRow", "StagedRow", "StripRow", "ScanRow", "LookBackRow", "CrossRow",
        "TiledRow", "TiledRingRow", "MmaRow", "MmaTwistRow", "WgmmaRow", "WgmmaTwistRow", "ClusterStripRow", "ResidentRow",
        "ClusterFoldRow", "Once", "ClusterSum", "Turns", "Multicast", "StreamK")


def options(pins: tile.Row) -> list[str]:
    """Facts that put a pinned row on the menu, should it not be there."""
    out = [f"(ThreadsOption {t})" for t in re.findall(r"^t(\d+)$", pins.work)]
    out += [f"(WarpsOption {w})" for w in re.findall(r"^w(\d+)$", pins.work)]
    out += [f"(WidthOption {v})" for v in re.findall(r"^v(\d+)(?:x\d+)?$", pins.tile)]
    row = f"{pins.work} {pins.tile}"
    out += [f"(TransposeOption {' '.join(numbers)})" for numbers in re.findall(r"^t(\d+) (\d+)x(\d+)$", row)]
    out += [f"(LookBackOption {' '.join(numbers)})" for numbers in re.findall(r"^t(\d+) v\d+x(\d+)$", row)]
    out += [f"(StagedRowsOption {' '.join(numbers)})" for numbers in re.findall(r"^t(\d+)x(\d+) (?:v\d+)?$", row)]
    out += [f"(ClusterStripOption {' '.join((*numbers[2:], *numbers[:2]))})"
            for numbers in re.findall(r"^t(\d+)x(\d+)/c(\d+) (?:v\d+)?$", row)]
    out += [f"(ResidentOption {blocks or 1} {t})" for t, blocks in re.findall(r"^t(\d+)(?:/c(\d+))? (?:v\d+)?$", row)]
    out += [f"(ClusterFoldOption {blocks} {t} {2**31})" for t, blocks in re.findall(r"^t(\d+)/c(\d+)$", pins.work)]
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
    group = re.match(r"^g(\d+)x1/ws(?:(-turns)|/([cm])(\d+))?$", pins.work)
    blocks = re.match(r"^gm(\d+)(?:/p(\d+)(/sk)?)?$", pins.raster)
    cover = re.match(r"^wgmma_m64n(\d+)k(\d+)_\w+/f(\d+)x(\d+)/k(\d+)$", pins.tile)
    ring = re.match(r"^d(\d+)/smem-tma(-once)?$", pins.stage)
    if group and cover:
        wide, deep, rows, columns, depth = cover.groups()
        tiles = " ".join((group[1], rows, wide, columns, str(int(depth) * 16 // int(deep))))     # in halves
        option = "TurnsOption" if group[2] else f"ClusterSumOption {group[4]}" if group[3] == "c" else f"RingOption {tiles}"
        out += [f"(WgmmaOption {tiles})", *([f"({option} {ring[1]})"] if ring else [])]
    out += [f"(MulticastOption {group[4]})"] if group and group[3] == "m" else []
    out += [f"(RasterOption {blocks[1]})", f"(BlocksOption {blocks[2] or 0})"] if blocks else []
    out += [f"(StreamKOption {blocks[2]})"] if blocks and blocks[3] else []
    crew, keys = re.match(r"^g(\d+)/ws(-turns)?$", pins.work), re.match(r"^wgmma_m64n(\d+)k16_\w+/f1x1$", pins.tile)
    rings, layers = re.match(r"^d(\d+)q(\d+)/smem-tma$", pins.stage), re.match(r"^gb(\d+)/p(\d+)(/live)?$", pins.raster)
    if crew and keys and rings:
        out += [f"(WgmmaTwistOption {crew[1]} {int(bool(crew[2]))} {keys[1]} {rings[1]} {rings[2]})"]
    out += [f"(LayersOption {layers[1]})", f"(BlocksOption {layers[2]})"] if layers else []
    return out


class Reader:
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
        if name == "ClusterSum":
            row = self.row(args[2])
            work, raster = f"{row.work}/c{number(args[0])}", row.raster.partition("/")[0]
            return tile.Row(work, row.tile, "", f"d{number(args[1])}/smem-tma", raster)
        if name == "Turns":
            row = self.row(args[1])
            return tile.Row(f"{row.work}-turns", row.tile, "", f"d{number(args[0])}/smem-tma", row.raster)
        if name == "Multicast":
            row, stay = self.row(args[2]), number(args[1])
            raster = row.raster.partition("/")[0] + f"/p{stay}" * (stay > 0)
            return tile.Row(f"{row.work}/m{number(args[0])}", row.tile, "", row.stage, raster)
        if name == "StreamK":
            row = self.row(args[0])
            return tile.Row(row.work, row.tile, row.reduce, row.stage, f"{row.raster}/sk")
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
        if name == "ScanRow":
            return tile.Row(f"t{number(args[0])}", _width(number(args[1])), "scan")
        if name == "LookBackRow":
            threads, width, runs = map(number, args[1:])
            return tile.Row(f"t{threads}", f"v{width}x{runs}", "scan", self.engine.value_to_string(args[0]))
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
        if name == "ClusterFoldRow":
            how, blocks, threads, width, runs = self.engine.value_to_string(args[0]), *map(number, args[1:])
            return tile.Row(f"t{threads}/c{blocks}", _width(width), how, "reg" if runs else "")
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
