"""`emmy canon`: are these programs the same kernel?"""

from __future__ import annotations

from typing import Annotated

import typer

from emmy.cli import options
from emmy.errors import EmmyError

Snippets = Annotated[list[str] | None, typer.Option("-c", metavar="SNIPPET", help="A program; repeatable.", show_default=False)]


def command(snippets: Snippets = None, math: options.Math = "fast", rules: options.Rules = None, json: options.Json = None) -> None:
    """Print the canonical form and identity of each program, and whether all of them are the same."""
    if not snippets:
        raise EmmyError("no program is given", "give each as -c SNIPPET")
    forms = [form(snippet, math, rules) for snippet in snippets]
    from emmy.egraph.canonical import digest

    identities = [digest(f) for f in forms]
    same = len(set(identities)) == 1
    if json is None or str(json) != "-":
        for snippet, text, identity in zip(snippets, forms, identities, strict=True):
            typer.echo(f"{identity}  {snippet}\n" + "".join(f"  {line}\n" for line in text.splitlines()))
        if len(forms) > 1:
            typer.echo("the same kernel" if same else f"{len(set(identities))} different kernels")
    if json is not None:
        options.write_json(json, {"same": same, "forms": forms, "identities": identities})


def form(snippet: str, math: str, rules: options.Rules) -> str:
    """The canonical forms of a program's results, in order; the results' names do not matter."""
    from emmy.egraph.canonical import composed

    program = options.program(snippet, None, None, math, "", rules)
    return "\n\n".join(composed(program.loop, program.stretches, program.regions).values())
