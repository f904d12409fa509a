"""The price of a program as it is written."""

from __future__ import annotations

import pytest
import torch

from emmy.capture.snippet import capture_snippet
from emmy.egraph.derivation import derivation
from emmy.egraph.forest import Forest
from emmy.pipeline import Program, compile
from emmy.tune.alternatives import Ledger
from emmy.tune.as_written import as_written
from emmy.tune.choose import Rows

WRITTEN = (
    "F.softmax(torch.randn(64, 64), -1)",
    "(torch.randn(512, 8) @ torch.randn(8, 512)) @ torch.randn(512, 8)",
    "x = torch.randn(64, 128, dtype=torch.bfloat16); nn.Linear(128, 64, dtype=torch.bfloat16)(F.layer_norm(x, (128,)))",
    "x = torch.arange(12); torch.randn(4, 12)[:, x.flip(0)].cumsum(-1)",
)


@pytest.mark.parametrize("source", WRITTEN)
def test_bodies_cost_what_they_do_in_the_e_graph(source: str) -> None:
    program = Program(capture_snippet(source), traced=True)
    ledger = Ledger(program.region, Rows(program.target))
    forest = Forest(ledger.outlined)
    written = derivation(forest, {w: k for k in ledger.chosen.kernels for w in k.writes}).written
    assert as_written(program.loop, ledger.rows) == ledger.kernels(forest, written)


def test_a_kernel_for_each_tensor_that_is_needed_and_none_for_others() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        _ = x.exp()
        return (x.sum(-1, keepdim=True) * x).sum(-1)

    program = compile(fn, torch.empty(1 << 14, 1 << 10))
    found = as_written(program.loop, Rows(program.target))
    assert list(found) == [d.name for d in program.loop.definitions if d.name in found] and 2 <= len(found) <= 3
    assert sum(found.values()) > 1.5 * sum(s.seconds for s in program.choice.scheduled.values()), "one kernel reads its row once"
