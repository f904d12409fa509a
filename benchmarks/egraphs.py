"""E-graphs of our own beside the public ones, in the format of extraction-gym: `python -m benchmarks.egraphs FOLDER` writes them.

Classic tasks of equality saturation, each sized to stay below 2,000 nodes, and regions that Emmy saturates:

* `sums-…`, `polynomials…`, `adder-…`, `quadratic-…`: egglog saturates several terms at once under the rules below, so that what they
  share decides.  Choosing sums that serve many totals is ensemble computation, which is NP-hard.
* `constants-…`: multiplication by constants with shifts (free) and additions (1 each); every class leads back to every other.
* `chains-…`: products of matrices with factors in common, at their count of multiplications.
* `tangle-…`: random nodes, nearly all on cycles: what exact extraction finds hard.
* `emmy-…`: what extraction sees of a program's region, in picoseconds.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

Nodes = dict[str, dict[str, Any]]

SORTS = """
(datatype E (Var String :cost 0) (Num i64 :cost 0) (Add E E :cost 2) (Sub E E :cost 2) (Mul E E :cost 3) (Div E E :cost 12)
  (Neg E :cost 1) (Sqrt E :cost 10) (Not E :cost 1) (And E E :cost 2) (Or E E :cost 2) (Xor E E :cost 3))
