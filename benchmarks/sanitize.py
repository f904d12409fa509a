"""Kernels under NVIDIA's compute-sanitizer: a small program of each family, with one row of each kind.

    python -m benchmarks.sanitize build --output DIR                    # where there is nvcc
    python -m benchmarks.sanitize run --bundles DIR --output FILE.json  # where there is a GPU and compute-sanitizer
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from emmy.errors import EmmyError

CONSOLE = Console()
APP = typer.Typer(add_completion=False)
TOOLS = "memcheck", "racecheck", "initcheck", "synccheck"
WITHOUT_MAPS = frozenset({"racecheck"})     # on kernels with tensor maps it ends without a report
KINDS = 40      # rows of different kinds that a kernel has at most
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
QKV = "q, k, v = (torch.randn(1, 2, 72, 64{0}) for _ in range(3)); F.scaled_dot_product_attention(q, k, v{1})"
HALF = ", dtype=torch.bfloat16"
LAYERS = f"x, w, e = torch.randn(140, 264{HALF}), torch.randn(5, 272, 264{HALF}), torch.tensor({{0}}); torch.einsum('mk,mnk->mn', x, w[e])"
SNIPPETS = {
    "map": "torch.exp(-torch.randn(37, 64))", "turned": "torch.randn(70, 40).t() + torch.randn(40, 70)",
    "softmax": "torch.randn(40, 256).softmax(-1)", "odd-softmax": "torch.randn(5, 37).softmax(-1)",
    "norm": f"nn.RMSNorm(512{HALF})(torch.randn(24, 512{HALF}))", "columns": "torch.randn(64, 72).softmax(0)",
    "argmax": "torch.randn(33, 200).argmax(-1)", "variance": "torch.randn(16, 300).var(-1)", "sum": f"torch.randn(70000{HALF}).sum()",
    "scan": "torch.randn(3, 700).cumsum(-1)", "several": "x, y = torch.randn(8, 64), torch.randn(8, 64); (x.exp(), y.sum(-1))",
    "product": "torch.randn(72, 64) @ torch.randn(64, 80)", "odd-product": "torch.randn(33, 7) @ torch.randn(7, 9)",
    "half-product": f"torch.randn(200, 136{HALF}) @ torch.randn(136, 264{HALF})",
    "few-tiles": f"torch.randn(16, 1024{HALF}) @ torch.randn(1024, 256{HALF})",
    "layers": LAYERS.format("[m // 30 for m in range(140)]"), "layers-in-disorder": LAYERS.format("[m % 5 for m in range(140)]"),
    "long-scan": "torch.randn(1, 70000).cumsum(-1)", "pooling": f"F.adaptive_avg_pool2d(torch.randn(3, 40, 7, 7{HALF}), 1)",
    "attention": QKV.format("", ""), "half-attention": QKV.format(HALF, ""), "causal": QKV.format(HALF, ", is_causal=True")}

Bundles = Annotated[Path, typer.Option(help="Folder of bundles.", exists=True, file_okay=False)]


@APP.command()
def build(output: Annotated[Path, typer.Option(help="Folder for the bundles; made if absent.")],
          target: Annotated[str, typer.Option(help="GPU architecture.")] = "sm_90a") -> None:
    """Build a bundle for every program."""
    from emmy.pipeline import compile_snippet, write_bundle

    output.mkdir(parents=True, exist_ok=True)
    for name, snippet in track(SNIPPETS.items(), "building", console=CONSOLE):
        write_bundle(compile_snippet(snippet, target), output / f"{name}.emmy", [target], snippet, KINDS, distinct=True)


@APP.command()
def once(bundles: Bundles, maps: Annotated[bool, typer.Option(help="Also rows whose tiles the copy engine moves.")] = True) -> None:
    """Run every bundle with each of its rows once, and print what was run and which numbers are wrong, as JSON."""
    import torch

    from emmy.evaluate.error import judge
    from emmy.runtime.bundle import load
    from emmy.runtime.launch import cuda_device

    ran: dict[str, list[str]] = {}
    wrong: list[str] = []
    device = cuda_device()
    for path in sorted(bundles.glob("*.emmy")):
        bundle = load(path)
        example, own = bundle.example(device), bundle.plan.launches
        instead = [(*own[:k], x, *own[k + 1:]) for k, those in enumerate(bundle.runners) for x in those]
        for launches in (own, *instead):
            if not maps and any(x.maps for x in launches):
                continue
            run = bundle.executable(example.weights, device, launches)
            found = run(*(example.inputs[n] for n in bundle.plan.inputs), out=run.poisoned())
            torch.cuda.synchronize()
            row = " | ".join(x.row for x in launches)
            ran.setdefault(path.stem, []).append(row)
            verdicts = (judge(x, example.references[n], None, bundle.plan.buffer(n).element, bundle.plan.math)
                        for n, x in zip(bundle.plan.outputs, found, strict=True))
            wrong += [f"{path.stem}: {row}" for v in verdicts if not v.right]
    print(json.dumps({"ran": ran, "wrong": wrong}))


@APP.command()
def run(bundles: Bundles, output: Annotated[Path, typer.Option(help="JSON file to write; its folder is made.")],
        tools: Annotated[str, typer.Option(help="Those to run, with commas between.")] = ",".join(TOOLS),
        timeout: Annotated[float, typer.Option(help="Seconds for each.")] = 300) -> None:
    """Run every bundle under each tool; exit 1 if one finds a fault."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    report: dict[str, Any] = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    for tool in tools.split(","):
        program = [sys.executable, "-m", "benchmarks.sanitize", "once", "--bundles", str(bundles)]
        report[tool] = checked([sanitizer, "--tool", tool, *program, *(["--no-maps"] if tool in WITHOUT_MAPS else [])], timeout)
        output.write_text(json.dumps(report, indent=1) + "\n")
        said = report[tool]
        CONSOLE.print(f"{tool}: {said['errors']} errors, {said['rows']} rows, {said['seconds']:.0f} s", highlight=False)
    raise typer.Exit(any(r["errors"] != 0 or r["wrong"] for r in report.values()))


def checked(command: list[str], timeout: float) -> dict[str, Any]:
    """What a tool says of a run: its number of `errors` (None if it did not end), `wrong` numbers, the rows run, and the beginning of its
    report."""
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        said = done.stdout + done.stderr
    except FileNotFoundError as error:
        raise EmmyError(f"there is no {command[0]}", "install NVIDIA's compute-sanitizer, which CUDA's toolkit has") from error
    except subprocess.TimeoutExpired as error:
        said = "".join(x.decode() if isinstance(x, bytes) else x or "" for x in (error.stdout, error.stderr))
    summary = SUMMARY.findall(said)
    ran = next((json.loads(line) for line in said.splitlines() if line.startswith('{"ran"')), {"ran": {}, "wrong": []})
    reported = [line for line in said.splitlines() if line.startswith("=====") and "COMPUTE-SANITIZER" not in line]
    return {"errors": sum(int(a or b) for a, b in summary) if summary else None, "wrong": ran["wrong"],
            "rows": sum(map(len, ran["ran"].values())), "programs": {name: len(rows) for name, rows in ran["ran"].items()},
            "seconds": round(time.monotonic() - started, 1), "report": reported[:60] if summary else said.splitlines()[-20:]}


if __name__ == "__main__":
    APP()
