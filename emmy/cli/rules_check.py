"""`emmy rules check`: whether rules are sound, when they fire, and what they buy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.cli import options
from emmy.errors import EmmyError

if TYPE_CHECKING:
    from rich.table import Table

    from emmy.check.gain import Gain
    from emmy.check.report import Verdict
    from emmy.egraph.rulefile import RuleFile

Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE.egg]…", help="Rule files; without one, every file of the house.",
                                                    show_default=False)]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long to look for firings of one rule.")]


def command(files: Files = None, snippet: options.Snippet = None, target: options.Target = None, math: options.Math = "fast",
            seconds: Seconds = 6.0, json: options.Json = None) -> None:
    """Judge rules apart from any program: each is fired on programs made from its own premises and both sides are compared, index rules are
    proved, growth and redundancy are looked at, the twin NAME.twin.egg beside a file is run.  With -c, also what they buy on that program.

    Exit code 1 if a rule is unsound, never fires or grows for ever; 2 if a file does not parse."""
    start = time.monotonic()
    installed("hypothesis", "z3")
    house, further = parted(files or ())
    options.check(target or options.DEFAULT_TARGET, math, rules=further)
    read, extra = opened(house, further)
    verdicts, faults = judged(read, extra, seconds, bool(files))
    faults = [*faults, *(fault for path in further for fault in twin_faults(path, extra))]
    bought = None
    if snippet is not None:
        from emmy.check.gain import gain

        bought = gain(options.captured(snippet, None), further, [v.name for v in verdicts], target or options.DEFAULT_TARGET, math)
    wrong = [v for v in verdicts if v.faults]
    if json is not None:
        options.write_json(json, {"rules": [v.json() for v in verdicts], "faults": faults, "gain": bought._asdict() if bought else None})
    if json is None or str(json) != "-":
        report(verdicts, faults, bought, time.monotonic() - start)
    if wrong or faults:
        raise typer.Exit(1)


def installed(*modules: str) -> None:
    """EmmyError unless these modules are there."""
    from importlib.util import find_spec

    if missing := [name for name in modules if find_spec(name) is None]:
        raise EmmyError(f"{' and '.join(missing)}: not installed, though rules are checked with it", "pip install 'emmy-egraph[check]'")


def parted(paths: Iterable[Path]) -> tuple[list[str], list[Path]]:
    """The files that are the house's, by their names there, and those that are not."""
    from emmy.egraph.rulebook import ORDER, rule_files, rules_folder

    facts = (f"hardware/{p.name}" for p in (rules_folder() / "hardware").glob("*.egg"))
    names = [*(name for ir in ORDER for name, _ in rule_files(ir)), *facts]
    shipped = {(rules_folder() / name).resolve(): name for name in names}
    paths = list(paths)
    return [shipped[p.resolve()] for p in paths if p.resolve() in shipped], [p for p in paths if p.resolve() not in shipped]


def opened(house: Sequence[str], paths: Sequence[Path]) -> tuple[dict[str, list[RuleFile]], dict[str, list[tuple[str, str]]]]:
    """The files to judge, by IR (all of the house's if none is named), and those loaded besides the house's; EmmyError for what does not
    parse or type-check."""
    from emmy.egraph.rulebook import ORDER, EGraph, extra_rules, rule_files
    from emmy.egraph.rulefile import parse

    extra = extra_rules(paths)
    for ir, files in extra.items():
        if files:
            EGraph(ir, files)
    named = {*house, *map(str, paths)}
    if not named:
        return {ir: [parse(*file) for file in rule_files(ir)] for ir in ORDER}, extra
    read = {ir: [parse(*file) for file in (*rule_files(ir), *extra[ir]) if file[0] in named] for ir in ORDER}
    for file in (file for found in read.values() for file in found):
        if not file.rules and file.name not in house:       # some of the house state facts alone
            raise EmmyError(f"{file.name} has no rule", "write one; `emmy rules new NAME` starts a file with an example")
    return read, extra


