"""`emmy compile` prints a stage; `emmy build` writes a bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emmy.cli import options
from emmy.errors import EmmyError

STAGES = ("torch", "tensor", "loop", "tile", "kernel", "cuda")
LEXERS = {"cuda": "cuda"}       # the IRs look enough like Rust to be coloured as it

Stage = Annotated[str, typer.Option(help=f"{', '.join(STAGES[:-1])} or {STAGES[-1]}.")]
Text = Annotated[Path | None, typer.Option("-o", help="Write to a file instead of the standard output.", show_default=False)]
Bundle = Annotated[Path, typer.Option("-o", help="The bundle to write, such as k.emmy.")]
Targets = Annotated[list[str] | None, typer.Option(show_default=False, help="Whose machine code to hold; repeatable, sm_90a if not given. "
                                                   "The first one's limits and rates choose the schedule.")]


def command(file: options.File = None, snippet: options.Snippet = None, ir: Stage = "cuda", target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, budget: options.Budget = "",
            measured: options.Measured = True, output: Text = None) -> None:
    """Print a program at a stage of the compiler.  No stage needs a GPU."""
    if ir not in STAGES:
        raise EmmyError(f"unknown stage {ir!r}", f"the stages are {', '.join(STAGES)}")
    text = options.program(snippet, file, target, math, knobs, rules, budget, measured=measured).ir(ir).rstrip("\n")
    if output is not None:
        output.write_text(text + "\n")
    elif sys.stdout.isatty():
        from rich.syntax import Syntax

        options.console().print(Syntax(text, LEXERS.get(ir, "rust"), theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        typer.echo(text)


def build(output: Bundle, file: options.File = None, snippet: options.Snippet = None, target: Targets = None, math: options.Math = "fast",
          knobs: options.Knobs = "", rules: options.Rules = None, measured: options.Measured = True) -> None:
    """Compile a program to machine code and write it, with its example and float64 references, as one file for `emmy run`.  Needs nvcc."""
    targets = list(dict.fromkeys(target or [options.DEFAULT_TARGET]))
    for name in targets:
        options.check(name, math)
    if not output.parent.is_dir():
        raise EmmyError(f"there is no folder {output.parent}", "make it first, or write elsewhere")
    program = options.program(snippet, file, targets[0], math, knobs, rules, measured=measured)
    from emmy.pipeline import write_bundle

    write_bundle(program, output, targets, recipe=snippet)
    plan = program.plan
    typer.echo(f"{output}: {options.kernels(plan.launches)} for {', '.join(targets)}, {options.si(output.stat().st_size, 'B')}")
    for launch in plan.launches:
        typer.echo(f"  {launch.kernel}  {launch.row}")
