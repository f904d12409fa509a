"""`emmy egraph`: the saturated e-graph of a program, to look at or to extract from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emmy.cli import options
from emmy.cli.explain import known
from emmy.errors import EmmyError

SUFFIXES = {".html": "a page to search", ".svg": "a picture", ".json": "the extraction-gym format"}

Output = Annotated[Path, typer.Option("-o", help="The file to write: .html is a page to search, which opens offline; .svg a picture of the "
                                      "extracted program; .json the extraction-gym format.")]
Everything = Annotated[bool, typer.Option("--all", help="Draw every class and member in an .svg, however many.")]


def command(output: Output, file: options.File = None, snippet: options.Snippet = None, target: options.Target = None,
            math: options.Math = "fast", knobs: options.Knobs = "", rules: options.Rules = None, everything: Everything = False) -> None:
    """Write the e-graph of a program: its classes, their members with costs, and the program extracted from them."""
    if output.suffix not in SUFFIXES:
        raise EmmyError(f"{output} is no kind of picture", f"end it with {', '.join(f'{s} ({what})' for s, what in SUFFIXES.items())}")
    if everything and output.suffix != ".svg":
        raise EmmyError(f"{output} has every class and member as it is", "give --all with an .svg only")
    if not output.parent.is_dir():
        raise EmmyError(f"there is no folder {output.parent}", "make it first, or write elsewhere")
    program = options.program(snippet, file, target, math, knobs, rules)
    from emmy.view.picture import of_program

    picture = of_program(program, snippet or str(file))
    match output.suffix:
        case ".html":
            from emmy.view.html import page

            output.write_text(page(picture, {name: rule.says for name, rule in known(program).items()}))
        case ".svg":
            from emmy.view.svg import svg

            output.write_text(svg(picture, everything))
        case _:
            from emmy.view.gym import gym

            options.write_json(output, gym(picture))
    members = sum(len(x.members) for x in picture.classes.values())
    typer.echo(f"{output}: {len(picture.classes)} classes, {members} members, {options.kernels(picture.kernels)} extracted")