(ruleset sum) (ruleset ring) (ruleset logic) (ruleset real)
(birewrite (Add a (Add b c)) (Add (Add a b) c) :ruleset sum)
(rewrite (Add a b) (Add b a) :ruleset sum)
(rewrite (Mul a b) (Mul b a) :ruleset ring)
(birewrite (Mul a (Mul b c)) (Mul (Mul a b) c) :ruleset ring)
(birewrite (Mul a (Add b c)) (Add (Mul a b) (Mul a c)) :ruleset ring)
(rewrite (Sub a b) (Add a (Neg b)) :ruleset real)
(rewrite (Add a (Neg b)) (Sub a b) :ruleset real)
(rewrite (Neg (Neg a)) a :ruleset real)
(birewrite (Sub (Mul a a) (Mul b b)) (Mul (Add a b) (Sub a b)) :ruleset real)
(rewrite (Mul a b) (Mul b a) :ruleset real)
(rewrite (Add a b) (Add b a) :ruleset real)
(rewrite (Div (Add a b) c) (Add (Div a c) (Div b c)) :ruleset real)
(rewrite (Div (Sub a b) c) (Sub (Div a c) (Div b c)) :ruleset real)
(rewrite (Div a b) (Mul a (Div (Num 1) b)) :ruleset real)
(rewrite (Mul a (Num 1)) a :ruleset real)
(rewrite (Neg a) (Mul (Num -1) a) :ruleset real)
(rewrite (Add (Neg a) (Neg b)) (Neg (Add a b)) :ruleset real)
(rewrite (Sub a b) (Div (Sub (Mul a a) (Mul b b)) (Add a b)) :ruleset real)
(rewrite (And a b) (And b a) :ruleset logic)
(rewrite (Or a b) (Or b a) :ruleset logic)
(rewrite (Xor a b) (Xor b a) :ruleset logic)
(birewrite (Xor a (Xor b c)) (Xor (Xor a b) c) :ruleset logic)
(birewrite (Not (And a b)) (Or (Not a) (Not b)) :ruleset logic)
(birewrite (Not (Or a b)) (And (Not a) (Not b)) :ruleset logic)
(rewrite (Not (Not a)) a :ruleset logic)
(rewrite (Xor a b) (And (Or a b) (Not (And a b))) :ruleset logic)
(birewrite (And a (Or b c)) (Or (And a b) (And a c)) :ruleset logic)
"""


def saturated(terms: list[str], schedule: str) -> tuple[Nodes, list[str]]:
    """The e-graph of terms after a schedule, its roots their classes."""
    from egglog.bindings import EGraph

    graph = EGraph()
    roots = "\n".join(f"(let $root{k} {term})" for k, term in enumerate(terms))
    graph.run_program(*graph.parse_program(f"{SORTS}\n{roots}\n(run-schedule {schedule})"))
    data = json.loads(graph.serialize([]).to_json())
    nodes = {n: {"op": e["op"], "children": e["children"], "eclass": e["eclass"], "cost": 0.0 if n.startswith("primitive") else e["cost"]}
             for n, e in sorted(data["nodes"].items())}
    return nodes, sorted(c for c, about in data["class_data"].items() if about.get("let", "").startswith("$root"))


def variables(names: str) -> list[str]:
    return [f'(Var "{name}")' for name in names]


def fold(op: str, terms: list[str]) -> str:
    first, *rest = terms
    for term in rest:
        first = f"({op} {first} {term})"
    return first


def sums(n: int, totals: list[str]) -> tuple[Nodes, list[str]]:
    """Several totals over the first `n` letters."""
    assert all(set(total) <= set("abcdefgh"[:n]) for total in totals)
    return saturated([fold("Add", variables(total)) for total in totals], "(saturate (run sum))")


def polynomials(products: list[list[str]], rounds: int) -> tuple[Nodes, list[str]]:
    """Sums of products of letters."""
    terms = [fold("Add", [fold("Mul", variables(p)) for p in product]) for product in products]
    return saturated(terms, f"(repeat {rounds} (seq (run ring) (run sum)))")


def adder(bits: int, rounds: int) -> tuple[Nodes, list[str]]:
    """A ripple-carry adder: every sum bit and the last carry."""
    carry, out = '(Var "c")', []
    for k in range(bits):
        a, b = f'(Var "a{k}")', f'(Var "b{k}")'
        out.append(f"(Xor (Xor {a} {b}) {carry})")
        carry = f"(Or (And {a} {b}) (And {carry} (Xor {a} {b})))"
    return saturated([*out, carry], f"(repeat {rounds} (run logic))")


def quadratic(rounds: int) -> tuple[Nodes, list[str]]:
    """Both roots of a quadratic, under rules that gain accuracy and rules that lose it."""
    a, b, c = variables("abc")
    root = f"(Sqrt (Sub (Mul {b} {b}) (Mul (Num 4) (Mul {a} {c}))))"
    return saturated([f"(Div ({op} (Neg {b}) {root}) (Mul (Num 2) {a}))" for op in ("Add", "Sub")], f"(repeat {rounds} (run real))")


def constants(wanted: list[int], most: int, shifts: int) -> tuple[Nodes, list[str]]:
    """Odd multiples of one input up to `most`, each a sum or difference of two others, shifted."""
    nodes: Nodes = {"1": {"op": "x", "children": [], "eclass": "1", "cost": 0.0}}
    for c in range(3, most + 1, 2):
        ways = 0
        for a in range(1, most + 1, 2):
            for s in range(shifts + 1):
                for b in (abs(c - (a << s)), (a << s) + c):
                    odd = b // (b & -b) if b else 0
                    if 0 < odd <= most and odd <= a and c not in (odd, a):
                        nodes[f"{c}" if not ways else f"{c}.{ways}"] = {
                            "op": f"{c} from {a}<<{s} and {b}", "children": [str(a), str(odd)], "eclass": str(c), "cost": 1.0}
                        ways += 1
    return nodes, [str(c) for c in wanted]


def chains(sizes: list[int], roots: list[tuple[int, int]]) -> tuple[Nodes, list[str]]:
    """Products of the matrices i..j-1 of a chain, whose sizes are `sizes`."""
    nodes: Nodes = {}
    for i, j in combinations(range(len(sizes)), 2):
        for k in range(i + 1, j) if j > i + 1 else (j,):
            leaf = k == j
            name = f"{i}-{j}" if k in (i + 1, j) else f"{i}-{j}.{k}"
            nodes[name] = {"op": "matrix" if leaf else f"at {k}", "children": [] if leaf else [f"{i}-{k}", f"{k}-{j}"],
                           "eclass": f"{i}-{j}", "cost": 0.0 if leaf else float(sizes[i] * sizes[k] * sizes[j])}
    return nodes, [f"{i}-{j}" for i, j in roots]


def tangle(classes: int, most: int, seed: int) -> tuple[Nodes, list[str]]:
    """Classes of up to `most` nodes with random costs and up to four random children each, so that nearly all lie on cycles."""
    draw = random.Random(seed)
    nodes: Nodes = {}
    for c in range(classes):
        for k in range(draw.randint(1, most)):
            arity = 0 if draw.random() < 0.02 else draw.randint(1, 4)
            children = [f"{draw.randrange(classes)}.0" for _ in range(arity)]
            cost = draw.choice([1.0, 2.0, 3.0, 10 * draw.random()])
            nodes[f"{c}.{k}"] = {"op": f"f{arity}", "children": children, "eclass": str(c), "cost": cost}
    return nodes, ["0", "1", "2"]


def region(source: str) -> tuple[Nodes, list[str]]:
    """What extraction of one kernel sees of a program's region: every class, loads of inputs at their traffic, work at its rate."""
    from emmy.egraph.problem import outline, problem
    from emmy.pipeline import compile_snippet
    from extract import hardware

    stated = problem(outline(compile_snippet(source).region), hardware.load("h200"))
    found = {(c, k): m for c, members in stated.members.items() for k, m in enumerate(members) if not m.tensor or m.tensor in stated.inputs}
    first = {c: f"{c}.{k}" for c, k in reversed(found)}
    while dead := [key for key, m in found.items() if not first.keys() >= set(m.kids)]:
        found = {key: m for key, m in found.items() if key not in dead}
        first = {c: f"{c}.{k}" for c, k in reversed(found)}
    nodes = {f"{c}.{k}": {"op": m.spelling.partition(" at")[0][:40], "children": [first[kid] for kid in m.kids], "eclass": str(c),
                          "cost": round(sum(seconds for _, seconds, _ in m.parts) * 1e12) / 1.0} for (c, k), m in found.items()}
    return nodes, [str(stated.home[name]) for name in stated.outputs]


