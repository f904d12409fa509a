"""Nodes and time of saturation and extraction, by program, phase and rule: python -m benchmarks.saturation [--rules 8] [--update]"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.workloads import PROGRAMS as SNIPPETS
from benchmarks.workloads import TORCH_NAME, WORKLOADS

if TYPE_CHECKING:
    from emmy.egraph.budget import Runner
    from emmy.pipeline import Program

CONSOLE = Console(width=None if Console().is_terminal else 160)
FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "saturation"
SIZE = 64           # of every dimension of a snippet: what rules find hardly depends on it
LAYERS = (1, 4, 24)


def of_snippet(name: str, dtype: str) -> Program:
    from emmy.pipeline import compile_snippet

    return compile_snippet(SNIPPETS[name].format(*(SIZE,) * 8, dtype=f"dtype=torch.{TORCH_NAME[dtype]}"))


def of_decoder(layers: int) -> Program:
    from benchmarks.decoder import decoder
    from emmy.pipeline import compile

    model, example = decoder(layers)
    return compile(model, *example)


def _stem(name: str) -> str:
    words = name.replace("(-x)", "_neg").replace("*", "_times_").replace("+", "_plus_")
    return re.sub(r"[^a-z0-9_]+", "-", words).strip("-")


GROUPED = "grouped_mm", "grouped_gate"      # which torch traces of bf16 alone


def first_dtype(name: str) -> str:
    """e4m3 of a program that is measured in nothing else, as factors of 8 bits have products of their own; bf16 of grouped products; else
    fp32."""
    measured = {w.dtype for w in WORKLOADS.values() if w.case.split()[0] == name}
    return "e4m3" if measured == {"e4m3"} else "bf16" if name in GROUPED else "fp32"


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{f"{_stem(name)}-{dtype}": partial(of_snippet, name, dtype) for name in SNIPPETS for dtype in [first_dtype(name)]},
    **{f"{_stem(name)}-bf16": partial(of_snippet, name, "bf16") for name in ("softmax", "rmsnorm+linear", "attention")},
    **{f"decoder-{layers}": partial(of_decoder, layers) for layers in LAYERS},
}
COUNTED = [name for name in PROGRAMS if name not in ("decoder-4", "decoder-24")]    # of which every count is declared


def run(program: Program, apart: bool = False) -> list[Runner]:
    """The distinct stretches of a program, saturated."""
    from emmy.egraph import saturate

    return [saturate.run(s.program, program.math, budget=program.budget, apart=apart) for s in program.stretches]


def fixpoint(program: Program, runners: list[Runner]) -> str:
    """What saturation found of its stretches, as text: of each its classes, the rows of each table besides those of the rulebook's facts,
    and how often each rule matched."""
    from emmy.egraph.rulebook import scope

    lines = list[str]()
    with scope("loop") as graph:
        facts = graph.sizes()
    for stretch, runner in zip(program.stretches, runners, strict=True):
        sizes = {name: n - facts[name] for name, n in sorted(runner.graph.sizes().items()) if n != facts[name]}
        fired = {name: n for name, n in sorted(runner.graph.fired.items()) if n}
        functions = runner.graph.engine.freeze().functions.values()
        classes = len({row.output for f in functions if f.output_sort == "Value" for row in f.rows})
        lines += [f"stretch of {len(stretch.program.definitions)} definitions, {len(stretch.uses)} times: {sum(sizes.values())} rows, "
                  f"{runner.rounds} rounds",
                  f"classes of Value {classes}", *(f"table {name} {n}" for name, n in sizes.items()),
                  *(f"rule {name} {n}" for name, n in fired.items())]
    return "\n".join(lines) + "\n"


def summary(names: list[str]) -> Table:
    """The scaling table: nodes, and seconds of this machine's wall clock and of the process."""
    table = Table(box=None, pad_edge=False)
    for column in ("program", "definitions", "stretches", "nodes", "kernels", "distinct", "loop", "CPU", "choose", "CPU"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name in names:
        program = PROGRAMS[name]()
        _ = program.tensor
        _, *loop = timed(lambda program=program: (program.loop, program.regions))
        _, *choose = timed(lambda program=program: program.choice)
        cells = [len(program.loop.definitions), len(program.stretches), sum(r.size for r in run(program)), len(program.tile.kernels),
                 len(program.choice.scheduled)]
        table.add_row(name, *map(str, cells), *(f"{x:.2f} s" for x in (*loop, *choose)))
    return table


def timed(work: Callable[[], object]) -> tuple[object, float, float]:
    """What `work` returns, the seconds it took, and the seconds of processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return made, time.perf_counter() - wall, time.process_time() - cpu


def accounts(name: str, most: int) -> tuple[Table, Table]:
    """What each phase spent, and the rules that added the most nodes, run one by one."""
    from emmy.egraph.budget import Spent, together

    program = PROGRAMS[name]()
    phases = together({(phase, ""): spent for phase, spent in runner.phases.items()} for runner in run(program))
    rules = together(runner.rules for runner in run(program, apart=True))

    def table(first: str, rows: list[tuple[str, Spent]]) -> Table:
        made = Table(first, "matches", "new nodes", "time", box=None, pad_edge=False)
        for column in made.columns[1:]:
            column.justify = "right"
        for what, spent in rows:
            made.add_row(what, str(spent.matches), str(spent.nodes), f"{spent.seconds * 1e3:.1f} ms")
        return made

    ranked = sorted(((f"{rule} ({phase})", spent) for (phase, rule), spent in rules.items()), key=lambda pair: -pair[1].nodes)
    return table(f"{name}: phase", [(phase, spent) for (phase, _), spent in phases.items()]), table("rule", ranked[:most])


def main(
    only: Annotated[str, typer.Option(help="Regular expression on the programs' names.")] = "",
    rules: Annotated[int, typer.Option(help="How many rules of each program to tell, and its phases.", min=0)] = 0,
    update: Annotated[bool, typer.Option("--update", help="Write the fixpoint counts that the tests compare with.")] = False,
) -> None:
    """Tell what saturation and extraction take; with --update, write their fixpoint counts as well."""
    names = [name for name in PROGRAMS if re.search(only, name)]
    if not names:
        raise typer.BadParameter(f"no program matches {only!r}", param_hint="--only")
    CONSOLE.print(summary(names))
    for name in names if rules else ():
        for table in accounts(name, rules):
            CONSOLE.print(Text(), table)
    for name in set(names) & set(COUNTED) if update else ():
        FOLDER.mkdir(parents=True, exist_ok=True)
        program = PROGRAMS[name]()
        (FOLDER / f"{name}.txt").write_text(fixpoint(program, run(program)))


if __name__ == "__main__":
    typer.run(main)
