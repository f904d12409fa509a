"""What a compiled program says of arguments that it was not compiled for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._pytree import tree_structure

import emmy
from emmy.errors import EmmyError
from emmy.evaluate import tile as tile_evaluation
from emmy.ir.tile_text import parse, print_program
from emmy.runtime.execute import arguments, on_gpu, on_numpy, on_simulator

X = torch.zeros(2, 3)


@pytest.mark.parametrize("arguments, said", [((), "takes 1 tensors \\(x0\\), not 0"),
                                             ((X, X), "not 2"),
                                             ((3,), "argument x0 is int, not a tensor"),
                                             (([1.0],), "argument x0 is list, not a tensor"),
                                             ((X.T,), r"float32\[3, 2\]; .* float32\[2, 3\]"),
                                             ((X.double(),), r"float64\[2, 3\]; .* float32\[2, 3\]")])
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(EmmyError, match=said):
        emmy.compile_snippet("torch.randn(2, 3) + 1")(*arguments)


def test_tensors_that_lie_in_another_order_are_read_and_written_where_they_lie() -> None:
    """channels_last: weights, inputs and results; the program sees them row-major, and nothing is copied for that."""
    model = torch.nn.Conv2d(16, 8, 3, padding=1).to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 6, 5).to(memory_format=torch.channels_last)
    program = emmy.compile(model, x)
    assert program.plan.buffer("input").shape == (2, 6, 5, 16) and program.plan.buffer("weight").shape == (8, 3, 3, 16)
    assert [program.plan.buffer(n).shape for n in program.plan.outputs] == [(2, 6, 5, 8)]
    wanted = model(x)
    for given in (x, x.contiguous()):
        made = program(given)
        assert made.stride() == wanted.stride()
        torch.testing.assert_close(made, wanted)
    with pytest.raises(EmmyError, match=r"argument input is float32\[2, 6, 4, 16\]"):
        program(x[..., :4])


def test_some_of_several_results_lie_in_another_order() -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t() + 1, y * 2, (x.t() + y).t()

    x, y = torch.randn(3, 5), torch.randn(5, 3)
    program = emmy.compile(several, x, y)
    for made, wanted in zip(program(x, y), several(x, y), strict=True):
        assert made.stride() == wanted.stride()
        torch.testing.assert_close(made, wanted)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@pytest.mark.parametrize("pack", [lambda a, b: (a, (b, [a, {"x": b}])), lambda a, b: {"a": a, "b": (b,)}, lambda a, b: (a,),
                                  lambda a, b: [a, b], lambda a, b: (a, None, 3, 2.5, b), lambda a, b: a, Pair,
                                  lambda a, b: (None, {"b": b})])
def test_results_are_packed_as_the_function_packs_them(pack: Any) -> None:
    x = torch.randn(2, 3)
    program = emmy.compile(lambda x: pack(x * 2, x.sum(0)), x)
    torch.testing.assert_close(program(x), pack(x * 2, x.sum(0)))
    assert tree_structure(program(x)) == tree_structure(pack(x, x))


def test_arguments_that_the_function_writes_to_are_written() -> None:
    """Also those that it reads through views, that lie in another order, and that want a gradient; with or without a result."""
    def update(x: torch.Tensor, cache: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        cache[:, 1:3] = x
        cache[0].mul_(2)
        image += 1
        return cache.sum()

    x, cache, image = torch.randn(3, 2), torch.randn(3, 5), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    program = emmy.compile(update, x, cache.clone(), image.clone())
    found, wanted = ([x, cache.clone(), image.clone()] for _ in range(2))
    torch.testing.assert_close(program(*found), update(*wanted))
    torch.testing.assert_close(found, wanted)

    def nothing(x: torch.Tensor) -> None:
        x.zero_()

    x = torch.ones(3, requires_grad=True)
    assert emmy.compile(nothing, x.detach())(x) is None and not x.any()


def test_no_result_at_all() -> None:
    with pytest.raises(EmmyError, match="no result is a tensor"):
        emmy.compile(lambda x: (None, 3), X)


# -- what runs once -----------------------------------------------------------------------------------------------------
def test_kernels_of_weights_run_once_until_a_weight_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels first: the filters are copied with their channels last."""
    ran: list[str] = []
    evaluate = tile_evaluation.evaluate_kernel
    monkeypatch.setattr(tile_evaluation, "evaluate_kernel", lambda k, tensors: ran.append(k.outputs[0].name) or evaluate(k, tensors))
    model = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False, dtype=torch.bfloat16)
    x = torch.randn(4, 64, 28, 28, dtype=torch.bfloat16)
    program = emmy.compile(model, x)
    first, *others = program.plan.launches
    assert first.once and first.row.startswith("PLACE=once,") and not any(k.once for k in others)
    assert program.plan.buffer("weight_along1").role == "held"
    assert parse(print_program(program.tile)) is program.tile

    def kernels() -> int:
        ran.clear()
        torch.testing.assert_close(program(x), model(x), rtol=2e-2, atol=2e-2)
        return len(ran)

    with torch.no_grad():
        assert [kernels(), kernels()] == [3, 2]
        model.weight.mul_(-2)
        assert [kernels(), kernels()] == [3, 2]
        model.load_state_dict({"weight": torch.randn_like(model.weight) / 8})
        assert [kernels(), kernels()] == [3, 2]
        model.weight.data = torch.randn_like(model.weight) / 8
        assert [kernels(), kernels()] == [3, 2]
        model.weight.data.mul_(2)       # which torch does not count
        program.renew()
        assert [kernels(), kernels()] == [3, 2]


