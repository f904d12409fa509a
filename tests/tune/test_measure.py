"""How candidates are judged and timed; the GPU's part runs on the CPU with an executable that evaluates Tile IR."""

from __future__ import annotations

import types

import pytest
import torch

from emmy.errors import EmmyError
from emmy.evaluate.tile import evaluate_kernel
from emmy.pipeline import compile_snippet
from emmy.runtime.arrays import to_torch
from emmy.tune import measure
from emmy.tune.candidate import Compiled, build
from emmy.tune.measure import Judge, furthest
from emmy.tune.tasks import Task, tasks

SNIPPETS = ("torch.randn(64, 200).softmax(-1)", "nn.RMSNorm(64, dtype=torch.bfloat16)(torch.randn(16, 64, dtype=torch.bfloat16))",
            "torch.randn(70, 70).argmax(-1)", "F.cross_entropy(torch.randn(40, 32), torch.randint(0, 32, (40,)))")


def outputs(task: Task) -> list[torch.Tensor]:
    kernel = task.problem.kernel
    whole = evaluate_kernel(kernel, {name: x.array() for name, x in task.problem.drawn.items()})
    return [to_torch(x, t.element, "cpu").clone() for x, t in zip(whole, kernel.outputs, strict=True)]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_right_numbers_are_right_and_a_wrong_one_at_a_sampled_point_is_seen(snippet: str) -> None:
    for task in tasks(compile_snippet(snippet)):
        judge, right = Judge(task.problem), outputs(task)
        assert judge("a", right).right
        right[0].view(-1)[-1] += 100
        assert not judge("b", right).right


@pytest.fixture(scope="module")
def softmax() -> Task:
    (task,) = tasks(compile_snippet(SNIPPETS[0]))
    return task


def unsampled(judge: Judge) -> int:
    return next(k for k in range(12_800) if k not in set(judge.places.tolist()))


def test_one_wrong_element_that_no_sample_sees_is_seen_beside_a_right_row(softmax: Task) -> None:
    judge, right, wrong = Judge(softmax.problem), outputs(softmax), outputs(softmax)
    wrong[0].view(-1)[unsampled(judge)] *= 1.5
    assert judge("right", right).right
    verdict = judge("wrong", wrong)
    assert not verdict.right and verdict.error.relative > 1e-3


def test_where_the_first_row_was_wrong_the_right_one_overturns_it(softmax: Task) -> None:
    judge, right, wrong = Judge(softmax.problem), outputs(softmax), outputs(softmax)
    wrong[0].view(-1)[unsampled(judge)] *= 1.5
    assert judge("first", wrong) == (True, judge("first", wrong).error, "")
    verdict = judge("second", right)
    assert verdict.right and verdict.overturned == "first"
    assert not judge("first", wrong).right, "and from then on the right one is compared with"


def test_an_element_nobody_wrote_is_seen_in_the_first_row_too(softmax: Task) -> None:
    judge, poisoned = Judge(softmax.problem), outputs(softmax)
    poisoned[0].view(-1)[unsampled(judge)] = float("nan")
    assert not judge("a", poisoned).right


def test_the_furthest_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([1.0, nan, 1.0, inf, inf, 0.0, 5.0])
    y = torch.tensor([1.0, nan, nan, inf, -inf, 1.0, 5.01])
    for chunk in (1 << 24, 2):
        monkeypatch.setattr(measure, "CHUNK", chunk)
        assert sorted(furthest(x, y, 9, 0.01).tolist()) == [2, 4, 5] and sorted(furthest(x, y, 9, 1e-4).tolist()) == [2, 4, 5, 6]
        assert sorted(furthest(x, y, 2, 0.01).tolist()) == [2, 4]
    assert furthest(torch.tensor([3, 4]), torch.tensor([3, 5]), 9, 0.0).tolist() == [1]
    assert furthest(x[:0], y[:0], 9, 0.0).tolist() == []


# -- devices --------------------------------------------------------------------------------------------------------
def lowered(task: Task, k: int = 0) -> Compiled:
    return build([task.candidate(task.options[k])], "sm_90a", "fast", assemble=False)[0]


def test_the_stand_in_is_off_by_what_the_row_decides(softmax: Task) -> None:
    first, again, other = (measure.stand_in(softmax.problem, lowered(softmax, k)) for k in (0, 0, 1))
    assert first == again and first.status == "right" and first.us and other.us
    assert 0.2 < first.us / (softmax.options[0].seconds * 1e6) < 5
    assert first.us / softmax.options[0].seconds != other.us / softmax.options[1].seconds


def test_small_kernels_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks(compile_snippet("torch.randn(4, 32).softmax(-1)"))
    found = measure.simulator(task.problem, lowered(task))
    assert found.status == "right" and found.error is not None and found.error < 1e-6 and found.us is None
    monkeypatch.setattr(measure, "SIMULATED", 0)
    assert measure.simulator(task.problem, lowered(task)).note == "too large to simulate"


def test_a_kernel_that_simulates_wrong_is_wrong_on_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks(compile_snippet("torch.randn(4, 32).exp()"))
    (other,) = tasks(compile_snippet("torch.randn(4, 32).sin()"))
    compiled = lowered(task)
    swapped = compiled._replace(candidate=other.candidate(other.options[0])._replace(
        text=other.candidate(other.options[0]).text.replace("-> sin", "-> exp").replace("store sin", "store exp")))
    found = measure.stand_in(task.problem, swapped)
    assert found.status == "wrong" and found.us is None and "relative error" in found.note


class Evaluated:
    """In the place of an executable: evaluates Tile IR on the CPU, and adds what a test wants to be off by."""

    off = 0.0

    def __init__(self, task: Task) -> None:
        self.outputs = outputs(task)

    def poisoned(self) -> tuple[torch.Tensor, ...]:
        return tuple(torch.full_like(x, -1) for x in self.outputs)

    def __call__(self, *tensors: torch.Tensor, out: tuple[torch.Tensor, ...] = ()) -> tuple[torch.Tensor, ...]:
        return tuple(o.copy_(x + self.off) for o, x in zip(out, self.outputs, strict=True))


@pytest.fixture
def gpu(softmax: Task, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    from emmy.runtime import launch, timing

    run = Evaluated(softmax)
    event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda other: 0.01)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(launch, "cuda_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(launch, "Executable", lambda *_: run)
    monkeypatch.setattr(timing, "device_times", lambda runs, **_: {name: timing.Timing(7.0, 0.1) for name in runs})
    monkeypatch.setattr(measure, "_bench", None)
    return run


def test_numbers_come_before_times(softmax: Task, gpu: Evaluated, monkeypatch: pytest.MonkeyPatch) -> None:
    measure.ready("cuda", softmax.problem)
    right = measure.cuda(softmax.problem, lowered(softmax))
    assert (right.status, right.us, right.spread_us) == ("right", 7.0, 0.1)
    gpu.off = 0.5
    wrong = measure.cuda(softmax.problem, lowered(softmax, 1))
    assert wrong.status == "wrong" and wrong.us is None
    gpu.off = 0.0
    monkeypatch.setattr(measure, "SLOW_US", 1.0)
    assert measure.cuda(softmax.problem, lowered(softmax, 2)) [:3] == ("right", 10.0, None), "a slow one runs once"


def test_unknown_devices() -> None:
    with pytest.raises(EmmyError, match="unknown device 'tpu'"):
        measure.device("tpu")
