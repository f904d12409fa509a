"""Twins: egglog text with what must hold and what must not, in blocks that a `;;` line opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from emmy.egraph.rulebook import scope
from emmy.errors import EmmyError


def blocks(text: str) -> Iterator[str]:
    """The blocks of a twin's text, each from its `;;` line on."""
    pieces = ("\n" + text).split("\n;;")
    return (f";;{block}" for block in pieces[1:] if block.strip())


def title(block: str) -> str:
    return block.splitlines()[0].lstrip("; ")


def firings(ir: str, block: str, extra: Iterable[tuple[str, str]] = (), name: str = "") -> Counter[str]:
    """Run a block in a graph of its own; how often each rule matched.  EmmyError where a check fails; it names the file `name`."""
    fired: Counter[str] = Counter()
    name = name or title(block)
    with scope(ir, extra) as graph:
        graph.files.append((name, block))       # so that an error names its line
        try:
            for output in graph.run(block, name):
                if hasattr(output, "report"):
                    fired.update(output.report.num_matches_per_rule)
        finally:
            graph.files.pop()
    return fired


def beside(path: Path) -> Path | None:
    """The twin of a rule file: NAME.twin.egg beside NAME.egg."""
    twin = path.with_name(f"{path.stem}.twin.egg")
    return twin if twin.is_file() else None


def failures(path: Path, ir: str, extra: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What does not hold of the twin at a path: the block and the check."""
    extra, text = tuple(extra), path.read_text()
    for block in blocks(text):
        before = text[:text.index(block)].count("\n")
        if "(check" not in block:
            yield f"{path}:{before + 1}: the block checks nothing: {title(block)}"
            continue
        try:
            firings(ir, "\n" * before + block, extra, str(path))
        except EmmyError as error:
            yield f"twin {error.message.removeprefix('rules: ')}"
