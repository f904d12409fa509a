"""`emmy rules new`: a file to start a rule from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from emmy.errors import EmmyError

RULE = """; NAME: a rule of Loop IR to start from.  Replace the example by yours, then:  emmy rules check NAME.egg
;
; Terms (rules/loop/syntax.egg declares them all): (Unary op x), (Binary op x y), (Ternary op x y z), (Const dtype bits), (Cast dtype x),
; (Input name point), (Reduce monoid axis x).  Small letters are variables; the same letter twice must be the same value.
; The ruleset is <phase>-<class>.  Phases: normalize (one spelling of equal values), algebra (sums and products), twist (one-pass
; reductions).  Classes: exact (every bit is kept), finite (every bit of finite values), real (equal over the reals; rounding moves).
; One that the house lacks is declared in the file: (ruleset algebra-exact)
; With premises, write (rule (premises) (actions) …), as in
;   (rule ((= v (Reduce "add" a (Binary "mul" x y))) (= d (Deps x)) (set-not-contains d a))
;         ((union v (Binary "mul" x (Reduce "add" a y)))) :ruleset algebra-real :name "factor-out")

; a root times itself is what is under it
(rewrite (Binary "mul" (Unary "sqrt" x) (Unary "sqrt" x)) x :ruleset algebra-real :name "NAME")
"""
TWIN = """;; NAME: where it fires, and where it must not.  A block runs in a graph of its own; a `;;` line opens the next one
(let $x (Input "x" (End)))
(let $y (Input "y" (End)))
(let $square (Binary "mul" (Unary "sqrt" $x) (Unary "sqrt" $x)))
(let $mixed (Binary "mul" (Unary "sqrt" $x) (Unary "sqrt" $y)))
(run-schedule (saturate (run algebra-real)))
(check (= $square $x))
(fail (check (= $mixed $x)))
"""


def command(name: Annotated[str, typer.Argument(help="The rule's name: small letters, digits and hyphens.")],
            folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to write the files.")] = Path(".")) -> None:
    """Start a rule: write NAME.egg, with an example that works, and its twin test NAME.twin.egg."""
    from emmy.egraph.rulebook import ORDER, house

    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise EmmyError(f"{name!r} is no name of a rule", "use small letters, digits and hyphens, such as log-of-exp")
    if known := next((rule for ir in ORDER for rule in house(ir) if rule.name == name), None):
        raise EmmyError(f"the house has a rule {name}, in {known.file}:{known.line}", "choose another name")
    if not folder.is_dir():
        raise EmmyError(f"there is no folder {folder}", "make it, or give another in --dir")
    files = {folder / f"{name}.egg": RULE, folder / f"{name}.twin.egg": TWIN}
    if taken := next((path for path in files if path.exists()), None):
        raise EmmyError(f"{taken} exists", "choose another name, or move the file away")
    for path, text in files.items():
        path.write_text(text.replace("NAME", name))
        typer.echo(f"wrote {path}")
    rule = folder / f"{name}.egg"
    typer.echo(f"next: edit {rule}, then emmy rules check {rule}")
