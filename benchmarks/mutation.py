"""Break every shipped rule in turn and see what finds it.

    python -m benchmarks.mutation --output docs/mutation.md

A mutant is caught by values (or by scope, or by a bound, type or dependency that does not hold), by z3, because it never fires or grows for
ever, or by a twin.  One that is proved for all integers, or that only a listed reason excuses, is named with it; any other is an error.
"""

from __future__ import annotations

import argparse
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


def reason(result: Result, reasons: list[dict[str, str]]) -> str:
    """Why a mutant that nothing caught is no fault, from the list; "" if it has no reason."""
    return next((r["reason"] for r in reasons if fnmatch(result.rule, r["rule"]) and fnmatch(result.what, r.get("what", "*"))
                 and fnmatch(result.operator, r.get("operator", "*"))), "")


def page(results: list[Result], reasons: list[dict[str, str]]) -> str:
    """docs/mutation.md."""
    counts: dict[str, Counter[str]] = {}
    for r in results:
        counts.setdefault(r.file, Counter())[r.by] += 1
    columns = ("values", "z3", "growth", "silence", "twin", "sound", "")
    broken, rules = sum(r.by != "compiler" for r in results), len({r.rule for r in results})
    lines = [INTRODUCTION.format(broken=broken, rules=rules), f"| file | {' | '.join(c or 'listed' for c in columns)} |",
             f"|---{'|--:' * len(columns)}|"]
    lines += [f"| {file} | {' | '.join(str(count[c]) for c in columns)} |" for file, count in counts.items()]
    total = sum(counts.values(), Counter())
    lines += [f"| all | {' | '.join(str(total[c]) for c in columns)} |", "", "## Listed", ""]
    groups: dict[str, list[Result]] = {}
    for r in results:
        if not r.by:
            groups.setdefault(reason(r, reasons) or "**No reason is known.**", []).append(r)
    for why, group in groups.items():
        lines += [f"{why}", "", *(f"- `{r.rule}` ({r.operator}): `{r.what}`" for r in group), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="where to write the list as Markdown")
    parser.add_argument("--only", default="*", help="a pattern of rule names")
    given = parser.parse_args()
    start = time.monotonic()
    wanted = [(ir, r.name) for ir in ORDER for r in house(ir) if fnmatch(r.name, given.only)]
    reasons = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text())["listed"]
    found: list[Result] = []
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for k, results in enumerate(pool.map(of_rule, *zip(*wanted, strict=True))):
            found += results
            counts = Counter(r.by or "listed" for r in results)
            shown = ", ".join(f"{n} {by}" for by, n in counts.items())
            print(f"{k + 1}/{len(wanted)} {wanted[k][1]}: {shown}", file=sys.stderr, flush=True)
            if given.output:        # as far as it has come
                given.output.write_text(page(found, reasons))
    loose = [r for r in found if not r.by and not reason(r, reasons)]
    for r in loose:
        print(f"not caught: {r.file}: {r.rule}: {r.operator}: {r.what}")
    print(f"{len(found)} mutants, {sum(not r.by for r in found)} listed, {len(loose)} without a reason, {time.monotonic() - start:.0f} s")
    sys.exit(bool(loose))


if __name__ == "__main__":
    main()
