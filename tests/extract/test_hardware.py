"""Every described GPU loads, and is found by its target."""

from __future__ import annotations

import dataclasses

import pytest

from extract import hardware


def test_the_described_gpus() -> None:
    assert hardware.names() == ["a100", "h200", "rtx4090", "rtx5090"]


@pytest.mark.parametrize("name", hardware.names())
def test_a_description_is_plausible(name: str) -> None:
    gpu = hardware.load(name)
    assert gpu.name == name
    assert hardware.for_target(gpu.target) is hardware.for_target(gpu.target.rstrip("a")) is gpu
    assert 0 < gpu.fp32_TFLOPs < gpu.tensor_bf16_TFLOPs
    assert 0 < gpu.sfu_TOPs < gpu.fp32_TFLOPs
    assert gpu.shared_bytes_per_block == gpu.shared_bytes_per_sm - 1024, "the driver keeps one KiB of each SM"
    ridge = gpu.tensor_bf16_TFLOPs / gpu.bandwidth_TBs
    assert 100 < ridge < 200, "operations a byte at which a matrix product stops being bound by memory"


def test_an_unknown_gpu_names_the_remedy() -> None:
    with pytest.raises(ValueError, match="extract/hardware/v100.toml"):
        hardware.load("v100")
    with pytest.raises(ValueError, match="sm_120, sm_80, sm_89, sm_90a"):
        hardware.for_target("sm_70")


def test_a_name_that_a_driver_gives() -> None:
    found = {said: hardware.named_like(said) for said in ("NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA T4")}
    assert list(found.values()) == ["h200", "rtx4090", "a100", "nvidiat4"]


def test_of_several_gpus_of_a_target_one_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(hardware.load("h200"), name="h100")
    known = {name: hardware.load(name) for name in hardware.names()} | {"h100": other}
    monkeypatch.setattr(hardware, "names", lambda: sorted(known))
    monkeypatch.setattr(hardware, "load", known.__getitem__)
    monkeypatch.setenv("EMMY_GPU", "h200")
    assert hardware.for_target("sm_90a").name == "h200" and hardware.for_target("sm_80").name == "a100"
    monkeypatch.delenv("EMMY_GPU")
    assert hardware.for_target("sm_90a").name == "h100"
