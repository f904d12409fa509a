"""Hard inputs through torch.compile(fn, backend="emmy") on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from emmy.capture import dynamo
from tests.hard_inputs import CASES, Case, Llama


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def flat(results: Any) -> list[torch.Tensor]:
    return [x for r in results for x in flat(r)] if isinstance(results, tuple | list) else [results]


def run(fn: Any, case: Case) -> list[torch.Tensor]:
    """The results, and the arguments afterwards if the function writes to them."""
    args = [x.clone() for x in case.args]
    results = flat(fn(*args))
    return results + args if case.writes else results


@pytest.mark.parametrize("name", CASES)
def test_hard_input(name: str) -> None:
    case = CASES[name]
    compiled = torch.compile(case.fn, backend=dynamo.backend, fullgraph=True, dynamic=False)
    for k, (found, wanted) in enumerate(zip(run(compiled, case), run(case.fn, case), strict=True)):
        allowed = {"rtol": case.tolerance, "atol": case.tolerance} if case.tolerance else {}
        torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=found.numel() > 0, **allowed,
                                   msg=lambda text, k=k: f"result {k} of {name} ({case.reports}): {text}")


def test_a_llama_block() -> None:
    torch.manual_seed(0)
    model, x = Llama().eval(), torch.randn(2, 9, 32)
    with torch.no_grad():
        compiled = torch.compile(model, backend=dynamo.backend, fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
