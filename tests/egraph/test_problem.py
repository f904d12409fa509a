"""A region as a partition problem: what may be kept, what is solid, and bodies back."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from emmy.egraph.canonical import canonical
from emmy.egraph.problem import bodies, outline, problem
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.pipeline import Program, compile
from extract import hardware, partition

GPU = hardware.for_target("sm_90a")


def test_results_must_be_kept_and_reductions_may() -> None:
    region = compile(lambda a, b, c: (a @ b) @ c, *(torch.empty(8, 8) for _ in range(3))).region
    outlined = outline(region)
    made = problem(outlined, GPU)
    assert len(made.outputs) == 1 and set(made.named) == {"t0", *made.outputs}
    derived = [outlined.kept[name].home for name in set(outlined.kept) - set(made.named)]
    bodies = canonical(region, derived)
    loads = [{v.tensor for v in loop.walk((bodies[c],)) if isinstance(v, loop.Load)} for c in derived]
    assert {"b", "c"} in loads, "b @ c may be kept as well"


def test_a_tensor_is_solid_if_no_kernel_gets_it_without_a_reduction() -> None:
    region = compile(lambda x, y: (x.exp(), x.exp() * y.sum()), torch.empty(8), torch.empty(8)).region
    made = problem(outline(region), GPU)
    solid = {name for name in made.named if name in made.solid}
    assert len(made.named) == 3 and len(solid) == 2 and made.outputs[0] not in solid


def test_the_body_of_a_kernel_is_a_value_over_its_axes() -> None:
    region = compile(lambda x: functional.rms_norm(x, (32,)), torch.empty(8, 32)).region
    outlined = outline(region)
    for kernel in partition.search(problem(outlined, GPU), lambda k: k.floor).kernels:
        (value,), (tensor,) = bodies(outlined, kernel), kernel.writes
        assert loop.free_axes((value,))[value] <= set(outlined.kept[tensor].axes)


def decoding(batch: int, keys: int) -> Program:
    q, k = torch.empty(batch, 32, 1, 64, dtype=torch.bfloat16), torch.empty(batch, 4, keys, 64, dtype=torch.bfloat16)
    return compile(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, k.clone())


def test_the_state_of_a_piece_is_one_tensor() -> None:
    outlined = outline(decoding(16, 8192).region)
    made = problem(outlined, GPU)
    assert outlined.beside
    for first, others in outlined.beside.items():
        shape = outlined.tensors[first].shape
        assert len(others) == 2 and {outlined.tensors[name].shape for name in others} == {shape} and shape[-1] == 64
        assert all(outlined.kept[name].axes == outlined.kept[first].axes[:-1] and name not in made.home for name in others)
        assert made.beside[first] == tuple(outlined.kept[name].home for name in others)
        kernels = partition.Kernels(made, lambda k: k.floor)
        kernel = kernels.kernel(first, frozenset())
        assert kernel is not None and kernel.writes == (first,) and len(bodies(outlined, kernel)) == 3 
        assert {*kernel.beside} <= dict(kernel.body).keys()
        whole = kernels.kernel(made.outputs[0], frozenset((first,)))
        assert whole is not None and whole.reads == {first}
    assert not outline(decoding(16, 511).region).beside


def test_decoding_reads_keys_once_and_joins_pieces() -> None:
    twist, join = decoding(1, 65536).tile.kernels
    assert twist.schedule.form == "twist" and len(twist.outputs) == 3 and len(join.tensors) == 3
    assert not {*twist.schedule.rows} <= twist.extents.keys()       # heads of a group, of an axis that the kernel has whole


def test_keys_whose_norms_are_kept_are_read_in_pieces() -> None:
    def normed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = functional.rms_norm(q, (64,)) @ functional.rms_norm(k, (64,)).mT
        return functional.softmax(scores, dim=-1) @ functional.rms_norm(v, (64,))

    q, k = torch.empty(2, 256, 64, dtype=torch.float16), torch.empty(2, 4096, 64, dtype=torch.float16)
    *norms, twist, join = compile(normed, q, k, k.clone()).tile.kernels
    assert sum(len(k.outputs) for k in norms) == 3 and all(t.element is dt.f16 for k in norms for t in k.outputs)
    assert twist.schedule and twist.schedule.form == "twist" and len(twist.outputs) == 3 and len(join.tensors) == 3


@pytest.mark.parametrize("keys", [4099, 4100])
def test_decoding_reads_any_number_of_keys_in_pieces(keys: int) -> None:
    """32 times 128 keys and three more; 50 times 82.  Most are masked, the last of them and whole pieces among these."""
    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    made = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, 64, generator=made).bfloat16() for heads, n in ((32, 1), (4, keys), (4, keys)))
    mask = torch.full((1, keys), float("-inf"), dtype=torch.bfloat16)
    mask[:, 300:700:7] = 0.5
    program = compile(masked, q, k, v, mask)
    twist, join = program.tile.kernels
    assert twist.schedule and twist.schedule.form == "twist" and len(twist.outputs) == 3 and len(join.tensors) == 3
    wanted = masked(*(x.double() for x in (q, k, v, mask)))
    torch.testing.assert_close(program(q, k, v, mask).double(), wanted, rtol=1e-2, atol=1e-2)


def test_pieces_of_scores_at_two_points_settle() -> None:
    """A tensor of grouped heads read at the quotient and the remainder of a head: its scores are met at both, and so are their pieces."""
    def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = 30 * torch.tanh(q.reshape(1, 2, 4, 64) @ k.transpose(-2, -1) * (0.125 / 30))
        return (functional.softmax(s, -1) @ v).reshape(1, 8, 1, 64)

    q, k = torch.empty(1, 8, 1, 64, dtype=torch.bfloat16), torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16)
    region = compile(capped, q, k, k.clone()).region
    assert region.states and not region.over
