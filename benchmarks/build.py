"""Build the workloads' bundles, on a machine with nvcc and without a GPU: python -m benchmarks.build --output DIR --jobs 2"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.workloads import SUITES, Workload, select
from emmy.errors import EmmyError

CONSOLE = Console()


def build(workload: Workload, folder: Path, target: str, math: str, runners: int) -> tuple[str, float]:
    """Build one bundle, with `runners` further rows a kernel, or without them should one of them not compile: what went wrong ("" if
    nothing), and the seconds it took."""
    from emmy.pipeline import build_bundle

    started, problem = time.monotonic(), ""
    try:
        precision = "tf32" if workload.dtype == "tf32" else math
        build_bundle(workload.snippet, folder / f"{workload.stem}.emmy", target=target, math=precision, runners=runners)
    except EmmyError as error:
        if runners:
            return build(workload, folder, target, math, 0)
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return problem, time.monotonic() - started


def main(
    output: Annotated[Path, typer.Option(help="Folder for the bundles; made if absent.")],
    only: Annotated[str, typer.Option(help="Regular expression on the workloads' names.")] = "",
    suite: Annotated[str, typer.Option(help=f"{' or '.join(SUITES)}.")] = "spine",
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    target: Annotated[str, typer.Option(help="GPU architecture.")] = "sm_90a",
    math: Annotated[str, typer.Option(help="exact, fast or tf32.")] = "fast",
    runners: Annotated[int, typer.Option(help="Further rows of each kernel, to be measured beside the model's pick.", min=0)] = 0,
) -> None:
    """Build a bundle for every workload; exit 1 if any failed, the others built all the same."""
    if suite not in SUITES:
        raise typer.BadParameter(f"no suite is named {suite!r}; the suites are {', '.join(SUITES)}", param_hint="--suite")
    workloads = select(only, suite)
    if not workloads:
        raise typer.BadParameter(f"no workload matches {only!r}", param_hint="--only")
    output.mkdir(parents=True, exist_ok=True)
    failed = 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(build, w, output, target, math, runners): w for w in workloads}
        for done in track(as_completed(pending), "building", len(pending), console=CONSOLE):
            problem, seconds = done.result()
            failed += bool(problem)
            CONSOLE.print(f"{pending[done].stem}: {f'[red]{problem}' if problem else f'{seconds:.1f} s'}")
    size = sum(p.stat().st_size for p in output.glob("*.emmy"))
    CONSOLE.print(f"{len(workloads) - failed} of {len(workloads)} built; {size / 2**20:.1f} MiB in {output}")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
