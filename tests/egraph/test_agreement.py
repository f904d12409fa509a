"""All members of all classes agree, whatever the program; and the judge finds unsound rules.

`HYPOTHESIS_PROFILE=deep` judges thousands of programs.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

from emmy.egraph.canonical import canonical
from emmy.egraph.rulebook import rule_files, rule_names
from emmy.egraph.saturate import saturate
from emmy.evaluate.reference import evaluate_tensor
from emmy.evaluate.tile import evaluate_tile
from emmy.ir import tensor_ir as tir
from emmy.ir import tile_ir as tile
from emmy.lower import loop_to_tile
from emmy.lower.tensor_to_loop import lower
from tests.egraph.agreement import Disagreement, judge
from tests.egraph.programs import arrays, programs

DEEP = settings().max_examples > 1_000
FIRED: Counter[str] = Counter()


@settings(max_examples=4_000 if DEEP else 70)
@given(programs())
@pytest.mark.parametrize("math", ["exact", "fast"])
def test_every_member_of_every_class_agrees(math: str, program: tir.Program) -> None:
    compared, fired = judge(lower(program), math, arrays(program))
    FIRED.update(fired)
    assert compared > 0


@settings(max_examples=400 if DEEP else 25)
@given(programs())
def test_canonical_bodies_mean_what_the_program_says(program: tir.Program) -> None:
    given = arrays(program)
    source = lower(program)
    region = saturate(source)
    bodies = canonical(region)
    tensors = {i.name: tile.Tensor(i.name, i.dims, i.element) for i in source.inputs} | {d.name: tile.Tensor(d.name, d.shape, d.element) for d in source.definitions}
    names = dict.fromkeys(name for _, name in source.outputs if name in region.home)
    kernels = tuple(loop_to_tile.kernel(f"k{n}", bodies[region.home[n]], tensors[n], region.output_axes[n], region.extents, tensors) for n in names)
    made = tile.Program(tuple(i.name for i in source.inputs), kernels, source.outputs)
    for have, want in zip(evaluate_tile(made, given), evaluate_tensor(program, given), strict=True):
        assert have.dtype == want.dtype
        sound = np.isfinite(have) & np.isfinite(want) if have.dtype.kind == "f" else np.ones(have.shape, bool)
        scale = np.abs(want[sound]).max(initial=1)
        # a rounding to bf16 may be dropped, and what cancels loses what it lost
        assert (np.abs(have - want)[sound] <= 0.1 * scale).all() or not sound.any()


UNSOUND = {
    "factor-out without its premise": """
        (rule ((= v (Reduce "add" a (Binary "mul" x y)))) ((union v (Binary "mul" x (Reduce "add" a y)))) :ruleset algebra-real :name "bad")""",
    "the maximum of a sum": """
        (rule ((= v (Reduce "max" a (Binary "add" x y))))
              ((union v (Binary "add" (Reduce "max" a x) (Reduce "max" a y)))) :ruleset algebra-real :name "bad")""",
    "a channel over another axis": """
        (rule ((= v (Reduce "add" a (Binary "mul" (Unary "exp" (Binary "sub" s (Reduce "max" b s))) x))) (!= a b))
              ((union v (Channel "softmax" a s x))) :ruleset twist-real :name "bad")""",
    "a factor dropped": """
        (rule ((= v (Reduce "add" a (Binary "mul" (Binary "mul" x y) z))) (= d (Deps x)) (set-not-contains d a))
              ((union v (Reduce "add" a (Binary "mul" y z)))) :ruleset algebra-real :name "bad")""",
    "a quotient of a part of an index": """
        (rule ((= q (IndexDiv x n)) (= m (Upper x)) (< m n)) ((union q (IndexConst 0))) :ruleset index-exact :name "bad")""",
}


@pytest.mark.parametrize("rule", UNSOUND)
def test_an_unsound_rule_is_found(rule: str) -> None:
    def wrong(program: tir.Program) -> bool:
        try:
            judge(lower(program), "fast", arrays(program), [("bad.egg", UNSOUND[rule])])
        except Disagreement:
            return True
        return False

    assert wrong(find(programs(), wrong, settings=settings(max_examples=1_500, database=None, phases=[Phase.generate])))


def test_no_program_of_the_judge_is_a_corner() -> None:
    """Every rule of Loop IR that changes a value fired in the programs above."""
    if not FIRED:
        pytest.skip("runs after the tests above")
    names = {name for file, text in rule_files("loop") if file.split("/")[1] in ("fuse.egg", "normalize.egg", "algebra.egg", "twist.egg") for name in rule_names(text)}
    assert names - FIRED.keys() == set()
