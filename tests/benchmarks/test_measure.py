from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import run
from benchmarks.measure import floor_us, label
from emmy.errors import EmmyError
from emmy.ir.dtype import bf16, f32
from emmy.runtime.bundle import save
from emmy.runtime.plan import Buffer, Launch, Plan
from emmy.runtime.timing import Rates

RATES = Rates(copy_TBs=4.0, fp32_TFLOPs=50.0, bf16_TFLOPs=500.0)


def product(element, n, moved=0):
    """A plan of one n x n matrix product."""
    buffers = tuple(Buffer(name, element, (n, n), role) for name, role in (("a", "input"), ("b", "weight"), ("y", "output")))
    launch = Launch("k", ("a", "b", "y"), (1, 1, 1), 128, bytes=moved, flops=2.0 * n**3)
    return Plan("matmul", buffers, (launch,), ("a",), ("y",), "", "sm_90a", "fast")


@pytest.mark.parametrize(("plan", "us"), [
    (product(f32, 1000), 40.0),                    # 2e9 operations at 50 TFLOP/s, against 12 MB at 4 TB/s
    (product(bf16, 1000), 4.0),                    # the same at 500 TFLOP/s
    (product(bf16, 100), 0.015),                   # 60 kB at 4 TB/s, against 2e6 operations
    (product(bf16, 100, moved=10**9), 0.015),      # traffic beyond the compulsory is no part of a floor
    (product(bf16, 100, moved=40_000), 0.01),      # a launch that needs only part of its inputs
])
def test_floor(plan, us):
    assert floor_us(plan, RATES) == pytest.approx(us)


def test_bundles_are_labelled_by_their_names():
    name = "softmax-16384x4096-bf16.emmy"
    assert label(Path(name)) == {"case": "softmax 16384x4096", "dtype": "bf16", "bundle": name}
    assert label(Path("mine.emmy"))["case"] == "mine"


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
