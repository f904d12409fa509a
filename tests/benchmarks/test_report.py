from __future__ import annotations

import json

import pytest

from benchmarks import report


@pytest.fixture
def folder(tmp_path):
    rows = [{"case": "softmax 4x4", "dtype": "bf16", "floor_us": 0.5, "emmy_us": 2.0, "eager_us": 4.0, "compile_us": 123.4, "ratio": 2.0},
            {"case": "linear 8x8x8", "dtype": "fp32", "floor_us": 10.0, "emmy_us": 12.34, "eager_us": 6.17, "ratio": 0.5},
            {"case": "linear 9x9x9", "dtype": "fp32", "error": "wrong"}]
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "suite.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def test_a_table_stands_between_its_comments_and_is_written_anew(folder):
    text = "before\n<!-- results gpu/suite -->\nold\n<!-- end -->\nafter\n<!-- results gpu/suite: bf16$ -->\n<!-- end -->\n"
    written = report.written(text, folder)
    assert written.startswith("before\n<!-- results gpu/suite -->\n\n| program") and "old" not in written and "\nafter\n" in written
    assert "| softmax 4x4 | bf16 | 0.50 | 2.00 | 4.00 | 123 | 2.00 |\n" in written and "| linear 9x9x9 | fp32 | wrong |" in written
    assert "| linear 8x8x8 | fp32 | 10.0 | 12.3 | 6.17 |  | 0.50 |" in written and "over 2 rows: 1.00." in written
    assert written.count("softmax 4x4") == 2 and written.count("linear 8x8x8") == 1 and report.written(written, folder) == written


@pytest.mark.parametrize("name", report.DOCUMENTS)
def test_documents_have_the_results_there_are(name):
    text = (report.ROOT / name).read_text()
    assert report.BLOCK.search(text) and report.written(text, report.ROOT / "benchmarks" / "results") == text, \
        "run python -m benchmarks.report"
