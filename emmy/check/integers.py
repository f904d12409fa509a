"""Index rules over all integers, by z3.

Variables of sort Index are any integers, an axis one in [0, extent); `Lower` and `Upper` are inequalities; divisors are positive.
`IndexDiv` and `IndexMod` round down; the engine's own `/` and `%` round to zero.  What has products or quotients by unknown constants
may be beyond z3 in general: then it is proved for every constant up to a bound, and the answer says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from emmy.check.book import Book
from emmy.check.pattern import Call, Form, Lit, Term, Var, calls, variables
from emmy.egraph.rulefile import Rule

BOUND = 12                      # of constants, where the general question is too hard
MILLISECONDS = 2_000            # for the general question
PYTHON = {"IndexAdd": "({} + {})", "IndexMul": "({} * {})", "IndexDiv": "({} // {})", "IndexMod": "({} % {})", "+": "({} + {})",
          "-": "({} - {})", "*": "({} * {})", "/": "int({} / {})", "%": "({} % {})", "max": "max({}, {})", "min": "min({}, {})"}


class Proof(NamedTuple):
    """`verdict`: "proved", "proved up to n", "wrong" or "unknown"; of what is wrong, Python that shows both sides."""

    verdict: str
    snippet: str = ""
    values: tuple[int, int] | None = None


class Counterexample(NamedTuple):
    """Integers for which a claim fails, by variable or "axis a", and the values of its two sides."""

    names: dict[str, int]
    sides: tuple[int, int]


type Claim = tuple[str, Term, Term]     # (=, left, right), (>=, index, bound) or (<=, index, bound)


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
    import z3

    try:
        return _proved(z3, form, claims, book)
    except Outside:
        return None


def _claims(form: Form, book: Book) -> Iterator[Claim]:
    """What the actions say."""
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
            case Var(x): return z3.IntVal(self.fixed[x]) if x in self.fixed else z3.Int(x)
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

    def refuted(self, claim: Claim, milliseconds: int) -> tuple[str, Counterexample | None]:
        """ "unsat" where the claim holds; "sat" with a counterexample where it does not."""
        op, left, right = claim
        a, b = self.integer(left), self.integer(right)
        solver = self.z3.Solver()
        solver.set("timeout", milliseconds)
        solver.add(*self.known, {"=": a != b, ">=": a < b, "<=": a > b}[op])
        answer = str(solver.check())
        if answer != "sat":
            return answer, None
        model = solver.model()

        def number(x: Any) -> int:
            return int(model.eval(x, model_completion=True).as_long())

        axes = {f"axis {c.args[0]}" for c in calls(*self.form.premises, *self.form.actions) if c.name == "Axis"}
        names = {x: number(self.integer(Var(x))) for x in variables(*self.form.premises)} | {x: number(self.z3.Int(x)) for x in axes}
        return answer, Counterexample(names, (number(a), number(b)))


def _proved(z3: Any, form: Form, claims: list[Claim], book: Book) -> Proof:
    constants = _constants(form)
    verdict = "proved"
    for claim in claims:
        answer, found = Reading(z3, form, book, {}).refuted(claim, MILLISECONDS)
        if answer == "unknown":
            verdict = f"proved up to {BOUND}"
            ranges = [range(1, BOUND + 1) if c in _divisors(form) else range(-BOUND, BOUND + 1) for c in constants]
            for values in product(*ranges):
                answer, found = Reading(z3, form, book, dict(zip(constants, values, strict=True))).refuted(claim, MILLISECONDS)
                if answer != "unsat":
                    break
        if answer == "unknown":
            return Proof("unknown")
        if found:
            return Proof("wrong", _python(form, claim, found), found.sides)
    return Proof(verdict)


def _constants(form: Form) -> list[str]:
    """The variables that multiply or divide."""
    scaled = [c.args[1] for c in calls(*form.premises) if c.name in ("IndexMul", "IndexDiv", "IndexMod", "%", "/", "*")]
    scaled += [c.args[0] for c in calls(*form.premises) if c.name in ("%", "/")]
    return list(variables(*scaled))


def _divisors(form: Form) -> set[str]:
    return set(variables(*(c.args[1] for c in calls(*form.premises) if c.name in ("IndexDiv", "IndexMod"))))


def _python(form: Form, claim: Claim, found: Counterexample) -> str:
    """A counterexample as Python."""
    op, *sides = claim
    defined = {x.name: t for p in form.premises if p.name == "=" for x, t in (p.args, p.args[::-1])
               if isinstance(x, Var) and isinstance(t, Call) and t.name.startswith("Index")}

    def python(t: Term) -> str:
        match t:
            case Var(x): return python(defined[x]) if x in defined else x
            case Call("Axis", (a,)): return f"axis_{a}"
            case Call("IndexConst", (n,)): return python(n)
            case Call(name, args): return PYTHON[name].format(*map(python, args))
        return str(t)

    left, right = map(python, sides)
    used = [x for x in found.names if re.search(rf"\b{x.replace(' ', '_')}\b", f"{left} {right}")]
    assigned = "; ".join(f"{x.replace(' ', '_')} = {found.names[x]}" for x in used)
    return f"{assigned}\nprint({left}, {right})    # {'equal' if op == '=' else op}, says the rule\n"
