"""Rows from outside, a person, a script or a language model: read, judged by the rules, and ranked by what they take.

A file of proposals has a row a line, `[KERNEL:] ROW`, as in `fold_234b: WORK=w4,TILE=v8,REDUCE=warp`; KERNEL is a site
(`emmy.tune.pins`), and a row without one is for every kernel.  Empty lines and what follows # are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from emmy.egraph.schedule import PREMISES, candidates
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError
from emmy.tune import pins
from emmy.tune.measure import Result
from emmy.tune.tasks import Option, Task, options
from extract.hardware import Hardware


class Proposal(NamedTuple):
    """A row that is proposed on a line of a file, for the kernels at a site, "" for all."""

    line: int
    site: str
    row: str


class Judged(NamedTuple):
    """A proposal for a kernel: the option that it is, or why it is none; what became of it where it was measured."""

    line: int
    identity: str
    row: str
    option: Option | None
    reason: str
    result: Result | None = None

    @property
    def us(self) -> float:
        """Microseconds: measured where it was, predicted otherwise; infinite where it is no legal row or not right."""
        if self.option is None or self.result is not None and self.result.status != "right":
            return float("inf")
        return self.result.us if self.result and self.result.us is not None else self.option.seconds * 1e6


def read(text: str, name: str) -> list[Proposal]:
    """The proposals in a text; EmmyError names the line of file `name` that is none."""
    found = []
    for k, whole in enumerate(text.splitlines(), 1):
        if not (one := whole.split("#", 1)[0].strip()):
            continue
        site, colon, row = one.rpartition(":")
        try:
            if not row.strip():
                raise IRError("it has no row")
            found.append(Proposal(k, site.strip(), str(tile.parse_row(row))))
        except IRError as error:
            raise EmmyError(f"{name}, line {k}: {error}", "write a row a line, as WORK=t256,TILE=v4 or KERNEL: WORK=t64") from error
    return found


def judge(proposals: Sequence[Proposal], tasks: Sequence[Task], gpu: Hardware, extra: Sequence[tuple[str, str]] = ()) -> Iterator[Judged]:
    """Each proposal for each kernel that it is for.  EmmyError for a site where no kernel is."""
    names = {t.problem.identity: names_of(t) for t in tasks}
    for p in proposals:
        those = [t for t in tasks if not p.site or any(pins.stands_for(p.site, n) for n in names[t.problem.identity])]
        if not those:
            raise EmmyError(f"line {p.line}: no kernel is at {p.site!r}", f"the kernels are {', '.join(n[1] for n in names.values())}")
        for t in those:
            option = next((o for o in t.options if o.row == p.row), None) or off_menu(t, p.row, gpu, extra)
            reason = "" if option else why_not(t, p.row, extra)
            yield Judged(p.line, t.problem.identity, p.row, option, reason)


def names_of(task: Task) -> list[str]:
    """What a kernel can be named by: its identity, its name, its form, the tensors that it writes."""
    schedule, identity = task.kernel.schedule, task.problem.identity
    assert schedule is not None
    return [identity, f"{schedule.form}_{identity}", schedule.form, *(t.name for t in task.kernel.outputs)]


def off_menu(task: Task, row: str, gpu: Hardware, extra: Sequence[tuple[str, str]]) -> Option | None:
    """The option that a row is which no rule offers unasked, if it is legal."""
    try:
        found = options(task.kernel, task.problem.target, task.problem.math, gpu, row, extra)
    except EmmyError:
        return None
    return next((o for o in found if o.row == row), None)


def why_not(task: Task, row: str, extra: Sequence[tuple[str, str]]) -> str:
    """The premises that a row fails, or the legal row that is nearest to it."""
    kernel = task.kernel.replace(schedule=None)
    proposed = candidates(kernel, task.problem.target, task.problem.math, row, extra)
    failed = next((premises for s, premises in proposed.items() if str(s.row) == row and premises), ())
    if failed:
        return "fails " + ", ".join(f"{p} ({PREMISES[p]})" for p in failed)
    near = max(task.options, key=lambda o: (shared(o.row, row), -o.seconds))
    return f"no rule proposes it; the nearest legal row is {near.row}"


def shared(row: str, other: str) -> int:
    """How many fields two rows share."""
    return len(set(row.split(",")) & set(other.split(",")))


def ranked(judged: Sequence[Judged]) -> Mapping[str, list[Judged]]:
    """The proposals of each kernel, the quickest first, those that are none last."""
    found: dict[str, list[Judged]] = {}
    for j in judged:
        found.setdefault(j.identity, []).append(j)
    return {identity: sorted(those, key=lambda j: (j.us, j.line)) for identity, those in found.items()}
