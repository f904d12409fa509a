from __future__ import annotations

import numpy as np

from emmy.egraph.schedule import schedules
from emmy.pipeline import compile_snippet
from emmy.tune.tasks import examples, tasks


def test_the_distinct_kernels_of_a_program_with_their_rows() -> None:
    program = compile_snippet("x, z = torch.randn(64, 64), torch.randn(48, 96); (x.cumsum(0).cumsum(0), z.sum(1))")
    found = tasks(program)
    assert sorted(t.calls for t in found) == [1, 2] and len({t.problem.identity for t in found}) == 2
    for task in found:
        legal = schedules(task.problem.kernel, "sm_90a")
        assert {o.row for o in task.options} == {str(s.row) for s in legal} and len({o.row for o in task.options}) == len(task.options)
        assert [o.seconds for o in task.options] == sorted(o.seconds for o in task.options)
        assert task.kernel.schedule and task.options[0].schedule.form == task.kernel.schedule.form


def test_tensors_are_like_the_programs_own() -> None:
    drawn = examples(compile_snippet("F.embedding(torch.randint(0, 50, (20000,)), torch.rand(50, 8)).sum(-1)"))
    ids, table = (next(x for x in drawn.values() if len(x.shape) == n and x.size > 300) for n in (1, 2))
    assert ids.array().min() >= 0 and ids.array().max() < 50 and ids.shape == (20000,)
    assert (table.array() >= 0).all() and table.array().shape == (50, 8)


def test_tensors_between_kernels_are_like_what_kernels_make() -> None:
    program = compile_snippet("torch.rand(40, 30).cumsum(0).cumsum(1).log()")
    drawn = examples(program)
    kernels = program.tile.kernels
    between = {t.name for k in kernels for t in k.outputs} & {t.name for k in kernels for t in k.tensors}
    assert between and drawn.keys() == between | program.captured.tensors.keys()
    assert all(np.isfinite(drawn[name].array()).all() for name in between)


def test_an_empty_output_is_no_task() -> None:
    assert tasks(compile_snippet("torch.randn(0, 4).exp()")) == ()
