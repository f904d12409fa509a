"""Tensor IR to Loop IR: which tensors get a body of their own, and which reductions share an axis.

Index maps, casts and tensors used once dissolve into their user's body.  A definition remains for every output, for
every tensor used twice, and for every reduction (with the elementwise operations of its shape that follow it).

Axes.  Dimensions that the program ties, by reading one tensor at another's place, are one class (union-find); a
reduction takes the axis of its class.  Where that axis can reach the reduction's operand from outside (an enclosing
reduction of the same class, say in x @ x.T), the reduction takes the next copy of the axis instead, so that
substitution never captures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tensor
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix, Pos
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import unwound
from emmy.ir.operators import unit
from emmy.lower import layout

Dim = tuple[str, int]     # (tensor, dimension) or ("axis", provisional axis)
Defined = tuple[str, tensor.Shape, Value]
Building = Generator["Building", Value, Value]       # see `unwound`


def lower(program: tensor.Program) -> loop.Program:
    """The Loop IR of a Tensor IR program; output tensors are named after the program's outputs."""
    names = _definitions(program)
    outputs = {node for _, node in program.outputs}
    stored = {node: node.dtype if node in outputs else _narrowed(node) for node in names}
    bodies, extents = _bodies(names, stored, {})
    if laid := layout.orders(bodies, {i.name: i.shape for i in program.inputs}, frozenset(names[node] for node in outputs)):
        bodies, extents = _bodies(names, stored, {node: laid[name] for node, name in names.items() if name in laid})
    axis = _assign_axes(bodies, extents)
    definitions = tuple(loop.Definition(name, shape, stored[node], rename(body, axis))
                        for node, (name, shape, body) in zip(names, bodies, strict=True))
    used = sorted({(axis[a], extents[a]) for a in extents})
    made = loop.Program(program.inputs, tuple(used), definitions, tuple((out, names[node]) for out, node in program.outputs))
    loop.verify(made)
    return made


def _definitions(program: tensor.Program) -> dict[tensor.Tensor, str]:
    """The nodes that get a definition, with its name, operands before users."""
    users: Counter[tensor.Tensor] = Counter(x for node in program.nodes for x in node.operands)
    follower = {x: node for node in program.nodes for x in node.operands}
    outputs = {node: f"out{k}" if name in {i.name for i in program.inputs} else name for k, (name, node) in enumerate(program.outputs)}
    chosen = set(outputs)
    for node in program.nodes:
        if isinstance(node, tensor.Reduce | tensor.Scan):
            while users[node] == 1 and node not in outputs and _continues(node, follower[node]):
                node = follower[node]
            chosen.add(node)
        elif users[node] > 1 and _computes(node):
            chosen.add(node)
    order = [n for n in program.nodes if n in chosen]
    taken = set(outputs.values()) | {i.name for i in program.inputs}
    fresh = (name for k in range(len(order) + len(taken) + 1) if (name := f"t{k}") not in taken)
    return {n: outputs[n] if n in outputs else next(fresh) for n in order}


def _bodies(names: dict[tensor.Tensor, str], stored: dict[tensor.Tensor, DType],
            orders: dict[tensor.Tensor, layout.Order]) -> tuple[list[Defined], dict[int, int]]:
    """Each definition by its name, with its shape and body, and the extents of provisional axes.  `orders`: of tensors whose dimensions lie
    in another order than their own."""
    bodies: list[Defined] = []
    extents: dict[int, int] = {}
    for node, name in names.items():
        order = orders.get(node, tuple(range(len(node.shape))))
        shape, point = tuple(node.shape[k] for k in order), tuple(Pos(order.index(k)) for k in range(len(order)))
        bodies.append((name, shape, _Body(names, stored, orders, shape, extents).value(node, point)))
    return bodies, extents


def _continues(node: tensor.Tensor, user: tensor.Tensor) -> bool:
    """Whether `user` carries on the definition of `node`: an elementwise step over the same points."""
    return isinstance(user, tensor.Elementwise | tensor.Cast | tensor.Round) and user.shape == node.shape


def _computes(node: tensor.Tensor) -> bool:
    """Whether the node does arithmetic of its own or below, rather than only reading an input or a constant elsewhere."""
    while isinstance(node, tensor.IndexMap | tensor.Cast):
        node = node.x
    return not isinstance(node, tensor.Input | tensor.Constant | tensor.IndexValue)


