from __future__ import annotations

import json

import pytest

from benchmarks import report


@pytest.fixture
def folder(tmp_path):
    rows = [{"case": "softmax 4x4", "dtype": "bf16", "floor_us": 0.5, "emmy_us": 2.0, "eager_us": 4.0, "compile_us": 123.4, "ratio": 2.0},
            {"case": "linear 8x8x8", "dtype": "fp32", "floor_us": 10.0, "emmy_us": 12.34, "eager_us": 6.17, "ratio": 0.5},
            {"case": "linear 2x2x2", "dtype": "fp16", "floor_us": 0.02, "emmy_us": 2.0, "eager_us": 2.0, "ratio": 1.0},
            {"case": "linear 9x9x9", "dtype": "fp32", "error": "wrong"}]
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "suite.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def test_a_table_stands_between_its_comments_and_is_written_anew(folder):
    text = "before\n<!-- results gpu/suite -->\nold\n<!-- end -->\nafter\n<!-- results gpu/suite: bf16$ -->\n<!-- end -->\n"
    written = report.written(text, folder)
    assert written.startswith("before\n<!-- results gpu/suite -->\n\n![") and written.count("](images/gpu-suite.svg)\n\n| program") == 1
    assert "old" not in written and "\nafter\n" in written
    assert "| softmax 4x4 | bf16 | 0.50 | 2.00 | 4.00 | 123 | 2.00 |\n" in written and "| linear 9x9x9 | fp32 | wrong |" in written
    assert "| linear 8x8x8 | fp32 | 10.0 | 12.3 | 6.17 |  | 0.50 |" in written and "over 3 rows: 1.00." in written
    assert written.count("softmax 4x4") == 2 and written.count("linear 8x8x8") == 1 and report.written(written, folder) == written


def test_a_plot_has_a_dot_for_each_time_of_each_row_that_is_right(folder):
    text = "<!-- results gpu/suite -->\n<!-- end -->\n<!-- results gpu/suite: bf16$ -->\n<!-- end -->\n"
    (name, drawn), = report.plots(text, folder).items()
    assert name == "gpu-suite.svg" and "softmax 4x4 bf16: best other / Emmy 2.00" in drawn and "floor / Emmy 0.25" in drawn
    assert "linear 8x8x8 fp32: floor / Emmy 0.81" in drawn and "linear 2x2x2 fp16: best" in drawn
    assert "linear 2x2x2 fp16: floor" not in drawn and "9x9x9" not in drawn


@pytest.mark.parametrize("name", report.DOCUMENTS)
def test_documents_have_the_results_there_are(name):
    text, results = (report.ROOT / name).read_text(), report.ROOT / "benchmarks" / "results"
    assert report.BLOCK.search(text) and report.written(text, results) == text, "run python -m benchmarks.report"
    for image, svg in report.plots(text, results).items():
        assert (report.ROOT / "docs" / "images" / image).read_text() == svg, "run python -m benchmarks.report"
