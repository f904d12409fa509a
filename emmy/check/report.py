"""The verdict on each rule of a file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, NamedTuple

from emmy.check.agreement import ENOUGH, Outcome, judge
from emmy.check.book import Book
from emmy.check.growth import growth
from emmy.check.integers import Proof, prove
from emmy.check.redundancy import redundant
from emmy.check.snippet import Example
from emmy.check.snippet import shown as values
from emmy.check.trial import Trial, targets
from emmy.egraph.rulefile import Rule, RuleFile

PROCESSES = 2


class Verdict(NamedTuple):
    """What was found of a rule.  `proof` is z3's answer for an index rule; `grows` the sizes of a graph that the rule does not stop
    growing; `elsewhere` how often it fired on whole programs."""

    name: str
    file: str
    line: int
    kind: str
    says: str
    outcome: Outcome
    proof: Proof | None = None
    grows: str = ""
    redundant: bool = False
    elsewhere: int = 0
    seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        """Why the rule does not pass, in a line each."""
        found = []
        if self.outcome.failure:
            found.append(f"unsound for class {self.kind}: {self.outcome.failure.said}")
        if self.proof and self.proof.verdict == "wrong":
            found.append("wrong for some integers in range")
        if self.grows:
            found.append(f"grows for ever: {self.grows}")
        if not self.outcome.firings and not self.elsewhere:
            found.append(f"never fires: {self.outcome.starved or 'no seed satisfies its premises'}")
        return found

    @property
    def agreement(self) -> str:
        """The agreement column: values agree, differ, or are not what the rule is about."""
        if self.outcome.failure:
            return "UNSOUND"
        if not self.outcome.judged:
            return "no equality"
        return "agrees" if self.outcome.firings or self.elsewhere else "-"

    def json(self) -> dict[str, Any]:
        failure = self.outcome.failure
        return {"rule": self.name, "file": self.file, "line": self.line, "class": self.kind, "firings": self.outcome.firings,
                "agreement": self.agreement, "starved": self.outcome.starved, "index": self.proof.verdict if self.proof else None,
                "grows": self.grows, "redundant": self.redundant, "seconds": round(self.seconds, 2), "faults": self.faults,
                "snippet": snippet(self), "terms": list(failure.terms) if failure else []}


def snippet(verdict: Verdict) -> str | None:
    """Python that shows the first fault, where values show it."""
    failure = verdict.outcome.failure
    if failure and failure.example:
        return failure.example.text()
    return verdict.proof.snippet or None if verdict.proof else None


def check_rule(book: Book, rule: Rule, seconds: float = 6.0, enough: int = ENOUGH) -> Verdict:
    """Judge a rule of Loop IR."""
    start = time.monotonic()
    proof = prove(book, rule)
    outcome = judge(book, rule, enough, seconds)
    aims = targets(book, rule)
    grows, known = "", False
    if aims and aims[0].rule is rule:
        trial = Trial(book, aims[0])
        grows = growth(book, rule, trial)
        known = not outcome.failure and redundant(book, rule, trial)
    return Verdict(rule.name, rule.file, rule.line, rule.kind, rule.says, outcome, proof, grows, known, 0, time.monotonic() - start)


_book: Book


def _open(extra: tuple[tuple[str, str], ...]) -> None:
    global _book
    _book = Book(extra)


def _checked(name: str, seconds: float) -> Verdict:
    return check_rule(_book, next(r for r in _book.rules if r.name == name), seconds)


def loop_verdicts(files: Iterable[RuleFile], extra: Iterable[tuple[str, str]], seconds: float = 6.0) -> Iterator[Verdict]:
    """Verdicts on the rules of files of Loop IR, as they come; what does not fire on its own seeds is tried on whole programs last."""
    extra = tuple(extra)
    rules = [rule for file in files for rule in file.rules]
    silent: list[Verdict] = []
    for verdict in _each(rules, extra, seconds):
        if verdict.outcome.firings or verdict.faults != [f for f in verdict.faults if f.startswith("never")]:
            yield verdict
        else:
            silent.append(verdict)
    if silent:
        from emmy.check.whole import together

        fired, _ = together(Book(extra), 40)
        yield from (v._replace(elsewhere=fired[v.name]) for v in silent)


def _each(rules: list[Rule], extra: tuple[tuple[str, str], ...], seconds: float) -> Iterator[Verdict]:
    if len(rules) <= 4:
        book = Book(extra)
        yield from (check_rule(book, rule, seconds) for rule in rules)
        return
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), _open, (extra,)) as pool:
        for done in as_completed([pool.submit(_checked, rule.name, seconds) for rule in rules]):
            yield done.result()


def tile_verdicts(files: Iterable[RuleFile], extra: Iterable[tuple[str, str]]) -> Iterator[Verdict]:
    """Verdicts on rules of Tile IR."""
    from emmy.check.tiles import judged

    start = time.monotonic()
    fired, grows = judged(extra)
    rules = [rule for file in files for rule in file.rules]
    each = (time.monotonic() - start) / max(1, len(rules))
    for rule in rules:
        yield Verdict(rule.name, rule.file, rule.line, rule.kind, rule.says, Outcome(fired[rule.name], False), grows=grows if grows else "",
                      seconds=each)



def explained(verdict: Verdict) -> list[str]:
    """A verdict's faults, each with where the rule stands, and the smallest program of the first with both sides' values; and warnings."""
    head = f"{verdict.file}:{verdict.line}: rule {verdict.name}"
    lines = [f"{head}: {fault}" for fault in verdict.faults]
    if lines:
        lines[0] += f"\n  it says: {verdict.says}{shown(verdict)}"
    elif verdict.outcome.firings < ENOUGH and verdict.outcome.starved:
        where = f" on its own seeds, {verdict.elsewhere} times on whole programs" if verdict.elsewhere else ""
        lines.append(f"{head}: fired {verdict.outcome.firings} times{where}: {verdict.outcome.starved}")
    if verdict.redundant:
        lines.append(f"{head}: redundant: the other rules derive it wherever it was fired")
    return lines


def shown(verdict: Verdict) -> str:
    """The values and the snippet of a verdict's first fault."""
    failure, proof = verdict.outcome.failure, verdict.proof
    parts = ""
    if failure:
        parts += snippet_of(failure.example) if failure.example else f"\n  on {' '.join(failure.terms)}" if failure.terms else ""
    if proof and proof.values:
        left, right = proof.values
        parts += f"\n  {'and ' if parts else ''}over the integers: left {left}, right {right}\n\n{proof.snippet.rstrip()}"
    return parts


def snippet_of(example: Example | None) -> str:
    """Both sides' values, and the Python that prints them."""
    return f"\n{values(example.values())}\n  shown by:\n\n{example.text().rstrip()}" if example else ""

