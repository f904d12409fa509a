"""The rulebook: where rules lie, in which order they load, and which classes of them `--math` admits.

A rule file is egglog text in `rules/<ir>/<idea>.egg`; `emmy.egraph.rulefile` reads one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from emmy.egraph.pattern import Patterns
from emmy.egraph.recording import MATCHED, record
from emmy.egraph.rulefile import PHASES, Rule, RuleFile, bindings, check, check_beside, check_names, explained, ir_of, parse
from emmy.errors import EmmyError

MATH = {"exact": ("exact",), "fast": ("exact", "finite", "real"), "tf32": ("exact", "finite", "real", "approx")}   # what each --math admits
ORDER = {
    "loop": ("syntax", "index", "fuse", "deps", "dtype", "normalize", "constants", "exponent", "algebra", "linear", "selection", "order",
             "moments", "twist", "cut", "split", "widen", "merge", "layout", "weights", "states", "scan",
             "first"),
    "tile": ("syntax", "fold", "place", "rows", "window", "strip", "cluster", "scan", "atom", "stage", "tensor", "strategy",
             "wgmma", "prologue", "conv", "join", "layered", "wgmma_twist", "once", "cluster_sum", "turns", "multicast", "stream_k", "live",
             "group"),
}


def math_classes(math: str) -> tuple[str, ...]:
    """The rule classes that `math` admits; EmmyError for an unknown one."""
    if math not in MATH:
        raise EmmyError(f"unknown math {math!r}", f"choose one of {', '.join(MATH)}")
    return MATH[math]


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


@functools.cache
def house(ir: str) -> tuple[Rule, ...]:
    """Every rule of the house's for an IR, in load order."""
    return tuple(rule for file in rule_files(ir) for rule in parse(*file).rules)


def extra_rules(paths: Iterable[str | Path]) -> dict[str, list[tuple[str, str]]]:
    """Rule files of the user's as (name, text), by the IR whose rules they extend: those in `EMMY_RULES` (paths parted as in `PATH`),
    then `paths`.

    EmmyError if a path is no file, if it is no egglog, if a ruleset of it is of no phase and class or declared nowhere, or if a rule has
    the name of another."""
    found: dict[str, list[tuple[str, str]]] = {ir: [] for ir in ORDER}
    before = {ir: [parse(*file) for file in rule_files(ir)] for ir in ORDER}
    named = [p for p in os.environ.get("EMMY_RULES", "").split(os.pathsep) if p]
    for path in dict.fromkeys(map(Path, (*named, *paths))):
        if not path.is_file():
            raise EmmyError(f"there is no rule file {path}", "give the path of a .egg file in --rules or EMMY_RULES")
        file = parse(str(path), path.read_text("utf-8-sig"))
        ir = ir_of(file, path.resolve().parent.name)
        check(file, ir)
        check_names(file)
        check_beside(file, before[ir])
        before[ir].append(file)
        found[ir].append((file.name, file.text))
    return found


class EGraph:
    """An e-graph with the rules of one IR loaded: text in, frozen rows out, a count of firings per rule.

    A `traced` one also records what each rule matched (`emmy.egraph.recording`): `recorded` are the rules that do.  `apart` gives each
    rule a ruleset of its own, and is then the rule of each."""

    traced = False

    def __init__(self, ir: str, extra: Iterable[tuple[str, str]] = (), apart: bool = False, traced: bool = False):
        self.ir, self.engine = ir, bindings().EGraph(no_decomp=True)
        self.fired: dict[str, int] = {}
        self.files: list[tuple[str, str]] = [*rule_files(ir), *extra]
        self.apart: dict[str, str] = {}
        self.traced = traced
        self.recorded: tuple[Patterns, ...] = ()
        with self.explaining():
            if apart:
                self.files = [(name, self._parted(parse(name, text))) for name, text in self.files]
            if traced:
                self.recorded = record(self.engine, self.files)
            for name, text in () if traced else self.files:
                self.engine.run_program(*self.engine.parse_program(text, name))
        parsed: list[RuleFile] = [parse(*file) for file in self.files]
        self.rules = tuple(rule for file in parsed for rule in file.rules)
        self.rulesets = tuple(s for file in parsed for s in file.rulesets)

    def _parted(self, file: RuleFile) -> str:
        """The text of a file with a ruleset for each rule, declared where the rule stands, so that lines stay; a birewrite's two rules
        share one."""
        text = file.text
        for rule in file.rules:
            own = f"{rule.phase}-rule{len(self.apart)}-{rule.kind}"
            alone = re.sub(rf":ruleset\s+{re.escape(rule.ruleset)}\b", f":ruleset {own}", rule.text)
            if rule.text in text:
                text = text.replace(rule.text, f"(ruleset {own}) {alone}", 1)
                self.apart[own] = rule.command
        return text

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """EmmyError names the file, the line and the rule of what does not parse or type-check, or panics."""
        try:
            yield
        except bindings().EggSmolError as error:
            raise explained(error, self.files) from error

    def run(self, text: str, name: str = "<generated>") -> list[Any]:
        """Run a program."""
        with self.explaining():
            return list(self.engine.run_program(*self.engine.parse_program(text, name)))

    def phase(self, phase: str, classes: Iterable[str] = ("exact",)) -> str:
        """The schedule that runs once all rulesets of a phase and these classes, at the same time for each class in turn."""
        runs = [f"(run {s})" for s in self.rulesets_of(phase, classes)]
        return runs[0] if len(runs) == 1 else f"(seq {' '.join(runs)})"

    def saturation(self, classes: Iterable[str]) -> str:
        """The command that saturates phase after phase of the IR's."""
        return f"(run-schedule {' '.join(f'(saturate {self.phase(phase, classes)})' for phase in PHASES[self.ir])})"

    def rulesets_of(self, phase: str, classes: Iterable[str] = ("exact",)) -> list[str]:
        """All rulesets of a phase and these classes, class by class."""
        return _rulesets_of(self.rulesets, phase, tuple(classes))

    def schedule(self, schedule: str) -> bool:
        """Run an egglog schedule, counting each rule's matches; whether anything changed."""
        report = self.run(f"(run-schedule {schedule})")[0].report
        for rule, count in report.num_matches_per_rule.items():
            self.fired[rule] = self.fired.get(rule, 0) + count
        return bool(report.updated)

    def size(self) -> int:
        """How many rows all tables hold, those of recorded matches not counted: a traced graph has the budget of a plain one."""
        sizes = self.sizes()
        return sum(n for name, n in sizes.items() if not name.startswith(MATCHED)) if self.traced else sum(sizes.values())

    def sizes(self) -> dict[str, int]:
        """How many rows each table holds."""
        return dict(self.run("(print-size)")[0].sizes)

    def equal(self, left: str, right: str) -> bool:
        """Whether two terms are in one class."""
        try:
            self.engine.run_program(*self.engine.parse_program(f"(check (= {left} {right}))"))
        except bindings().EggSmolError:
            return False
        return True


