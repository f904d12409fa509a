"""Every rule file has a twin here: egglog text with what must hold and what must not, a block a `;;` line naming its rules.

A block runs in a graph of its own with all rules of its IR loaded.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from emmy.check import twins
from emmy.egraph.rulebook import ORDER, EGraph, house, rules_folder

HERE = Path(__file__).parent
BLOCKS = [
    pytest.param(ir, block, id=f"{ir}/{path.stem}/{twins.title(block)[:40]}")
    for ir in ORDER for path in sorted((HERE / ir).glob("*.egg")) for block in twins.blocks(path.read_text())
]


firings = cache(twins.firings)


@pytest.mark.parametrize(("ir", "block"), BLOCKS)
def test_block(ir: str, block: str) -> None:
    assert "(check" in block
    firings(ir, block)


@pytest.mark.parametrize("ir", ORDER)
def test_every_rule_fires_in_a_twin(ir: str) -> None:
    files = {path.name for path in (HERE / ir).glob("*.egg")}
    fired: set[str] = set()
    for parameter in BLOCKS:
        if parameter.values[0] == ir:
            fired |= {rule for rule, count in firings(*parameter.values).items() if count}      # type: ignore[arg-type]
    assert {rule.file.split("/")[1] for rule in house(ir)} - files == set(), "rule files without a twin"
    assert {rule.name for rule in house(ir)} - fired == set(), "rules that no twin exercises"


@pytest.mark.parametrize("path", sorted((rules_folder() / "hardware").glob("*.egg")), ids=lambda path: path.stem)
def test_a_target_states_every_limit_and_an_exact_atom(path: Path) -> None:
    graph = EGraph("tile", [(path.name, path.read_text())])
    graph.run("(check (= m (MaxThreads)) (= s (MaxSharedBytes)) (>= s 49152) (= f (RegisterFile)) (= r (MaxRegisters)) (= c (MaxCluster)))")
    graph.run('(check (HasAtom "mul_f32"))')
    graph.run('(fail (check (HasAtom "unheard-of")))')


def test_rule_names_are_unique() -> None:
    names = [rule.name for ir in ORDER for rule in house(ir)]
    assert len(names) == len(set(names)) and all(re.fullmatch(r"[a-z0-9-]+(=>|<=)?", name) for name in names)
