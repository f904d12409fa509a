"""The stored reports of machine code: products run on tensor cores, and nothing of theirs goes through local memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROWS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "sass.json").read_text())["rows"]
# operands that are computed, or gathered, on their way to shared memory take more registers than a thread has
SPILLING = {"conv_channels_first-32x56x56x64x64x3x1x1-bf16.emmy", "sdpa_paged-16x32x4x1x8192x128-bf16.emmy"}
UNITS = {"wgmma_": ("HGMMA", "QGMMA"), "mma_": ("HMMA", "QMMA")}


def on_tensor_cores() -> list[tuple[str, dict[str, int]]]:
    return [(atom[0], r) for r in ROWS if (atom := re.search(r"(?<=TILE=)w?g?mma_", r["row"]))]


def test_every_product_of_halves_is_there() -> None:
    assert {a for a, _ in on_tensor_cores()} == set(UNITS)
    assert sum(a == "wgmma_" for a, _ in on_tensor_cores()) > 50


@pytest.mark.parametrize(("atom", "row"), on_tensor_cores(), ids=[f"{r['bundle']}-{r['kernel']}" for _, r in on_tensor_cores()])
def test_products_are_tensor_cores_and_stay_in_registers(atom: str, row: dict[str, int]) -> None:
    assert sum(row.get(unit, 0) for unit in UNITS[atom]) > 0
    assert (row["bundle"] in SPILLING and atom == "mma_") == bool(row.get("LDL") or row.get("STL") or row["spill_bytes"])
