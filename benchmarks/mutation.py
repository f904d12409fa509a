"""Break every shipped rule in turn and see what finds it.

    python -m benchmarks.mutation --output docs/mutation.md --record benchmarks/results/mutation.jsonl

`--record` keeps a line a rule as it is judged, so that nothing is lost when a run is stopped; with `--resume` only those rules are
judged that are not on record as they and their twins are.

A mutant is caught by values (or by scope, or by a bound, type or dependency that does not hold), by z3, because it never fires or grows for
ever, or by a twin.  One that is proved for all integers, or that only a listed reason excuses, is named with it; any other is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from emmy.check import twins
from emmy.check.agreement import judge
from emmy.check.book import Book, Graph, settle
from emmy.check.growth import growth
from emmy.check.integers import prove
from emmy.check.mutants import Mutant, mutants, mutated
from emmy.check.trial import Trial, targets
from emmy.egraph.rulebook import ORDER, house, rule_files
from emmy.egraph.rulefile import Rule, terms
from emmy.errors import EmmyError

ROOT = Path(__file__).parents[1]
ENOUGH, SECONDS, PROCESSES = 40, 1.0, 2

INTRODUCTION = """# Mutation

`make mutation` breaks every shipped rule in turn, one change a mutant: {broken} mutants of {rules} rules.
[writing-rules.md](writing-rules.md) says what judges a rule.

Caught by *values*: sides, bounds, types or dependencies differ on a seed. By *z3*: integers refute it. By *growth*: it does not stop.
By *silence*: it never fires. By its *twin*: a check fails. *Sound*: z3 proves the mutant, so it is a rule, too. *Listed*: nothing
catches it, for the reason below.
"""


class Result(NamedTuple):
    """A mutant and what caught it: "values", "z3", "twin", "growth", "silence"; or "sound" where z3 proves it, "compiler" where it is no
    rule, or "" where nothing did."""

    rule: str
    file: str
    operator: str
    what: str
    by: str


@cache
def book() -> Book:
    return Book()


@cache
def twin_blocks(ir: str, rule: str) -> tuple[str, ...]:
    """The twin blocks whose title names a rule."""
    files = sorted((ROOT / "tests" / "rules" / ir).glob("*.egg"))
    return tuple(b for f in files for b in twins.blocks(f.read_text()) if rule in twins.title(b).replace(":", " ").split())


def caught(rule: Rule, ir: str, mutant: Mutant) -> str:
    """What finds a mutant."""
    graph = with_mutant(rule, ir, mutant)
    if graph is None:
        return "compiler"
    silent = False
    if ir == "loop":
        wrong = mutated(book(), rule, mutant.form)
        proof = prove(wrong, rule)
        if proof and proof.verdict != "unknown":
            return "z3" if proof.verdict == "wrong" else "sound"
        outcome = judge(wrong, rule, ENOUGH, SECONDS, explain=False)
        if outcome.failure:
            return "values"
        aims = targets(wrong, rule)
        if aims and aims[0].rule is rule and growth(wrong, rule, Trial(wrong, aims[0])):
            return "growth"
        silent = not outcome.firings
    return "twin" if not holds(graph, twin_blocks(ir, rule.name)) else "silence" if silent else ""


def with_mutant(rule: Rule, ir: str, mutant: Mutant) -> Graph | None:
    """The house's rules of an IR with one replaced; None if that is no egglog."""
    files = [(name, text.replace(rule.text, mutant.form.text(rule.ruleset, rule.name)) if name == rule.file else text)
             for name, text in rule_files(ir)]
    try:
        return Graph(files)
    except EmmyError:
        return None


def holds(graph: Graph, blocks: tuple[str, ...]) -> bool:
    """Whether the checks of twin blocks hold; saturation is bounded, for a mutant may not stop."""
    for block in blocks:
        graph.run("(push)")
        try:
            for part in _parts(block):
                if part.startswith("(run-schedule"):
                    settle(graph, part.removeprefix("(run-schedule").rstrip()[:-1].replace("(saturate", "(repeat 3"), 6, 5_000)
                else:
                    graph.run(part)
        except EmmyError:
            return False
        finally:
            graph.run("(pop)")
    return True


def _parts(block: str) -> Iterator[str]:
    """The commands of a block."""
    return terms("\n".join(block.splitlines()[1:]))


def of_rule(ir: str, name: str) -> list[Result]:
    """Every mutant of a rule and what catches it."""
    rule = next(r for r in house(ir) if r.name == name)
    source = book() if ir == "loop" else tile_book()
    return [Result(name, rule.file, m.operator, m.what, caught(rule, ir, m)) for m in mutants(source, rule)]


@cache
def tile_book() -> Book:
    """The rules of Tile IR, for their forms and signatures."""
    return Book(ir="tile")