def _narrowed(node: tensor.Tensor) -> DType:
    """What the elements of a definition between others are kept as: its type, or the half type that it only widens."""
    while isinstance(node, tensor.Cast) and node.element is node.x.dtype.compute:
        node = node.x
    return node.dtype


class _Body:
    """Builds one definition's body; every reduction gets a provisional axis of its own."""

    def __init__(self, names: dict[tensor.Tensor, str], stored: dict[tensor.Tensor, DType], orders: dict[tensor.Tensor, layout.Order],
                 shape: tensor.Shape, extents: dict[int, int]):
        self.names, self.stored, self.orders, self.shape, self.extents = names, stored, orders, shape, extents
        self.memo: dict[tuple[tensor.Tensor, tuple[Ix, ...]], Value] = {}

    def value(self, node: tensor.Tensor, point: tuple[Ix, ...]) -> Value:
        """A definition's tensor at a point."""
        return unwound(self._value(node, point, top=True))

    def _value(self, node: tensor.Tensor, point: tuple[Ix, ...], top: bool = False) -> Building:
        key = node, point
        if key not in self.memo:
            self.memo[key] = yield self._build(node, point, top)
        return self.memo[key]

    def _build(self, node: tensor.Tensor, point: tuple[Ix, ...], top: bool) -> Building:
        def leaf(x: Ix) -> Ix:
            return point[x.k] if isinstance(x, Pos) else x

        if node in self.names and not top and not isinstance(node, tensor.Input):
            return loop.Load(self.names[node], self.stored[node], tuple(point[k] for k in self.orders.get(node, range(len(point)))))
        match node:
            case tensor.Input(name=name):
                return loop.Load(name, node.dtype, point)
            case tensor.Constant(element, bits):
                return loop.Const(element, bits)
            case tensor.IndexValue(at=at):
                return loop.IndexOf(self.simple(ix.substitute(at, leaf)))
            case tensor.Elementwise(op, args):
                made = []
                for x in args:
                    made.append((yield self._value(x, point)))
                return loop.Apply(op, tuple(made))
            case tensor.Cast(element, x):
                inner = yield self._value(x, point)
                return inner if element.compute is element and x.dtype.compute is element else loop.Cast(element, inner)
            case tensor.Round(element, x):
                return loop.Round(element, (yield self._value(x, point)))
            case tensor.IndexMap(at=at, x=x):
                return (yield self._value(x, tuple(self.simple(ix.substitute(a, leaf)) for a in at)))
            case tensor.Gather(axis, at, x, index):
                where: list[Ix] = [self.simple(ix.substitute(a, leaf)) for a in at]
                where[axis] = IxOf((yield self._value(index, point)))
                return (yield self._value(x, tuple(where)))
            case tensor.Reduce(monoid, axes, x) if not all(x.shape[k] for k in axes):
                return loop.Const(node.dtype, dt.bits(node.dtype, unit(monoid, node.dtype)))
            case tensor.Reduce(monoid, axes, x):
                fresh = {k: self.axis(x.shape[k]) for k in axes}
                rest = iter(point)
                inner = yield self._value(x, tuple(Ax(fresh[k]) if k in fresh else next(rest) for k in range(len(x.shape))))
                for k in reversed(axes):
                    inner = loop.Reduce(monoid, fresh[k], inner)
                return inner
            case tensor.Scan(monoid, axis, x):
                a = self.axis(x.shape[axis])
                return loop.Scan(monoid, a, point[axis], (yield self._value(x, (*point[:axis], Ax(a), *point[axis + 1:]))))
        raise AssertionError(type(node))

    def axis(self, extent: int) -> int:
        self.extents[len(self.extents)] = extent
        return len(self.extents) - 1

    def simple(self, x: Ix) -> Ix:
        def extent(leaf: Ix) -> int:
            return self.extents[leaf.a] if isinstance(leaf, Ax) else self.shape[leaf.k] if isinstance(leaf, Pos) else 1 << 62

        return ix.simplify(x, extent)


