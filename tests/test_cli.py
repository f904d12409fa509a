"""The command line: what each command prints and writes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emmy.cli import canon, outcome
from tests.said import ROOT, Said, assert_bad, no_gpu, shell

__all__ = ["no_gpu"]    # a fixture of every test here
RMSNORM = "nn.RMSNorm(64)(torch.randn(2, 64))"
MODEL = """import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))
    def forward(self, x):
        return x * self.w

def plus(x):
    return x + 1

def get_inputs():
    return [torch.randn(2, 4)]

def get_init_inputs():
    return [4]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


# -- the command itself ---------------------------------------------------------------------------------------------
def test_version() -> None:
    assert Said("--version").well() == "emmy 0.1.0\n"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = """import sys, time; start = time.process_time()
from emmy.cli import main
sys.argv = ["emmy", "--help"]
try: main()
except SystemExit: pass
print(time.process_time() - start, *sorted({"torch", "egglog", "numpy", "emmy.pipeline"} & sys.modules.keys()), sep="\\n")"""
    runs = [shell(sys.executable, "-c", code).stdout.splitlines() for _ in range(3)]
    words = runs[0]
    assert all(any(command in line for line in words) for command in ("compile", "run", "canon", "build", "rules", "explain", "egraph"))
    assert min(float(lines[-1]) for lines in runs) < 0.5, "and the last line is the time, so that no module follows it"


def test_module_entry_point() -> None:
    done = shell(sys.executable, "-m", "emmy", "compile", "-c", "torch.randn(", "--ir", "torch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "was never closed" in done.stderr and "Traceback" not in done.stderr


# -- compile --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage, said", [("torch", "aten.rms_norm.default"), ("tensor", "reduce.add[1]"), ("loop", "reduce.add{"),
                                         ("tile", "row WORK="), ("kernel", "grid("), ("cuda", 'extern "C" __global__')])
def test_compile_prints_each_stage_plainly(stage: str, said: str) -> None:
    text = Said("compile", "-c", RMSNORM, "--ir", stage).well()
    assert said in text and "\x1b" not in text and text.endswith("\n") and not text.endswith("\n\n")


def test_compile_writes_a_file(tmp_path: Path) -> None:
    assert Said("compile", "-c", RMSNORM, "--ir", "torch", "-o", tmp_path / "out.txt").well() == ""
    assert (tmp_path / "out.txt").read_text() == Said("compile", "-c", RMSNORM, "--ir", "torch").well()


@pytest.mark.parametrize("name", ["Model", "plus"])
def test_compile_takes_a_name_of_a_file(model: Path, name: str) -> None:
    assert {"Model": "mul", "plus": "add"}[name] in Said("compile", f"{model}:{name}", "--ir", "tensor").well()


def test_targets_differ_in_what_they_allow() -> None:
    for target in ("sm_80", "sm_89", "sm_90a", "sm_120"):
        assert "__global__" in Said("compile", "-c", RMSNORM, "--target", target).well()


def test_a_rule_file_takes_part(tmp_path: Path) -> None:
    path = tmp_path / "inverse.egg"
    path.write_text('(rewrite (Unary "recip" (Unary "recip" x)) x :ruleset algebra-real :name "reciprocal-twice")\n')
    words = ("compile", "-c", "torch.randn(8).reciprocal().reciprocal()", "--ir", "tile")
    assert "recip(recip(" in Said(*words).well()
    assert "recip" not in Said(*words, "--rules", path).well().partition("store")[2].partition("=")[2].splitlines()[0]
    assert "recip(" in Said(*words, "--rules", path, "--math", "exact").well(), "class real is not admitted"


def test_knobs_pin_the_row() -> None:
    words = ("compile", "-c", "torch.randn(64, 64) + 1", "--ir", "tile")
    assert "row WORK=t128,TILE=v2 " in Said(*words, "--knobs", "WORK=t128,TILE=v2").well()
    assert "row WORK=t64" in Said(*words, env={"EMMY_KNOBS": "WORK=t64"}).well()


