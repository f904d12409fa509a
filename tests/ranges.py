"""How far the 32-bit integers of a kernel reach: an interval of every i32 expression, from those of threads, blocks and loops."""

from __future__ import annotations

from collections.abc import Iterator

from emmy.instructions.control import For, If
from emmy.instructions.registers import Assign, Declare, Let
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Apply, Block, Const, Convert, Expr, Kernel, Stmt, Thread, Var, operands

MOST = 2 ** 31 - 1
Range = tuple[int, int]


class Ranges:
    """`overflows` gathers the i32 expressions of a kernel that may leave their type.

    What is read from memory or passed between lanes is taken to fit.  A variable has the range of its first value and of what it is
    set to, computed once from the first."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.variables = kernel, dict[str, Range]()
        self.overflows: dict[Expr, Range] = {}
        self.body(kernel.body)

    def body(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case For(var, start, stop, step, _, inner):
                    first, last, by = self.of(start), self.of(stop), self.of(step)
                    if first[0] >= last[1]:
                        continue
                    self.variables[var.name] = first[0], max(first[1], last[1] - 1)
                    self.within(Apply("add", (var, step)) if var.dtype is dt.i32 else var, (first[0], last[1] - 1 + by[1]))
                    self.body(inner)
                case If(condition, inside, orelse):
                    self.of(condition)
                    outer = dict(self.variables)
                    self.variables |= {x.name: (outer[x.name][0], min(outer[x.name][1], self.of(y)[1] - 1)) for x, y in below(condition)}
                    if all(low <= high for low, high in self.variables.values()):
                        self.body(inside)
                    self.variables |= outer
                    self.body(orelse)
                case Assign(var, value):
                    low, high = self.of(value)
                    before = self.variables.get(var.name, (low, high))
                    self.variables[var.name] = min(low, before[0]), max(high, before[1])
                case Let(var, value) | Declare(var, value):
                    self.variables[var.name] = self.of(value)
                case _:
                    for e in s.expressions:
                        self.of(e)
                    for inner in s.bodies:
                        self.body(inner)

    def within(self, e: Expr, found: Range) -> Range:
        if e.dtype is dt.i32 and not -MOST <= found[0] <= found[1] <= MOST:
            self.overflows.setdefault(e, found)
        return found

    def of(self, e: Expr) -> Range:
        return self.within(e, self._of(e))

    def _of(self, e: Expr) -> Range:
        inner = [self.of(x) for x in operands(e)]
        if e.dtype.kind not in ("int", "bool"):
            return 0, 0
        match e:
            case Const(): return int(e.value), int(e.value)
            case Thread(): return 0, self.kernel.block - 1
            case Block(axis): return 0, self.kernel.grid[axis] - 1
            case Var(name, _): return self.variables.get(name, (0, 0))
            case Convert(_, x) if x.dtype.kind == "int": return inner[0]
            case Apply("add", _): return inner[0][0] + inner[1][0], inner[0][1] + inner[1][1]
            case Apply("sub", _): return inner[0][0] - inner[1][1], inner[0][1] - inner[1][0]
            case Apply("mul", _): return hull(x * y for x in inner[0] for y in inner[1])
            case Apply("truncdiv", _) if inner[1][0] > 0: return inner[0][0] // inner[1][1], max(0, inner[0][1]) // inner[1][0]
            case Apply("fmod", _) if inner[1][0] > 0: return min(0, inner[0][0]), min(max(0, inner[0][1]), inner[1][1] - 1)
            case Apply("min", _): return min(inner[0][0], inner[1][0]), min(inner[0][1], inner[1][1])
            case Apply("max", _): return max(inner[0][0], inner[1][0]), max(inner[0][1], inner[1][1])
            case Apply("where", _): return hull((*inner[1], *inner[2]))
            case Apply("xor", _) if inner[0][0] >= 0 and inner[1][0] >= 0:
                return 0, (1 << max(inner[0][1], inner[1][1]).bit_length()) - 1
        return 0, 1


def below(condition: Expr) -> Iterator[tuple[Var, Expr]]:
    """The variables that a condition says are less than something."""
    match condition:
        case Apply("and", (a, b)): yield from (*below(a), *below(b))
        case Apply("lt", (Var() as x, y)): yield x, y


def hull(values: Iterator[int] | tuple[int, ...]) -> Range:
    found = list(values)
    return min(found), max(found)


def overflows(kernel: Kernel) -> dict[Expr, Range]:
    """The i32 expressions of a kernel that may leave their type, with the interval of each."""
    return Ranges(kernel).overflows
