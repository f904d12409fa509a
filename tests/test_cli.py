"""The command line: what each command prints, and what bad input ends in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from emmy.cli import app, canon, outcome, rules

ROOT = Path(__file__).parents[1]
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

def alone():
    return torch.randn(3).cos()

def get_inputs():
    return [torch.randn(2, 4)]

def get_init_inputs():
    return [4]
"""


class Said:
    """What a command said, and its exit code."""

    def __init__(self, *words: str | Path, env: dict[str, str] | None = None) -> None:
        result = CliRunner().invoke(app, [*map(str, words)], env={"EMMY_KNOBS": "", **(env or {})})
        self.out, self.err, self.code, self.exception = result.stdout, result.stderr, result.exit_code, result.exception

    def well(self) -> str:
        assert self.code == 0, (self.out, self.err, self.exception)
        return self.out


@pytest.fixture(autouse=True)
def no_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def shell(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)


# -- the command itself ---------------------------------------------------------------------------------------------
def test_version() -> None:
    assert Said("--version").well() == "emmy 0.1.0\n"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = """import sys, time; start = time.perf_counter()
from emmy.cli import main
sys.argv = ["emmy", "--help"]
try: main()
except SystemExit: pass
print(time.perf_counter() - start, *sorted({"torch", "egglog", "numpy", "emmy.pipeline"} & sys.modules.keys()), sep="\\n")"""
    runs = [shell(sys.executable, "-c", code).stdout.splitlines() for _ in range(3)]
    words = runs[0]
    assert all(any(command in line for line in words) for command in ("compile", "run", "canon", "build", "rules", "explain"))
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
    path.write_text('(rewrite (Unary "log" (Unary "exp" x)) x :ruleset algebra-real :name "log-of-exp")\n')
    words = ("compile", "-c", "torch.randn(8).exp().log()", "--ir", "tile")
    assert "log(exp(" in Said(*words).well()
    assert "exp" not in Said(*words, "--rules", path).well().partition("store")[2].partition("=")[2].splitlines()[0]
    assert "exp(" in Said(*words, "--rules", path, "--math", "exact").well(), "class real is not admitted"


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
                             "measured_us"}
    assert kernel["bytes"] == 4 * (2 * 2 * 64 + 64) and kernel["operations"] > 2 * 64 and kernel["block"] % 32 == 0
    assert found["timing"]["predicted_us"] == kernel["predicted_us"] > 0
    assert kernel["measured_us"] is None and found["timing"]["device_us"] is None
    assert all(word in text for word in (kernel["name"], kernel["identity"], kernel["row"], "predicted", f"device {device}"))


def test_run_says_that_there_is_no_gpu_and_keeps_json_alone_on_stdout() -> None:
    said = Said("run", "-c", "torch.randn(4).sin()", "--json", "-")
    assert json.loads(said.well())["device"] == "numpy"
    assert "no GPU here: running on the NumPy device" in said.err


def test_several_results_are_each_judged(model: Path) -> None:
    said = Said("run", "-c", "x = torch.randn(4, 4); x.argmax(1), x.exp()", "--json", "-")
    found = json.loads(said.well())
    assert found["errors"].keys() == {"argmax", "exp"} and len(found["kernels"]) == 2
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
    assert canon.form(XY + "x + y + x", "exact", None) != canon.form(XY + "x + x + y", "exact", None)


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
    assert_bad(Said("run", tmp_path / "cut.emmy"), "cut.emmy is not a whole bundle", "Build it again")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="building machine code needs nvcc")
def test_build(tmp_path: Path, model: Path) -> None:
    from emmy.runtime.bundle import load

    env = {"EMMY_CACHE": str(tmp_path / "cache")}
    said = Said("build", f"{model}:Model", "-o", tmp_path / "m.emmy", "--target", "sm_90a", "--target", "sm_80", env=env).well()
    made = load(tmp_path / "m.emmy")
    assert "1 kernel for sm_90a, sm_80" in said and set(made.cubins) == {"sm_90a", "sm_80"} and made.recipe is None
    assert Said("build", "-c", RMSNORM, "-o", tmp_path / "k.emmy", env=env).well()
    assert load(tmp_path / "k.emmy").meta["case"] == RMSNORM


# -- rules and explain ----------------------------------------------------------------------------------------------
def test_rules_lists_every_rule_once() -> None:
    listed = [line.split()[0] for line in Said("rules").well().splitlines()[1:] if line[0] != " "]
    written = [name for file in sorted((ROOT / "rules").glob("[lt]*/*.egg")) for name in re.findall(r':name "([^"]+)"', file.read_text())]
    assert sorted(listed) == sorted(written) and len(set(listed)) > 50


def test_rules_of_a_phase() -> None:
    lines = Said("rules", "--phase", "algebra").well().splitlines()
    assert len(lines) > 3 and all("algebra" in line for line in lines[1:])
    assert "sum_a x*y = x * sum_a y where x does not depend on a" in lines[1]


def test_what_a_rule_says() -> None:
    text = '''; the file

; what it means,
; in two lines
(rewrite (A x) x :ruleset p-real :name "one")   ; not this
(relation r (String))
(rewrite (B "; (" x) (C x) :when ((= x x)) :ruleset q-exact :name "two")
(rule ((= v (D a)) (r b)) ((union v a)) :ruleset q-exact :name "three")
'''
    assert list(rules.read("f", text)) == [rules.Rule("one", "f", "p", "real", "what it means, in two lines"),
                                           rules.Rule("two", "f", "q", "exact", '(B "; (" x) = (C x)'),
                                           rules.Rule("three", "f", "q", "exact", "(= v (D a)) (r b) => (union v a)")]


