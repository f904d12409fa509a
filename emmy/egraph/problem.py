"""A saturated region as the plain problem that `extract.partition` solves, and its kernels back as Loop IR bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from emmy.egraph.canonical import canonical, digest, spell
from emmy.egraph.invariant import lasting
from emmy.egraph.terms import Region, Term
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix, IxConst
from emmy.ir.loop_ir import Value
from emmy.ir.operators import OPERATORS, TWISTS
from emmy.ir.tensor_ir import Input
from emmy.lower.tensor_to_loop import rename
from extract.cost import NESTED_STEP_US, product_seconds, slot_seconds
from extract.hardware import Hardware
from extract.partition import Kernel, Member, Problem

HELD_BYTES = 128 << 10       # of a row, that a block holds from one pass to the next
SCAN_TILE = 4096             # elements that a block scans and hands on the product of
RENT = 4e-6, 4.0      # of a tensor between kernels: a launch's time on the host, and four times its traffic
CALLS = 64            # in which a kernel that runs once for all is to pay for itself


class Kept(NamedTuple):
    """A tensor that may be kept: where its kernel computes it, over which axes in order, and how it is stored."""

    home: int
    axes: tuple[int, ...]
    element: DType


def contiguous_last(order: tuple[int, ...], body: Value, sizes: dict[str, int]) -> tuple[int, ...]:
    """`order` with the axis last along which most of what the body reads lies contiguous: what is written then lies as it is read."""
    reads = dict.fromkeys(order, 0)
    for v in loop.walk((body,)):
        if isinstance(v, loop.Load) and len(v.point) > 1 and isinstance(v.point[-1], Ax) and v.point[-1].a in reads:
            reads[v.point[-1].a] += sizes[v.tensor]
    most = max(order, key=reads.__getitem__, default=None)
    if most is None or reads[most] <= reads[order[-1]]:
        return order
    return *(a for a in order if a != most), most


class Outlined(NamedTuple):
    """A region with every tensor that may be kept, those the rules derived (named by their canonical body) included.

    A state of a twist is kept whole, each component a tensor at every point of the one with most axes, which stands for all: `beside` has
    the others by its name.  One that lacks an axis lies there alike all along it.  `lasting`: the tensors that may stay from one call to
    the next."""

    region: Region
    kept: dict[str, Kept]
    terms: dict[int, tuple[Term, ...]]
    tensors: dict[str, tile.Tensor]     # every tensor a kernel could read or write
    beside: dict[str, tuple[str, ...]]  # the other components of the state of a twist, by the one with most axes, which stands for all
    lasting: frozenset[str]

    def stands(self, tensor: str) -> str:
        """The tensor that stands for a state, where `tensor` is another component of it; else itself."""
        return next((first for first, others in self.beside.items() if tensor in others), tensor)

    def point(self, tensor: str, at: Sequence[int | Ix]) -> tuple[Ix, ...]:
        """Where a kept tensor is read with axes or indices for its own axes: along those that it has for another component alone, at 0."""
        own = dict(zip(self.kept[tensor].axes, (Ax(x) if isinstance(x, int) else x for x in at), strict=True))
        return tuple(own.get(a, IxConst(0)) for a in self.kept[self.stands(tensor)].axes)

    def whole(self, writes: Iterable[str]) -> tuple[str, ...]:
        """All tensors that a kernel writes, each that stands for a state before the other components of it."""
        return tuple(name for w in writes for name in (w, *self.beside.get(w, ())))


def outline(region: Region) -> Outlined:
    """Name the values that `rules/loop/cut.egg` lets be kept, stored as the program rounds them if it does.  One value met at two points
    is one tensor: its name is its body's digest, its axes are in the order in which the body meets them, those of outputs in the order
    of the outputs."""
    elements = region.elements()
    kept = {name: Kept(c, region.output_axes[name], elements[name]) for name, c in region.home.items()}
    kept |= {name: Kept(copy.home, copy.axes, elements[copy.source]) for name, copy in region.copies.items()}
    held = {c for c, terms in region.terms.items() if any(t.kind == "Tensor" for t in terms)}
    states = [s for s in region.states if not s & held]
    candidates = sorted((region.may_keep - held).union(*states))
    bodies = canonical(region, candidates)
    shapes: dict[str, tuple[int, ...]] = {}
    positions = {a: k for axes in region.output_axes.values() for k, a in enumerate(axes)}
    sizes_of = {t.name: prod(t.dims if isinstance(t, Input) else t.shape) for t in region.program.everything}
    added: dict[int, Term] = {}

    def named(c: int) -> tuple[str, tuple[int, ...]]:
        text, speller = spell(bodies[c], {}, region.extents)
        met = [a for a in speller.axes if a in region.deps[c]]
        outer = iter(sorted((a for a in met if a in positions), key=positions.__getitem__))
        order = contiguous_last(tuple(next(outer) if a in positions else a for a in met), bodies[c], sizes_of)
        sizes = ",".join(str(region.extents[a]) for a in order)
        return f"k{digest(f'{text}:{sizes}:{sorted(speller.tensors.items())}')}", order

    def keep(c: int, name: str, order: tuple[int, ...], points: tuple[int, ...]) -> None:
        kept.setdefault(name, Kept(c, order, region.rounded.get(c, bodies[c].dtype)))
        added[c] = Term("Tensor", name, at=tuple(Ax(a) if a in order else IxConst(0) for a in points))
        shapes[name] = tuple(region.extents[a] for a in points)

    for c in candidates:
        if c in bodies and not any(c in s for s in states):
            name, order = named(c)
            if set(order) == region.deps[c] and order:
                keep(c, name, order, order)
    beside: dict[str, tuple[str, ...]] = {}
    for state in states:
        first, *others = sorted(state, key=lambda c: (-len(region.deps[c]), c))
        name, points = named(first) if first in bodies else ("", ())
        if set(points) == region.deps[first] and all(c in bodies and region.deps[c] <= region.deps[first] for c in others):
            keep(first, name, points, points)
            for c in others:
                keep(c, named(c)[0], tuple(a for a in points if a in region.deps[c]), points)
            beside[name] = tuple(sorted(added[c].label for c in others))
    for c, of, axis, at in region.kept_at:
        if of in added and c not in added and loop.axes_of(at) <= region.deps[c]:
            added[c] = added[of]._replace(at=tuple(at if x is Ax(axis) else x for x in added[of].at))
    terms = {c: (*ts, added[c]) if c in added else ts for c, ts in region.terms.items()}
    tensors = {i.name: tile.Tensor(i.name, i.dims, i.element) for i in region.program.inputs}
    shapes = {name: tuple(region.extents[a] for a in k.axes) for name, k in kept.items()} | shapes
    tensors |= {name: tile.Tensor(name, shapes[name], k.element) for name, k in kept.items()}
    homes = {n: k.home for n, k in kept.items() if not any(n in (w, *others) for w, others in beside.items())}
    sizes = {n: prod(t.shape) * t.element.bytes for n, t in tensors.items()}
    return Outlined(region, kept, terms, tensors, beside, lasting(region, homes, sizes))


def problem(outlined: Outlined, gpu: Hardware, math: str = "fast") -> Problem:
    """Costs in seconds, each value computed once for each setting of its axes."""
    region = outlined.region
    slot, byte = 1 / (gpu.fp32_TFLOPs * 1e12 / 2), 1 / (gpu.bandwidth_TBs * 1e12)
    inputs = frozenset(i.name for i in region.program.inputs)
    operands = {x for t in region.program.everything if (x := t.element).compute is not x or math == "tf32" and x is dt.f32}
    # of the unit that may do it, as fast as the cost model lets it be
    product = product_seconds(gpu, min(x.bytes for x in operands)) if operands and gpu.tensor_bf16_TFLOPs else slot
    summed = {t.kids[0] for ts in region.terms.values() for t in ts if t.kind == "Reduce" and t.label == "add"}

    narrowest = min((t.element.bytes for t in region.program.everything), default=4)
    waits = waiting(region)

    def size(axes: frozenset[int] | set[int]) -> float:
        return prod((region.extents[a] for a in axes), start=1.0)

    def parts(c: int, t: Term) -> tuple[tuple[str, float, str], ...]:
        deps = region.deps[c]
        match t.kind:
            case "Input" | "Tensor":
                read = outlined.tensors[t.label]
                if t.label in region.copies:    # where one is kept, the body that reads it is the one to be priced
                    return ()
                return ((f"load {t.label}", min(prod(read.shape), size(deps)) * read.element.bytes * byte, "memory"),)
            case "Const" | "IndexValue":
                return ()
            case "Binary" if t.label == "mul" and c in summed:
                return ((f"class {c}", size(deps) * product, "work"),)
            case "Unary" | "Binary" | "Ternary":
                return ((f"class {c}", OPERATORS[t.label].flops * size(deps) * slot, "work"),)
            case "Cast" | "Round":      # what a rounding leaves is as a rule stored so; what a cast does is widened again
                widened = t.kind == "Cast" and dt.named(t.label).compute is not dt.named(t.label)
                return ((f"class {c}", (2 if widened else 1) * size(deps) * slot, "work"),)
        assert t.axis is not None
        inner = size(region.deps[t.kids[0]] | {t.axis}) * slot
        carrier = f"{t.axis} {t.kids[0]}"
        if t.kind == "Scan":
            # one after the other along its axis, a block for each setting of the other axes, and for each piece where it runs along pieces,
            # or for each tile, where tiles hand each other a word
            free, upto = region.deps[t.kids[0]] - {t.axis}, loop.axes_of(t.at[0])
            blocks = size(free - upto) * (max(1.0, size(upto) / region.extents[t.axis]) if free & upto else 1.0)
            tiles = max(1.0, region.extents[t.axis] / SCAN_TILE) if words(outlined, t.kids[0]) == 1 else 1.0
            return ((f"class {c}", blocks * region.extents[t.axis] * slot * max(1.0, gpu.sms / max(blocks * tiles, 1.0)), "work"),)
        match t.kind:
            # a twist's pivot and weights are paid once for all its channels, a little under what the separate passes cost
            case "Pivot": return ((f"{t.label} pivot {carrier}", TWISTS[t.label].pivot * inner, "work"),)
            case "Channel":
                both = size(region.deps[t.kids[0]] | region.deps[t.kids[1]] | {t.axis}) * product
                twist, key = TWISTS[t.label], f"{t.label} {{}} {carrier}"
                shared = (key.format("pivot"), twist.pivot * inner, "work"), (key.format("weight"), twist.weight * inner, "work")
                return *shared, (f"class {c}", 0.95 * both, "work")
        again: tuple[tuple[str, float, str], ...] = ()
        if t.axis in waits.get(t.kids[0], ()) and region.extents[t.axis] * 4 > HELD_BYTES:
            again = ((f"again {carrier}", size(region.deps[t.kids[0]] | {t.axis}) * narrowest * byte, "memory"),)
        fused = t.label == "add" and any(m.kind == "Binary" and m.label == "mul" for m in region.terms.get(t.kids[0], ()))
        return *again, (f"class {c}", 0.05 * inner * product / slot if fused else inner, "work")

    members = {c: tuple(Member(repr(t), t.kids, parts(c, t), outlined.stands(t.label) if t.kind in ("Input", "Tensor") else "",
                               t.axis if t.kind == "Reduce" else None, t.kind in ("Pivot", "Channel"),
                               t.axis if t.kind in ("Pivot", "Channel") or t.kind == "Reduce" and t.label != "add" else None)
                        for t in terms if not t.spelled and not mirrored(t, terms)) for c, terms in outlined.terms.items()}
    alone = {n: k for n, k in outlined.kept.items() if outlined.stands(n) == n}
    # a component of a state that lacks an axis is read at one point of it: no more of it finds room in caches
    own = {name: prod(region.extents[a] for a in k.axes) * outlined.tensors[name].element.bytes for name, k in outlined.kept.items()}
    traffic = {n: byte * sum(own[name] for name in outlined.whole((n,))) for n in alone}
    outputs = tuple(dict.fromkeys(t for _, t in region.program.outputs if t not in inputs))
    named = tuple(d.name for d in region.program.definitions)
    cheap = light(outlined)
    solid = frozenset(n for n, k in alone.items() if k.home not in cheap or k.home in region.read_where_kept)
    home = {n: k.home for n, k in alone.items()}
    shapes = {n: outlined.tensors[n].shape for n in alone}
    beside = {n: tuple(outlined.kept[other].home for other in others) for n, others in outlined.beside.items()}
    return Problem(members, home, traffic, named, outputs, inputs, solid, gpu.launch_us * 1e-6, RENT, region.deps, region.extents,
                   slot_seconds(gpu), shapes, beside, frozenset(region.copies), outlined.lasting, CALLS,
                   NESTED_STEP_US * 1e-6)


def words(outlined: Outlined, c: int) -> int:
    """The 4-byte words of a value of a class."""
    seen, stack = {c}, [c]
    while stack:
        for t in outlined.terms[stack.pop()]:
            match t.kind:
                case "Input" | "Tensor": return -(-outlined.tensors[t.label].element.compute.bytes // 4)
                case "Const" | "Number" | "Cast" | "Round": return -(-dt.named(t.label).compute.bytes // 4)
                case "IndexValue": return 2
            stack += {k for k in t.kids[-1:] if k not in seen}
            seen |= set(t.kids)
    return 1


def waiting(region: Region) -> dict[int, frozenset[int]]:
    """For each class, the axes that each of its members reduces over: a reduction of it over such an axis is a further pass."""
    every, none = frozenset(region.extents), frozenset[int]()
    members = {c: [t for t in ts if t.kind != "Tensor" and not t.spelled] for c, ts in region.terms.items()}
    users: dict[int, set[int]] = {}
    for c, ts in members.items():
        for t in ts:
            for k in t.kids:
                users.setdefault(k, set()).add(c)
    found = dict.fromkeys(members, every)
    open_ = list(reversed(members))
    while open_:      # the greatest fixpoint, from above: members that are cyclic rule nothing out
        c = open_.pop()
        axes = every
        for t in members[c]:
            axes &= (none if t.axis is None else frozenset((t.axis,))).union(*(found.get(k, none) for k in t.kids))
        if axes != found[c]:
            found[c] = axes
            open_ += users.get(c, ())
    return found


def light(outlined: Outlined) -> frozenset[int]:
    """The classes that inputs give without a reduction."""
    found: set[int] = set()
    users: dict[int, list[tuple[int, Term]]] = {}
    ready: list[int] = []
    for c, ts in outlined.terms.items():
        for t in ts:
            if t.axis is None and t.kind != "Tensor":
                for k in t.kids:
                    users.setdefault(k, []).append((c, t))
                if not t.kids:
                    ready.append(c)
    while ready:
        c = ready.pop()
        if c not in found:
            found.add(c)
            ready += (user for user, t in users.get(c, ()) if all(k in found for k in t.kids))
    return frozenset(found)


def mirrored(t: Term, members: tuple[Term, ...]) -> bool:
    """Whether a rule commuted this operation and the class has both spellings: they cost the same, so one is enough."""
    return t.kind == "Binary" and t.kids[0] > t.kids[1] and t._replace(kids=t.kids[::-1]) in members


def bodies(outlined: Outlined, kernel: Kernel) -> tuple[Value, ...]:
    """The Loop IR bodies of an extracted kernel, one for each tensor that it writes (`Outlined.whole`), over the axes of the first."""
    made = built(outlined, kernel)
    first = outlined.kept[kernel.writes[0]].axes
    return tuple(rename(made[outlined.kept[name].home], onto(outlined.kept[w].axes, first))
                 for w in kernel.writes for name in outlined.whole((w,)))


def onto(axes: tuple[int, ...], others: tuple[int, ...]) -> dict[int, int]:
    """A permutation that takes `axes` to `others`, so that it captures none."""
    to = dict(zip(axes, others, strict=True))
    for a in set(others) - to.keys():
        back = next(x for x, y in to.items() if y == a)
        while back in to.values():
            back = next(x for x, y in to.items() if y == back)
        to[a] = back
    return {a: b for a, b in to.items() if a != b}


def built(outlined: Outlined, kernel: Kernel) -> dict[int, Value]:
    """The value of each class in the bodies of a kernel."""
    chosen = {c: next(t for t in outlined.terms[c] if repr(t) == m.spelling) for c, m in kernel.body}
    made: dict[int, Value] = {}
    stack = [(root, False) for root in (*kernel.roots, *kernel.beside)]
    while stack:
        c, ready = stack.pop()
        if c in made:
            continue
        t = chosen[c]
        if ready:
            made[c] = t.build(tuple(made[k] for k in t.kids), outlined.tensors[t.label].element if t.kind in ("Input", "Tensor") else None)
        else:
            stack.append((c, True))
            stack.extend((k, False) for k in t.kids)
    return made