def _assign_axes(bodies: list[Defined], extents: dict[int, int]) -> dict[int, int]:
    """The final axis of each provisional one."""
    shapes = {name: shape for name, shape, _ in bodies}
    parent: dict[Dim, Dim] = {}

    def find(d: Dim) -> Dim:
        while parent.setdefault(d, d) != d:
            parent[d] = parent[parent[d]]
            d = parent[d]
        return d

    for name, _, body in bodies:
        for load in (v for v in loop.walk((body,)) if isinstance(v, loop.Load)):
            for k, x in enumerate(load.point):
                if isinstance(x, Pos):
                    parent[find((load.tensor, k))] = find((name, x.k))
                elif isinstance(x, Ax):
                    parent[find((load.tensor, k))] = find(("axis", x.a))

    order = {d: n for n, d in enumerate(sorted({find(("axis", a)) for a in extents}, key=str))}
    copies: dict[tuple[int, int, int], int] = {}     # (class, extent, version) -> axis
    final: dict[int, int] = {}
    reach: dict[Dim, frozenset[int]] = {(name, k): frozenset() for name, shape in shapes.items() for k in range(len(shape))}
    for name, _, body in reversed(bodies):
        free = loop.free_axes((body,))
        positions = _positions(body)

        def outside(v: Value, name: str = name, free: dict[Value, frozenset[int]] = free,
                    positions: dict[Value, frozenset[int]] = positions) -> frozenset[int]:
            return frozenset(final[a] for a in free[v]).union(*(reach[name, k] for k in positions[v]))

        for v in reversed(loop.walk((body,))):       # users first: enclosing reductions are settled
            if v.binds is not None and v.binds not in final:
                forbidden = outside(v)
                key = order[find(("axis", v.binds))], extents[v.binds]
                version = 0
                while copies.setdefault((*key, version), len(copies)) in forbidden:
                    version += 1
                final[v.binds] = copies[*key, version]
        for v in free:
            if isinstance(v, loop.Load) and v.tensor in shapes:
                for k, x in enumerate(v.point):
                    through = {final[a] for a in loop.axes_of(x, free)}
                    for leaf in ix.leaves(x):
                        if isinstance(leaf, Pos):
                            through |= reach[name, leaf.k]
                        elif isinstance(leaf, IxOf):
                            through |= outside(leaf.value)
                    reach[v.tensor, k] |= through
    return final


def _positions(body: Value) -> dict[Value, frozenset[int]]:
    """The parameters that each value below `body` mentions."""
    found: dict[Value, frozenset[int]] = {}
    for v in loop.walk((body,)):
        terms = v.point if isinstance(v, loop.Load) else (v.at,) if isinstance(v, loop.IndexOf | loop.Scan) else ()
        own = {leaf.k for x in terms for leaf in ix.leaves(x) if isinstance(leaf, Pos)}
        found[v] = frozenset(own).union(*(found[x] for x in v.operands))
    return found


def rename(body: Value, axis: dict[int, int], tensors: dict[str, str] | None = None, bound: dict[int, int] | None = None) -> Value:
    """`body` with its axes renamed, and the tensors it loads; an axis of `bound` only where a reduction binds it."""
    made: dict[Value, Value] = {}

    def at(x: Ix) -> Ix:
        def renamed(leaf: Ix) -> Ix:
            return Ax(axis.get(leaf.a, leaf.a)) if isinstance(leaf, Ax) else IxOf(made[leaf.value]) if isinstance(leaf, IxOf) else leaf

        return ix.substitute(x, renamed)

    for v in loop.walk((body,)):
        match v:
            case loop.Load(t, element, point):
                made[v] = loop.Load((tensors or {}).get(t, t), element, tuple(map(at, point)))
            case loop.IndexOf(x):
                made[v] = loop.IndexOf(at(x))
            case loop.Const():
                made[v] = v
            case loop.Apply(op, args):
                made[v] = loop.Apply(op, tuple(made[a] for a in args))
            case loop.Cast(element, x):
                made[v] = loop.Cast(element, made[x])
            case loop.Round(element, x):
                made[v] = loop.Round(element, made[x])
            case loop.Reduce(monoid, a, x):
                made[v] = loop.Reduce(monoid, axis.get(a, a), made[x])
            case loop.Scan(monoid, a, where, x):
                made[v] = loop.Scan(monoid, axis.get(a, a), at(where), made[x])
            case loop.Pivot(recipe, a, s):
                made[v] = loop.Pivot(recipe, axis.get(a, a), made[s])
            case loop.Channel(recipe, a, s, x):
                made[v] = loop.Channel(recipe, axis.get(a, a), made[s], made[x])
            case _:      # a leaf of a later IR
                made[v] = v
        if bound and v.binds in bound:
            made[v] = rename(made[v], {v.binds: bound[v.binds]})
    return made[body]