# -- run ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["numpy", "simulate"])
def test_run_writes_json(device: str, tmp_path: Path) -> None:
    text = Said("run", "-c", RMSNORM, "--device", device, "--json", tmp_path / "run.json").well()
    found = json.loads((tmp_path / "run.json").read_text())
    assert found.keys() == {"error", "errors", "correct", "device", "kernels", "timing"}
    assert (found["correct"], found["device"]) == (True, device) and found["error"] < 1e-6
    assert found["error"] == found["errors"]["rms_norm"]["relative"]
    (kernel,) = found["kernels"]
    assert kernel.keys() == {"name", "identity", "row", "grid", "block", "bytes", "operations", "predicted_us", "registers", "shared_bytes",
                             "measured_us", "once"}
    assert kernel["bytes"] == 4 * (2 * 2 * 64 + 64) and kernel["operations"] > 2 * 64 and kernel["block"] % 32 == 0
    assert found["timing"]["predicted_us"] == kernel["predicted_us"] > found["timing"]["once_us"] == 0
    assert kernel["measured_us"] is None and found["timing"]["device_us"] is None
    assert all(word in text for word in (kernel["name"], kernel["identity"], kernel["row"], "predicted", f"device {device}"))


def test_run_and_explain_tell_what_runs_once(tmp_path: Path) -> None:
    program = "x = torch.randn(16, 512, dtype=torch.bfloat16); w = nn.Parameter(torch.randn(512, 512)); F.linear(x, w.to(x.dtype))"
    text = Said("run", "-c", program, "--device", "numpy", "--json", tmp_path / "run.json").well()
    found = json.loads((tmp_path / "run.json").read_text())
    once, each = found["kernels"]
    assert once["once"] and once["row"].startswith("PLACE=once,") and not each["once"] and "PLACE=once" in text
    assert found["timing"] | {"device_us": 0, "call_us": 0} == {"predicted_us": each["predicted_us"], "once_us": once["predicted_us"],
                                                                "device_us": 0, "call_us": 0}
    assert f"2 kernels, predicted {each['predicted_us']:.2f} µs, once {once['predicted_us']:.2f} µs" in text
    page = Said("explain", "-c", program, "--alternatives", "0").well()
    assert re.search(r"^ +once  k\w+ ", page, re.M) and re.search(r"WORK=\S+  once$", page, re.M)
    assert "row PLACE=once," in Said("compile", "-c", program, "--ir", "tile").well()
    assert re.search(r"^\* +WORK", Said("schedules", "-c", program).well(), re.M)


def test_run_says_that_there_is_no_gpu_and_keeps_json_alone_on_stdout() -> None:
    said = Said("run", "-c", "torch.randn(4).sin()", "--json", "-")
    assert json.loads(said.well())["device"] == "numpy"
    assert "no GPU here: running on the NumPy device" in said.err


def test_several_results_are_each_judged(model: Path) -> None:
    said = Said("run", "-c", "x = torch.randn(4, 4); x.argmax(1), x.exp()", "--json", "-")
    found = json.loads(said.well())
    assert found["errors"].keys() == {"argmax", "exp"} and len(found["kernels"]) == 1
    assert found["errors"]["argmax"]["tolerance"] == 0


def test_run_takes_a_name_of_a_file(model: Path) -> None:
    assert "mul: right" in Said("run", f"{model}:Model").well()


def test_wrong_numbers_end_in_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "unsound.egg"
    path.write_text('(rewrite (Unary "exp" x) x :ruleset algebra-real :name "exp-is-nothing")\n')
    said = Said("run", "-c", "torch.randn(64).exp()", "--rules", path, "--json", tmp_path / "run.json")
    assert said.code == 1 and "exp: WRONG" in said.out and re.search(r"wrong numbers: exp is off by \d", said.err)
    assert json.loads((tmp_path / "run.json").read_text())["correct"] is False


def test_a_long_simulation_asks_for_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "SIMULATED", 100)
    words = ("run", "-c", "torch.randn(64).exp()", "--device", "simulate")
    assert_bad(Said(*words), "thread-statements", "--force")
    assert "exp: right" in Said(*words, "--force").well()


