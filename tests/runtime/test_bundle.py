from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from typing import NamedTuple

import numpy as np
import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir.dtype import DTYPES, bf16, f32
from emmy.runtime import bundle
from tests.runtime.programs import two_kernels

REPORTS = {"sm_90a": {"add": {"registers": 12, "shared_bytes": 0, "spill_bytes": 0, "stack_bytes": 0}}}


def arrays(element=f32, shape=(3, 5)):
    x, w = np.linspace(-2, 2, 30).astype(element.numpy).reshape(2, *shape)
    total = x.astype(np.float64) + w.astype(np.float64)
    return {"inputs": {"x": x}, "weights": {"w": w}, "references": {"y": total**2, "z": total}}


def written(path, element=f32, **changes):
    given = {"reports": REPORTS, "meta": {"case": "square"}, **arrays(element), **changes}
    bundle.save(path, two_kernels(element=element), {"sm_90a": b"\x7fELF hopper", "sm_80": b"\x7fELF ampere"}, **given)
    return path


@pytest.mark.parametrize("element", DTYPES.values(), ids=str)
def test_round_trip(tmp_path, element):
    loaded, given = bundle.load(written(tmp_path / "k.emmy", element)), arrays(element)
    assert loaded.plan == two_kernels(element=element)
    assert loaded.cubins == {"sm_90a": b"\x7fELF hopper", "sm_80": b"\x7fELF ampere"}
    assert (loaded.reports, loaded.meta, loaded.recipe) == (REPORTS, {"case": "square"}, None)
    for group in bundle.GROUPS:
        for name, x in given[group].items():
            again = getattr(loaded, group)[name]
            assert again.dtype == x.dtype and again.tobytes() == x.tobytes()
    assert [p.name for p in tmp_path.iterdir()] == ["k.emmy"]


def test_equal_contents_give_equal_bytes(tmp_path):
    assert written(tmp_path / "a.emmy").read_bytes() == written(tmp_path / "b.emmy").read_bytes()


def test_torch_tensors_and_report_objects(tmp_path):
    class Report(NamedTuple):
        registers: int

    tensors = {g: {n: torch.from_numpy(x) for n, x in group.items()} for g, group in arrays().items()}
    tensors["inputs"]["x"] = tensors["inputs"]["x"].bfloat16()
    loaded = bundle.load(written(tmp_path / "k.emmy", reports={"sm_90a": {"add": Report(9)._asdict()}}, **tensors))
    assert loaded.inputs["x"].dtype == bf16.numpy and loaded.reports == {"sm_90a": {"add": {"registers": 9}}}
    inputs, weights, references, _ = loaded.example("cpu")
    assert torch.equal(inputs["x"], tensors["inputs"]["x"]) and torch.equal(weights["w"], tensors["weights"]["w"])
    assert references["y"].dtype is torch.float64


def test_the_recipe_stands_in_for_large_or_absent_arrays(tmp_path, monkeypatch):
    snippet = "torch.randn(3, 5) + 1"
    assert bundle.load(written(tmp_path / "small.emmy", recipe=snippet)).recipe is None
    monkeypatch.setattr(bundle, "ARRAY_LIMIT", 100)
    for changes in ({}, {"inputs": {}, "weights": {}, "references": {}}):
        loaded = bundle.load(written(tmp_path / "large.emmy", recipe=snippet, **changes))
        assert loaded.recipe == snippet and not (loaded.inputs or loaded.weights or loaded.references)


def test_a_recipe_gives_the_example_anew(tmp_path):
    snippet = "x = torch.randn(3, 5); w = nn.Parameter(torch.ones(3, 5)); t = x + w; y = t * t; (y, t, y)"
    path = written(tmp_path / "k.emmy", recipe=snippet, inputs={}, weights={}, references={})
    inputs, weights, references, program = bundle.load(path).example("cpu")
    t = inputs["x"].double() + weights["w"].double()
    assert torch.equal(references["z"], t) and torch.equal(references["y"], t * t) and program is not None
    assert torch.equal(bundle.load(path).example("cpu").inputs["x"], inputs["x"])