def judged(read: dict[str, list[RuleFile]], extra: dict[str, list[tuple[str, str]]], seconds: float,
           whole: bool) -> tuple[list[Verdict], list[str]]:
    """A verdict on each rule in the order of the files, and what is wrong with them together (`whole`: on random programs, too)."""
    from itertools import chain

    from emmy.check.report import loop_verdicts, snippet_of, tile_verdicts

    order = {rule.name: k for k, rule in enumerate(rule for files in read.values() for file in files for rule in file.rules)}
    coming = chain(loop_verdicts(read["loop"], extra["loop"], seconds), tile_verdicts(read["tile"], extra["tile"]) if read["tile"] else ())
    verdicts = sorted(options.track(coming, "judging rules", options.console(stderr=True), len(order)), key=lambda v: order[v.name])
    if not whole or not read["loop"] or any(v.faults for v in verdicts):
        return verdicts, []
    from emmy.check.book import Book
    from emmy.check.whole import together

    _, found = together(Book(extra["loop"]), 40)
    return verdicts, [f"together with the house's rules: {found[0]}{snippet_of(found[1])}"] if found else []


def twin_faults(path: Path, extra: dict[str, list[tuple[str, str]]]) -> list[str]:
    """What does not hold of the twin beside a file."""
    from emmy.check import twins

    twin = twins.beside(path)
    ir = next(ir for ir, files in extra.items() if any(name == str(path) for name, _ in files))
    return list(twins.failures(twin, ir, extra[ir])) if twin else []


def report(verdicts: list[Verdict], faults: list[str], bought: Gain | None, seconds: float) -> None:
    """Print a table a file, then each fault with the smallest program that shows it."""
    from emmy.check.report import explained

    out = options.console()
    for file in dict.fromkeys(v.file for v in verdicts):
        out.print(table(file, [v for v in verdicts if v.file == file]))
    for verdict in verdicts:
        for text in explained(verdict):
            out.print(f"\n{text}", markup=False, soft_wrap=True)
    for fault in faults:
        out.print(f"\n{fault}", markup=False, soft_wrap=True)
    if bought:
        out.print(f"\n{gained(bought)}", markup=False, soft_wrap=True)
    wrong = sum(bool(v.faults) for v in verdicts) + len(faults)
    out.print(f"\n{len(verdicts)} rule{'s' * (len(verdicts) != 1)}, {wrong or 'none'} at fault, {seconds:.0f} s", markup=False)


def table(file: str, verdicts: list[Verdict]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table("rule", "class", "firings", "agreement", "index", "growth", "redundancy", "s", box=None, pad_edge=False, title=file,
                 title_justify="left", title_style="bold")
    made.columns[2].justify = made.columns[7].justify = "right"
    for v in verdicts:
        style = "red" if v.faults else ""
        cells: list[Any] = [v.name, v.kind, str(v.outcome.firings or (f"+{v.elsewhere}" if v.elsewhere else 0)), v.agreement,
                            v.proof.verdict if v.proof else "", "for ever" if v.grows else "stops",
                            "derived by others" if v.redundant else "", f"{v.seconds:.1f}"]
        made.add_row(*(Text(cell, style) for cell in cells))
    return made


def gained(bought: Gain) -> str:
    """What rules buy, in words."""
    fired = ", ".join(f"{name} fires {n} times" if n else f"{name} does not fire" for name, n in bought.fired.items())
    ratio = f", {bought.before / bought.after:.2f} times as fast" if bought.after and bought.used else ""
    used = "the program chosen is another" if bought.used else "the program chosen is the same"
    return (f"on this program {fired}; {used}\n  predicted {bought.before:.2f} µs in {bought.kernels[0]} kernel(s) without, "
            f"{bought.after:.2f} µs in {bought.kernels[1]} with{ratio}")
