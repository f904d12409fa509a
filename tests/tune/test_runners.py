"""Runners-up of a program's launches."""

from __future__ import annotations

import dataclasses
import re

from emmy.pipeline import compile_snippet, write_bundle
from emmy.runtime.build import Built
from emmy.runtime.bundle import load, save
from emmy.tune.runners import runners_up


def test_each_launch_of_one_kernel_has_the_next_best_rows(tmp_path) -> None:
    program = compile_snippet("x = torch.randn(64, 2048); (x @ torch.randn(2048, 64)).softmax(-1)")
    functions, runners = runners_up(program, 3)
    plan = program.plan
    assert [len(those) for those in runners] == [3 if "+" not in x.identity else 0 for x in plan.launches] and any(runners)
    assert {f.name for f in functions}.isdisjoint(k.name for k in program.kernels)
    for x, those in zip(plan.launches, runners, strict=True):
        assert all(y.arguments == x.arguments and y.identity == x.identity and y.row != x.row for y in those)
        assert [y.predicted_us for y in those] == sorted(y.predicted_us for y in those)
        assert {y.kernel for y in those} <= {f.name for f in functions}
    save(tmp_path / "k.emmy", plan, {"sm_90a": b""}, recipe="torch.randn(1)", runners=runners)
    assert load(tmp_path / "k.emmy").runners == runners


def test_buffers_of_their_own_are_in_the_bundle(tmp_path, monkeypatch) -> None:
    """Of rows whose blocks hand parts of tiles on, which the chosen one's do not."""
    source = "F.linear(torch.randn(1152, 1024, dtype=torch.bfloat16), torch.randn(2304, 1024, dtype=torch.bfloat16))"
    program = compile_snippet(source, "sm_90a")
    functions, (those,) = runners_up(program, 150)
    assert not any(p.own for k in program.kernels for p in k.parameters) and any("/sk" in x.row for x in those)
    monkeypatch.setattr("emmy.runtime.build.build", lambda source, target: Built(b"", {}))
    write_bundle(program, tmp_path / "k.emmy", ["sm_90a"], source, 150)
    kept = load(tmp_path / "k.emmy")
    for x in kept.runners[0]:
        assert set(x.arguments) <= {b.name for b in kept.plan.buffers}
        dataclasses.replace(kept.plan, launches=(x,))
    assert {b.role for b in kept.plan.buffers} == {"input", "output", "exchange", "signals"} and len(functions) == len(those) == 150


def test_distinct_rows_are_of_different_kinds() -> None:
    program = compile_snippet("torch.randn(64, 512).softmax(-1)")
    (some,), (kinds,) = (runners_up(program, 999, distinct=d)[1] for d in (False, True))
    spelled = [re.sub(r"\d+", "#", x.row) for x in kinds]
    assert len(set(spelled)) == len(spelled) < len(some) and {re.sub(r"\d+", "#", x.row) for x in some} == set(spelled)
