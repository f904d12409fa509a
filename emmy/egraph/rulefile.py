"""A rule file: egglog text as named rules, each with its line, its phase and its numerics class.

A ruleset is named `<phase>-<class>` or `<phase>-<idea>-<class>`; the phase says when its rules run, the class what they keep:
`exact` the same bits, `finite` the same for finite values, `real` equality over the reals, `approx` less.
"""

from __future__ import annotations

import difflib
import functools
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from emmy.errors import EmmyError
from emmy.ir.dtype import DTYPES
from emmy.ir.operators import MONOIDS, OPERATORS, TWISTS

PHASES = {      # of each IR's rules, in the order in which they first run
    "loop": ("index", "push", "fuse", "deps", "normalize", "algebra", "twist", "cut", "measure", "starve", "split", "replace", "copy"),
    "tile": ("fold", "form", "place", "atom", "stage", "strategy"),
}
CLASSES = ("exact", "finite", "real", "approx")


class Rule(NamedTuple):
    """A rule as a list of premises and a list of actions, in egglog's syntax tree; a rewrite is the union of its two sides.

    `says` is the comment right above it, or else the rule itself; `line` counts from 1."""

    name: str
    file: str
    line: int
    ruleset: str
    says: str
    text: str
    premises: tuple[Any, ...]
    actions: tuple[Any, ...]

    @property
    def phase(self) -> str:
        return self.ruleset.partition("-")[0]

    @property
    def command(self) -> str:
        """The name of the command that declares it, which a birewrite's two rules share."""
        return self.name.removesuffix("=>").removesuffix("<=")

    @property
    def kind(self) -> str:
        """Its numerics class."""
        return self.ruleset.rpartition("-")[2]


class RuleFile(NamedTuple):
    """A file's rules, in order, and the rulesets that it declares."""

    name: str
    text: str
    rules: tuple[Rule, ...]
    rulesets: tuple[str, ...]

    def at(self, line: int) -> Rule | None:
        """The rule that covers a line."""
        return next((r for r in self.rules if r.line <= line < r.line + r.text.count("\n") + 1), None)


@functools.cache
def bindings() -> Any:
    """egglog's extension module, loaded without the Python package around it (which costs up to a second)."""
    if "egglog.bindings" in sys.modules:
        return sys.modules["egglog.bindings"]
    package = importlib.util.find_spec("egglog")
    if package is None or not package.submodule_search_locations:
        raise EmmyError("egglog is not installed", "pip install 'egglog>=14'")
    finder = importlib.machinery.PathFinder.find_spec("bindings", list(package.submodule_search_locations))
    assert finder is not None and finder.loader is not None
    spec = importlib.machinery.ModuleSpec("egglog.bindings", finder.loader, origin=finder.origin)
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    finder.loader.exec_module(module)
    return module


@functools.lru_cache(maxsize=256)
def parse(name: str, text: str) -> RuleFile:
    """The rules of a file's text.  EmmyError names the file, the line and the rule of what is no egglog."""
    egg = bindings()
    try:
        commands = egg.EGraph(no_decomp=True).parse_program(text, name)
    except egg.EggSmolError as error:
        raise explained(error, [(name, text)]) from error
    source = text.encode()
    rules = tuple(rule for command in commands for rule in rules_of(command, name, source))
    return RuleFile(name, text, rules, tuple(c.name for c in commands if isinstance(c, egg.AddRuleset)))


def without(rule: str, name: str, text: str) -> tuple[str, str]:
    """A file without the rule of that name, its other lines where they are."""
    found = next((r for r in parse(name, text).rules if rule == r.command), None)
    return name, text.replace(found.text, "\n" * found.text.count("\n"), 1) if found else text


