"""All members of all classes agree, whatever the program; and the judge finds unsound rules.

`HYPOTHESIS_PROFILE=deep` judges thousands of programs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

from emmy.check.corners import corners, sums
from emmy.check.court import Disagreement
from emmy.check.programs import KINDS, SPELLINGS, arrays, programs
from emmy.egraph.rulebook import house
from emmy.evaluate.reference import evaluate_tensor
from emmy.evaluate.tile import evaluate_tile
from emmy.ir import tensor_ir as tir
from emmy.lower.tensor_to_loop import lower
from tests.egraph.agreement import judge
from tests.evaluate.lowered import fused

SMALL = "small.egg", """(set (LongAxis) 2) (set (LongKeys) 2) (PieceOption 3) (set (PieceLine) 1)
(Enough "tiles" 0 64 1 9) (Enough "rows" 0 64 1 9) (Enough "columns" 0 64 1 9) (Enough "twists" 0 64 1 9)"""
DEEP = settings().max_examples > 1_000


def test_every_member_of_every_class_agrees() -> None:
    fired: Counter[str] = Counter()

    def agrees(program: tir.Program) -> None:
        for math in ("exact", "fast"):
            compared, firings = judge(lower(program), math, arrays(program), [SMALL])
            fired.update(firings)
            assert compared > 0

    for program in (*sums(), *corners()):
        agrees(program)
    for kind in dict.fromkeys((*KINDS, *SPELLINGS)):
        few = 25 if kind in SPELLINGS else 5
        settings(max_examples=200 if DEEP else few)(given(programs(steps=3 if kind in SPELLINGS else 7, kinds=(kind,)))(agrees))()
    settings(max_examples=4_000 if DEEP else 40)(given(programs(kinds=(*KINDS, *SPELLINGS)))(agrees))()
    ideas = ("fuse", "normalize", "constants", "exponent", "algebra", "linear", "order", "moments", "twist", "split", "states")
    changing = {rule.name for rule in house("loop") if Path(rule.file).stem in ideas}
    idle = sorted(name for name in changing if not fired[name])
    assert not idle, f"no program of the judge exercises {idle}"


@settings(max_examples=400 if DEEP else 25)
@given(programs())
def test_canonical_bodies_mean_what_the_program_says(program: tir.Program) -> None:
    given = arrays(program)
    for have, want in zip(evaluate_tile(fused(program), given), evaluate_tensor(program, given), strict=True):
        assert have.dtype == want.dtype
        sound = np.isfinite(have) & np.isfinite(want) if have.dtype.kind == "f" else np.ones(have.shape, bool)
        scale = np.abs(want[sound]).max(initial=1)
        # a rounding to bf16 may be dropped, and what cancels loses what it lost
        assert (np.abs(have - want)[sound] <= 0.1 * scale).all() or not sound.any()


UNSOUND = {       # the kinds of step that a program needs, and the rule
    "factor-out without its premise": (("binary", "reduction"), """
        (rule ((= v (Reduce "add" a (Binary "mul" x y))))
              ((union v (Binary "mul" x (Reduce "add" a y)))) :ruleset algebra-real :name "bad")"""),
    "the maximum of a sum": (("biased",), """
        (rule ((= v (Reduce "max" a (Binary "add" x y))))
              ((union v (Binary "add" (Reduce "max" a x) (Reduce "max" a y)))) :ruleset algebra-real :name "bad")"""),
    "a channel over another axis": (("softmax",), """
        (rule ((= v (Reduce "add" a (Binary "mul" (Unary "exp" (Binary "sub" s (Reduce "max" b s))) x))) (!= a b))
              ((union v (Channel "softmax" a s x))) :ruleset twist-real :name "bad")"""),
    "a factor dropped": (("binary", "reduction", "matmul"), """
        (rule ((= v (Reduce "add" a (Binary "mul" (Binary "mul" x y) z))) (= d (Deps x)) (set-not-contains d a))
              ((union v (Reduce "add" a (Binary "mul" y z)))) :ruleset algebra-real :name "bad")"""),
    "a quotient of a part of an index": (("views",), """
        (rule ((= q (IndexDiv x n)) (= m (Upper x)) (< m n)) ((union q (IndexConst 0))) :ruleset index-exact :name "bad")"""),
}


@pytest.mark.parametrize("rule", UNSOUND)
def test_an_unsound_rule_is_found(rule: str) -> None:
    kinds, text = UNSOUND[rule]

    def wrong(program: tir.Program) -> bool:
        try:
            judge(lower(program), "fast", arrays(program), [SMALL, ("bad.egg", text)])
        except Disagreement:
            return True
        return False

    find(programs(kinds=kinds), wrong, settings=settings(max_examples=500, database=None, phases=[Phase.generate]))
