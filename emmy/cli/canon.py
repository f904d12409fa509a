"""`emmy canon`: which of these programs are the same kernel?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from emmy.cli import options
from emmy.errors import EmmyError

SOURCES = (".py", ".txt")

Paths = Annotated[list[str] | None, typer.Argument(
    metavar="FILE.py:NAME | FILE.py | FILE.txt | FOLDER", show_default=False,
    help="Programs: a name of a Python file, all that it defines with example inputs, a text file of snippets, one a line, or a folder.")]
Snippets = Annotated[list[str] | None, typer.Option("-c", metavar="SNIPPET", help="A program; repeatable.", show_default=False)]
Forms = Annotated[bool, typer.Option("--forms", help="Show the canonical form of each kernel, as for snippets alone.")]


class Named(NamedTuple):
    """A program by the name it has in the report: a snippet, or FILE.py:NAME."""

    name: str
    snippet: str | None = None
    file: str | None = None


class Failure(NamedTuple):
    """A program, or a file of programs, that could not be read: what to say of it, and the exit code that it is worth."""

    name: str
    reason: str
    code: int


class Canonical(NamedTuple):
    """A program with its canonical form and the identity of that."""

    program: Named
    form: str
    identity: str


def command(context: typer.Context, paths: Paths = None, snippets: Snippets = None, math: options.Math = "fast",
            rules: options.Rules = None, budget: options.Budget = "", forms: Forms = False, json: options.Json = None) -> None:
    """Sort programs into those that are the same kernel, by their canonical forms.  One that fails does not stop the others."""
    if not paths and not snippets:
        raise EmmyError("no program is given", "give each as -c SNIPPET, or FILE.py:NAME, a file or a folder")
    options.check(options.DEFAULT_TARGET, math, rules=rules, budget=budget)
    debug = context.find_root().params.get("debug", False)
    given, failures = listed(paths or (), snippets or (), debug)
    alone = len(given) + len(failures) == 1
    found, more = canonical(given, math, rules, budget, debug)
    failures += more
    for failure in failures:
        typer.echo(failure.reason if alone else f"{failure.name}\n{failure.reason}", err=True)
    if found and (json is None or str(json) != "-"):
        if paths:
            show(found, failures, forms)
        else:
            compare(found)
    if json is not None:
        options.write_json(json, fields(found, failures, whole=bool(paths or failures)))
    if failures:
        raise typer.Exit(max(failure.code for failure in failures))


def listed(paths: Sequence[str], snippets: Sequence[str], debug: bool) -> tuple[list[Named], list[Failure]]:
    """Every program that the command line names, and the files that could not be read for some."""
    found, failures = [], []
    for path in paths:
        for file in files(path):
            try:
                found += programs(file)
            except Exception as error:
                failures.append(failed(file, error, debug))
    found += [Named(snippet, snippet=snippet) for snippet in snippets]
    if not found and not failures:
        raise EmmyError(f"there is no program in {', '.join(paths)}",
                        "define functions or modules with example_inputs in a .py, or write snippets to a .txt, one a line")
    return found, failures


def files(path: str) -> Iterator[str]:
    """The path itself, or the files of programs below a folder, in order."""
    if not os.path.isdir(path):
        yield path
        return
    for file in sorted(Path(path).rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in file.relative_to(path).parts)
        if file.suffix in SOURCES and file.is_file() and not hidden:
            yield str(file)


def programs(path: str) -> list[Named]:
    """The programs of FILE.py:NAME, FILE.py or FILE.txt."""
    if path.endswith(".txt"):
        lines = enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1)
        return [Named(f"{path}:{n}", snippet=line) for n, line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not path.endswith(".py"):
        return [Named(path, file=path)]
    from emmy.capture.snippet import programs

    return [Named(f"{path}:{name}", file=f"{path}:{name}") for name in programs(path)]


def canonical(given: Sequence[Named], math: str, rules: options.Rules, budget: str, debug: bool) -> tuple[list[Canonical], list[Failure]]:
    """The canonical form of each program, and those that have none; a bar on the terminal says how far it is."""
    from rich.markup import escape
    from rich.progress import Progress

    from emmy.egraph.canonical import digest

    found, failures = [], []
    console = options.console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal or len(given) < 2) as progress:
        task = progress.add_task("", total=len(given))
        for program in given:
            progress.update(task, description=escape(program.name[:60]))
            try:
                text = form(program, math, rules, budget)
                found.append(Canonical(program, text, digest(text)))
            except Exception as error:
                failures.append(failed(program.name, error, debug))
            progress.advance(task)
    return found, failures


def form(named: Named, math: str, rules: options.Rules, budget: str = "") -> str:
    """The canonical forms of a program's results, in order; the results' names do not matter."""
    from emmy.egraph.canonical import composed

    program = options.program(named.snippet, named.file, None, math, "", rules, budget)
    return "\n\n".join(composed(program.loop, program.stretches, program.regions).values())


def failed(name: str, error: Exception, debug: bool) -> Failure:
    """A failure in the words in which the command line tells any error."""
    from emmy.cli import explained

    return Failure(name, *explained(error, debug))


def kernels(found: Sequence[Canonical]) -> list[list[Canonical]]:
    """The programs by identity, the largest group first."""
    groups: dict[str, list[Canonical]] = {}
    for one in found:
        groups.setdefault(one.identity, []).append(one)
    return sorted(groups.values(), key=len, reverse=True)


def compare(found: Sequence[Canonical]) -> None:
    """Each program with its form, and whether all are the same."""
    for one in found:
        typer.echo(f"{one.identity}  {one.program.name}\n{indented(one.form)}")
    if len(found) > 1:
        different = len(kernels(found))
        typer.echo("the same kernel" if different == 1 else f"{different} different kernels")


def show(found: Sequence[Canonical], failures: Sequence[Failure], forms: bool) -> None:
    """The partition: each kernel with its programs."""
    groups = kernels(found)
    for group in groups:
        typer.echo(f"{group[0].identity}  {options.counted(len(group), 'program')}")
        for one in group:
            named = one.program
            typer.echo(f"  {named.name}" + (f"  {named.snippet}" if named.snippet not in (None, named.name) else ""))
        if forms:
            typer.echo(f"\n{indented(group[0].form)}")
    left = f", {len(failures)} failed" if failures else ""
    typer.echo(f"{options.counted(len(found), 'program')}, {options.kernels(groups)}{left}")


def fields(found: Sequence[Canonical], failures: Sequence[Failure], whole: bool) -> dict[str, Any]:
    """The result as JSON values: forms and identities in the order of the programs, and for the `whole` report the partition."""
    groups = kernels(found)
    values: dict[str, Any] = {"same": len(groups) == 1, "forms": [one.form for one in found], "identities": [one.identity for one in found]}
    if whole:
        values["programs"] = [one.program.name for one in found]
        values["kernels"] = [{"identity": g[0].identity, "programs": [one.program.name for one in g], "form": g[0].form} for g in groups]
        values["failures"] = [{"program": failure.name, "reason": failure.reason} for failure in failures]
    return values


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())
