from __future__ import annotations

import pickle

import pytest

from emmy.errors import EmmyError
from emmy.ir.tile_text import parse_kernel
from emmy.pipeline import compile_snippet
from emmy.tune.candidate import build
from emmy.tune.tasks import Task, tasks


@pytest.fixture(scope="module")
def task() -> Task:
    (task,) = tasks(compile_snippet("torch.randn(8, 64).softmax(-1)"))
    return task


def test_problems_and_candidates_are_plain_data(task: Task) -> None:
    problem, candidate = pickle.loads(pickle.dumps((task.problem, task.candidate(task.options[3]))))
    assert problem.kernel is task.problem.kernel and problem.kernel.schedule is None
    assert (problem.drawn["x0"].array() == task.problem.drawn["x0"].array()).all()
    kernel = parse_kernel(candidate.text)
    assert kernel.schedule is task.options[3].schedule and candidate.row == str(kernel.schedule.row)


def test_rows_of_one_kernel_have_functions_of_their_own_and_share_a_module(task: Task) -> None:
    some = [task.candidate(o) for o in task.options[:3]]
    built = build(some, "sm_90a", "fast", assemble=False)
    assert len({c.plan.name for c in built}) == 3 and len({c.plan.source for c in built}) == 1
    assert all(c.plan.name in c.plan.source and c.cubin == b"" and c.registers is None for c in built)
    (launch,) = built[1].plan.launches
    assert (launch.identity, launch.row, launch.arguments) == (task.problem.identity, task.options[1].row, ("x0", "softmax"))
    assert launch.predicted_us == pytest.approx(task.options[1].seconds * 1e6) and launch.bytes == 2 * 8 * 64 * 4


def test_machine_code_is_made_with_a_report(task: Task) -> None:
    (built,) = build([task.candidate(task.options[0])], "sm_90a", "fast")
    assert built.cubin[:4] == b"\x7fELF" and built.registers and built.spill_bytes == 0


def test_nvcc_has_a_time_limit(task: Task) -> None:
    with pytest.raises(EmmyError, match=r"nvcc has not compiled this for sm_89 within 0.001 s"):
        build([task.candidate(task.options[-1])], "sm_89", "fast", timeout=0.001)