@functools.lru_cache(maxsize=1024)
def _rulesets_of(rulesets: tuple[str, ...], phase: str, classes: tuple[str, ...]) -> list[str]:
    return [s for kind in classes for s in rulesets if s.startswith(f"{phase}-") and s.endswith(f"-{kind}")]


@functools.lru_cache(maxsize=8)
def _loaded(ir: str, extra: tuple[tuple[str, str], ...]) -> tuple[EGraph, threading.Lock]:
    return EGraph(ir, extra), threading.Lock()


@contextlib.contextmanager
def scope(ir: str, extra: Iterable[tuple[str, str]] = ()) -> Iterator[EGraph]:
    """An e-graph with the rules of one IR that holds what is added to it until the end of a `with` block.  The rules are read once, which
    takes longer than to rewrite a small program, and once more where another block uses the graph."""
    extra = tuple(extra)
    graph, use = _loaded(ir, extra)
    if not use.acquire(blocking=False):
        yield EGraph(ir, extra)
        return
    try:
        graph.run("(push)")
        graph.fired = {}
        try:
            yield graph
        finally:
            graph.run("(pop)")
    finally:
        use.release()


class _Kept:
    """An e-graph of an IR's rules whose tables hold what saturation makes of the rules' own facts, and rules that delete the rows of all
    other tables."""

    def __init__(self, ir: str, extra: tuple[tuple[str, str], ...], classes: tuple[str, ...]):
        self.graph, self.free = EGraph(ir, extra), True
        self.graph.run(self.graph.saturation(classes))
        self.own = self.graph.sizes()
        rows = {name: f"({name} {' '.join(f'x{k}' for k in range(len(table.input_sorts)))})"
                for name, table in self.graph.engine.freeze().functions.items() if not self.own[name]}
        rules = (f"(rule ((= value {row})) ((delete {row})) :ruleset emptying :name \"empty {name}\")" for name, row in rows.items())
        self.graph.run("\n".join(["(ruleset emptying)", *rules]))


@functools.lru_cache(maxsize=8)
def _kept(ir: str, extra: tuple[tuple[str, str], ...], classes: tuple[str, ...]) -> _Kept:
    return _Kept(ir, extra, classes)


@contextlib.contextmanager
def emptied(ir: str, extra: Iterable[tuple[str, str]], classes: tuple[str, ...]) -> Iterator[EGraph]:
    """Like `scope`, for facts to be saturated by the rules of `classes`: what is added is deleted at the end, which takes a small part of
    the time that a copy of the graph does.  It is a `scope` while another block uses the graph, and once something was added to a table
    that holds facts of the rules' own, or a block failed: then not all can be deleted."""
    kept = _kept(ir, tuple(extra), classes)
    if not kept.free:
        with scope(ir, extra) as graph:
            yield graph
        return
    kept.free, kept.graph.fired = False, {}
    yield kept.graph
    kept.graph.run("(run-schedule (run emptying))")
    kept.free = kept.graph.sizes() == kept.own
