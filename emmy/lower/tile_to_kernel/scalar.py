"""Scalar code: Tile IR values to Kernel IR statements.

An `Emitter` holds one scope: the statements written so far, the expression of each axis, and the values already
computed.  A child scope (a loop's body) sees its parents' values; `hoist` computes what does not depend on an axis
before the loop over it is opened, so every subterm sits at the outermost loop its axes allow.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from itertools import count
from math import gcd
from typing import NamedTuple

from emmy.instructions.control import For
from emmy.instructions.global_memory import LoadGlobal, LoadGlobalVector
from emmy.instructions.registers import Assign, Declare, DeclareArray, Let, SetElement
from emmy.instructions.shared_memory import LoadShared, LoadSharedVector
from emmy.ir import dtype as dt
from emmy.ir import index as ix
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.kernel_ir import Apply, Const, Convert, Element, Expr, Stmt, Var, const
from emmy.ir.kernel_ir import fold as folded
from emmy.ir.loop_ir import IxOf, Value
from emmy.ir.node import IRError, unwound
from emmy.ir.operators import MONOIDS, unit
from emmy.lower.tile_to_kernel.address import LONG, at_place, by_runs, offset, raised, repeats
from emmy.lower.tile_to_kernel.twist import RECIPES

Building = Generator["Building", Expr, Expr]    # see `unwound`

VECTOR_BYTES = 16
TILED = "contraction", "convolution", "layered", "twist"       # forms whose tiles compute every fold
REACH = 2 ** 31 - 2 ** 24   # the largest index that i32 counts to: a tile or a step beyond it still fits


class Place(NamedTuple):
    """Where a load is in shared memory: the buffer, its offset in a scope, and how many neighbours lie there in one run."""

    buffer: str
    at: Callable[[Emitter], Expr]
    width: int


class Emitter:
    """A scope of a kernel under construction."""

    def __init__(self, kernel: tile.Kernel, parent: Emitter | None = None):
        self.kernel, self.parent = kernel, parent
        self.body: list[Stmt] = []
        self.tensors = {t.name: t for t in (*kernel.tensors, *kernel.outputs)}
        self.axes: ChainMap[int, Expr] = parent.axes.new_child() if parent else ChainMap()
        self.values: ChainMap[Value, Expr] = parent.values.new_child() if parent else ChainMap()
        self.fresh: count[int] = parent.fresh if parent else count()
        self.free: dict[Value, frozenset[int]] = parent.free if parent else tile.free_axes(kernel.roots)
        self.uses: Counter[Value] = parent.uses if parent else Counter((*(x for v in self.free for x in v.operands), *kernel.results))
        self.place_in_run: tuple[int, int, int] | None = parent.place_in_run if parent else None   # an axis, the width of its run, a place
        self.guard: Expr | None = parent.guard if parent else None      # loads happen only where it holds
        self.places: dict[Value, Place] = parent.places if parent else {}       # loads that are in shared memory
        sizes = [ix.upper(ix.flatten(list(map(ix.IxConst, (n - 1 for n in t.shape))), t.shape), lambda _: 1) for t in self.tensors.values()]
        self.integer: DType = dt.i64 if max((*sizes, *kernel.extents.values())) > REACH else dt.i32

    def child(self) -> Emitter:
        """A scope inside this one."""
        return Emitter(self.kernel, self)

    def emit(self, *statements: Stmt) -> None:
        self.body.extend(statements)

    def name(self, stem: str) -> str:
        """A name of its own: no tensor's, and no dtype's (i32)."""
        return next(n for k in self.fresh if (n := f"{stem}_{k}") not in self.tensors)

    def let(self, stem: str, value: Expr) -> Expr:
        """`value` in a variable of its own, unless it is one already or a constant."""
        if isinstance(value, Var | Const):
            return value
        var = Var(self.name(stem), value.dtype)
        self.emit(Let(var, value))
        return var

    def declare(self, stem: str, value: Expr) -> Var:
        """A mutable variable."""
        var = Var(self.name(stem), value.dtype)
        self.emit(Declare(var, value))
        return var

    def whole(self, e: Expr) -> Expr:
        """An i32 expression in the kernel's index type."""
        return e if e.dtype is self.integer else Convert(self.integer, e)

    # -- axes ---------------------------------------------------------------------------------------------------
    def place(self, axes: Iterable[int], flat: Expr) -> None:
        """Give `axes` the coordinates of the row-major position `flat`."""
        order = list(axes)
        extents = self.kernel.extents
        for k, a in reversed(list(enumerate(order))):
            n = extents[a]
            self.axes[a] = self.let("i", self.whole(flat % n if k else flat)) if n > 1 else const(self.integer, 0)
            flat = flat // n if k else flat

    def index(self, x: Ix) -> Expr:
        """An index term as an integer expression."""
        match x:
            case Ax(a): return self.axes[a]
            case ix.IxConst(n): return const(self.integer, n)
            case ix.IxAdd(a, b): return self.index(a) + self.index(b)
            case ix.IxMul(a, n): return self.index(a) * n
            case ix.IxDiv(a, n):
                lift = raised(a, n, self.kernel.extents)
                return (self.index(a) + lift * n) // n - lift
            case ix.IxMod(a, n): return (self.index(a) + raised(a, n, self.kernel.extents) * n) % n
            case IxOf(value): return Convert(self.integer, self.value(value)) if self.integer is not dt.i64 else self.value(value)
        raise IRError(f"index {x} in Tile IR")

    def offset(self, tensor: str, point: tuple[Ix, ...]) -> Expr:
        """The row-major offset of a point of a tensor."""
        return self.index(offset(self.kernel, tensor, point))

    def output_offset(self) -> Expr:
        """The offset of the current point of every output."""
        return self.index(ix.flatten(tuple(map(Ax, self.kernel.outer)), self.kernel.shape))

    # -- values -------------------------------------------------------------------------------------------------
    def value(self, v: Value) -> Expr:
        """The expression of `v` at the current axes; what it needs is emitted here unless an outer scope has it."""
        return self.values[v] if v in self.values else unwound(self._value(v))

    def _value(self, v: Value) -> Building:
        if v not in self.values:
            self.values[v] = yield self._build(v)
        return self.values[v]

    def _build(self, v: Value) -> Building:
        match v:
            case loop.Load(_, element, _) if v in self.places:
                var = Var(self.name("x"), element.compute)
                self.emit(LoadShared(var, self.places[v].buffer, self.places[v].at(self)))
                return var
            case loop.Load(name, element, point):
                var = Var(self.name("x"), element.compute)
                offset = self.offset(name, point)
                other = const(element.compute, 0) if self.guard is not None else None
                self.emit(LoadGlobal(var, name, offset, self.guard, other))
                return var
            case loop.Const(element, bits):
                return Const(element, bits)
            case loop.IndexOf(at):
                if self.place_in_run and isinstance(told := at_place(self.kernel, at, *self.place_in_run), ix.IxConst):
                    return const(dt.i64, told.n)
                return Convert(dt.i64, self.index(at)) if self.integer is not dt.i64 else self.index(at)
            case loop.Apply("select", (condition, x, y)) if self.place_in_run and isinstance(c := (yield self._value(condition)), Const):
                return (yield self._value(x if c.value else y))
            case loop.Apply(op, args):
                made: list[Expr] = []
                for x in args:
                    made.append((yield self._value(x)))
                if v.dtype is dt.bool_ and self.place_in_run and all(isinstance(x, Const) for x in made):
                    return folded(op, *made)
                return self._shared(v, Apply(op, tuple(made)))
            case loop.Cast(element, x) | loop.Round(element, x):
                narrow = Convert(element, (yield self._value(x)))
                return self._shared(v, narrow if element.compute is element else Convert(element.compute, narrow))
            case tile.FoldResult(fold, channel):
                results = self.serial_fold(self.kernel.fold(fold))
                return results[channel]
        raise IRError(f"{type(v).__name__} in Tile IR")

    def _shared(self, v: Value, e: Expr) -> Expr:
        return self.let("v", e) if self.uses[v] > 1 else e

    def hoist(self, roots: Iterable[Value], *axes: int) -> None:
        """Compute here the largest parts of `roots` that do not depend on `axes`."""
        seen, stack = set[Value](), list(roots)
        while stack:
            v = stack.pop()
            if v in seen or v in self.values or isinstance(v, loop.Const | loop.IndexOf):
                continue
            seen.add(v)
            if self.free[v].isdisjoint(axes) and not self._bound(v, axes):
                self.values[v] = self.let("v", self.value(v))
            else:
                stack.extend(v.operands)

    def hoist_run(self, roots: Iterable[Value], axis: int, start: Expr, width: int, known: Container[Value] = ()) -> None:
        """Compute here the largest parts of `roots`, some values being `known`, that are alike at all places of the run of `width` from
        `start` along `axis`."""
        seen, stack = set[Value](), list(roots)
        first = self.child()
        first.axes[axis] = start
        while stack:
            v = stack.pop()
            if v in seen or v in self.values or v in known or isinstance(v, loop.Const | loop.IndexOf):
                continue
            seen.add(v)
            folded = any(isinstance(x, tile.FoldResult) and axis in x.needs for x in loop.walk((v,)))
            if not folded and not self._bound(v, (axis,)) and by_runs(self.kernel, (v,), axis, width):
                self.values[v] = first.let("v", first.value(v))
            else:
                stack.extend(v.operands)
        self.emit(*first.body)

    def _bound(self, v: Value, axes: tuple[int, ...]) -> bool:
        """Whether computing `v` runs a fold that yields what depends on `axes` as well: a twist's denominator beside its sums."""
        mixed = {f.name for f in self.kernel.folds if not f.span.isdisjoint(axes) and any(n.isdisjoint(axes) for n in f.needs)}
        return bool(mixed) and any(isinstance(w, tile.FoldResult) and w.fold in mixed and w not in self.values for w in loop.walk((v,)))

    # -- folds, one thread --------------------------------------------------------------------------------------
    def serial_fold(self, fold: tile.Fold) -> tuple[Expr, ...]:
        """Run a fold in one loop of this thread; its results are registered and returned.  IRError in a form whose tiles compute every
        fold: a thread that asked for one where it is not held would compute all of it anew, right and without end."""
        if self.kernel.schedule is not None and self.kernel.schedule.form in TILED:
            raise IRError(f"{self.kernel.name}: {fold.name} is what tiles compute, and a thread asks for it where they do not hold it")
        state = self.initial(fold)
        stop = self.index(fold.upto) + 1 if fold.upto is not None else const(self.integer, self.kernel.extents[fold.axis])
        self.hoist(fold.lifts, fold.axis)
        inner = self.child()
        var = Var(self.name("r"), self.integer)
        inner.axes[fold.axis] = var
        inner.accumulate(fold, state, [tuple(inner.value(x) for x in fold.lifts)])
        self.emit(For(var, const(self.integer, 0), stop, const(self.integer, 1), False, tuple(inner.body)))
        return self.finish(fold, state)

    def initial(self, fold: tile.Fold) -> tuple[Var, ...]:
        """Mutable variables that hold the fold's neutral state."""
        return tuple(self.declare("s", e) for e in neutral(fold))

    def accumulate(self, fold: tile.Fold, state: tuple[Var, ...], elements: list[tuple[Expr, ...]]) -> None:
        """Fold some elements into the state: neighbours are joined pairwise first, for an error and a chain of log2 as many operations."""
        if fold.kind == "twist":
            RECIPES[fold.recipe].accumulate(self, state, elements)
            return
        operator, level = MONOIDS[fold.recipe].operator, [x for (x,) in elements]
        while len(level) > 1:
            pairs = [Apply(operator, (x, y)) for x, y in zip(level[::2], level[1::2], strict=False)]
            level = [*pairs, *level[len(level) & ~1:]]
        self.emit(Assign(state[0], Apply(operator, (state[0], *level))))

    def merge(self, fold: tile.Fold, state: tuple[Var, ...], other: tuple[Expr, ...]) -> None:
        """Combine another state into this one."""
        if fold.kind == "twist":
            RECIPES[fold.recipe].merge(self, state, other)
        else:
            self.emit(Assign(state[0], Apply(MONOIDS[fold.recipe].operator, (state[0], other[0]))))

    def finish(self, fold: tile.Fold, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Make the state's components the fold's results in this scope."""
        for channel, e in enumerate(state[:len(fold.lifts)]):
            self.values[fold.result(channel)] = e
        return state

    # -- vectors ------------------------------------------------------------------------------------------------
    def load_vectors(self, roots: Iterable[Value], axis: int, start: Expr, width: int,
                     known: Container[Value] = ()) -> dict[Value, str]:
        """Read the `width` neighbours from `start` (a multiple of `width`) along `axis` of every load that computing `roots` asks for,
        some values being `known`, and for which they lie in one aligned run: the register array that holds each, in its compute dtype."""
        arrays: dict[Value, str] = {}
        asked, stack = set[Value](), list(roots)
        while stack:
            v = stack.pop()
            if v not in asked and v not in self.values and v not in known:
                asked.add(v)
                stack.extend(v.operands)
        for v in loop.walk(tuple(roots)):
            if not isinstance(v, loop.Load) or v not in asked or self.guard is not None:
                continue
            if v in self.places:
                if self.places[v].width == width > 1:
                    arrays[v] = self.name("x")
                    first = self.child()
                    first.axes[axis] = start
                    at = first.places[v].at(first)
                    self.emit(*first.body, DeclareArray(arrays[v], v.element.compute, width, None),
                              LoadSharedVector(arrays[v], 0, self.places[v].buffer, at, width))
                continue
            if each := repeats(self.kernel, v, axis, width):
                first = self.child()
                first.axes[axis] = start
                offset = first.offset(v.tensor, v.point)
                array, run = self.name("x"), width // each
                self.emit(*first.body, DeclareArray(array, v.element.compute, run, None))
                step = gcd(run, VECTOR_BYTES // v.element.bytes)
                for k in range(0, run, step):
                    self.emit(LoadGlobalVector(array, k, v.tensor, offset + k, step))
                arrays[v] = array if each == 1 else self.repeated(array, v.dtype, width, each)
        return arrays

    def repeated(self, array: str, element: DType, width: int, each: int) -> str:
        """A register array of `width` elements, those of `array` each so many times in turn."""
        out = self.name("x")
        self.emit(DeclareArray(out, element, width, None))
        self.emit(*(SetElement(out, element, const(dt.i32, e), Element(array, element, const(dt.i32, e // each))) for e in range(width)))
        return out

    def neighbour(self, axis: int, start: Expr, lane: Expr, arrays: Mapping[Value, str], width: int = 1) -> Emitter:
        """A scope for the neighbour `lane` of a run whose values `arrays` hold, as `load_vectors` has read them.  `width`: of a run that
        begins at a multiple of it."""
        inner = self.child()
        if width > LONG and isinstance(lane, Const):
            inner.place_in_run = axis, width, int(lane.value)
        inner.axes[axis] = start + lane
        inner.values.update((v, Element(array, v.dtype, lane)) for v, array in arrays.items())
        return inner


def neutral(fold: tile.Fold) -> tuple[Expr, ...]:
    """The state of a fold over no elements."""
    if fold.kind == "twist":
        found: tuple[Expr, ...] = RECIPES[fold.recipe].initial(tuple(x.dtype for x in fold.lifts))
        return found
    dtype = fold.lifts[0].dtype
    return (const(dtype, unit(fold.recipe, dtype)),)
