"""Index rules over all integers, by z3.

Variables of sort Index are any integers, an axis one in [0, extent); `Lower` and `Upper` are inequalities; divisors are positive.  `IndexDiv`
and `IndexMod` round down; the engine's own `/` and `%` round to zero.  What has products or quotients by unknown constants may be beyond
z3 in general: then it is proved for every constant up to a bound, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from emmy.check.book import Book
from emmy.check.pattern import Call, Form, Lit, Term, Var, calls, variables
from emmy.egraph.rulefile import Rule
from emmy.errors import EmmyError

BOUND = 12                      # of constants, where the general question is too hard
MILLISECONDS = 2_000            # for the general question
PYTHON = {"IndexAdd": "({} + {})", "IndexMul": "({} * {})", "IndexDiv": "({} // {})", "IndexMod": "({} % {})", "+": "({} + {})", "-": "({} - {})",
          "*": "({} * {})", "/": "int({} / {})", "%": "({} % {})", "max": "max({}, {})", "min": "min({}, {})"}


class Proof(NamedTuple):
    """`verdict`: "proved", "proved up to n", "wrong" or "unknown"; of what is wrong, Python that shows both sides."""

    verdict: str
    snippet: str = ""
    values: tuple[int, int] | None = None


class Outside(Exception):
    """A term that is not about integers."""


def prove(book: Book, rule: Rule) -> Proof | None:
    """Prove an index rule; None for a rule that is not one: not about sums, products, quotients and remainders alone."""
    form = book.forms[rule.name]
    try:
        claims = list(_claims(form, book))
    except Outside:
        return None
    if not rule.ruleset.startswith("index") or not claims:
        return None
    try:
        import z3
    except ImportError:
        raise EmmyError("z3 is not installed, which proves index rules", "pip install 'emmy-egraph[check]'") from None
    try:
        return _proved(z3, form, claims, book)
    except Outside:
        return None


def _claims(form: Form, book: Book) -> Iterator[tuple[str, Term, Term]]:
    """What the actions say: (=, left, right), (>=, index, bound) or (<=, index, bound)."""
    for action in form.actions:
        match action:
            case Call("union", (left, right)) if book.sort(left, (*form.premises, action)) == "Index": yield "=", left, right
            case Call("set", (Call("Lower", (x,)), bound)): yield ">=", x, bound
            case Call("set", (Call("Upper", (x,)), bound)): yield "<=", x, bound
            case _: raise Outside


class Reading:
    """A rule's terms as z3 integers, with what is known of them."""

    def __init__(self, z3: Any, form: Form, book: Book, fixed: dict[str, int]):
        self.z3, self.form, self.book, self.fixed = z3, form, book, fixed
        self.known: list[Any] = []
        for p in form.premises:
            self.premise(p)

    def premise(self, p: Call) -> None:
        match p:
            case Call("=", (Var(x), Call("Lower", (y,)))): self.known.append(self.integer(y) >= self.integer(Var(x)))
            case Call("=", (Var(x), Call("Upper", (y,)))): self.known.append(self.integer(y) <= self.integer(Var(x)))
            case Call("=", (Var(x), Call("Extent", (a,)))):
                point = self.z3.Int(f"axis {a}")
                self.known += [point >= 0, point < self.integer(Var(x))]
            case Call("=", (x, y)): self.known.append(self.integer(x) == self.integer(y))
            case Call("!=", (x, y)): self.known.append(self.integer(x) != self.integer(y))
            case Call("<" | "<=" | ">" | ">=" as op, (x, y)):
                a, b = self.integer(x), self.integer(y)
                self.known.append({"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op])
            case _: raise Outside

    def integer(self, t: Term) -> Any:
        z3 = self.z3
        match t:
            case Var(x): return self.fixed.get(x, z3.Int(x)) if x not in self.fixed else z3.IntVal(self.fixed[x])
            case Lit(int(n)): return z3.IntVal(n)
            case Call("Axis", (a,)): return z3.Int(f"axis {a}")
            case Call("IndexConst", (n,)): return self.integer(n)
            case Call("IndexAdd" | "+", (x, y)): return self.integer(x) + self.integer(y)
            case Call("-", (x, y)): return self.integer(x) - self.integer(y)
            case Call("IndexMul" | "*", (x, y)): return self.integer(x) * self.integer(y)
            case Call("IndexDiv" | "IndexMod" as op, (x, n)):
                a, b = self.integer(x), self.integer(n)
                self.known.append(b > 0)
                return a / b if op == "IndexDiv" else a % b
            case Call("/" | "%" as op, (x, n)):
                a, b = self.integer(x), self.integer(n)
                self.known.append(b != 0)
                size = z3.If(a >= 0, a, -a)
                quotient = z3.If((a >= 0) == (b > 0), 1, -1) * (size / z3.If(b > 0, b, -b))
                return quotient if op == "/" else a - b * quotient
            case Call("max" | "min" as op, (x, y)):
                a, b = self.integer(x), self.integer(y)
                return z3.If((a >= b) if op == "max" else (a <= b), a, b)
        raise Outside

    def refuted(self, claim: tuple[str, Term, Term], milliseconds: int) -> tuple[str, Any]:
        """ "unsat" where the claim holds; "sat" with a model where it does not."""
        op, left, right = claim
        a, b = self.integer(left), self.integer(right)
        solver = self.z3.Solver()
        solver.set("timeout", milliseconds)
        solver.add(*self.known, {"=": a != b, ">=": a < b, "<=": a > b}[op])
        answer = str(solver.check())
        return answer, solver.model() if answer == "sat" else None


def _proved(z3: Any, form: Form, claims: list[tuple[str, Term, Term]], book: Book) -> Proof:
    constants = _constants(form)
    verdict = "proved"
    for claim in claims:
        answer, model = Reading(z3, form, book, {}).refuted(claim, MILLISECONDS)
        if answer == "unknown":
            verdict = f"proved up to {BOUND}"
            ranges = [range(1, BOUND + 1) if c in _divisors(form) else range(-BOUND, BOUND + 1) for c in constants]
            for values in product(*ranges):
                answer, model = Reading(z3, form, book, dict(zip(constants, values, strict=True))).refuted(claim, MILLISECONDS)
                if answer == "sat":
                    return _wrong(z3, form, claim, {c: v for c, v in zip(constants, values, strict=True)}, model)
                if answer == "unknown":
                    return Proof("unknown")
        elif answer == "sat":
            return _wrong(z3, form, claim, {}, model)
    return Proof(verdict)


def _constants(form: Form) -> list[str]:
    """The variables that multiply or divide."""
    scaled = [c.args[1] for c in calls(*form.premises) if c.name in ("IndexMul", "IndexDiv", "IndexMod", "%", "/", "*")]
    scaled += [c.args[0] for c in calls(*form.premises) if c.name in ("%", "/")]
    return list(variables(*scaled))


def _divisors(form: Form) -> set[str]:
    return set(variables(*(c.args[1] for c in calls(*form.premises) if c.name in ("IndexDiv", "IndexMod"))))


def _wrong(z3: Any, form: Form, claim: tuple[str, Term, Term], fixed: dict[str, int], model: Any) -> Proof:
    """The counterexample as Python."""
    op, left, right = claim
    defined = {x.name: t for p in form.premises for x, t in ((p.args[0], p.args[1]), (p.args[1], p.args[0]))
               if p.name == "=" and isinstance(x, Var) and isinstance(t, Call) and t.name.startswith("Index")}

    def python(t: Term) -> str:
        match t:
            case Var(x): return python(defined[x]) if x in defined else x
            case Lit(n): return str(n)
            case Call("Axis", (a,)): return f"axis_{a}"
            case Call("IndexConst", (n,)): return python(n)
            case Call(name, args): return PYTHON[name].format(*map(python, args))

    names = {str(d): int(model[d].as_long()) for d in model} | fixed
    sides = python(left).removeprefix("(").removesuffix(")"), python(right)
    free = [x for x in variables(left, right, *defined.values()) if x not in defined]
    values = {x: names.get(x, names.get(f"axis {x}", 1)) for x in free}
    values |= {f"axis_{c.args[0]}": names.get(f"axis {c.args[0]}", 0) for c in calls(left, right, *defined.values()) if c.name == "Axis"}
    one, two = (python(t) for t in (left, right))
    relation = {"=": "==", ">=": ">=", "<=": "<="}[op]
    assigned = "; ".join(f"{x} = {v}" for x, v in values.items())
    del sides
    text = f"{assigned}\nprint({one}, {two})    # should be {relation}\n"
    scope: dict[str, Any] = dict(values)
    shown = eval(one, {"max": max, "min": min, "int": int}, scope), eval(two, {"max": max, "min": min, "int": int}, scope)   # noqa: S307
    return Proof("wrong", text, shown)
