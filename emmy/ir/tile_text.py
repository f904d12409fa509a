"""The text of Tile IR: kernels as fold trees.

    tile {
      input x
      kernel rmsnorm(x: f32[32, 2048]) -> y: f32[32, 2048] {
        row WORK=t256,TILE=v4,REDUCE=coop form fold rows i1 columns i2
        over i1 < 32, i2 < 2048
        along r0 < 2048
        f0[i1] = reduce.add r0 : mul(x[i1, r0], x[i1, r0])
        store y[i1, i2] = mul(x[i1, i2], rsqrt(f0))
      }
      return y = y
    }

An axis is i (of the output) or r (of a fold) with its number.  A fold names the axes it depends on, and is indented once for
each of them that another fold runs over.  A twist has one line for each of its results: f1.0 is the pivot, and its lift the score.
Outputs are separated by commas, and each has a store, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DType
from emmy.ir.index import Ax, Ix
from emmy.ir.loop_ir import Value
from emmy.ir.loop_text import BodyReader, Writer, spelled, type_text
from emmy.ir.node import IRError
from emmy.ir.tile_ir import FoldResult

_AXES = ("rows", "columns", "batch")


def print_program(program: tile.Program) -> str:
    """The text of a program; `parse` reads it back to the same node."""
    lines = [f"input {spelled(name, ())}" for name in program.inputs]
    lines += [line for k in program.kernels for line in print_kernel(k).splitlines()]
    lines.append("return " + ", ".join(f"{spelled(out, ())} = {spelled(name, ())}" for out, name in program.outputs))
    return "tile {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def print_kernel(kernel: tile.Kernel) -> str:
    """The text of one kernel; `parse_kernel` reads it back to the same node."""
    outer = frozenset(kernel.outer)

    def axis(a: int) -> str:
        return f"{'i' if a in outer else 'r'}{a}"

    def several(axes: Iterable[int]) -> str:
        return ", ".join(map(axis, axes))

    def bounds(axes: Iterable[tuple[int, int]]) -> str:
        return ", ".join(f"{axis(a)} < {n}" for a, n in axes)

    def result(v: Value) -> str:
        assert isinstance(v, FoldResult)
        return f"{v.fold}.{v.channel}" if kernel.fold(v.fold).kind == "twist" else v.fold

    writer = Writer(axis, result)

    def put(head: str, value: Value, depth: int = 0) -> None:
        *lets, last = writer.lines(value)
        block = [head, *(f"  {line}" for line in (*lets, last))] if lets else [f"{head} {last}"]
        lines.extend("  " * depth + line for line in block)

    lines: list[str] = []
    if kernel.schedule is not None:
        s = kernel.schedule
        parts = [f"{word} {several(axes)}" for word, axes in zip(_AXES, (s.rows, s.columns, s.batch), strict=True) if axes]
        lines.append(" ".join(filter(None, ("row", str(s.row), "form", s.form, *parts))))
    lines += [f"over {bounds(kernel.axes)}"] * bool(kernel.axes)
    lines += [f"along {bounds(kernel.inner)}"] * bool(kernel.inner)
    for f in kernel.folds:
        depth = len(f.span - outer)
        spans = [several(sorted(needs)) for needs in f.needs]
        head = f"{f.kind}.{f.recipe} {axis(f.axis)}"
        if f.kind == "twist":
            lines.append(f"{'  ' * depth}{f.name} = {head}")
            for k, lift in enumerate(f.lifts):
                put(f"{f.name}.{k}[{spans[k]}] :", lift, depth + 1)
        else:
            upto = f" <= {writer.term(f.upto)}" if f.upto is not None else ""
            put(f"{f.name}[{spans[0]}] = {head}{upto} :", f.lifts[0], depth)
    for output, value in zip(kernel.outputs, kernel.results, strict=True):
        put(f"store {spelled(output.name, ())}[{several(kernel.outer)}] =", value)
    return "\n".join([f"{signature(kernel)} {{", *(f"  {line}" for line in lines), "}", ""])


def signature(kernel: tile.Kernel) -> str:
    """The first line of a kernel's text: its name, and the tensors that it reads and writes with their types."""
    sides = kernel.tensors, kernel.outputs
    reads, writes = (", ".join(f"{spelled(t.name, ())}: {type_text(t.element, t.shape)}" for t in of) for of in sides)
    return f"kernel {spelled(kernel.name, ())}({reads}) -> {writes}"