def test_what_is_held_is_right_in_the_simulator_too() -> None:
    x, w = torch.randn(16, 64, dtype=torch.bfloat16), torch.nn.Parameter(torch.randn(64, 64))
    program = emmy.compile(Cast(w), x)
    assert [k.once for k in program.plan.launches] == [True, False]
    arrays = arguments(program)
    for found in (on_simulator(program, arrays), on_numpy(program, arrays)):
        result = torch.from_numpy(found[program.plan.outputs[0]].astype("float32"))
        torch.testing.assert_close(result, Cast(w)(x).detach().float(), rtol=2e-2, atol=2e-2)


class Cast(torch.nn.Module):
    """A layer whose weight is cast to the type of what it is applied to."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype))


class LowRank(torch.nn.Module):
    """x @ W + (x @ A) @ B"""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = (torch.nn.Parameter(torch.randn(shape) / 16) for shape in ((512, 512), (512, 16), (16, 512)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + (x @ self.a) @ self.b


@pytest.mark.parametrize(("model", "shape"), [
    (lambda: torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16)), (2, 8, 12, 12)),
    (lambda: torch.nn.Sequential(torch.nn.RMSNorm(64), torch.nn.Linear(64, 32)), (96, 64)),
    (LowRank, (256, 512)),
], ids=["conv-batchnorm", "rmsnorm-linear", "low-rank"])
def test_every_weight_may_be_changed_in_place(model: Any, shape: tuple[int, ...]) -> None:
    made, x = model().eval(), torch.randn(shape)
    program = emmy.compile(made, x)
    with torch.no_grad():
        for weight in (*made.parameters(), *made.buffers()):
            torch.testing.assert_close(program(x), made(x), rtol=1e-3, atol=1e-3)
            if weight.is_floating_point():
                weight.mul_(1.5).add_(0.25)
        torch.testing.assert_close(program(x), made(x), rtol=1e-3, atol=2e-3)


# -- on the GPU ---------------------------------------------------------------------------------------------------------
def test_what_the_loaded_program_returns_is_packed_only_where_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy stands for the GPU."""
    programs: list[emmy.Program] = []

    class Loaded:
        def __init__(self, plan: Any, cubin: bytes, weights: Any, alone: bool = False) -> None:
            self.program, self.alone = programs[-1], alone

        def __call__(self, *tensors: torch.Tensor) -> Any:
            made = on_numpy(self.program, arguments(self.program, tensors))
            results = tuple(torch.from_numpy(made[n]).reshape(self.program.plan.buffer(n).shape) for n in self.program.plan.outputs)
            return results[0] if self.alone else results

    monkeypatch.setattr("emmy.runtime.launch.Executable", Loaded)
    monkeypatch.setattr("emmy.runtime.build.build", lambda source, target: SimpleNamespace(cubin=b""))
    x = torch.randn(2, 3)
    for function, direct in ((lambda x: x + 1, True), (lambda x: (x + 1,), True), (lambda x: (x + 1, x * 2), True),
                             (lambda x: [x + 1], False), (lambda x: (x + 1).t(), False), (lambda x: x.add_(1), False)):
        programs.append(emmy.compile(function, x.clone()))
        call = on_gpu(programs[-1])
        assert isinstance(call, Loaded) is direct and isinstance(vars(programs[-1])["executable"], Loaded)
        found, wanted = x.clone(), x.clone()
        torch.testing.assert_close((call(found), found), (function(wanted), wanted))
        assert tree_structure(call(x.clone())) == tree_structure(function(x.clone()))


def test_a_program_is_loaded_at_the_first_call_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[emmy.Program] = []
    monkeypatch.setattr("emmy.runtime.execute.on_gpu", lambda program: loaded.append(program) or (lambda *tensors: len(tensors)))
    program, there = emmy.compile(lambda x, y: x + y, X, X), SimpleNamespace(is_cuda=True)
    assert torch.equal(program(X, X), X) and not loaded
    assert [program(there, there), program(there, X)] == [2, 2] and loaded == [program]
    assert torch.equal(program(X, X), X)
    other = program.knowing(program.evidence)
    assert other(there) == 1 and loaded == [program, other]
