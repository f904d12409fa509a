"""A saturated region as plain data to draw: classes, their members with costs, the extracted program, the rules that made what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from emmy.egraph import provenance
from emmy.egraph.canonical import smallest
from emmy.egraph.problem import Outlined, problem
from emmy.egraph.terms import Region, Term
from emmy.ir.dtype import DType
from emmy.ir.loop_ir import Value
from emmy.ir.loop_text import Writer
from emmy.view.layout import order
from extract import hardware, partition
from extract.hardware import Hardware

if TYPE_CHECKING:
    from emmy.pipeline import Program


MadeBy = Mapping[tuple[int, Term], tuple[str, ...]]
"""The names of the rules that made a member of a class, by (class, member); what the program says itself is left out."""


class Member(NamedTuple):
    """One way to compute a class: its text with operands as classes (%12), their numbers, the seconds it costs alone, which `kernels`
    (numbers) chose it, which `rules` made it, and the tensor that it loads if it is a load.

    `seconds` is None for what extraction does not consider: the second of two spellings that differ in the order of operands, and the
    sums and products in no order, in braces, that canonical forms are made of."""

    text: str
    kids: tuple[int, ...]
    seconds: float | None
    kernels: tuple[int, ...] = ()
    rules: tuple[str, ...] = ()
    tensor: str = ""


class EClass(NamedTuple):
    """A class of equal values: `axes` are those it depends on, `form` the place of its canonical member in `members`, `keeps` the
    tensors that a kernel could write of it.  `members` come with the chosen first, then by cost."""

    element: str
    axes: tuple[str, ...]
    form: int
    keeps: tuple[str, ...]
    members: tuple[Member, ...]


class Kernel(NamedTuple):
    """A kernel of the extracted program: the tensors it writes, of classes `roots`, those it reads, its row and predicted seconds."""

    name: str
    row: str
    seconds: float
    writes: tuple[str, ...]
    roots: tuple[int, ...]
    reads: tuple[str, ...]


class Keep(NamedTuple):
    """A tensor that may be kept: the class that its kernel computes, and the seconds that keeping it costs (launch, traffic, rent)."""

    home: int
    seconds: float


class Picture(NamedTuple):
    """A region to draw.  `classes` are in the order of the drawing (`emmy.view.layout.order`); `outputs`: results by name with their
    classes; `keeps` and `extents`: of tensors and axes by name; `fired`: how often each rule matched, by name."""

    title: str
    settings: tuple[str, ...]
    classes: Mapping[int, EClass]
    kernels: tuple[Kernel, ...]
    outputs: tuple[tuple[str, int], ...]
    keeps: Mapping[str, Keep]
    extents: Mapping[str, int]
    fired: Mapping[str, int]


class Operand(Value):
    """A value known by its class and type only."""

    key: int
    element: DType

    @property
    def dtype(self) -> DType:
        return self.element


def of_program(program: Program, title: str, stretch: int = 0) -> Picture:
    """The picture of one of the distinct stretches of a compiled program, with the kernels of one of its uses."""
    one, gpu = program.choice.extracted[stretch], hardware.for_target(program.target)
    scheduled = {s.identity: s for s in program.choice.scheduled.values()}
    kernels: list[Kernel] = []
    for call, k in zip(one.calls, one.kernels, strict=True):
        made, seconds = scheduled[call.identity].kernel, scheduled[call.identity].seconds
        reads = tuple(sorted({m.tensor for _, m in k.body if m.tensor}))
        kernels.append(Kernel(made.name, str(made.schedule.row) if made.schedule else "", seconds, k.writes, k.roots, reads))
    made_by = provenance.made_by(one.outlined.region) if program.traced else {}
    return picture(one.outlined, one.kernels, tuple(kernels), gpu, made_by, title, (program.math, program.target))


def picture(outlined: Outlined, extracted: Sequence[partition.Kernel], kernels: tuple[Kernel, ...], gpu: Hardware, made: MadeBy,
            title: str = "", settings: tuple[str, ...] = ()) -> Picture:
    """The picture of a region and of the bodies `extracted` from it, each with what `kernels` says of it.

    It has every class with a canonical form and every member made of such classes: the others have no finite term."""
    region = outlined.region
    bodies = smallest(region)
    terms = {c: [t for t in outlined.terms[c] if all(k in bodies for k in t.kids)] for c in sorted(bodies)}
    chosen: dict[tuple[int, str], list[int]] = {}
    for number, kernel in enumerate(extracted):
        for c, m in kernel.body:
            chosen.setdefault((c, m.spelling), []).append(number)
    stated = problem(outlined, gpu)
    price = {(c, m.spelling): math.fsum(s for _, s, _ in m.parts) for c, ms in stated.members.items() for m in ms}
    home = {w: root for k in extracted for w, root in zip(k.writes, k.roots, strict=True)}

    def below(c: int, t: Term) -> tuple[int, ...]:
        """The children of a member, the class that a kernel computes for it to load among them."""
        loads = t.kind == "Tensor" and (c, repr(t)) in chosen and home.get(t.label, c) != c
        return (*t.kids, home[t.label]) if loads else t.kids

    drawn = order({c: [below(c, t) for t in ts] for c, ts in terms.items()},
                  {c: [below(c, t) for t in terms[c] if (c, repr(t)) in chosen] for c, _ in sorted(chosen)})
    write = Text(region, {c: Operand(c, body.dtype) for c, (_, body) in bodies.items()}, outlined)
    may_keep: dict[int, list[str]] = {}
    for name, kept in outlined.kept.items():
        may_keep.setdefault(kept.home, []).append(name)

    def member(c: int, t: Term) -> Member:
        return Member(write.member(t), t.kids, price.get((c, repr(t))), tuple(chosen.get((c, repr(t)), ())), made.get((c, t), ()),
                      t.label if t.kind in ("Input", "Tensor") else "")

    def eclass(c: int) -> EClass:
        form, body = bodies[c]
        axes = tuple(map(write.axis, sorted(region.deps[c])))
        made_of = {t: member(c, t) for t in terms[c]}
        members = sorted(made_of.values(), key=rank)
        return EClass(str(body.dtype), axes, members.index(made_of[form]), tuple(may_keep.get(c, ())), tuple(members))

    classes = {c: eclass(c) for c in drawn}
    outputs = tuple((name, region.home[t]) for name, t in region.program.outputs if t in region.home)
    fixed, share = stated.rent
    keeps = {name: Keep(c, stated.launch + fixed + (1 + share) * stated.traffic[name]) for name, c in stated.home.items() if c in classes}
    extents = {write.axis(a): n for a, n in sorted(region.extents.items())}
    return Picture(title, settings, classes, kernels, outputs, keeps, extents, {r: n for r, n in region.fired.items() if n})


def rank(member: Member) -> tuple[bool, float, str]:
    """Where a member stands in its class: the chosen first, then by cost."""
    return not member.kernels, math.inf if member.seconds is None else member.seconds, member.text


class Text:
    """Writes members in the notation of Loop IR.  An axis is i with its number if it is one of a result's, and else r with it."""

    def __init__(self, region: Region, operands: Mapping[int, Operand], outlined: Outlined):
        self.operands, self.tensors = operands, outlined.tensors
        self.outer = {a for axes in region.output_axes.values() for a in axes}
        self.writer = Writer(self.axis, lambda v: f"%{v.key}" if isinstance(v, Operand) else "")

    def axis(self, a: int) -> str:
        return f"{'i' if a in self.outer else 'r'}{a}"

    def member(self, t: Term) -> str:
        """The text of a member on one line; a Sum, whose operands have no order, in braces."""
        if t.kind == "Sum":
            return f"{t.label}{{{', '.join(f'%{k}' for k in t.kids)}}}"
        value = t.build(tuple(self.operands[k] for k in t.kids), self.tensors[t.label].element if t.kind in ("Input", "Tensor") else None)
        return self.writer.lines(value)[-1]
