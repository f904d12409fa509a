"""Which tensors between others have their dimensions in another order."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from emmy.capture.export import capture
from emmy.evaluate.loop import evaluate_loop
from emmy.ir import loop_ir as loop
from emmy.lower import tensor_to_loop, torch_to_tensor


def lowered(fn, *inputs: torch.Tensor) -> tuple[loop.Program, torch.Tensor]:
    captured = capture(fn, inputs)
    program = tensor_to_loop.lower(torch_to_tensor.lower(captured.program))
    (out,) = evaluate_loop(program, {name: x.detach().numpy() for name, x in captured.tensors.items()})
    order = captured.orders.get(0, range(out.ndim))
    made = torch.from_numpy(out).permute(*sorted(range(out.ndim), key=[*order].__getitem__))
    torch.testing.assert_close(made, fn(*inputs).detach(), rtol=1e-4, atol=1e-4)
    return program, out


def two(memory_format: torch.memory_format) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 3)).to(memory_format=memory_format)
    return model, torch.randn(2, 3, 6, 7).to(memory_format=memory_format)


def test_channels_lie_side_by_side_between_convolutions_whose_filters_have_them_so() -> None:
    program, _ = lowered(*two(torch.channels_last))
    assert {d.shape for d in program.definitions} == {(2, 6, 7, 5), (2, 4, 5, 4)}
    program, _ = lowered(*two(torch.contiguous_format))
    assert [d.shape for d in program.definitions] == [(2, 5, 6, 7), (2, 4, 4, 5)]


def test_others_keep_the_order_of_the_program() -> None:
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6, 7)
    for fn, shapes in ((lambda a, b, c: (a @ b) @ c, [(4, 6), (4, 7)]), (lambda a, b, c: (b @ c).softmax(0).t() @ a.t(), None)):
        program, _ = lowered(fn, a, b, c)
        assert shapes is None or [d.shape for d in program.definitions] == shapes
    program, _ = lowered(lambda a, b: a @ (b * 2).exp().sin(), a, b)     # written along the last
    assert all(d.shape in ((5, 6), (4, 6)) for d in program.definitions)
    program, _ = lowered(lambda x: x.exp().sum(1) * x.exp()[:, 0], torch.randn(4, 3))
    assert [d.shape for d in program.definitions] == [(4, 3), (4,)]


def test_a_result_that_is_reduced_along_its_last_dimension_keeps_it() -> None:
    weight = torch.randn(5, 3, 1, 1).contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 7)
    program, _ = lowered(lambda x: F.conv2d(x, weight).softmax(-1), x)
    assert program.definitions[0].shape == (2, 5, 6, 7)
