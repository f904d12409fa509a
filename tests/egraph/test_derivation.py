"""Derivations replay: every program on the way computes the same, and the last is the one extracted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from emmy.capture.snippet import capture_snippet
from emmy.check.programs import programs
from emmy.egraph.derivation import Derivation, derivation
from emmy.egraph.forest import Forest
from emmy.egraph.problem import built
from emmy.egraph.saturate import saturate
from emmy.egraph.trees import Tree
from emmy.evaluate.values import Array, Space, evaluate, stored
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tir
from emmy.ir.index import Ax
from emmy.lower import torch_to_tensor
from emmy.lower.tensor_to_loop import lower
from emmy.tune.alternatives import Ledger
from emmy.tune.choose import Rows
from extract.partition import Kernel

PROGRAMS = {
    "softmax": "F.softmax(torch.randn(8, 32), -1)",
    "half softmax": "F.softmax(torch.randn(8, 32, dtype=torch.bfloat16), -1)",
    "attention": "F.scaled_dot_product_attention(*(torch.randn(1, 2, 16, 8) for _ in range(3)), is_causal=True)",
    "norm and linear": "F.linear(nn.RMSNorm(16)(torch.randn(8, 16)), torch.randn(12, 16))",
    "(AB)C": "(torch.randn(256, 4) @ torch.randn(4, 256)) @ torch.randn(256, 4)",
    "x+x+y": "x, y = torch.randn(8, 4), torch.randn(8, 4); x + x + y",
    "pieces": "(torch.randn(1 << 20) * torch.randn(1 << 20)).sum()",
    "twist in pieces": "torch.randn(1 << 20).logsumexp(0)",
    "state in pieces": "s, v = torch.randn(16, 8192), torch.randn(8192, 64); F.softmax(s, -1) @ v",
    "kept at another point": "(torch.randn(256, 256) @ torch.randn(256, 256) * 2 + 1).amax(-1)",
    "gather": "F.cross_entropy(torch.randn(8, 12), torch.randint(0, 12, (8,)))",
}
EXPECTED = {
    "softmax": {"fuse", "divide-as-multiply", "softmax-denominator", "softmax-pivot"},
    "half softmax": {"keep-precision"}, "attention": {"softmax-channel", "factor-out"}, "norm and linear": {"factor-out"},
    "(AB)C": {"reassociate-products", "keep-reduction"}, "pieces": {"in-pieces"}, "twist in pieces": {"twist-in-pieces"},
    "state in pieces": {"channel-in-pieces"},
    "kept at another point": {"scale-maximum", "keep-reduction"},
    "gather": {"fuse"},
}


def derived(program: loop.Program) -> tuple[dict[str, Kernel], Forest, Derivation]:
    ledger = Ledger(saturate(program, traced=True), Rows("sm_90a"))
    forest, kernels = Forest(ledger.outlined), {w: k for k in ledger.chosen.kernels for w in k.writes}
    return kernels, forest, derivation(forest, kernels)


def run(forest: Forest, bodies: Mapping[str, Tree], inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of the program that has these bodies."""
    outlined, tensors = forest.outlined, dict(inputs)

    def computed(tensor: str) -> None:
        if tensor in tensors:
            return
        for other in forest.loads((bodies[tensor],)):
            computed(other)
        axes, value = outlined.kept[outlined.stands(tensor)].axes, forest.value(bodies[tensor])
        bound = sorted({v.binds for v in loop.walk((value,)) if v.binds is not None} - set(axes))
        space = Space({Ax(a): outlined.region.extents[a] for a in (*axes, *bound)})
        target = outlined.tensors[tensor]
        tensors[tensor] = stored(evaluate(value, space, tensors), target.shape, target.element)

    outputs = [tensor for _, tensor in outlined.region.program.outputs]
    for tensor in outputs:
        computed(tensor)
    return [tensors[tensor].astype(np.float64) for tensor in outputs]


def assert_ends_in_the_choice(kernels: dict[str, Kernel], forest: Forest, found: Derivation) -> None:
    last = found.steps[-1].bodies if found.steps else found.written
    for tensor, kernel in kernels.items():
        assert forest.value(last[tensor]) is built(forest.outlined, kernel)[kernel.root(tensor)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_step_computes_the_same_and_the_last_is_the_choice(name: str) -> None:
    captured = capture_snippet(PROGRAMS[name])
    program = lower(torch_to_tensor.lower(captured.program))
    kernels, forest, found = derived(program)
    assert_ends_in_the_choice(kernels, forest, found)
    assert all(step.rule for step in found.steps), "every step is put in order"
    assert EXPECTED.get(name, set()) <= {step.rule for step in found.steps}
    halves = any(t.element.compute is not t.element for t in program.everything)
    names = {i.name for i in program.inputs}
    inputs = {i: t.detach().float().numpy() if halves else t.detach().numpy() for i, t in captured.tensors.items() if i in names}
    wanted = run(forest, found.written, inputs)
    for step in found.steps:
        for x, y in zip(run(forest, step.bodies, inputs), wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-2 if halves else 1e-4, atol=1e-5 * np.abs(y).max(), err_msg=step.rule)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(programs())
def test_any_program_has_a_derivation_that_ends_in_the_choice(program: tir.Program) -> None:
    assert_ends_in_the_choice(*derived(lower(program)))


def test_a_step_changes_every_occurrence() -> None:
    _, forest, found = derived(lower(torch_to_tensor.lower(capture_snippet(PROGRAMS["softmax"]).program)))
    fused = next(s for s in found.steps if s.rule == "fuse" and "t1" in {str(t.node.args[0]) for t in s.changes})
    assert len(fused.changes) == 2, "t1 is read at the row's element and along the row"
    assert "t1" not in forest.loads((fused.bodies["softmax"],))
