"""Calibration with a GPU that a test makes up."""

from __future__ import annotations

import dataclasses
import datetime
import tomllib
import types
from collections.abc import Iterator

import pytest

from emmy.errors import EmmyError
from emmy.runtime import rates
from emmy.tune.calibrate import Step, beside, measured, short, steps, text
from extract.hardware import Hardware

PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=60 << 20, shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates without a GPU."""
    for name, value in (("copy_TBs", 4.2345), ("fma_TFLOPs", 61.2), ("special_TOPs", 4.17), ("launch_us", 1.312)):
        monkeypatch.setattr(rates, name, lambda value=value: value)
    monkeypatch.setattr(rates, "product_TFLOPs", lambda dtype: {"float32": 384.0, "bfloat16": 666.0, "float8_e4m3fn": 1250.0}[dtype])


def test_every_field_is_measured_in_turn_and_has_three_digits(quick: None) -> None:
    told: list[str] = []
    gpu = measured("h200", PROPERTIES, watch=told.append)
    required = [f.name for f in dataclasses.fields(Hardware) if f.default is dataclasses.MISSING]
    assert ["name", *told] == required, "what has no default is found"
    assert (gpu.bandwidth_TBs, gpu.l2_MB, gpu.launch_us, gpu.target, gpu.sms) == (4.23, 62.9, 1.31, "sm_90a", 132)


def test_targets_and_units_that_a_gpu_lacks(quick: None) -> None:
    older = types.SimpleNamespace(**vars(PROPERTIES) | {"major": 8, "minor": 0})
    gpu = measured("a100", older)
    assert (gpu.target, gpu.tensor_fp8_TFLOPs) == ("sm_80", 0)
    assert measured("x", types.SimpleNamespace(**vars(PROPERTIES) | {"major": 12, "minor": 0})).target == "sm_120"


def test_the_file_reads_back_and_says_where_it_is_from(quick: None) -> None:
    gpu = measured("h200", PROPERTIES)
    written = text(gpu, "NVIDIA H200", datetime.date(2026, 11, 30))
    assert Hardware(**tomllib.loads(written)) == gpu
    assert written.startswith("# NVIDIA H200.  Measured by emmy calibrate on 2026-11-30")


def test_another_gpu_stands_in(quick: None) -> None:
    def found(properties: object) -> Iterator[Step]:
        for field, find in steps(PROPERTIES):
            yield field, (lambda: 30.0) if field == "fp32_TFLOPs" else find

    gpu = measured("slow", None, found)
    assert gpu.fp32_TFLOPs == 30.0
    assert beside(gpu)["fp32_TFLOPs"] == pytest.approx(0.5) and "sms" not in beside(gpu)
    assert beside(dataclasses.replace(gpu, target="sm_70")) == {}


def test_names() -> None:
    assert short("h100-pcie_80") == "h100-pcie_80"
    for bad in ("", "a/b", "x.y", "a b"):
        with pytest.raises(EmmyError, match="no name for a GPU's file"):
            short(bad)
