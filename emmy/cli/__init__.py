"""The command line.  Commands import what they need when they run, so that `emmy --help` is quick.

Exit codes: 0 done; 1 the numbers were found wrong; 2 bad input, told in one message that names it and the remedy; 70 an internal
failure.  `emmy --debug COMMAND …` shows the traceback of either kind of error.
"""

from __future__ import annotations

import errno
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from emmy import __version__
from emmy.cli import calibrate, canon, compile, egraph, explain, extract, propose, rules, run, schedules, tune
from emmy.errors import EmmyError, EmmyWarning

BAD_INPUT, INTERNAL = 2, 70


class Guarded(TyperGroup):
    """A group of commands whose errors become messages and exit codes, and whose warnings become lines."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", EmmyWarning)
                warnings.showwarning = warned
                return super().invoke(ctx)
        except Exception as error:
            ours = type(error).__module__.partition(".")[0] in ("typer", "click")   # usage errors and exits, which Typer shows
            if ours or getattr(error, "errno", None) == errno.EPIPE:
                raise
            message, code = explained(error, ctx.params.get("debug", False))
            typer.echo(message, err=True)
            raise typer.Exit(code) from error


def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None) -> None:
    """Tell a warning: one of ours in a line, any other with its place."""
    ours = issubclass(category, EmmyWarning)
    typer.echo(f"warning: {message}" if ours else warnings.formatwarning(message, category, filename, lineno, line), err=True)


def explained(error: Exception, debug: bool = False) -> tuple[str, int]:
    """What to say of an error, the traceback for `debug`, and the exit code."""
    match error:
        case EmmyError():
            said, code = f"error: {error}", BAD_INPUT
        case OSError(filename=str(name)):
            said, code = f"error: {name}: {error.strerror}\n  remedy: check the path and its permissions", BAD_INPUT
        case UnicodeDecodeError():
            said, code = f"error: a source or rule file is not UTF-8 text: {error}\n  remedy: save it as UTF-8", BAD_INPUT
        case _:
            code, said = INTERNAL, (f"internal failure: {type(error).__name__}: {' '.join(str(error).split())[:400]}\n"
                                    "  remedy: please report it with the output of `emmy --debug …`, the command and its input")
    return "".join(traceback.format_exception(error)) if debug else said, code


app = typer.Typer(cls=Guarded, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown",
                  help="Compile PyTorch to CUDA; every decision is a rewrite rule.")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"emmy {__version__}")
        raise typer.Exit


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Version = Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")]


@app.callback()
def before(debug: Debug = False, version: Version = False) -> None:
    """Options that come before the command."""


app.command("compile")(compile.command)
app.command("run")(run.command)
app.command("canon")(canon.command)
app.command("build")(compile.build)
app.add_typer(rules.app, name="rules")
app.command("explain")(explain.command)
app.command("egraph")(egraph.command)
app.command("extract")(extract.command)
app.command("schedules")(schedules.command)
app.add_typer(tune.app, name="tune")
app.command("propose")(propose.command)
app.command("calibrate")(calibrate.command)


def main() -> None:
    """The entry point `emmy`."""
    app(prog_name="emmy")
