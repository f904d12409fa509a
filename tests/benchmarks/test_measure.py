from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import measure, run
from benchmarks.measure import alternatives_to, label, snippet_of
from emmy.errors import EmmyError
from emmy.ir.dtype import f32
from emmy.runtime.bundle import Example, load, save
from emmy.runtime.plan import Buffer, Launch, Plan
from emmy.runtime.rates import Rates
from tests.runtime.programs import product

RATES = Rates(copy_TBs=4.0, fp32_TFLOPs=50.0, bf16_TFLOPs=500.0)


def test_bundles_are_labelled_by_their_names():
    name = "softmax-16384x4096-bf16.emmy"
    assert label(Path(name)) == {"case": "softmax 16384x4096", "dtype": "bf16", "bundle": name}
    assert label(Path("mine.emmy"))["case"] == "mine"


def test_eager_takes_the_inputs_in_the_plans_order(tmp_path):
    buffers = tuple(Buffer(name, f32, (2, 3), role) for name, role in (("b", "input"), ("a", "input"), ("w", "weight"), ("y", "output")))
    plan = Plan("difference", buffers, (), ("b", "a"), ("y",), "", "sm_90a", "fast")
    snippet = "a, b = torch.randn(2, 3), torch.randn(2, 3); w = nn.Parameter(torch.ones(2, 3)); a - b * w"
    save(tmp_path / "mine.emmy", plan, {}, recipe=snippet)
    bundle = load(tmp_path / "mine.emmy")
    example = bundle.example("cpu")
    found, _ = alternatives_to(bundle, example, snippet_of(tmp_path / "mine.emmy", bundle), "cpu", None)
    assert torch.equal(found["eager"](torch.ones(2, 3), torch.zeros(2, 3))[0], torch.full((2, 3), -1.0))
    assert list(found) == ["eager"]


def launch(row):
    return Launch("k", ("x", "y"), (1, 1, 1), 32, row=row)


class Rows:
    """An executable whose time is that of its rows, a bundle of them, and what they are called on: a row "wrong" returns another number,
    and a row "refused" is none."""

    runners = ((launch("b"), launch("wrong"), launch("refused")), (), (launch("c"), launch("d")))
    times = {"a": 5.0, "b": 3.0, "wrong": 1.0, "c": 7.0, "d": 4.0}

    def __init__(self, *rows):
        buffers = (Buffer("x", f32, (1,), "input"), Buffer("y", f32, (1,), "output"))
        self.plan, self.device = Plan("rows", buffers, tuple(map(launch, rows)), ("x",), ("y",), "", "sm_90a", "fast"), "cpu"
        self.rows = rows

    def __call__(self, x, out=None):
        return (x + ("wrong" in self.rows),)

    def poisoned(self):
        return ()

    def executable(self, weights, device, launches):
        if any(x.row == "refused" for x in launches):
            raise EmmyError("CUDA refused a launch", "")
        return Rows(*(x.row for x in launches))


def test_the_quickest_right_row_of_each_launch_is_found(monkeypatch):
    monkeypatch.setattr(measure, "device_us", lambda call, repeats: sum(Rows.times[row] for row in call.func.rows))
    x, bundle = torch.ones(1), Rows("a", "a", "a")
    example = Example({"x": x}, {}, {"y": x.double()}, None)
    assert measure.quickest(bundle, bundle, example, (x,), None).rows == ("b", "a", "d")


class Measured:
    """In the worker's place: the first bundle is measured, the second fails."""

    def __init__(self):
        self.modes = []

    def call(self, function, path, rates, mode, repeats, timeout):
        self.modes.append(mode)
        if path.stem == "b":
            raise EmmyError("output 'y' is wrong: relative error 0.5", "")
        return label(path) | {"emmy_us": 2.0, "floor_us": 1.0, "eager_us": 3.0, "ratio": 1.5, "err": 1e-7, "row": "WORK=t128"}


def test_a_failing_bundle_has_a_row_without_times_and_the_others_go_on():
    rows = list(run.measure_all([Path("a.emmy"), Path("b.emmy"), Path("c.emmy")], Measured(), RATES, "default", 7, 1e6, 1))
    assert [r["case"] for r in rows] == ["a", "b", "c"]
    assert rows[1] == {"case": "b", "dtype": "", "bundle": "b.emmy", "error": "output 'y' is wrong: relative error 0.5"}
    assert len(run.table(rows).rows) == 3


def test_the_time_budget():
    worker = Measured()
    (row,) = run.measure_all([Path("a.emmy")], worker, RATES, "default", 7, -1, 1)
    assert "time budget" in row["error"] and worker.modes == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU measures instead")
def test_the_command_without_a_gpu(tmp_path):
    plan = product(f32, 2)
    arrays = {name: torch.zeros(2, 2).numpy() for name in "aby"}
    save(tmp_path / "k.emmy", plan, {"sm_90a": b""}, inputs={"a": arrays["a"]}, weights={"b": arrays["b"]}, references={"y": arrays["y"]})
    app = run.typer.Typer()
    app.command()(run.main)
    arguments = ["--bundles", str(tmp_path), "--output", str(tmp_path / "r.json")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and "finds no GPU" in done.output and not (tmp_path / "r.json").exists()
    done = CliRunner().invoke(app, [*arguments, "--only", "nothing"])
    assert done.exit_code == 2 and "'nothing'" in done.output
