from __future__ import annotations

import sys
import types

from benchmarks.build import build
from benchmarks.workloads import select
from emmy.errors import EmmyError


def test_a_failure_is_told_and_does_not_stop_the_build(tmp_path, monkeypatch):
    def build_bundle(source, path, target, math, runners):
        if "rms" in source.lower() and runners:
            raise EmmyError("nvcc refuses a row", "take another")
        if "softmax" in source:
            raise EmmyError("no rule covers softmax", "add one")
        if "LayerNorm" in source:
            raise KeyError("axis")
        path.write_text(f"{source} {target} {math}")

    monkeypatch.setitem(sys.modules, "emmy.pipeline", types.SimpleNamespace(build_bundle=build_bundle))
    (good,), (bad,), (broken,) = (select(f"^{name}-37x129-fp32$") for name in ("rmsnorm", "softmax", "layernorm"))
    assert build(good, tmp_path, "sm_80", "exact", 6)[0] == ""
    assert [p.read_text() for p in tmp_path.iterdir()] == [f"{good.snippet} sm_80 exact"]
    assert "no rule covers softmax" in build(bad, tmp_path, "sm_80", "exact", 6)[0]
    assert build(broken, tmp_path, "sm_80", "exact", 6)[0] == "KeyError: 'axis'"
