from __future__ import annotations

from statistics import median

import pytest

from benchmarks.ranking import SUITE, correlation, judge, predictions, ranked
from emmy.tune.database import Measurement, read


def measured(row: str, us: float | None, predicted: float, identity: str = "k") -> Measurement:
    return Measurement(identity, "h200", "sm_90a", row, "c", "fast", "right" if us else "crash", us, predicted_us=predicted)


def test_a_kernel_is_ranked_by_its_rows() -> None:
    found = ranked("k", {"a": (1.0, 11.0), "b": (2.0, 10.0), "c": (3.0, 12.0), "d": (4.0, 500.0)})
    assert (found.rows, found.near, found.first_us, found.best_us, found.best_row) == (4, 3, 11.0, 10.0, "b")
    assert found.distance == pytest.approx(0.1) and found.correlation == pytest.approx(0.8) and found.correlation_near == pytest.approx(0.5)
    assert correlation([(1.0, 2.0)]) == 1.0


def test_todays_predictions_stand_in_for_those_kept_and_what_failed_is_left_out() -> None:
    rows = [measured("a", 5.0, 1.0), measured("b", 4.0, 2.0), measured("c", 3.0, 3.0), measured("d", None, 0.1),
            measured("e", 9.0, 9.0, "other")]
    kept, today = judge(rows, {}), judge(rows, {"k": ("softmax", {"a": 3.0, "b": 2.0, "c": 1.0})})
    assert [r.case for r in kept] == ["k", "other"] and kept[0].correlation == pytest.approx(-1)
    assert [r.case for r in today] == ["softmax", "other"] and today[0].correlation == pytest.approx(1) and today[0].first_us == 3.0


def test_the_kernels_of_a_file(tmp_path) -> None:     # noqa: ANN001
    path = tmp_path / "suite.py"
    path.write_text("import torch\ndef one():\n    return torch.randn(8, 64).softmax(-1)\n")
    ((case, rows),) = predictions(path).values()
    assert case == "one" and len(rows) > 40 and min(rows.values()) > 0


def test_the_model_ranks_what_was_measured_on_an_h200() -> None:
    """Of every legal row of five programs: rank correlation 0.8 in the median; the model's pick 10 % from the best in the median, 25 % at
    worst."""
    rows = read((SUITE.parent / "results" / "h200" / "rows.jsonl").read_text(), "rows.jsonl")
    found = judge(rows, predictions(SUITE))
    assert len(found) == 6 and sum(r.rows for r in found) > 300
    assert median(r.correlation for r in found) >= 0.8
    assert median(r.distance for r in found) <= 0.1 and max(r.distance for r in found) <= 0.25