class Judged(NamedTuple):
    """The mutants of a rule: `digest` is of its text and twins, `counts` has how many each judge caught, `listed` those that none did."""

    ir: str
    rule: str
    file: str
    digest: str
    counts: dict[str, int]
    listed: list[Result]

    @classmethod
    def read(cls, line: str) -> Judged:
        """That of a line of a record."""
        fields = json.loads(line)
        return cls(**fields | {"listed": [Result(*r) for r in fields["listed"]]})

    def line(self) -> str:
        return json.dumps(self._asdict()) + "\n"


def digest(ir: str, rule: Rule) -> str:
    """What a verdict rests on besides the other rules: the rule's text and its twins."""
    return hashlib.sha256("\n".join((rule.text, *twin_blocks(ir, rule.name))).encode()).hexdigest()[:16]


def judged(ir: str, name: str) -> Judged:
    """What catches the mutants of a rule."""
    rule = next(r for r in house(ir) if r.name == name)
    results = of_rule(ir, name)
    counts = Counter(r.by for r in results)
    return Judged(ir, name, rule.file, digest(ir, rule), dict(counts), [r for r in results if not r.by])


def reason(result: Result, reasons: list[dict[str, str]]) -> str:
    """Why a mutant that nothing caught is no fault, from the list; "" if it has no reason."""
    return next((r["reason"] for r in reasons if fnmatch(result.rule, r["rule"]) and fnmatch(result.what, r.get("what", "*"))
                 and fnmatch(result.operator, r.get("operator", "*"))), "")


def page(rules: list[Judged], reasons: list[dict[str, str]]) -> str:
    """docs/mutation.md."""
    counts: dict[str, Counter[str]] = {}
    for r in rules:
        counts.setdefault(r.file, Counter()).update(r.counts)
    columns = ("values", "z3", "growth", "silence", "twin", "sound", "")
    total = sum(counts.values(), Counter())
    lines = [INTRODUCTION.format(broken=total.total() - total["compiler"], rules=len(rules)),
             f"| file | {' | '.join(c or 'listed' for c in columns)} |", f"|---{'|--:' * len(columns)}|"]
    lines += [f"| {file} | {' | '.join(str(count[c]) for c in columns)} |" for file, count in counts.items()]
    lines += [f"| all | {' | '.join(str(total[c]) for c in columns)} |", "", "## Listed", ""]
    groups: dict[str, list[Result]] = {}
    for result in (m for r in rules for m in r.listed):
        groups.setdefault(reason(result, reasons) or "**No reason is known.**", []).append(result)
    for why, group in groups.items():
        lines += [f"{why}", "", *(f"- `{r.rule}` ({r.operator}): `{r.what}`" for r in group), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="where to write the list as Markdown")
    parser.add_argument("--only", default="*", help="a pattern of rule names")
    parser.add_argument("--record", type=Path, help="a file of lines, one a rule")
    parser.add_argument("--resume", action="store_true", help="judge only rules that the record has not, or not as they are")
    given = parser.parse_args()
    start = time.monotonic()
    rules = {(ir, r.name): digest(ir, r) for ir in ORDER for r in house(ir) if fnmatch(r.name, given.only)}
    read = list(map(Judged.read, given.record.read_text().splitlines())) if given.record and given.record.exists() else []
    others = "".join(r.line() for r in read if not fnmatch(r.rule, given.only))      # are kept as they are
    known = {(r.ir, r.rule): r for r in read if rules.get((r.ir, r.rule)) == r.digest} if given.resume else {}
    wanted = [key for key in rules if key not in known]
    if given.record:
        given.record.write_text(others + "".join(r.line() for r in known.values()))
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for k, result in enumerate(pool.map(judged, *zip(*wanted, strict=True)) if wanted else ()):
            known[result.ir, result.rule] = result
            shown = ", ".join(f"{n} {by or 'listed'}" for by, n in result.counts.items())
            print(f"{k + 1}/{len(wanted)} {result.rule}: {shown}", file=sys.stderr, flush=True)
            if given.record:
                with given.record.open("a") as record:
                    record.write(result.line())
    found = [known[key] for key in rules]
    if given.record:
        given.record.write_text(others + "".join(r.line() for r in found))
    reasons = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())["listed"]
    if given.output:
        given.output.write_text(page(found, reasons))
    listed = [m for r in found for m in r.listed]
    loose = [m for m in listed if not reason(m, reasons)]
    for m in loose:
        print(f"not caught: {m.file}: {m.rule}: {m.operator}: {m.what}")
    broken = sum(sum(r.counts.values()) for r in found)
    print(f"{broken} mutants of {len(found)} rules, {len(listed)} listed, {len(loose)} without a reason, "
          f"{len(wanted)} rules judged in {time.monotonic() - start:.0f} s")
    sys.exit(bool(loose))


if __name__ == "__main__":
    main()