def test_explain() -> None:
    text = Said("explain", "-c", RMSNORM, "--rows", "3").well()
    rows = [line for line in text.splitlines() if "WORK=" in line]
    assert re.search(r"^fuse +exact +[1-9]", text, re.M) and "kernel fold_" in text and re.search(r"\d+ legal rows", text)
    assert len(rows) == 3 and rows[0].startswith("*"), "the chosen row is the fastest"
    assert [float(line.split()[-2]) for line in rows] == sorted(float(line.split()[-2]) for line in rows)


# -- bad input ------------------------------------------------------------------------------------------------------
def assert_bad(said: Said, *words: str) -> None:
    """One message on stderr that names the thing and the remedy, exit code 2, no traceback."""
    assert (said.code, said.out) == (2, ""), (said.out, said.err, said.exception)
    assert said.err.startswith("error: ") and len(re.findall(r"^error: |^  remedy: ", said.err, re.M)) == 2 and "Traceback" not in said.err
    assert all(word in said.err for word in words), said.err


ADD = ("-c", "torch.randn(4, 4) + 1")
BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "syntax": (("compile", "-c", "x = torch.randn(4"), ("line 1", "never closed")),
    "raises": (("compile", "-c", "nonsense(3)"), ("NameError", "nonsense")),
    "no tensor": (("compile", "-c", "3"), ("int, not a tensor",)),
    "empty": (("compile", "-c", ""), ("no result",)),
    "operator": (("compile", "-c", "torch.sort(torch.randn(4))[0]"), ("aten.sort.default", "<snippet>:1: torch.sort")),
    "dtype": (("compile", "-c", "torch.randn(4, dtype=torch.complex64)"), ("torch.complex64",)),
    "target": (("compile", *ADD, "--target", "sm_70"), ("'sm_70'", "sm_90a")),
    "stage": (("compile", *ADD, "--ir", "ptx"), ("'ptx'", "torch, tensor, loop, tile, kernel, cuda")),
    "math": (("canon", *ADD, "--math", "loose"), ("'loose'", "exact, fast")),
    "device": (("run", *ADD, "--device", "tpu"), ("'tpu'", "numpy, simulate, cuda")),
    "cuda": (("run", *ADD, "--device", "cuda"), ("no GPU", "numpy")),
    "knob": (("compile", *ADD, "--knobs", "COLOUR=red", "--ir", "torch"), ("COLOUR=red", "WORK=")),
    "knob without value": (("run", *ADD, "--knobs", "WORK"), ("'WORK'",)),
    "illegal pin": (("compile", *ADD, "--knobs", "WORK=t4096"), ("WORK=t4096", "FitsThreads")),
    "pin of no row": (("compile", *ADD, "--knobs", "TILE=v3"), ("TILE=v3", "Divides")),
    "no file": (("compile", "absent.py:f"), ("absent.py",)),
    "no name": (("compile", "absent"), ("'absent' is not FILE.py:NAME",)),
    "nothing": (("compile",), ("no program is given", "-c SNIPPET")),
    "both": (("run", "f.py:f", *ADD), ("both a snippet and f.py:f",)),
    "no rule file": (("explain", *ADD, "--rules", "absent.egg"), ("absent.egg",)),
    "no bundle": (("run", "absent.emmy"), ("no bundle absent.emmy", "emmy build")),
    "no folder": (("compile", *ADD, "--ir", "torch", "-o", "absent/x.cu"), ("absent/x.cu",)),
    "no folder for a bundle": (("build", *ADD, "-o", "absent/x.emmy"), ("no folder absent",)),
    "phase": (("rules", "--phase", "lunch"), ("'lunch'", "algebra")),
    "no snippets": (("canon",), ("-c SNIPPET",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    words, named = BAD[case]
    assert_bad(Said(*words), *named)


def test_a_knob_of_the_environment_is_checked_too() -> None:
    assert_bad(Said("run", *ADD, env={"EMMY_KNOBS": "SHAPE=round"}), "SHAPE=round", "EMMY_KNOBS")


@pytest.mark.parametrize("text, named", [("(rewrite (Unary", "broken.egg"),
                                         ('(rewrite (Nothing x) x :ruleset algebra-real :name "n")', "Nothing")])
def test_a_broken_rule_file(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "broken.egg").write_text(text)
    assert_bad(Said("compile", *ADD, "--rules", tmp_path / "broken.egg"), named, f"mend {tmp_path / 'broken.egg'}")


def test_a_name_that_the_file_lacks(model: Path) -> None:
    assert_bad(Said("compile", f"{model}:minus"), "defines no minus", "plus")


@pytest.mark.parametrize("words", [("compile", *ADD, "--bogus"), ("frobnicate",), ("build", *ADD), ("explain", *ADD, "--rows", "many")])
def test_usage_errors(words: tuple[str, ...]) -> None:
    said = Said(*words)
    assert (said.code, said.out) == (2, "") and any(word in said.err for word in ("--bogus", "frobnicate", "-o", "--rows"))


def test_an_internal_failure_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr("emmy.cli.options.captured", fail)
    said = Said("compile", *ADD)
    assert said.code == 70 and said.err == ("internal failure: RuntimeError: the sky fell\n  remedy: please report it with the output of "
                                            "`emmy --debug …`, the command and its input\n")


def test_debug_shows_the_traceback() -> None:
    done = shell(sys.executable, "-m", "emmy", "--debug", "compile", *ADD, "--target", "sm_1")
    assert done.returncode == 1 and "Traceback" in done.stderr and "unknown target 'sm_1'" in done.stderr


def test_a_closed_pipe_is_no_failure() -> None:
    done = shell("bash", "-c", f"{sys.executable} -m emmy rules | head -1")
    assert done.stdout.startswith("rule") and "internal" not in done.stderr and "Traceback" not in done.stderr


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
