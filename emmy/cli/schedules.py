"""`emmy schedules`: the rows that the kernels of a program can have, and what rules the others out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from emmy.pipeline import Program
    from emmy.tune.choose import Scheduled

Everything = Annotated[bool, typer.Option("--all", help="Show the rows that rules propose and premises rule out, too.")]


def command(file: options.File = None, snippet: options.Snippet = None, everything: Everything = False, target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "",
            json: options.Json = None) -> None:
    """List the legal schedule rows of each kernel with their times, the best first.  docs/schedules.md has their grammar."""
    program = options.program(snippet, file, target, math, knobs, rules, budget)
    out = options.console(stderr=json is not None and str(json) == "-")
    found = [of_kernel(program, name, scheduled, everything) for name, scheduled in program.choice.scheduled.items()]
    for k, one in enumerate(found):
        out.print(f"{chr(10) if k else ''}{one['signature']}", markup=False, soft_wrap=True)
        out.print(table(one))
    if json is not None:
        options.write_json(json, {"target": program.target, "math": program.math, "kernels": found})


def of_kernel(program: Program, name: str, scheduled: Scheduled, everything: bool = False, most: int | None = None) -> dict[str, Any]:
    """The rows of a kernel as JSON says them: of those that are legal, the best `most` and the chosen one, times in microseconds."""
    from emmy.egraph.schedule import PREMISES, candidates
    from emmy.ir.tile_text import signature
    from emmy.tune.tasks import options as legal_rows
    from extract import hardware

    kernel, extra = scheduled.kernel, program.rules["tile"]
    alone = kernel.schedule and kernel.schedule.replace(row=kernel.schedule.row.replace(place=""))
    known = program.evidence.of(scheduled.identity)
    rows = []
    for o in legal_rows(kernel, program.target, program.math, hardware.for_target(program.target), "", extra):
        m = known.get(o.row)
        rows.append({"row": o.row, "form": o.schedule.form, "predicted_us": o.seconds * 1e6, "measured_us": m and m.us,
                     "status": m and m.status, "chosen": o.schedule == alone})
    rows.sort(key=lambda r: (r["status"] not in (None, "right"), r["measured_us"] is None, r["measured_us"] or r["predicted_us"]))
    listed = [r for k, r in enumerate(rows) if most is None or k < most or r["chosen"]]
    found = {"kernel": name, "identity": scheduled.identity, "signature": signature(kernel), "legal": len(rows), "rows": listed}
    if everything:
        unscheduled = kernel.replace(schedule=None)
        ruled_out = [(s, failed) for s, failed in candidates(unscheduled, program.target, program.math, "", extra).items() if failed]
        found["ruled_out"] = [{"row": str(s.row), "form": s.form, "premises": list(failed), "reasons": [PREMISES[p] for p in failed]}
                              for s, failed in ruled_out]
    return found


def table(kernel: dict[str, Any]) -> Table:
    """The rows of a kernel: the chosen one is marked, and those ruled out come last."""
    from rich.table import Table

    rows, ruled_out = kernel["rows"], kernel.get("ruled_out", [])
    measured = any(r["status"] for r in rows)
    caption = options.counted(kernel["legal"], "legal row") + (f", {len(ruled_out)} ruled out" if "ruled_out" in kernel else "")
    shown = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    for column in ("", "row", "form"):
        shown.add_column(column, overflow="fold")
    shown.add_column("predicted", justify="right")
    if measured:
        shown.add_column("measured", justify="right")
    shown.add_column("", overflow="fold")
    for r in rows:
        time = [f"{r['measured_us']:.2f} µs" if r["measured_us"] is not None else r["status"] or ""] if measured else []
        shown.add_row("*" if r["chosen"] else "", r["row"], r["form"], f"{r['predicted_us']:.2f} µs", *time, "")
    for r in ruled_out:
        said = "; ".join(f"{p}: {reason}" for p, reason in zip(r["premises"], r["reasons"], strict=True))
        shown.add_row("", r["row"], r["form"], "", *([""] if measured else []), said, style="dim")
    return shown
