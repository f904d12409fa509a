"""Axes, indices and points for seeds: what the places of a pattern may stand for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count

from emmy.check.pattern import Call, Lit, Term, Var
from emmy.check.world import AXES, BOUND, Choose, Interval, Mismatch, World, coordinates
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType

DEEPEST = 2


class Places:
    """Makes the terms of a pattern that say where a value is read, in a world, by choices among finite options, the simplest first."""

    def __init__(self, world: World, choose: Choose):
        self.world, self.choose = world, choose
        self.env: dict[str, Term] = {}                  # what variables are
        self.defined: dict[str, list[Call]] = {}        # ... and what premises say that they equal
        self.params: list[Interval] | None = None       # of the template at hand, if one is being made
        self.bound: list[int] = []                      # axes that it has bound
        self.fresh = count()

    def value(self, t: Term, dtype: DType, depth: int = 0, whole: bool = False) -> Term:
        """A value of a type, or within a template a body.  `whole`: one that may be an index."""
        raise NotImplementedError

    def known(self, term: Term) -> Term:
        return self.env.get(term.name, term) if isinstance(term, Var) else term

    def bind(self, terms: Sequence[Term], values: Sequence[Term | None]) -> None:
        """Let variables be these values."""
        for t, value in zip(terms, values, strict=True):
            if value is not None and self.known(t) != value:
                if not isinstance(t, Var) or t.name in self.env:
                    raise Mismatch
                self.env[t.name] = value

    def text(self, t: Term, options: Sequence[str]) -> str:
        """A string: the one that stands there, or one of these."""
        found = self.known(t)
        if isinstance(found, Var) and options:
            self.env[found.name] = made = Lit(self.choose(options))
            return str(made.value)
        if not isinstance(found, Lit) or found.value not in options:
            raise Mismatch
        return str(found.value)

    def number(self, t: Term, options: Sequence[int]) -> Lit:
        found = self.known(t)
        if isinstance(found, Var):
            made = self.env[found.name] = Lit(self.choose(options))
            return made
        if not isinstance(found, Lit) or not isinstance(found.value, int):
            raise Mismatch
        return found

    def axis(self, t: Term) -> Lit:
        return self.number(t, range(AXES) if self.params is None else BOUND)

    def index(self, t: Term, depth: int = 0) -> Term:
        """An index term; within a template it may have parameters."""
        match t:
            case Var(x) if x in self.env: made = self.env[x]
            case Var(x) if x in self.defined: made = self.env[x] = self.index(self.defined[x][0], depth)
            case Var(x): made = self.env[x] = self.index(self.some_index(depth), depth)
            case Call("Axis", (a,)): made = Call("Axis", (self.axis(a),))
            case Call("Parameter", (k,)):
                made = Call("Parameter", (self.number(k, range(len(self.params or ())) or (0,)),))
            case Call("IndexConst", (n,)): made = Call("IndexConst", (self.number(n, (0, 1, 2, -1, 5)),))
            case Call("IndexAdd", (x, y)): made = Call("IndexAdd", (self.index(x, depth + 1), self.index(y, depth + 1)))
            case Call("IndexMul", (x, n)): made = Call("IndexMul", (self.index(x, depth + 1), self.number(n, (2, 1, 3, 4, 6, 0, -1, -2))))
            case Call("IndexDiv" | "IndexMod" as name, (x, n)):
                made = Call(name, (self.index(x, depth + 1), self.number(n, (2, 1, 3, 4, 6))))
            case Call("IndexOfValue", (v,)): made = Call("IndexOfValue", (self.value(v, dt.i64, whole=True),))
            case Call("IndexOfBody", (v,)): made = Call("IndexOfBody", (self.value(v, dt.i64, whole=True),))
            case Call("IndexReplace", (x, a, i)): made = Call("IndexReplace", (self.index(x, depth + 1), *self.replacement(a, i)))
            case Call("Nth", (p, k)):
                at = self.point(p)
                made = Call("Nth", (at, self.number(k, range(len(coordinates(at))) or (0,))))
            case Call("IndexAt", (x, p)):
                at = self.point(p)
                with self.template(self.intervals(at)):
                    made = Call("IndexAt", (self.index(x, depth + 1), at))
            case _: raise Mismatch
        return made

    def some_index(self, depth: int) -> Call:
        """A random index pattern."""
        a, b, n = (Var(f"_{next(self.fresh)}") for _ in range(3))
        deep = [Call("IndexConst", (n,)), Call("IndexAdd", (a, b)), *(Call(name, (a, n)) for name in ("IndexMul", "IndexDiv", "IndexMod"))]
        bound = [Call("Axis", (Lit(k),)) for k in self.bound]
        leaves = [Call("Axis", (n,))] if self.params is None else [*([Call("Parameter", (n,))] * bool(self.params)), *bound] or deep[:1]
        made: Call = self.choose([*leaves * 4, *(deep if depth < DEEPEST else deep[:1])])
        return made

    def replacement(self, a: Term, i: Term) -> tuple[Term, Term]:
        """An axis, and an index of fresh axes that stays below its extent."""
        axis = self.axis(a)
        index = self.index(i if not isinstance(self.known(i), Var) or self.known(i).name in self.defined else self.bound_new(i))    # type: ignore[union-attr]
        low, high = self.interval(index)
        if low < 0 or high >= self.world.extents[int(axis.value)]:
            raise Mismatch
        return axis, index

    def bound_new(self, i: Term) -> Term:
        """An index over axes that no other term has."""
        assert isinstance(i, Var)
        a = AXES + self.choose((0, 1))
        self.world.extents.setdefault(a, self.choose((2, 1, 3)))
        made: Term = self.choose((Call("Axis", (Lit(a),)), Call("IndexConst", (Lit(0),)), Call("IndexConst", (Lit(1),))))
        self.env[i.name] = made
        return made

    def point(self, t: Term) -> Term:
        """A point: coordinates that are nowhere negative."""
        match t:
            case Var(x) if x in self.env: return self.env[x]
            case Var(x) if x in self.defined:
                return self.env.setdefault(x, self.point(self.defined[x][0]))
            case Var(x):
                axes = self.choose(((0,), (0, 1), (1,), (1, 2), (), (2, 0), (3,), (0, 1, 2)))
                made = Call("End", ())
                for a in reversed(axes):
                    plain = Call("Axis", (Lit(a),)) if self.params is None else None
                    coordinate = self.choose((plain, plain, plain, None)) or self.index(Var(f"_{next(self.fresh)}"), 1)
                    made = Call("Coordinate", (coordinate, made))
                self.env[x] = made
            case Call("Coordinate", (x, rest)): made = Call("Coordinate", (self.index(x, 1), self.point(rest)))
            case Call("PointAt", (p, q)):
                at = self.point(q)
                with self.template(self.intervals(at)):
                    return Call("PointAt", (self.point(p), at))
            case Call("PointReplace", (p, a, i)): return Call("PointReplace", (self.point(p), *self.replacement(a, i)))
            case Call("Moved", (p, k, i)): return Call("Moved", (self.point(p), self.number(k, (0, 1, 2)), self.index(i)))
            case Call("PointsOf", (tensor, *numbers)):
                plane = Call("End", ())
                for a in (1, 0):
                    plane = Call("Coordinate", (Call("Axis", (Lit(a),)), plane))
                load = self.value(Call("Input", (tensor, plane)), dt.f32)
                assert isinstance(load, Call)
                return Call("PointsOf", (load.args[0], *(self.number(k, (0, 1, 2)) for k in numbers)))
            case Call("End") as done: return done
            case _: raise Mismatch
        if any(low < 0 for low, _ in self.intervals(made)):
            raise Mismatch
        return made

    def end(self, t: Term, axis: Lit) -> Term:
        """The point a scan stops at: below its axis's extent."""
        plain = Call("Axis", (axis,)) if self.params is None else self.some_index(DEEPEST)
        at = self.index(t if not isinstance(self.known(t), Var) else plain)
        if isinstance(t, Var):
            self.env[t.name] = at
        low, high = self.interval(at)
        if low < 0 or high >= self.world.extents[int(axis.value)]:
            raise Mismatch
        return at

    @contextlib.contextmanager
    def template(self, params: list[Interval]) -> Iterator[None]:
        """Make bodies, over parameters in these ranges, for a while."""
        outer = self.params, self.bound
        self.params, self.bound = params, []
        try:
            yield
        finally:
            self.params, self.bound = outer

    def intervals(self, at: Term) -> list[Interval]:
        """The ranges of a point's coordinates."""
        return [self.interval(x) for x in coordinates(at)]

    def interval(self, t: Term) -> Interval:
        return self.world.interval(t, self.params or ())
