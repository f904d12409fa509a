"""Seeds and trials: rules fire on what is made from their premises, failures shrink, unsound rules of every kind are found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from emmy.check.agreement import judge
from emmy.check.book import Book
from emmy.check.court import Tensor
from emmy.check.mutants import mutants, mutated
from emmy.check.seeds import Maker
from emmy.check.shrink import Choices
from emmy.check.world import Mismatch, inputs, text, world
from emmy.egraph.rulefile import Rule
from emmy.ir import dtype as dt


@pytest.fixture(scope="module")
def book() -> Book:
    return Book()


def named(book: Book, name: str) -> Rule:
    return next(rule for rule in book.rules if rule.name == name)


def test_choices_are_replayed_and_the_first_option_follows() -> None:
    chance = Choices(chance=random.Random(1))
    made = [chance(range(5)) for _ in range(4)]
    again = Choices(chance.made)
    assert [again(range(5)) for _ in range(6)] == [*made, 0, 0] and again.made == [*made, 0, 0]


@pytest.mark.parametrize("name", ["softmax-channel", "in-pieces", "push-scan", "fuse", "sum-with-one-more", "cast-twice"])
def test_a_rule_fires_on_seeds_of_its_own(name: str, book: Book) -> None:
    outcome = judge(book, named(book, name), enough=8, seconds=8.0)
    assert outcome.firings >= 8 and outcome.failure is None and outcome.judged


def test_seeds_are_egglog_of_the_vocabulary(book: Book) -> None:
    rng = random.Random(0)
    for name in ("factor-out", "softmax-denominator", "replace-scan"):
        at = world(rng.choice)
        maker, made = Maker(book, at, rng.choice, ("exact", "finite", "real")), []
        for _ in range(40):
            try:
                made.append(maker.seed(book.forms[name]))
            except Mismatch:
                continue
        assert made
        with_terms = book.graph([])
        with_terms.run(text(at, made))
        assert with_terms.size() > 10


def test_bits_are_tried_where_a_class_promises_them() -> None:
    tensors = {"x": Tensor(dt.f32, (400,)), "i": Tensor(dt.i64, (50,), 3)}
    wild, tame = inputs(tensors, "exact", 1), inputs(tensors, "real", 1)
    zeros = np.concatenate([inputs(tensors, "exact", k)["x"] for k in (3, 5)])
    assert np.isnan(wild["x"]).any() or np.isinf(wild["x"]).any()
    assert (np.signbit(zeros) & (zeros == 0)).any() and np.isfinite(tame["x"]).all() and wild["i"].max() < 3


BROKEN = {      # a mutant of a rule of the house, by what it says, and how it is found
    "factor-out": "without (set-not-contains d a)", "softmax-pivot": '"min" for "max"',
    "deps-binary": "(set-intersect d e) for (set-union d e)",
    "lower-sum": "(- m n) for (+ m n)", "at-sum": "x for (IndexAt x point)", "push-cast": "(At x q) for (Cast d (At x q))",
    "replace-input": "p for (PointReplace p a i)", "dtype-index": '"i32" for "i64"',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_with_one_thing_wrong_is_found(name: str, book: Book) -> None:
    rule = named(book, name)
    whats = {m.what: m.form for m in mutants(book, rule)}
    assert BROKEN[name] in whats, list(whats)
    outcome = judge(mutated(book, rule, whats[BROKEN[name]]), rule, enough=100, seconds=6.0, explain=False)
    assert outcome.failure is not None, outcome