def test_a_plan_is_judged_and_timed_launch_by_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, with the simulator in its place: each kernel alone is timed on the values it has in the program."""
    from emmy.evaluate.simulate import simulate
    from emmy.pipeline import compile_snippet
    from emmy.runtime.arrays import to_numpy, to_torch

    program = compile_snippet("(torch.randn(33, 34) @ torch.randn(34, 35)) @ torch.randn(35, 36)")
    kernels = {k.name: k for k in program.kernels}

    class Simulated:
        def __init__(self, plan: Any, cubin: bytes, weights: dict[str, Any]) -> None:
            self.plan, self.weights = plan, weights

        def poisoned(self) -> None:
            return None

        def __call__(self, *tensors: Any, out: None = None) -> tuple[Any, ...]:
            memory = {b.name: np.zeros(prod(b.shape), b.element.numpy) for b in self.plan.buffers}
            memory |= {n: to_numpy(x).reshape(-1) for n, x in {**dict(zip(self.plan.inputs, tensors, strict=True)), **self.weights}.items()}
            for x in self.plan.launches:
                kernel = kernels[x.kernel]
                simulate(kernel, {p.name: memory[name] for p, name in zip(kernel.parameters, x.arguments, strict=True)})
            buffers = map(self.plan.buffer, self.plan.outputs)
            return tuple(to_torch(memory[b.name].reshape(b.shape), b.element, "cpu") for b in buffers)

    monkeypatch.setattr("emmy.runtime.launch.Executable", Simulated)
    monkeypatch.setattr("emmy.runtime.timing.device_us", lambda run: float(len(run.func.plan.launches)))
    monkeypatch.setattr("emmy.runtime.timing.call_us", lambda run: 5.0)
    reports = {name: {"registers": 32, "shared_bytes": 64} for name in kernels}
    tensors = program.captured.tensors
    found = outcome.launched(program.plan, b"", reports, program.captured.inputs, tensors, outcome.references(program, tensors))
    assert found.correct and len(found.kernels) == len(kernels) >= 2 and found.device_us == len(kernels)
    assert [(k.registers, k.shared_bytes, k.measured_us) for k in found.kernels] == [(32, 64, 1.0)] * len(kernels)


# -- canon ----------------------------------------------------------------------------------------------------------
XY = "x, y = torch.randn(8, 4), torch.randn(8, 4); "


@pytest.mark.parametrize("second, same", [("y + (x + x)", True), ("x + y + y * x", False), ("x + x + y + 0.5", False)])
def test_canon_compares(second: str, same: bool, tmp_path: Path) -> None:
    text = Said("canon", "-c", XY + "x + x + y", "-c", XY + second, "--json", tmp_path / "canon.json").well()
    found = json.loads((tmp_path / "canon.json").read_text())
    assert found.keys() == {"same", "forms", "identities"} and found["same"] is same
    assert (found["forms"][0] == found["forms"][1]) is (found["identities"][0] == found["identities"][1]) is same
    assert ("the same kernel" in text) is same and all(identity in text for identity in found["identities"])


def test_canon_of_one_and_of_three() -> None:
    assert "kernel" not in Said("canon", "-c", XY + "x + y").well()
    found = json.loads(Said("canon", "-c", XY + "x + y", "-c", XY + "y + x", "-c", XY + "x * y", "--json", "-").well())
    assert found["same"] is False and found["identities"][0] == found["identities"][1] != found["identities"][2]


def test_canon_exact_keeps_the_order_of_sums() -> None:
    assert canon.form(canon.Named("", XY + "x + y + x"), "exact", None) != canon.form(canon.Named("", XY + "x + x + y"), "exact", None)


# -- bundles --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose machine code is none, which needs no nvcc to make."""
    from emmy.pipeline import compile_snippet
    from emmy.runtime.bundle import save

    path = tmp_path_factory.mktemp("bundle") / "k.emmy"
    save(path, compile_snippet(RMSNORM).plan, {"sm_90a": b"machine code"}, recipe=RMSNORM)
    return path


def test_running_a_bundle_loads_no_compiler(bundle: Path) -> None:
    code = """import sys; from emmy.cli import main
sys.argv = ["emmy", "run", sys.argv[1]]
try: main()
except SystemExit as stop: print(stop.code)
print([m for m in sys.modules if m.partition(".")[0] == "egglog" or m.startswith(("emmy.pipeline", "emmy.egraph"))])"""
    done = shell(sys.executable, "-c", code, bundle)
    assert done.stdout.splitlines()[-1] == "[]" and done.stdout.splitlines()[-2] == "2"
    assert "sm_90a" in done.stderr and "Traceback" not in done.stderr, "the GPU is missing, or the machine code is none"


def test_a_bundle_runs_on_a_gpu_as_it_is(bundle: Path) -> None:
    assert_bad(Said("run", bundle), "there is no GPU here", "emmy run -c")
    assert_bad(Said("run", bundle, "--device", "numpy"), "which the device numpy does not run", "--device cuda")
    assert_bad(Said("run", bundle, "--math", "exact"), "compiled already", "emmy build")


