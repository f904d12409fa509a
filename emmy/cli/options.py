"""Options that several commands share, and the program they describe."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emmy.errors import EmmyError

if TYPE_CHECKING:
    from rich.console import Console

    from emmy.capture.export import Captured
    from emmy.pipeline import Program

DEFAULT_TARGET = "sm_90a"

Snippet = Annotated[str | None, typer.Option("-c", metavar="SNIPPET", show_default=False, help="Torch code with torch, nn, F and math in "
                                             "scope; its last expression is the result, its random tensors are the inputs.")]
File = Annotated[str | None, typer.Argument(metavar="FILE.py:NAME", help="A function, module or class of a file.", show_default=False)]
Target = Annotated[str | None, typer.Option(help="sm_90a (the default), sm_80, sm_89 or sm_120.", show_default=False)]
Math = Annotated[str, typer.Option(help="exact keeps every bit; fast may reorder sums and fuse roundings; tf32 also rounds the factors of "
                                        "fp32 products.")]
Knobs = Annotated[str, typer.Option(envvar="EMMY_KNOBS", show_default=False,
                                    help="Fields of the schedule row to fix, as WORK=t256,TILE=v4; of one kernel as TILE@KERNEL=v4, "
                                    "by the beginning of its name or identity, the tensor that it writes, or a form.")]
Rules = Annotated[list[Path] | None, typer.Option(help="A further rule file, after those in EMMY_RULES; repeatable.", show_default=False)]
Budget = Annotated[str, typer.Option(metavar="NODES[,SECONDS]", show_default=False, help="What each phase of saturation may "
                                     "spend, 60000,20 if not given. Where one has, it ends, and a warning names the rule that grew it.")]
Measured = Annotated[bool, typer.Option("--measured/--predicted", help="Let times that `emmy tune` has measured on that GPU outrank "
                                        "predicted ones.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON; - is the standard output.", show_default=False)]


def captured(snippet: str | None, file: str | None) -> Captured:
    """The program that the command line names: a snippet or FILE.py:NAME, one of them."""
    if (snippet is None) == (file is None):
        wrong = "no program is given" if file is None else f"both a snippet and {file} are given"
        raise EmmyError(wrong, "give one: -c SNIPPET, or FILE.py:NAME")
    from emmy.capture.snippet import capture_file, capture_snippet

    if snippet is not None:
        return capture_snippet(snippet)
    assert file is not None
    return capture_file(file)


def program(snippet: str | None, file: str | None, target: str | None, math: str, knobs: str = "",
            rules: Sequence[Path] | None = None, budget: str = "", *, traced: bool = False, measured: bool = True) -> Program:
    """The program that the command line names; every option is checked before the program is captured."""
    check(target or DEFAULT_TARGET, math, knobs, rules, budget)
    found = captured(snippet, file)
    from emmy.pipeline import Program
    from emmy.tune.evidence import Evidence

    return Program(found, target or DEFAULT_TARGET, math, rules or (), knobs, budget, traced, None if measured else Evidence())


def check(target: str, math: str, knobs: str = "", rules: Sequence[Path] | None = None, budget: str = "") -> None:
    """EmmyError for an option that names nothing."""
    from emmy.egraph import rulebook
    from emmy.egraph.budget import Budget
    from emmy.tune import pins

    rulebook.hardware_rules(target)
    rulebook.math_classes(math)
    rulebook.extra_rules(rules or ())
    Budget.parse(budget)
    pins.parse(knobs)


def console(*, stderr: bool = False) -> Console:
    """A console of the terminal's width, or wide enough for any table where there is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=240)


def track[T](steps: Iterable[T], saying: str, out: Console, total: int | None = None) -> Iterable[T]:
    """The steps, with a bar of them while they last where `out` is a terminal."""
    from rich.progress import track

    return track(steps, saying, total, console=out, transient=True, disable=not out.is_terminal)


def write_json(path: Path, values: Any) -> None:
    """Write JSON to a file, or the standard output for "-".  Numbers that are not finite become null."""
    text = json.dumps(finite(values), indent=1) + "\n"
    if str(path) == "-":
        typer.echo(text, nl=False)
    else:
        path.write_text(text)


def finite(values: Any) -> Any:
    """`values` with None for each number that JSON has no spelling for."""
    match values:
        case dict(): return {k: finite(v) for k, v in values.items()}
        case list() | tuple(): return [finite(v) for v in values]
        case float(): return values if math.isfinite(values) else None
    return values


def si(x: float, unit: str = "") -> str:
    """Three digits and a decimal prefix: 66560, "B" is 66.6 kB."""
    power = 0
    while abs(x) >= 999.5 and power < 4:
        x, power = x / 1000, power + 1
    return f"{x:.3g} {' kMGT'[power].strip()}{unit}".rstrip()


def kernels(launches: Sequence[Any]) -> str:
    """How many: "1 kernel", "2 kernels"."""
    return counted(len(launches), "kernel")


def once(us: float) -> str:
    """What launches take that are done once for all calls: ", once 2.65 µs"; nothing where there are none."""
    return f", once {us:.2f} µs" if us else ""


def counted(n: int, word: str, words: str = "") -> str:
    """A number of things: "1 program", "2 programs"; `words` where the plural takes more than an s."""
    return f"{n} {word if n == 1 else words or f'{word}s'}"