def rules_of(command: Any, file: str, source: bytes) -> Iterator[Rule]:
    """The rules that a command declares: none, one, or the two directions of a birewrite."""
    egg = bindings()

    def rule(at: Any, name: str, ruleset: str, premises: Iterable[Any], actions: Iterable[Any]) -> Rule:
        text, before = source[at.i:at.j].decode(), source[:at.i].decode()
        says = _comment(before) or _shortened(text)
        return Rule(name, file, before.count("\n") + 1, ruleset, says, text, tuple(premises), tuple(actions))

    def rewrite(name: str, left: Any, right: Any) -> Rule:
        at, made = command.rewrite.span, egg.Var(command.rewrite.span, "rewritten")
        return rule(at, name, command.name, [egg.Eq(at, made, left), *command.rewrite.conditions], [egg.Union(at, made, right)])

    match command:
        case egg.RuleCommand():
            yield rule(command.rule.span, command.rule.name, command.rule.ruleset, command.rule.body, command.rule.head)
        case egg.RewriteCommand():
            yield rewrite(command.rewrite.name, command.rewrite.lhs, command.rewrite.rhs)
        case egg.BiRewriteCommand():
            yield rewrite(f"{command.rewrite.name}=>", command.rewrite.lhs, command.rewrite.rhs)
            yield rewrite(f"{command.rewrite.name}<=", command.rewrite.rhs, command.rewrite.lhs)


def _comment(before: str) -> str:
    """The comment lines that end a text."""
    lines: list[str] = []
    for line in reversed(before.split("\n")[:-1]):
        if not line.lstrip().startswith(";"):
            break
        lines.append(line.strip().lstrip("; "))
    return " ".join(reversed(lines))


def _shortened(command: str) -> str:
    """A rewrite as "left = right", a rule as "premises => actions"."""
    kind, left, right, *_ = terms(command[1:])
    rewrites = kind in ("rewrite", "birewrite")
    left, right = (" ".join((side if rewrites else side[1:-1]).split()) for side in (left, right))
    return f"{left} {'=' if rewrites else '=>'} {right}"


