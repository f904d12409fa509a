"""Extraction and partition give the same in every process, whatever Python hashes with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRACTED = """
import extract
from benchmarks import gym
from extract import columns, exact, greedy_dag, partition, tree
from extract.descent import Descent
from extract.kernels import Kernels
from tests.extract import problems

some = ("diff_power_harder", "integ_part1", "29", "resnet50_acyclic", "text_bench000_it0", "sums-8-many", "tangle-0")
for path in gym.files([gym.FILES]):
    if path.name.partition(".")[0] in some:
        graph = extract.read_gym(path)
        print(path.name, tree.extract(graph), greedy_dag.extract(graph), exact.extract(graph, budget=0.1))
for seed in range(20):
    stated = problems.problem(seed, 8)
    found = [*partition.ranked(stated, problems.scheduled, 3),
             *Descent(Kernels(stated, problems.scheduled), 3).ranked((frozenset(stated.named), frozenset(stated.outputs)))]
    kernels = Kernels(stated, problems.scheduled)
    columns.widen(kernels, 1e9, 50)
    found.append(columns.solve(kernels, found[0], 60.0).solution)
    print([(s.seconds, [(k.writes, k.body, sorted(k.reads), k.floor) for k in s.kernels]) for s in found])
"""
COMPILED = """
from emmy.cli import app
for source in ("F.scaled_dot_product_attention(torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8))",
               "F.softmax(F.layer_norm(F.gelu(F.softmax(torch.randn(4, 64), -1)), (64,)).cumsum(-1), -1)"):
    app(["extract", "-c", source, "--json", "-"], standalone_mode=False)
"""


def printed(code: str, seed: str) -> str:
    """What a process with a hash seed prints."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_extraction_and_partition_do_not_depend_on_the_hash_seed() -> None:
    first, *others = (printed(EXTRACTED, seed) for seed in ("0", "1", "4242"))
    assert len(first.splitlines()) == 7 + 20
    assert others == [first, first]


def test_programs_do_not_depend_on_the_hash_seed() -> None:
    first, second = (printed(COMPILED, seed) for seed in ("1", "2"))
    assert first.count('"programs"') == 2 and first.count('"identity"') > 8
    assert first == second