def test_arrays_must_be_complete(tmp_path):
    with pytest.raises(EmmyError, match="lacks 'x' among inputs"):
        written(tmp_path / "k.emmy", inputs={})
    assert not list(tmp_path.iterdir())


def rewritten(path, change):
    """The bundle with its manifest changed by `change`."""
    with zipfile.ZipFile(path) as old:
        files = {n: old.read(n) for n in old.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    with zipfile.ZipFile(path, "w") as new:
        for name, content in (files | {"manifest.json": json.dumps(manifest)}).items():
            new.writestr(name, content)


def test_newer_formats_are_refused(tmp_path):
    path = written(tmp_path / "k.emmy")
    rewritten(path, lambda m: m.update(format=bundle.FORMAT + 1))
    with pytest.raises(EmmyError, match=f"format {bundle.FORMAT + 1}.*up to {bundle.FORMAT}"):
        bundle.load(path)


@pytest.mark.parametrize("change", [lambda m: m.clear(), lambda m: m["targets"].append("sm_70"), lambda m: m["plan"].pop("launches"),
                                    lambda m: m["plan"]["buffers"].clear(),
                                    lambda m: m["data"]["arrays"]["inputs"]["x"].update(dtype="f99")])
def test_damaged_manifests(tmp_path, change):
    path = written(tmp_path / "k.emmy")
    rewritten(path, change)
    with pytest.raises(EmmyError, match="not a whole bundle"):
        bundle.load(path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_truncated_files(tmp_path, keep):
    path = written(tmp_path / "k.emmy")
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(EmmyError, match="k.emmy is not a whole bundle"):
        bundle.load(path)


def test_a_flipped_byte_is_noticed(tmp_path):
    path = written(tmp_path / "k.emmy")
    content = bytearray(path.read_bytes())
    content[content.index(b"arrays/weights/0.npy") + 40] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(EmmyError, match="not a whole bundle"):
        bundle.load(path)


def test_files_that_are_absent_or_folders(tmp_path):
    with pytest.raises(EmmyError, match="no bundle"):
        bundle.load(tmp_path / "absent.emmy")
    with pytest.raises(EmmyError, match="not a whole bundle"):
        bundle.load(tmp_path)


@pytest.mark.parametrize(("targets", "capability", "chosen"), [
    (("sm_80", "sm_90a"), (9, 0), "sm_90a"), (("sm_80", "sm_89"), (8, 9), "sm_89"), (("sm_80",), (8, 6), "sm_80"),
    (("sm_80", "sm_120"), (12, 0), "sm_120"), (("sm_90", "sm_90a"), (9, 0), "sm_90a")])
def test_code_for_a_gpu(targets, capability, chosen):
    assert bundle.pick(dict.fromkeys(targets), capability) == chosen


@pytest.mark.parametrize(("targets", "capability"), [
    (("sm_90a",), (8, 0)), (("sm_89",), (8, 6)), (("sm_80",), (9, 0)), (("sm_90a",), (9, 1)), ((), (9, 0))])
def test_no_code_for_a_gpu(targets, capability):
    with pytest.raises(EmmyError, match=f"{', '.join(targets) or 'no GPU'}.*sm_{capability[0]}{capability[1]}"):
        bundle.pick(dict.fromkeys(targets), capability)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU runs the bundle instead")
def test_running_without_a_gpu_says_so(tmp_path):
    with pytest.raises(EmmyError, match="no GPU"):
        bundle.load(written(tmp_path / "k.emmy")).run()


def test_loading_needs_neither_compiler_nor_torch(tmp_path):
    path = written(tmp_path / "k.emmy")
    code = (f"import sys; from emmy.runtime import bundle; b = bundle.load({str(path)!r}); print(b.plan.name); "
            "sys.exit([m for m in ('egglog', 'torch', 'cupy', 'emmy.egraph.rulebook') if m in sys.modules] or 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PATH": ""})
    assert (done.returncode, done.stdout) == (0, "square_of_sum\n"), done.stderr