def terms(text: str) -> Iterator[str]:
    """The terms of a list's text, one by one, up to its closing parenthesis."""
    depth, start = 0, 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|;[^\n]*|[()]|[^\s()";]+', text):
        if token[0].startswith(";"):
            continue
        start = token.start() if depth == 0 else start
        depth += (token[0] == "(") - (token[0] == ")")
        if depth < 0:
            return
        if depth == 0:
            yield text[start:token.end()]


def explained(error: Exception, files: Sequence[tuple[str, str]]) -> EmmyError:
    """An error of the engine's as one that names the file, the line and the rule, of `files` (name, text)."""
    said = " ".join(str(error).split())
    for name, text in files:
        if found := re.search(rf"In (\d+):\d+-(?:\d+:)?\d+ of {re.escape(name)}:", said):
            line, what = int(found[1]), said[found.end():].strip()
            rule = _named(text, line)
            return EmmyError(f"rules: {name}:{line}: {f'rule {rule}: ' if rule else ''}{what}", f"mend {name}{_hint(what, name, files)}")
    return EmmyError(f"rules: {said}", f"mend {', '.join(name for name, _ in files)}")


def _hint(what: str, name: str, files: Iterable[tuple[str, str]]) -> str:
    """How to mend what the engine says of the file `name`: a name that it does not know is likely one of the others', misspelt."""
    if found := re.search(r"Unbound symbol (\S+)", what):
        return f": bind {found[1]} on the left side or in a premise"
    others = {other: text for other, text in files if other != name}
    declared = "".join(f"; rules/{other} declares sorts and terms" for other in others if other.endswith("/syntax.egg"))
    if found := re.search(r"(?:Undefined sort|Unbound function) (\S+)", what):
        known = {word for text in others.values() for word in re.findall(r"[A-Za-z][\w-]*", re.sub(r";[^\n]*", "", text))}
        near = difflib.get_close_matches(found[1], sorted(known), 1)
        return "".join(f": {word} is the nearest known" for word in near) + declared
    return declared


def _named(text: str, line: int) -> str:
    """The name of the rule whose text covers a line, found without parsing: the text may be broken."""
    starts = [m.start() for m in re.finditer(r"^\((?:rule|rewrite|birewrite)\b", text, re.MULTILINE)]
    offset = len("\n".join(text.split("\n")[:line]))
    begin = max((s for s in starts if s <= offset), default=None)
    if begin is None:
        return ""
    end = min((s for s in starts if s > begin), default=len(text))
    name = re.search(r':name\s+"([^"]+)"', text[begin:end])
    return name[1] if name else ""


NAMES = {       # what the first operand of a term names: the word for it, and those there are
    **{term: (f"operator of {arity} operand{'s' * (arity > 1)}", [o.name for o in OPERATORS.values() if o.arity == arity])
       for arity, term in enumerate(("Unary", "Binary", "Ternary"), 1)},
    **dict.fromkeys(("Reduce", "Scan"), ("monoid", list(MONOIDS))),
    **dict.fromkeys(("Pivot", "Channel"), ("recipe", list(TWISTS))),
    **dict.fromkeys(("Const", "Number", "Cast", "Round"), ("type", list(DTYPES))),
}
NAMING = re.compile(rf'\((?:Body)?({"|".join(NAMES)})\s+"([^"]*)"')


def check_names(file: RuleFile) -> None:
    """EmmyError if a term of a rule names an operator, a monoid, a recipe or a type that there is none of: to egglog they are strings."""
    for rule in file.rules:
        for found in NAMING.finditer(rule.text):
            (kind, known), name = NAMES[found[1]], found[2]
            if name not in known:
                line = rule.line + rule.text.count("\n", 0, found.start())
                raise EmmyError(f"rules: {file.name}:{line}: rule {rule.name}: ({found[1]} \"{name}\" …): {name!r} names no {kind}",
                                f"name one of {', '.join(known)}")


def check(file: RuleFile, ir: str) -> None:
    """EmmyError unless each rule has a name and each ruleset is of a phase of `ir` and a class: only those run."""
    stated = [(s, f"{file.name}: the ruleset {s}") for s in file.rulesets]
    for rule in file.rules:
        where = f"{file.name}:{rule.line}"
        if not rule.name:
            raise EmmyError(f"rules: {where}: a rule has no name", 'give it :name "…"')
        stated.append((rule.ruleset, f"{where}: rule {rule.name} is in {rule.ruleset or 'no ruleset'}, which"))
    for ruleset, where in stated:
        phase, _, rest = ruleset.partition("-")
        if phase not in PHASES[ir] or rest.rpartition("-")[2] not in CLASSES:
            raise EmmyError(f"rules: {where} never runs", "name a ruleset <phase>-<class> or <phase>-<idea>-<class>, such as algebra-real; "
                            f"the phases are {', '.join(PHASES[ir])}, the classes {', '.join(CLASSES)}")


def check_beside(file: RuleFile, others: Sequence[RuleFile]) -> None:
    """EmmyError if a rule of a file has the name of one of the `others`, which are loaded before, or of one above it; or if a ruleset of it
    is declared in none of these files."""
    declared = [s for f in (*others, file) for s in f.rulesets]
    known = {rule.command: f"{f.name}:{rule.line}" for f in others for rule in f.rules}
    for rule in file.rules:
        where = f"rules: {file.name}:{rule.line}: rule {rule.command}"
        if known.setdefault(rule.command, f"{file.name}:{rule.line}") != f"{file.name}:{rule.line}":
            raise EmmyError(f"{where} has the name of the one in {known[rule.command]}", "give it a name of its own")
        if rule.ruleset not in declared:
            raise EmmyError(f"{where} is in the ruleset {rule.ruleset}, which no file declares",
                            f"write (ruleset {rule.ruleset}) above it, or take one of {', '.join(dict.fromkeys(declared))}")


def ir_of(file: RuleFile, folder: str) -> str:
    """The IR whose rules a file extends: that of its rulesets' phases or, where it has none, of the folder it lies in; else "loop"."""
    phases = {s.partition("-")[0] for s in (*file.rulesets, *(r.ruleset for r in file.rules))}
    found = [ir for ir, known in PHASES.items() if phases & set(known)]
    if len(found) > 1:
        raise EmmyError(f"rules: {file.name} has rules of {' and '.join(found)} IR", "split it into a file for each")
    return found[0] if found else folder if folder in PHASES else "loop"
