"""Kernels evaluated at points are what evaluating them whole gives there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emmy.evaluate.error import compare
from emmy.evaluate.points import POINTS, evaluate_points, imagine, sample
from emmy.evaluate.tile import evaluate_kernel
from emmy.ir import tile_ir as tile
from emmy.pipeline import compile_snippet
from emmy.tune.tasks import examples, tasks

SNIPPETS = {
    "map": "x = torch.randn(33, 9); torch.exp(-x)",
    "rows": "nn.RMSNorm(64)(torch.randn(7, 64))",
    "twist": "torch.randn(9, 33).softmax(-1)",
    "scan": "torch.randn(8, 40).cumsum(-1)",
    "indices": "F.cross_entropy(torch.randn(40, 32), torch.randint(0, 32, (40,)))",
    "attention": "q, k, v = torch.randn(2, 3, 16, 8), torch.randn(2, 3, 16, 8), torch.randn(2, 3, 16, 8); "
                 "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "product": "torch.randn(30, 40) @ torch.randn(40, 50)",
    "pair": "torch.randn(70, 70).argmax(-1)",
    "scalar": "torch.randn(100).sum()",
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_points_are_those_of_the_whole(name: str) -> None:
    program = compile_snippet(SNIPPETS[name])
    drawn = examples(program)
    for kernel in program.tile.kernels:
        whole = evaluate_kernel(kernel, {t.name: drawn[t.name].array() for t in kernel.tensors})
        places = sample(kernel)
        for x, found in zip(whole, evaluate_points(kernel, drawn, places), strict=True):
            assert compare(found.astype(np.float64), x.reshape(-1)[places].astype(np.float64)).within(2e-3 if x.itemsize == 2 else 1e-6)


def of(snippet: str) -> tile.Kernel:
    return compile_snippet(snippet).tile.kernels[0]


def test_samples_have_the_corners_and_heed_the_length_of_folds() -> None:
    few, many = sample(of("torch.randn(2000, 8192).sum(-1)")), sample(of("torch.exp(torch.randn(200, 200))"))
    assert few[0] == 0 and few[-1] == 1999 and len(few) >= POINTS[1] / 2
    assert many[0] == 0 and many[-1] == 39_999 and len(many) <= POINTS[1]
    assert len(sample(of("torch.randn(3, 4).sum(-1)"))) == 3


def test_what_a_kernel_makes_is_imagined_by_a_sample_of_it() -> None:
    kernel = of("torch.exp(torch.randn(300, 300))")
    program = compile_snippet("torch.exp(torch.randn(300, 300))")
    (x,) = imagine(kernel, {t.name: d for t, d in zip(kernel.tensors, tasks(program)[0].problem.tensors, strict=True)})
    assert x.shape == (300, 300) and (x.table > 0).all() and len(np.unique(x.table)) > 100
    assert torch.equal(x.tensor("cpu"), torch.from_numpy(x.array()))
