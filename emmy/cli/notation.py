"""Values of Loop IR on a line of a given width, and what a step of a derivation changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from string import ascii_uppercase

from emmy.egraph.derivation import Step
from emmy.egraph.forest import Forest
from emmy.egraph.trees import Tree
from emmy.ir import loop_ir as loop
from emmy.ir.loop_ir import Value
from emmy.ir.loop_text import Writer

DEEPEST = 7     # nesting that is shown at most
ENDLESS = 1 << 20


class Notation:
    """Writes trees of a forest in the notation of the Loop IR; the axes of a tensor's points are p0, p1, …"""

    def __init__(self, forest: Forest):
        self.forest = forest
        self.axes = {t: {a: f"p{k}" for k, a in enumerate(kept.axes)} for t, kept in forest.outlined.kept.items()}

    def head(self, tensor: str) -> str:
        """A tensor at its point."""
        return f"{tensor}[{', '.join(self.axes[tensor].values())}]"

    def kept(self, tensor: str, width: int) -> str:
        """The value of a tensor that may be kept, some body of it."""
        return self.tree(tensor, self.forest.default(self.forest.outlined.kept[tensor].home), width)

    def of_class(self, c: int, width: int = ENDLESS) -> str:
        """Some value of a class."""
        try:
            return self.tree("", self.forest.default(c), width)
        except KeyError:
            return ""

    def tree(self, tensor: str, tree: Tree, width: int = ENDLESS) -> str:
        """A tree in the body of a tensor, its inner terms left out as the width asks."""
        try:
            return short(self.forest.value(tree), self.axes.get(tensor, {}), width)
        except KeyError:
            return f"{tree.node.op}(…)"

    def changes(self, step: Step, width: int, below: int) -> tuple[str, str]:
        """The first change that a step makes, "before → after"; where that is too wide, values that both have become letters and a second
        line, `below` columns wide, says what they are, or else holds the right side."""
        before, after = next(iter(step.changes.items()))
        axes = self.axes.get(step.tensor, {})
        try:
            sides = [self.forest.value(before), self.forest.value(after)]
        except KeyError:
            return f"{self.tree(step.tensor, before, width // 2)} → {self.tree(step.tensor, after, width // 2)}", ""
        whole = " → ".join(short(v, axes, ENDLESS) for v in sides)
        if len(whole) <= width:
            return whole, ""
        names = shared(*sides)
        if not names:
            return short(sides[0], axes, width), f"→ {short(sides[1], axes, below - 2)}"
        left = short(sides[0], axes, (width - 3) // 2, names)
        right = short(sides[1], axes, width - 3 - len(left), names)
        each = max(20, below // len(names) - 6)
        where = ", ".join(f"{name} = {short(v, axes, each)}" for v, name in names.items())
        return f"{left} → {right}", where

    def swaps(self, step: Step) -> bool:
        """Whether a step does no more than to put operands in another order, or to spell a constant anew."""
        try:
            return all(_same(self.forest.value(a), self.forest.value(b)) for a, b in step.changes.items())
        except KeyError:
            return False


def _same(x: Value, y: Value) -> bool:
    return x is y or (isinstance(x, loop.Apply) and isinstance(y, loop.Apply) and x.op == y.op and Counter(x.args) == Counter(y.args))


def shared(before: Value, after: Value) -> dict[Value, str]:
    """Letters for the largest values that two values have in common, in the order in which the first has them."""
    both = set(loop.walk((before,))) & set(loop.walk((after,)))
    found: dict[Value, str] = {}
    stack = [before]
    while stack:
        v = stack.pop()
        if v in both and v is not before and v.operands and len(found) < len(ascii_uppercase):
            found.setdefault(v, ascii_uppercase[len(found)])
        else:
            stack += reversed(v.operands)
    return found


def short(value: Value, axes: Mapping[int, str], width: int, names: Mapping[Value, str] | None = None) -> str:
    """The deepest text of a value that fits a width; "…" stands for what lies deeper, `names` for values that have one."""
    writer, named = Writer(lambda a: axes.get(a, f"a{a}")), names or {}

    def text(v: Value, depth: int) -> str:
        if v in named:
            return named[v]
        made = {x: text(x, depth - 1) if depth > 1 or not x.operands else "…" for x in dict.fromkeys(v.operands)}
        writer.text |= made
        return writer.value(v)

    texts = (text(value, depth) for depth in range(DEEPEST, 0, -1))
    return next((t for t in texts if len(t) <= width), f"{text(value, 1)[:max(1, width - 1)]}…")
