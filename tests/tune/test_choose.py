"""The choice of kernels and rows: names, identities, the order of arguments, prices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context

import pytest
import torch

from emmy.egraph.problem import outline, problem
from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.pipeline import Program, compile, compile_snippet
from emmy.tune.choose import Rows
from extract.kernels import Kernels
from tests import choice_time

X, Y = torch.empty(64, 32), torch.empty(32, 64)


def kernels(program: Program) -> tuple[tile.Kernel, ...]:
    return program.tile.kernels


def test_kernels_of_one_identity_take_their_arguments_in_one_order() -> None:
    left = compile(lambda a, b: a / b.t(), X, Y)
    right = compile(lambda b, a: a / b.t(), Y, X)
    assert list(left.choice.scheduled) == list(right.choice.scheduled)
    assert [[t.shape for t in k.tensors] for k in kernels(left)] == [[t.shape for t in k.tensors] for k in kernels(right)]


def test_equal_kernels_of_one_program_are_one_function() -> None:
    program = compile(lambda x: x.cumsum(1).cumsum(1), X)
    assert len(program.tile.kernels) == len(program.plan.launches) == 2 and len(program.kernels) == 1 == program.cuda.count("__global__")
    first, second = program.plan.launches
    assert first.identity == second.identity and first.kernel == second.kernel and first.arguments != second.arguments
    x = torch.randn(X.shape)
    assert torch.allclose(program(x), x.cumsum(1).cumsum(1), rtol=1e-4, atol=1e-4)


def test_every_kernel_is_scheduled_within_the_prediction() -> None:
    program = compile(lambda x, y: (x @ y).softmax(-1), X, Y)
    for kernel in kernels(program):
        assert kernel.schedule is not None and program.choice.scheduled[kernel.name].seconds > 0
        tile.verify(kernel)


def test_a_pin_holds_where_a_kernel_has_it_and_somewhere_it_must() -> None:
    program = compile(lambda x: (x.exp(), x.sum(1)), X, pins="REDUCE=coop")
    assert {k.schedule.row.reduce for k in kernels(program) if k.schedule} == {"", "coop"}
    with pytest.raises(EmmyError, match="no legal row"):
        _ = compile(lambda x: x.exp(), X, pins="REDUCE=coop").tile


@pytest.mark.parametrize("program, shape", [
    (lambda x: x.softmax(-1), (1, 50257)), (lambda x: x.log_softmax(-1), (4, 151936)), (lambda x: x.argmax(-1), (1, 50257)),
    (lambda x: x.max(-1, keepdim=True), (1, 128256)), (lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), (1, 50257)),
])
def test_few_long_rows_are_folded_by_clusters(program: Callable[..., object], shape: tuple[int, ...]) -> None:
    (one,) = kernels(compile(program, torch.empty(shape)))
    assert one.schedule and one.schedule.row.cluster == 8


def test_rows_of_one_batch_are_kept_as_rows_of_many_are() -> None:
    rows = [compile(lambda x: x.softmax(-1), torch.empty(shape)).tile.kernels[0].schedule for shape in ((32, 2048), (1, 32, 2048))]
    assert rows[0] and rows[1] and rows[0].row == rows[1].row and rows[0].row.stage == "reg"


# -- time: twice what is promised, for machines that are busy ------------------------------------------------------------
@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """A process that has done nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("layers", [1, 4])
def test_a_decoder_is_chosen_in_two_seconds(fresh: ProcessPoolExecutor, layers: int) -> None:
    assert fresh.submit(choice_time.of_decoder, layers).result() <= 2 * choice_time.PROMISED


@pytest.mark.parametrize("length", range(2, 9))
def test_a_chain_of_up_to_eight_matrices_is_chosen_in_two_seconds(fresh: ProcessPoolExecutor, length: int) -> None:
    draw = random.Random(length)
    dims = [draw.choice((512, 1024, 1536, 2048, 3072, 4096)) for _ in range(length + 1)]
    assert fresh.submit(choice_time.of_chain, [*zip(dims, dims[1:], strict=False)]).result() <= 2 * choice_time.PROMISED


def test_what_is_folded_anew_in_a_loop_is_no_more_than_its_price() -> None:
    """The floor of a kernel counts loops inside others; a row that did better would never be looked at."""
    a, b, c = torch.empty(256, 384), torch.empty(384, 512), torch.empty(512, 320)
    for fn in (lambda a, b, c: a @ b @ c, lambda a, b, c: (a @ b).softmax(-1) @ c, lambda a, b, c: (a @ b).exp() @ c,
               lambda a, b, c: (a @ b).relu().sum(-1)):
        outlined, rows = outline(compile(fn, a, b, c).region), Rows("sm_90a")
        asked = Kernels(problem(outlined, rows.gpu), rows.price(outlined))
        kernels = [k for kept in (frozenset[str](), *map(frozenset, combinations(sorted(asked.problem.home), 1)))
                   for w in asked.problem.home if (k := asked.kernel(w, kept)) is not None]
        again = [(asked.again(k.roots[0], dict(k.body)), asked.price(k)) for k in kernels]
        assert all(seconds <= price for seconds, price in again)


# -- what runs once ------------------------------------------------------------------------------------------------------
def once(snippet: str) -> list[str]:
    """What the kernels write that run once for all calls."""
    return [t.name for k in compile_snippet(snippet).tile.kernels if tile.is_once(k) for t in k.outputs]


X_BF16 = "x = torch.randn({},512,dtype=torch.bfloat16); "
OCTETS = "w = nn.Parameter(torch.randint(-128, 128, (512, 512), dtype=torch.int8), requires_grad=False); "


@pytest.mark.parametrize("rows", [16, 4096])
def test_weights_of_8_bits_are_not_held_widened(rows: int) -> None:
    """Few rows read the bytes; and where many take them widened, twice the bytes are not held for that."""
    assert once(f"{X_BF16.format(rows)}{OCTETS}F.linear(x, w.to(x.dtype))") == []


def test_a_wider_weight_is_held_in_the_type_that_it_is_multiplied_in() -> None:
    for rows in (16, 4096):
        assert len(once(f"{X_BF16.format(rows)}w = nn.Parameter(torch.randn(512, 512)); F.linear(x, w.to(x.dtype))")) == 1


def test_what_is_returned_is_made_at_every_call() -> None:
    assert once("w = nn.Parameter(torch.randn(512, 512)); w * 2") == []


def test_layers_hold_what_the_first_passes_to_all() -> None:
    """A table that every layer reads is computed once, though the layers are stretches of their own."""
    layer = "  x = x + ((x * c) @ nn.Linear(64, 64).weight).softmax(-1) @ nn.Linear(64, 64).weight\n"
    snippet = f"x, f = torch.randn(64, 64), nn.Parameter(torch.randn(64, 64))\nc = f.softmax(-1)\nfor _ in range(6):\n{layer}x"
    program = compile_snippet(snippet)
    assert len(program.stretches) > 1
    (first,) = (k for k in program.tile.kernels if tile.is_once(k))
    assert [t.name for t in first.tensors] == ["f"] and len([k for k in program.tile.kernels if first.outputs[0] in k.tensors]) > 1
