"""The rulebook: where rules lie, in which order they load, and which classes of them `--math` admits.

A rule file is egglog text in `rules/<ir>/<idea>.egg`.  A ruleset is named `<phase>-<class>`; the class says what a rule
keeps: `exact` the same bits, `finite` the same for finite values, `real` equality over the reals, `approx` less.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from emmy.errors import EmmyError

CLASSES = {"exact": ("exact",), "fast": ("exact", "finite", "real")}     # what each --math admits
ORDER = {
    "loop": ("syntax", "index", "fuse", "deps", "dtype", "normalize", "algebra", "twist", "cut", "split"),
    "tile": ("syntax", "fold", "place", "atom", "stage", "tensor", "strategy"),
}


def math_classes(math: str) -> tuple[str, ...]:
    """The rule classes that `math` admits; EmmyError for an unknown one."""
    if math not in CLASSES:
        raise EmmyError(f"unknown math {math!r}", f"choose one of {', '.join(CLASSES)}")
    return CLASSES[math]


def rules_folder() -> Path:
    """The folder `rules`: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "rules", package.parent / "rules"):
        if folder.is_dir():
            return folder
    raise EmmyError("the rules folder is missing", f"expected it at {package / 'rules'} or {package.parent / 'rules'}")


@functools.cache
def rule_files(ir: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of the rule files of an IR, in load order; names are relative to the rules folder."""
    return tuple((f"{ir}/{idea}.egg", (rules_folder() / ir / f"{idea}.egg").read_text()) for idea in ORDER[ir])


def hardware_rules(target: str) -> tuple[str, str]:
    """The rule file of a target's facts; EmmyError for an unknown target."""
    name = target.rstrip("a")
    path = rules_folder() / "hardware" / f"{name}.egg"
    if target not in targets():
        raise EmmyError(f"unknown target {target!r}", f"the targets are {', '.join(targets())}")
    return f"hardware/{name}.egg", path.read_text()


@functools.cache
def targets() -> tuple[str, ...]:
    """The targets that `rules/hardware` describes, as nvcc spells them."""
    known = sorted((p.stem for p in (rules_folder() / "hardware").glob("sm_*.egg")), key=lambda s: int(s[3:]))
    return tuple("sm_90a" if t == "sm_90" else t for t in known)


def extra_rules(paths: Iterable[str | Path]) -> dict[str, list[tuple[str, str]]]:
    """Rule files of the user's, by the IR whose rules they extend: that of the folder they lie in, "loop" or "tile", or "loop".

    EmmyError if a path is no file."""
    found: dict[str, list[tuple[str, str]]] = {"loop": [], "tile": []}
    for path in map(Path, paths):
        if not path.is_file():
            raise EmmyError(f"there is no rule file {path}", "give the path of a .egg file")
        found["tile" if path.parent.name == "tile" else "loop"].append((str(path), path.read_text()))
    return found


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


class EGraph:
    """An e-graph with the rules of one IR loaded: text in, frozen rows out, a count of firings per rule."""

    def __init__(self, ir: str, extra: Iterable[tuple[str, str]] = ()):
        self.engine = bindings().EGraph(no_decomp=True)
        self.fired: dict[str, int] = {}
        house, further = rule_files(ir), tuple(extra)
        for name, text in (*house, *further):
            self.run(text, name)
        known = re.findall(r"\(ruleset (\S+)\)", "\n".join(text for _, text in house))
        for name, text in further:
            self.check_rulesets(text, name, known)

    def run(self, text: str, name: str = "<generated>") -> list[Any]:
        """Run a program; EmmyError names the rule file where it does not parse or type-check."""
        try:
            return list(self.engine.run_program(*self.engine.parse_program(text, name)))
        except bindings().EggSmolError as error:
            raise EmmyError(f"rules: {' '.join(str(error).split())}", f"mend {name}") from error

    def check_rulesets(self, text: str, name: str, known: Sequence[str]) -> None:
        """EmmyError if a rule of `text` is in none of the `known` rulesets, the only ones that run."""
        egg = bindings()
        for command in self.engine.parse_program(text, name):
            match command:
                case egg.RewriteCommand() | egg.BiRewriteCommand(): ruleset = command.name
                case egg.RuleCommand(): ruleset = command.rule.ruleset
                case _: continue
            if ruleset not in known:
                raise EmmyError(f"rules: a rule of {name} is in {f'the ruleset {ruleset}' if ruleset else 'no ruleset'}, which never runs",
                                f"give it :ruleset with one of {', '.join(known)}")

    def schedule(self, schedule: str) -> bool:
        """Run an egglog schedule, counting each rule's matches; whether anything changed."""
        report = self.run(f"(run-schedule {schedule})")[0].report
        for rule, count in report.num_matches_per_rule.items():
            self.fired[rule] = self.fired.get(rule, 0) + count
        return bool(report.updated)

    def size(self) -> int:
        """How many rows all tables hold."""
        return sum(int(n) for n in re.findall(r"\(\S+ (\d+)\)", str(self.run("(print-size)")[0])))

    def equal(self, left: str, right: str) -> bool:
        """Whether two terms are in one class."""
        try:
            self.engine.run_program(*self.engine.parse_program(f"(check (= {left} {right}))"))
        except bindings().EggSmolError:
            return False
        return True


@functools.lru_cache(maxsize=8)
def _loaded(ir: str, extra: tuple[tuple[str, str], ...]) -> EGraph:
    return EGraph(ir, extra)


@contextlib.contextmanager
def scope(ir: str, extra: Iterable[tuple[str, str]] = ()) -> Iterator[EGraph]:
    """An e-graph with the rules of one IR that holds what is added to it until the end of a `with` block.  The rules are read once."""
    graph = _loaded(ir, tuple(extra))
    graph.run("(push)")
    graph.fired = {}
    try:
        yield graph
    finally:
        graph.run("(pop)")


def rule_names(text: str) -> tuple[str, ...]:
    """The names of the rules in a rule file's text."""
    return tuple(re.findall(r':name\s+"([^"]+)"', text))
