"""The command line.  Commands import what they need when they run, so that `emmy --help` is quick.

Exit codes: 0 done; 1 the numbers were found wrong; 2 bad input, told in one message that names it and the remedy; 70 an internal
failure.  `emmy --debug COMMAND …` shows the traceback of either kind of error.
"""

from __future__ import annotations

import errno
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from emmy import __version__
from emmy.cli import canon, compile, explain, extract, rules, run
from emmy.errors import EmmyError

BAD_INPUT, INTERNAL = 2, 70


class Guarded(TyperGroup):
    """A group of commands whose errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            ours = type(error).__module__.partition(".")[0] in ("typer", "click")   # usage errors and exits, which Typer shows
            if ours or getattr(error, "errno", None) == errno.EPIPE:
                raise
            message, code = explained(error)
            typer.echo("".join(traceback.format_exception(error)) if ctx.params.get("debug") else message, err=True)
            raise typer.Exit(code) from error


def explained(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    match error:
        case EmmyError():
            return f"error: {error}", BAD_INPUT
        case OSError(filename=str(name)):
            return f"error: {name}: {error.strerror}\n  remedy: check the path and its permissions", BAD_INPUT
        case UnicodeDecodeError():
            return f"error: a source or rule file is not UTF-8 text: {error}\n  remedy: save it as UTF-8", BAD_INPUT
    said = " ".join(str(error).split())[:400]
    return (f"internal failure: {type(error).__name__}: {said}\n"
            "  remedy: please report it with the output of `emmy --debug …`, the command and its input"), INTERNAL


app = typer.Typer(cls=Guarded, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
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
app.command("extract")(extract.command)


def main() -> None:
    """The entry point `emmy`."""
    app(prog_name="emmy")