class _Parser(BodyReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.folds: dict[str, tile.Fold] = {}

    def leaf(self, name: str) -> Ix | None:
        return Ax(int(name[1:])) if name[0] in "ir" and name[1:].isdigit() else None

    def other(self, name: str) -> Value | None:
        fold, _, channel = name.partition(".")
        if fold not in self.folds or (self.folds[fold].kind == "twist") != bool(channel):
            return None
        number = int(channel or 0)
        if number >= len(self.folds[fold].lifts):
            raise IRError(f"fold {fold} has no result {number}")
        return self.folds[fold].result(number)

    def typed(self) -> tile.Tensor:
        name = self.tensor()
        self.expect(":")
        element, shape = self.tensor_type()
        return tile.Tensor(name, shape, element)

    def several(self) -> tuple[int, ...]:
        """Axes, separated by commas."""
        axes = [self.axis()]
        while self.accept(","):
            axes.append(self.axis())
        return tuple(axes)

    def bounds(self) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        while not found or self.accept(","):
            axis = self.axis()
            self.expect("<")
            found.append((axis, self.integer()))
        return tuple(found)

    def schedule(self) -> tile.Schedule:
        start = self.peek().start
        while self.peek().text != "form":
            if self.peek().kind == "end":
                raise self.error("expected 'form'")
            self.position += 1
        row = tile.parse_row(self.text[start:self.peek().start])
        self.expect("form")
        form = self.name()
        return tile.Schedule(row, form, *(self.several() if self.accept(word) else () for word in _AXES))

    def span(self) -> frozenset[int]:
        return frozenset(self.list(self.axis))

    def fold(self, name: str) -> tile.Fold:
        """A fold whose name has been read."""
        needs = [] if self.accept("=") else [self.span()]
        if needs:
            self.expect("=")
        kind, _, recipe = self.name().partition(".")
        axis = self.axis()
        if kind == "twist":
            lifts: list[Value] = []
            while self.accept(f"{name}.{len(lifts)}"):
                needs.append(self.span())
                self.expect(":")
                lifts.append(self.body())
            return tile.Fold(name, kind, recipe, axis, tuple(lifts), None, tuple(needs))
        upto: Ix | None = None
        if self.accept("<"):
            self.expect("=")
            upto = self.term()
        self.expect(":")
        return tile.Fold(name, kind, recipe, axis, (self.body(),), upto, tuple(needs))

    def kernel(self) -> tile.Kernel:
        """A kernel; the word `kernel` has been read."""
        self.folds = {}
        name, tensors = self.tensor(), self.list(self.typed, "(", ")")
        self.elements: dict[str, DType] = {t.name: t.element for t in tensors}
        self.expect("->")
        outputs = [self.typed()]
        while self.accept(","):
            outputs.append(self.typed())
        self.expect("{")
        schedule = self.schedule() if self.accept("row") else None
        axes = self.bounds() if self.accept("over") else ()
        inner = self.bounds() if self.accept("along") else ()
        while self.peek().text != "store":
            fold = self.name()
            self.folds[fold] = self.fold(fold)
        results = []
        for output in outputs:
            self.expect("store")
            start = self.peek().start
            if (self.tensor(), self.list(self.axis)) != (output.name, tuple(a for a, _ in axes)):
                raise self.error(f"a kernel stores its output, {output.name}, over its axes", start)
            self.expect("=")
            results.append(self.body())
        self.expect("}")
        made = tile.Kernel(name, tensors, tuple(outputs), axes, inner, tuple(self.folds.values()), tuple(results), schedule)
        tile.verify(made)
        return made

    def program(self) -> tile.Program:
        self.expect("tile")
        self.expect("{")
        inputs: list[str] = []
        while self.accept("input"):
            inputs.append(self.tensor())
        kernels: list[tile.Kernel] = []
        while self.accept("kernel"):
            kernels.append(self.kernel())
        self.expect("return")
        return tile.Program(tuple(inputs), tuple(kernels), self.outputs(self.tensor, self.tensor))


def parse(text: str) -> tile.Program:
    """The program that `text` prints; IRError, with line and column, where it is malformed."""
    return _Parser(text).program()


def parse_kernel(text: str) -> tile.Kernel:
    """The kernel that `text` prints."""
    reader = _Parser(text)
    reader.expect("kernel")
    made = reader.kernel()
    reader.end()
    return made
