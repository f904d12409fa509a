"""Tables and plots of results in the documents: python -m benchmarks.report

A document asks for rows of a result between two comments, and this command writes them there:

    <!-- results h200/gemm: bf16 -->
    <!-- end -->

The words after the colon, if there are any, are a regular expression on "case dtype".  Where there are none, a plot of the rows
goes before the table: docs/images/h200-gemm.svg.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import typer

from emmy.view.dots import dots

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/families.md", "docs/performance.md")
BLOCK = re.compile(r"^(<!-- results ([\w/-]+)(?:: (.*?))? -->\n).*?^(<!-- end -->)$", re.M | re.S)
TUNED = {"tuned_us": "tuned"}
ALTERNATIVES = {"eager_us": "eager", "compile_us": "torch.compile", "max_autotune_us": "max-autotune"}
Row = dict[str, Any]


def rows(result: str, pattern: str, folder: Path) -> list[Row]:
    """The rows of a result whose "case dtype" the pattern matches, in the result's order."""
    found: list[Row] = json.loads((folder / f"{result}.json").read_text())["rows"]
    return [r for r in found if re.search(pattern, f"{r['case']} {r['dtype']}")]


def table(of: list[Row]) -> str:
    """Rows in Markdown: microseconds, and the best alternative over Emmy; a line with the geometric mean of the latter follows."""
    shown = {key: name for key, name in (TUNED | ALTERNATIVES).items() if any(key in r for r in of)}
    head = ["program", "dtype", "floor", "Emmy", *shown.values(), "best other / Emmy"]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "--:|" * (len(head) - 2)]
    for r in of:
        if "error" in r:
            lines.append(f"| {r['case']} | {r['dtype']} | {r['error']} |" + " |" * (len(head) - 3))
            continue
        ratio = "" if r.get("ratio") is None else f"{r['ratio']:.2f}"
        lines.append(f"| {' | '.join([r['case'], r['dtype'], *(number(r.get(k)) for k in ('floor_us', 'emmy_us', *shown)), ratio])} |")
    ratios = [r["ratio"] for r in of if r.get("ratio")]
    return "\n".join([*lines, "", f"Geometric mean of the last column over {len(ratios)} rows: {geometric_mean(ratios):.2f}."]) + "\n"


def plot(result: str, of: list[Row]) -> str:
    """An SVG of each row's time over Emmy's: that of the best alternative, and the floor where it is an eighth at least (where it is less,
    launching is what takes time)."""
    shares = {f"{r['case']} {r['dtype']}": (r.get("ratio"), r["floor_us"] / r["emmy_us"]) for r in of if "error" not in r}
    return dots({name: (ratio, share if share >= 1 / 8 else None) for name, (ratio, share) in shares.items()},
                ("best other / Emmy", "floor / Emmy"), result)


def number(us: float | None) -> str:
    """Three significant digits, without an exponent."""
    if us is None:
        return ""
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def drawn(result: str) -> str:
    """The name of a result's plot."""
    return f"{result.replace('/', '-')}.svg"


def written(text: str, folder: Path) -> str:
    """A document with its tables as the results in `folder` have them."""
    def block(m: re.Match[str]) -> str:
        whole = "" if m[3] else f"![Each row's floor and best alternative over Emmy's time](images/{drawn(m[2])})\n\n"
        return f"{m[1]}\n{whole}{table(rows(m[2], m[3] or '', folder))}\n{m[4]}"

    return BLOCK.sub(block, text)


def plots(text: str, folder: Path) -> dict[str, str]:
    """The plots that a document shows, by name."""
    return {drawn(m[2]): plot(m[2], rows(m[2], "", folder)) for m in BLOCK.finditer(text) if not m[3]}


def main(
    results: Annotated[Path, typer.Option(help="Folder of results, with a folder for each GPU.")] = ROOT / "benchmarks" / "results",
) -> None:
    """Write the tables and plots of all documents anew."""
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        path.write_text(written(text, results))
        for image, svg in plots(text, results).items():
            (ROOT / "docs" / "images" / image).write_text(svg)


if __name__ == "__main__":
    typer.run(main)