def suites() -> Iterator[tuple[str, tuple[Nodes, list[str]]]]:
    """Every e-graph by name."""
    yield "sums-6", sums(6, ["abc", "abd", "bcde", "cdef", "abef", "acdf"])
    yield "sums-8", sums(8, ["abcdef", "bcdefg", "cdefgh", "acegh", "bdfh", "abgh"])
    yield "sums-8-many", sums(8, ["abcde", "bcdef", "cdefg", "defgh", "aceg", "bdfh", "abgh", "abcfh", "bcgh", "adeh"])
    yield "polynomials", polynomials([["ab", "ac", "bd", "cd"], ["ab", "cd", "ad"], ["abc", "bcd"]], 4)
    yield "polynomials-horner", polynomials([["axxx", "bxx", "cx"], ["axx", "bx"]], 3)
    yield "adder-2", adder(2, 6)
    yield "adder-3", adder(3, 4)
    yield "quadratic-4", quadratic(4)
    yield "quadratic-6", quadratic(6)
    yield "constants-31", constants([7, 11, 19, 23, 29], 31, 5)
    yield "constants-63", constants([13, 27, 43, 51, 59], 63, 5)
    yield "chains-8", chains([30, 5, 40, 8, 22, 64, 3, 50, 12], [(0, 8), (1, 6), (2, 8), (3, 7)])
    for seed in range(3):
        yield f"tangle-{seed}", tangle(150, 16, seed)
    yield "emmy-softmax", region("F.softmax(torch.randn(64, 512), -1)")
    yield "emmy-layernorm-gelu", region("F.gelu(F.layer_norm(torch.randn(64, 512), (512,), torch.randn(512), torch.randn(512)))")
    yield "emmy-swiglu", region("x = torch.randn(64, 256); F.linear(F.silu(F.linear(x, torch.randn(512, 256))) * F.linear(x, "
                                "torch.randn(512, 256)), torch.randn(256, 512))")
    yield "emmy-attention", region("F.scaled_dot_product_attention(torch.randn(2, 4, 64, 32), torch.randn(2, 4, 64, 32), "
                                   "torch.randn(2, 4, 64, 32))")


def write(folder: Path, graphs: Iterable[tuple[str, tuple[Nodes, list[str]]]]) -> None:
    """A compressed file for each e-graph."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (nodes, roots) in graphs:
        text = json.dumps({"nodes": nodes, "root_eclasses": roots})
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{name}: {len(nodes)} nodes, {len({e['eclass'] for e in nodes.values()})} classes, {len(roots)} roots")


if __name__ == "__main__":
    write(Path(sys.argv[1]), suites())