def test_a_corrupt_bundle(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.emmy").write_bytes(bundle.read_bytes()[:-100])
    assert_bad(Said("run", tmp_path / "cut.emmy"), "cut.emmy is not a whole bundle", "make it again")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="building machine code needs nvcc")
def test_build(tmp_path: Path, model: Path) -> None:
    from emmy.runtime.bundle import load

    env = {"EMMY_CACHE": str(tmp_path / "cache")}
    said = Said("build", f"{model}:Model", "-o", tmp_path / "m.emmy", "--target", "sm_90a", "--target", "sm_80", env=env).well()
    made = load(tmp_path / "m.emmy")
    assert "1 kernel for sm_90a, sm_80" in said and set(made.cubins) == {"sm_90a", "sm_80"} and made.recipe is None
    assert Said("build", "-c", RMSNORM, "-o", tmp_path / "k.emmy", env=env).well()
    assert load(tmp_path / "k.emmy").meta["case"] == RMSNORM


# -- rules ----------------------------------------------------------------------------------------------------------
def test_rules_lists_every_rule_once() -> None:
    listed = [line.split()[0] for line in Said("rules", "list").well().splitlines()[1:] if line[0] != " "]
    written = [name for file in sorted((ROOT / "rules").glob("[lt]*/*.egg")) for name in re.findall(r':name "([^"]+)"', file.read_text())]
    assert sorted({re.sub("[<=>]+$", "", name) for name in listed}) == sorted(written) and len(set(listed)) > 50


def test_rules_that_fired_on_a_program_have_an_account() -> None:
    words = ("rules", "list", "-c", "x, y = torch.randn(64, 64), torch.randn(64, 64); x.softmax(-1) @ y")

    def told(*more: str) -> list[list[str]]:
        return [line.split() for line in Said(*words, *more).well().splitlines() if " ms " in line]

    assert all(word in Said(*words).well().splitlines()[0] for word in ("firings", "new nodes", "time"))
    counts = {line[0]: (int(line[4]), int(line[5])) for line in told("--sort", "nodes")}
    assert counts["softmax-channel"][0] > 0 and "moments" not in counts and all(firings for firings, _ in counts.values())
    assert [nodes for _, nodes in counts.values()] == sorted((nodes for _, nodes in counts.values()), reverse=True)
    algebra = told("--all", "--phase", "algebra")
    assert {"factor-out", "interchange"} <= {line[0] for line in algebra} and {line[1] for line in algebra} == {"algebra"}
    assert_bad(Said(*words, "--sort", "beauty"), "beauty", "firings, nodes, time")


def test_a_rule_that_grows_for_ever_is_told_on_the_standard_error(tmp_path: Path) -> None:
    rules = tmp_path / "grow.egg"
    rules.write_text('(rule ((= v (Unary op x))) ((Unary "abs" (Unary "neg" v))) :ruleset algebra-real :name "grow")\n')
    words = ("compile", "-c", "torch.randn(64).exp()", "--ir", "tile", "--rules", rules)
    said = Said(*words, "--budget", "300")
    assert "exp(" in said.well() and said.err.count("warning: ") == 1 and "is grow (" in said.err
    assert Said(*words[:-2]).err == ""
    assert_bad(Said(*words, "--budget", "lots"), "lots", "NODES,SECONDS")


def test_rules_of_a_phase() -> None:
    lines = Said("rules", "list", "--phase", "algebra").well().splitlines()
    assert len(lines) > 3 and all("algebra" in line for line in lines[1:] if line[0] != " ")
    assert "sum_a x*y = x * sum_a y where x does not depend on a" in lines[1]


# -- on a GPU -------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_run_on_a_gpu(tmp_path: Path) -> None:
    source = "F.conv2d(torch.randn(1, 3, 16, 16), torch.randn(4, 3, 3, 3))"
    found = json.loads(Said("run", "-c", source, "--json", "-").well())
    assert found["device"] == "cuda" and found["correct"] and found["timing"]["device_us"] > 0 and found["timing"]["call_us"] > 0
    assert all(k["registers"] > 0 and k["measured_us"] > 0 for k in found["kernels"])
    target = outcome.gpu_target(None)
    Said("build", "-c", source, "-o", tmp_path / "k.emmy", "--target", target).well()
    again = json.loads(Said("run", tmp_path / "k.emmy", "--json", "-").well())
    assert again["correct"] and [k["name"] for k in again["kernels"]] == [k["name"] for k in found["kernels"]]
