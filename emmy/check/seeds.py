"""Programs on which a rule fires, made from its premises.

A pattern is instantiated outside in: constructors as they stand, variables as small random terms of their sort and type, operators from
the facts that a premise names or the operators there are, axes among a few with small extents.  A premise on a fact that other rules
derive is replaced by the premises of one of them.  Side conditions are left to chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import Any

from emmy.check.book import Book
from emmy.check.court import Tensor
from emmy.check.pattern import Call, Form, Lit, Term, Var, calls, substitute, variables
from emmy.check.places import DEEPEST, Places
from emmy.check.world import Choose, Interval, Mismatch, Seed, World, fraction
from emmy.egraph.rulefile import Rule
from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.node import IRError
from emmy.ir.operators import MONOIDS, OPERATORS, TWISTS

AXIS = {("Axis", 0), ("Reduce", 1), ("Scan", 1), ("Pivot", 1), ("Channel", 1), ("Replace", 1), ("PointReplace", 1), ("IndexReplace", 1),
        ("BodyReduce", 1), ("BodyScan", 1), ("Extent", 0)}
# Operators that jump: over the reals, two roundings of one number may lie on either side.  Only a rule that names one is judged with it.
JUMPS = ("sign", "floor", "ceil", "trunc", "round", "floordiv", "truncdiv", "mod", "fmod", "eq", "ne", "lt", "le", "isnan")
MAIN = (dt.f64, dt.f32, dt.f32, dt.f64, dt.i64, dt.bool_, dt.i32)      # types of the roots
WHY = "deviation", "squares"           # reasons of a Difference
CHAIN = 6               # rules, one after another, that derive a fact of a seed
FRACTIONS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (-3, 1), (0, 1))
CONSTANTS = (1.0, 2.0, 0.0, -0.0, -1.5, float("inf"), float("nan"))


class Maker(Places):
    """Makes seeds."""

    def __init__(self, book: Book, world: World, choose: Choose, kinds: Sequence[str], through: str = ""):
        super().__init__(world, choose)
        self.book, self.kinds, self.through = book, kinds, through
        self.pool: dict[DType, list[Term]] = {}
        self.types: dict[str, Term] = {}        # of variables, where a premise asks for them
        self.sizes: dict[str, Term] = {}        # of elements of the tensors that variables name, in bytes
        self.used: list[Rule] = []

    def seed(self, form: Form) -> Seed:
        """A seed for a rule of this form; Mismatch where the choices did not fit, and then the world is as it was."""
        known: tuple[dict[str, Any], ...] = self.world.inputs, self.world.definitions, self.world.bodies
        sizes, pooled = [len(kept) for kept in known], {d: len(terms) for d, terms in self.pool.items()}
        try:
            return self._seed(form)
        except (Mismatch, IRError, IndexError):
            for kept, size in zip(known, sizes, strict=True):
                for _ in range(len(kept) - size):
                    kept.popitem()
            for d, terms in self.pool.items():
                del terms[pooled.get(d, 0):]
            raise

    def _seed(self, form: Form) -> Seed:
        self.env, self.defined, self.params, self.bound, self.used = {}, {}, None, [], []
        premises = self.unfolded(form.premises)
        for p in premises:
            if self.book.relations.get(p.name):
                self.bind(p.args, self.choose(self.book.relations[p.name]))
        equal = [p.args for p in premises if p.name == "="]
        self.types = {str(of.args[0]): d for left, right in equal for d, of in ((left, right), (right, left))
                      if isinstance(of, Call) and of.name == "Dtype"}
        self.sizes = {str(p.args[0]): p.args[2] for p in premises if p.name == "Shaped"}
        for p in premises:
            match p:
                case Call("=", (Var(x), Call("bigrat") as value)) if not variables(value): self.bind((Var(x),), (value,))
                case Call("=", (Var(x), Lit() as value)) | Call("=", (Lit() as value, Var(x))): self.bind((Var(x),), (value,))
                case Call("=", (Var(x), Call(name) as made)) | Call("=", (Call(name) as made, Var(x))) if self.book.constructs(name):
                    self.defined.setdefault(x, []).append(made)
        named = (self.known(c.args[0]) for c in calls(*premises) if c.name in ("Const", "Number"))
        types = {d for d in named if isinstance(d, Lit)}
        main = dt.named(str(self.choose(sorted(types)).value)) if types else self.choose(MAIN)
        roots = []
        for x, sort in self.book.sorts(premises).items():
            if sort in ("Value", "Index", "Point"):
                roots += [self.term(sort, Var(x), main), *(self.term(sort, d, main) for d in self.defined.get(x, ())[1:])]
        for p in premises:
            roots += [self.term(self.book.signature[c.name][1], c, main) for c in p.args if p.name == "=" and isinstance(c, Call)
                      and self.book.constructs(c.name) and not any(isinstance(a, Var) for a in p.args)]
        return Seed(tuple(dict.fromkeys(roots)), tuple(self.used))

    def unfolded(self, premises: Sequence[Call], path: tuple[str, ...] = ()) -> list[Call]:
        """The premises, with those of a rule that derives it for each fact that no file states.  `path`: the facts that they are to derive,
        of which one of the same kind as a premise ends it sooner."""
        found: list[Call] = []
        for p in premises:
            derivers = self.book.derivers.get(p.name, []) if p.name in self.book.relations else []
            options = [(r, f) for r, f in derivers if r.kind in self.kinds]
            if forced := [o for o in options if o[0].name == self.through]:
                options = forced
            if not options or self.book.relations.get(p.name) or len(path) > (CHAIN - 2 if p.name in path else CHAIN):
                found.append(p)
                continue
            rule, fact = self.choose(options)
            self.used.append(rule)
            form, mark = self.book.forms[rule.name], next(self.fresh)
            values: dict[str, Term] = {}
            further: list[Call] = []
            for there, here in zip(fact.args, p.args, strict=True):
                if isinstance(there, Var) and there.name not in values:
                    values[there.name] = here
                elif isinstance(there, Lit) and isinstance(here, Lit) and there != here:
                    raise Mismatch
                elif isinstance(there, Var | Lit):
                    further.append(Call("=", (here, substitute(there, values))))
            values |= {x: Var(f"{x}.{mark}") for x in variables(*form.premises) if x not in values}
            inner = [substitute(q, values) for q in form.premises]
            found += [*further, *self.unfolded([q for q in inner if isinstance(q, Call)], (*path, p.name))]
        return found

    # -- terms of each sort
    def term(self, sort: str, t: Term, main: DType) -> Term:
        match sort:
            case "Value": return self.value(t, self.typed(t, main))
            case "Index": return self.index(t)
        return self.point(t)

    def typed(self, t: Term, main: DType) -> DType:
        """The type of a root: what its pattern asks for, else the main one."""
        t = self.known(t)
        if isinstance(t, Var) and isinstance(asked := self.known(self.types.get(t.name, t)), Lit):
            return dt.named(str(asked.value))
        if isinstance(t, Var) and t.name in self.defined:
            return self.typed(self.defined[t.name][0], main)
        match t:
            case Call() if not variables(t): return self.world.dtype(t)
            case Call("Cast" | "Round" | "BodyCast" | "BodyRound", (d, _)) if isinstance(stored := self.known(d), Lit):
                return dt.named(str(stored.value)).compute
            case Call("IndexValue" | "BodyIndex", _): return dt.i64
            case Call("At" | "Replace", (x, *_)): return self.typed(x, main)
            case Call("Binary" | "Unary" | "BodyBinary" | "BodyUnary", (op, *_)) if isinstance(name := self.known(op), Lit):
                return dt.bool_ if OPERATORS[str(name.value)].result == "bool" else main
        return main

    def rational(self, t: Term, dtype: DType) -> Term:
        """A number that a type has."""
        if isinstance(found := self.known(t), Var):
            options = ((1, 1), (2, 1), (-3, 1), (0, 1)) if dtype.kind == "int" else FRACTIONS
            made = self.env[found.name] = fraction(*self.choose(options))
            return made
        return found

    def value(self, t: Term, dtype: DType, depth: int = 0, whole: bool = False) -> Term:
        match t:
            case Var(x) if x in self.env: made = self.env[x]
            case Var(x) if x in self.defined:
                made = self.env[x] = self.value(self.defined[x][0], dtype, depth, whole)
            case Var(x):
                alike = self.pool.get(dtype, []) if self.params is None and not whole else []
                reused = self.choose((False, False, bool(alike)))
                made = self.env[x] = self.choose(alike) if reused else self.value(self.some_value(dtype, depth, whole), dtype, depth, whole)
            case Call() as pattern: made = self.made(pattern, dtype, depth + 1, whole)
            case _: raise Mismatch
        if self.world.dtype(made) is not dtype:
            raise Mismatch
        if self.params is None:
            self.pool.setdefault(dtype, []).append(made)
        return made

    def some_value(self, dtype: DType, depth: int, whole: bool) -> Call:
        """A random pattern of a value."""
        x, y, p, op = (Var(f"_{next(self.fresh)}") for _ in range(4))
        prefix = "Body" if self.params is not None else ""
        load = Call(f"{prefix}Input", (op, p))
        if whole or depth > DEEPEST:
            return load
        constant = Call(f"{prefix}Const", (Lit(str(dtype)), Var(f"_{next(self.fresh)}")))
        deep = [Call(f"{prefix}Unary", (op, x)), Call(f"{prefix}Binary", (op, x, y))]
        deep += [Call(f"{prefix}Reduce", (op, p, x))] if dtype.kind != "bool" else []
        made: Call = self.choose([load, load, load, load, load, constant, *deep])
        return made

    def made(self, pattern: Call, dtype: DType, depth: int, whole: bool) -> Term:
        """A value of this pattern."""
        name, args = pattern.name.removeprefix("Body"), pattern.args
        if pattern.name.startswith("Body") != (self.params is not None) and name not in ("At",):
            raise Mismatch

        def call(*operands: Term) -> Call:
            return Call(pattern.name, operands)

        match name:
            case "Input" | "Tensor":
                at = self.point(args[1])
                return call(Lit(self.tensor(name, args[0], self.intervals(at), dtype, whole)), at)
            case "Const":
                element = self.text(args[0], (str(dtype),))
                bits = [dt.bits(dtype, v) for v in (CONSTANTS if dtype.kind == "float" else (0, 1) if dtype is dt.bool_ else (0, 1, 2, 5))]
                return call(Lit(element), self.number(args[1], [b - (1 << 64) if b >> 63 else b for b in bits]))
            case "Number":
                element = self.text(args[0], (str(dtype),) if dtype is not dt.bool_ else ())
                return call(Lit(element), self.rational(args[1], dtype))
            case "Difference" if dtype is not dt.bool_:
                return call(Lit(self.text(args[0], WHY)), *(self.value(x, dtype, depth) for x in args[1:]))
            case "IndexValue" | "Index": return call(self.index(args[0]))
            case "Unary" | "Binary" | "Ternary":
                free = "real" in self.kinds and isinstance(self.known(args[0]), Var)
                op = self.text(args[0], [o.name for o in OPERATORS.values() if o.arity == len(args) - 1 and self.gives(o.name, dtype)
                                         and not (free and o.name in JUMPS)])
                wide = [d for d in (dt.f32, dt.i64, dt.f64) if d.kind in OPERATORS[op].kinds] or [dt.bool_]
                operand = dtype if OPERATORS[op].result != "bool" else self.choose(wide)
                types = [dt.bool_, dtype, dtype] if op == "select" else [operand] * (len(args) - 1)
                return call(Lit(op), *(self.value(a, d, depth) for a, d in zip(args[1:], types, strict=True)))
            case "Cast":
                element = self.text(args[0], [d.name for d in dt.DTYPES.values() if d.compute is dtype])
                source = dtype if dtype.kind == "float" else self.choose((dtype, dt.f32, dt.i64))
                return call(Lit(element), self.value(args[1], self.typed(args[1], self.choose((source, source, dt.i64))), depth))
            case "Round": return call(Lit(self.text(args[0], ("bf16", "f16"))), self.value(args[1], dtype, depth))
            case "Reduce" | "Scan":
                monoid = self.text(args[0], [m for m, own in MONOIDS.items() if dtype.kind in OPERATORS[own.operator].kinds])
                axis = self.axis(args[1])
                end = [self.end(args[2], axis)] if name == "Scan" else []
                self.bound.append(int(axis.value))
                try:
                    return call(Lit(monoid), axis, *end, self.value(args[-1], dtype, depth))
                finally:
                    self.bound.pop()
            case "Pivot" | "Channel":
                if dtype.kind != "float":
                    raise Mismatch
                return call(Lit(self.text(args[0], tuple(TWISTS))), self.axis(args[1]), *(self.value(x, dtype, depth) for x in args[2:]))
            case "Sum":
                op = self.text(args[0], [o for o in ("add", "mul") if self.gives(o, dtype)])
                return call(Lit(op), self.values(args[1], dtype, depth))
            case "At":
                at = self.point(args[1])
                with self.template(self.intervals(at)):
                    return call(self.value(args[0], dtype, depth), at)
            case "Replace": return call(self.value(args[0], dtype, depth), *self.replacement(args[1], args[2]))
        raise Mismatch

    def values(self, t: Term, dtype: DType, depth: int) -> Term:
        """A multiset of two or three values."""
        match self.known(t):
            case Call("multiset-of", xs): return Call("multiset-of", tuple(self.value(x, dtype, depth) for x in xs))
            case Var(name):
                xs = tuple(Var(f"_{next(self.fresh)}") for _ in range(self.choose((2, 3))))
                made = self.env[name] = Call("multiset-of", tuple(self.value(x, dtype, depth) for x in xs))
                return made
        raise Mismatch

    def gives(self, op: str, dtype: DType) -> bool:
        """Whether an operator can have a result of a type."""
        o = OPERATORS[op]
        return dtype is dt.bool_ if o.result == "bool" else dtype.kind in o.kinds

    # -- tensors and ranges
    def tensor(self, kind: str, name: Term, at: Sequence[Interval], dtype: DType, whole: bool) -> str:
        """A tensor that may be read within these ranges: one of the world's, or a new one."""
        known, least = (self.world.inputs if kind == "Input" else self.world.definitions), tuple(high + 1 for _, high in at)
        size = self.known(self.sizes.get(str(name), Var("")))
        halves = (dt.bf16, dt.f16) if dtype is dt.f32 and kind == "Input" else ()
        sized = [d for d in dt.DTYPES.values() if d.compute is dtype and isinstance(size, Lit) and d.bytes == size.value]
        alike = [n for n, t in known.items() if len(t.dims) == len(at) and t.element.compute is dtype and not (whole and t.below is None)
                 and (t.element in sized or not isinstance(size, Lit)) and all(map(ge, t.dims, least))]
        if isinstance(done := self.known(name), Lit):
            if done.value not in alike:
                raise Mismatch
            return str(done.value)
        if not alike or self.choose((True, False)):
            label = f"{'x' if kind == 'Input' else 't'}{len(known)}"
            if isinstance(size, Lit) and not sized:
                raise Mismatch
            element = self.choose(sized or (dtype, dtype, dtype, *halves))
            if kind == "Tensor":
                with self.template([(0, n - 1) for n in least]):
                    self.world.bodies[label] = self.value(Var(f"_{next(self.fresh)}"), dtype, 1)
            known[label] = Tensor(element, least, self.choose((2, 3)) if whole else None)
            alike = [label]
        chosen: str = self.choose(alike)
        if isinstance(name, Var):
            self.env[name.name] = Lit(chosen)
        return chosen
